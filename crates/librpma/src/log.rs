//! What the library says (rpma_log_set_threshold(3), rpma_log_set_function(3)). A message up to the
//! main threshold goes to the program's function; where it has given none, to syslog(3), and to
//! stderr up to the auxiliary threshold.
//!
//! A message is made in a buffer on the stack, so that it is told of also where there is no memory,
//! and is cut off at its end. Nothing is done for one beyond the threshold. syslog(3) is called as
//! the program has set it up: the library calls no openlog(3), which is the process's.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Write};
use std::panic::Location;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::codes::{INVAL, Result, answer, require};
use crate::object::put;

/// How much a message matters (`enum rpma_log_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Level {
    /// What fails.
    Error = 1,
    /// What the program may want to change.
    Warning = 2,
    /// Connections come and go.
    Notice = 3,
}

/// RPMA_LOG_DISABLED and RPMA_LOG_LEVEL_DEBUG.
const DISABLED: c_int = -1;
const DEBUG: c_int = 5;

/// RPMA_LOG_THRESHOLD and RPMA_LOG_THRESHOLD_AUX.
static MAIN: AtomicI32 = AtomicI32::new(Level::Warning as c_int);
static AUX: AtomicI32 = AtomicI32::new(DISABLED);

/// A logging function of the program's (`rpma_log_function`): level, file, line, function, format,
/// arguments.
type Function = unsafe extern "C" fn(c_int, *const c_char, c_int, *const c_char, *const c_char, ...);

/// The program's, or NULL: a [`Function`] as an address.
static FUNCTION: AtomicPtr<()> = AtomicPtr::new(null_mut());

fn threshold(which: c_int) -> Result<&'static AtomicI32> {
    match which {
        0 => Ok(&MAIN),
        1 => Ok(&AUX),
        _ => Err(INVAL),
    }
}

/// rpma_log_set_threshold(3).
pub extern "C" fn rpma_log_set_threshold(which: c_int, level: c_int) -> c_int {
    let set = |threshold: &AtomicI32| {
        require((DISABLED..=DEBUG).contains(&level))?;
        threshold.store(level, Ordering::Relaxed);
        Ok(())
    };
    answer(threshold(which).and_then(set))
}

/// rpma_log_get_threshold(3).
pub unsafe extern "C" fn rpma_log_get_threshold(which: c_int, level: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    answer(threshold(which).and_then(|threshold| unsafe { put(level, threshold.load(Ordering::Relaxed)) }))
}

/// rpma_log_set_function(3). RPMA_E_AGAIN does not come: there is one store.
pub extern "C" fn rpma_log_set_function(function: Option<Function>) -> c_int {
    FUNCTION.store(function.map_or(null_mut(), |function| function as *mut ()), Ordering::Release);
    0
}

/// A text on the stack that ends in a zero byte; what does not fit is left out.
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    fn of(text: fmt::Arguments<'_>) -> Self {
        let mut made = Self { bytes: [0; N], len: 0 };
        // It never fails: what does not fit is left out.
        let _ = made.write_fmt(text);
        made
    }
    fn as_c(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte stays zero.
        let room = self.bytes.get_mut(self.len..N.saturating_sub(1)).unwrap_or(&mut []);
        let fits = text.len().min(room.len());
        for (to, from) in room.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.len = self.len.saturating_add(fits);
        Ok(())
    }
}

/// A message from a place in this library, in a call of `function`.
pub fn say(level: Level, at: &Location<'_>, function: &'static CStr, text: fmt::Arguments<'_>) {
    let number = level as c_int;
    if number > MAIN.load(Ordering::Relaxed) {
        return;
    }
    let errno = crate::codes::errno();
    let text = Text::<1024>::of(text);
    let line = c_int::try_from(at.line()).unwrap_or(c_int::MAX);
    let file = Text::<256>::of(format_args!("{}", at.file()));
    let program = FUNCTION.load(Ordering::Acquire);
    if program.is_null() {
        default(level, &file, line, function, &text);
    } else {
        // SAFETY: only functions of this type are stored.
        let program = unsafe { std::mem::transmute::<*mut (), Function>(program) };
        // SAFETY: strings that end in zero bytes and stay until it returns. The message is an
        // argument, and so may hold a percent sign.
        unsafe { program(number, file.as_c(), line, function.as_ptr(), c"%s".as_ptr(), text.as_c()) };
    }
    crate::codes::set_errno(errno);
}

/// A message that tells of the normal course of things.
#[track_caller]
pub fn notice(function: &'static CStr, text: fmt::Arguments<'_>) {
    say(Level::Notice, Location::caller(), function, text);
}

/// A message that tells why a function fails.
#[track_caller]
pub fn error(function: &'static CStr, text: fmt::Arguments<'_>) {
    say(Level::Error, Location::caller(), function, text);
}

/// syslog(3), and stderr.
fn default(level: Level, file: &Text<256>, line: c_int, function: &CStr, text: &Text<1024>) {
    let (priority, name) = match level {
        Level::Error => (libc::LOG_ERR, "ERROR"),
        Level::Warning => (libc::LOG_WARNING, "WARNING"),
        Level::Notice => (libc::LOG_NOTICE, "NOTICE"),
    };
    // SAFETY: strings that end in zero bytes.
    unsafe { libc::syslog(priority, c"librpma: %s: %s".as_ptr(), function.as_ptr(), text.as_c()) };
    if level as c_int > AUX.load(Ordering::Relaxed) {
        return;
    }
    let shown = |bytes| str::from_utf8(bytes).unwrap_or("?");
    let whole = Text::<1536>::of(format_args!(
        "librpma: {name}: {}:{line}: {}: {}\n",
        shown(file.as_bytes()),
        shown(function.to_bytes()),
        shown(text.as_bytes())
    ));
    let bytes = whole.as_bytes();
    // SAFETY: so many bytes are there. One call, so that lines of several threads do not mix; a
    // failure has no caller to tell.
    unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_off_before_its_zero_byte() {
        let text = Text::<8>::of(format_args!("{}{}", "12345", "6789"));
        assert_eq!(text.as_bytes(), b"1234567");
        assert_eq!(text.bytes.last(), Some(&0));
    }

    #[test]
    fn thresholds_and_levels_beyond_the_last_are_refused() {
        assert_eq!(rpma_log_set_threshold(2, 0), INVAL.0);
        assert_eq!(rpma_log_set_threshold(-1, 0), INVAL.0);
        assert_eq!(rpma_log_set_threshold(1, DEBUG.wrapping_add(1)), INVAL.0);
        assert_eq!(rpma_log_set_threshold(1, DISABLED - 1), INVAL.0);
        let mut level = 7;
        // SAFETY: room for a level.
        assert_eq!(unsafe { rpma_log_get_threshold(1, &raw mut level) }, 0);
        assert_eq!(level, DISABLED);
    }
}
