//! How functions fail: librpma.h's codes, their texts (rpma_err_2str(3)), and an errno of what was
//! called as a code and a message.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use crate::log;

/// A code of librpma.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

/// What is asked of a function, or why not.
pub type Result<T> = std::result::Result<T, Code>;

/// RPMA_E_UNKNOWN.
pub const UNKNOWN: Code = Code(-100_000);
/// RPMA_E_NOSUPP.
pub const NOSUPP: Code = Code(-100_001);
/// RPMA_E_PROVIDER.
pub const PROVIDER: Code = Code(-100_002);
/// RPMA_E_NOMEM.
pub const NOMEM: Code = Code(-100_003);
/// RPMA_E_INVAL.
pub const INVAL: Code = Code(-100_004);
/// RPMA_E_NO_COMPLETION.
pub const NO_COMPLETION: Code = Code(-100_005);
/// RPMA_E_NO_EVENT.
pub const NO_EVENT: Code = Code(-100_006);
/// RPMA_E_AGAIN.
pub const AGAIN: Code = Code(-100_007);
/// RPMA_E_SHARED_CHANNEL.
pub const SHARED_CHANNEL: Code = Code(-100_008);
/// RPMA_E_NOT_SHARED_CHNL.
pub const NOT_SHARED_CHNL: Code = Code(-100_009);

/// rpma_err_2str(3).
pub extern "C" fn rpma_err_2str(ret: c_int) -> *const c_char {
    let text = match Code(ret) {
        Code(0) => c"Success",
        NOSUPP => c"Not supported",
        PROVIDER => c"Provider error occurred",
        NOMEM => c"Out of memory",
        INVAL => c"Invalid argument",
        NO_COMPLETION => c"No next completion available",
        NO_EVENT => c"No next event available",
        AGAIN => c"Temporary error, try again",
        SHARED_CHANNEL => c"Completion channel is shared",
        NOT_SHARED_CHNL => c"Completion channel is not shared",
        _ => c"Unknown error",
    };
    text.as_ptr()
}

/// What a function returns to C.
pub fn answer(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(code) => code.0,
    }
}

/// `INVAL` where something is not so.
pub fn require(so: bool) -> Result<()> {
    if so { Ok(()) } else { Err(INVAL) }
}

/// This thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the address is this thread's own errno, valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

/// An errno with its text, in messages.
struct Errno(c_int);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: a string that stays, for every number (strerrordesc_np would be NULL for some).
        let text = unsafe { CStr::from_ptr(libc::strerror(self.0)) };
        f.write_str(text.to_str().unwrap_or("an errno without a text"))
    }
}

/// A call that failed, with its errno: `PROVIDER`, after a message that names it.
#[track_caller]
pub fn failed(function: &'static CStr, call: &str, errno: c_int) -> Code {
    log::error(function, format_args!("{call} failed: {}", Errno(errno)));
    PROVIDER
}

/// Of what returns 0, or -1 and sets errno.
#[track_caller]
pub fn number(function: &'static CStr, call: &str, result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(failed(function, call, errno())) }
}

/// Of what returns 0, or an errno.
#[track_caller]
pub fn errno_of(function: &'static CStr, call: &str, result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(failed(function, call, result)) }
}

/// Of what returns an object, or NULL and sets errno.
#[track_caller]
pub fn made<T>(function: &'static CStr, call: &str, object: *mut T) -> Result<*mut T> {
    if object.is_null() { Err(failed(function, call, errno())) } else { Ok(object) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_text_and_others_are_unknown() {
        // SAFETY: a string that stays.
        let text = |code| unsafe { CStr::from_ptr(rpma_err_2str(code)) }.to_str().unwrap();
        assert_eq!(text(0), "Success");
        assert_eq!(text(UNKNOWN.0), "Unknown error");
        assert_eq!(text(NOT_SHARED_CHNL.0), "Completion channel is not shared");
        assert_eq!([text(1), text(-1), text(-100_010)], ["Unknown error"; 3]);
    }
}
