//! `verbena run --check`: the calls of a program are told to a [`check::Checker`], and what is
//! wrong is said on standard error.
//!
//! | module | what |
//! |---|---|
//! | `site` | where in the program a call is: its return addresses, and their names |
//! | `recent` | places of calls that a thread makes again and again |
//! | [`objects`] | objects made and destroyed: called by the functions that do so |
//! | [`calls`] | posting and polling, in place of the plain functions in a context's table |
//! | [`steps`] | the same for requests built, and completions taken, step by step |
//! | [`events`] | events asked for, taken and waited for |
//! | [`taken`] | the calls that were handed events |
//! | [`identifiers`] | identifiers and event channels of rdma_cm, made and destroyed |
//! | [`work_queues`] | receive work queues, and what is posted to them |
//! | [`refusals`] | calls that were refused, and why |
//! | `kept` | the memory of destroyed objects, which stays for a while |
//! | `ends` | what does not fit between a queue pair and its peer on this host |
//!
//! Without `VERBENA_CHECK` no context has these functions in its table, and those that make and
//! destroy objects look at one static.

pub(crate) mod calls;
mod ends;
pub(crate) mod events;
pub(crate) mod identifiers;
mod kept;
pub(crate) mod objects;
mod recent;
pub(crate) mod refusals;
mod site;
pub(crate) mod steps;
pub(crate) mod taken;
pub(crate) mod work_queues;

use std::alloc::Layout;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use check::objects::Handle;
use check::{Checker, Finding, Suppressions};
use linux::process;
use locks::{Mutex, Rank};
use sys::per_process::PerProcess;

use crate::ffi_guard;
use kept::{Kept, Memory};
use site::Place;

/// The exit code of a program with findings under `VERBENA_CHECK=error`, as LeakSanitizer's.
const FOUND: i32 = 23;
/// Bytes of the heap for what a call leaves with the checker, and for a finding.
const ROOM: usize = 1 << 20;

/// By what the calls of this process are checked.
struct Check {
    checker: Mutex<Checker<Place>>,
    /// The memory of destroyed objects.
    kept: Mutex<Kept>,
    /// Findings that are not told.
    suppressions: Suppressions,
    /// Whether a finding makes the program fail.
    is_error: bool,
    has_found: AtomicBool,
    /// Whether it has stopped, as the heap is at its end.
    has_stopped: AtomicBool,
    /// A file that each finding is appended to, as a line of JSON.
    json: Option<PathBuf>,
}

static CHECK: PerProcess<Option<Check>> = PerProcess::new(Check::from_environment);

impl Check {
    fn from_environment() -> Option<Self> {
        let wish = std::env::var_os("VERBENA_CHECK").filter(|_| !process::is_secure())?;
        let is_error = match wish.to_str() {
            Some("on") => false,
            Some("error") => true,
            _ => {
                eprintln!("verbena: VERBENA_CHECK: '{}' is neither on nor error", wish.display());
                return None;
            }
        };
        // The linker leaves out what nothing refers to.
        std::hint::black_box(&AT_LAST);
        watch_forks();
        let json = std::env::var_os("VERBENA_CHECK_JSON").filter(|file| !file.is_empty());
        Some(Self {
            checker: Mutex::new(Rank::Checked, Checker::default()),
            kept: Mutex::new(Rank::Kept, Kept::default()),
            suppressions: suppressions(),
            is_error,
            has_found: AtomicBool::new(false),
            has_stopped: AtomicBool::new(false),
            json: json.map(PathBuf::from),
        })
    }

    /// Tells of findings; under the checker's lock, so that one is told after the other.
    fn tell(&self, findings: &[Finding<Place>]) {
        for finding in findings.iter().filter(|finding| !self.suppressions.has(finding)) {
            self.has_found.store(true, Ordering::Relaxed);
            say(&format!("process {}: {finding}", std::process::id()));
            let Some(file) = &self.json else { continue };
            let mut json = finding.to_json();
            json["pid"] = std::process::id().into();
            json["program"] =
                std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().into();
            let opened = OpenOptions::new().append(true).create(true).open(file);
            // The finding has been said: a file that cannot be written loses no more.
            let _ = opened.and_then(|mut file| file.write_all(format!("{json}\n").as_bytes()));
        }
    }
}

/// The suppressions of the file that the environment names. `verbena run` has read it before.
fn suppressions() -> Suppressions {
    let Some(file) = std::env::var_os("VERBENA_CHECK_SUPPRESSIONS").filter(|file| !file.is_empty()) else {
        return Suppressions::default();
    };
    let parsed = std::fs::read_to_string(&file)
        .map_err(|error| error.to_string())
        .and_then(|text| Suppressions::parse(&text).map_err(|bad| bad.to_string()));
    parsed.unwrap_or_else(|why| {
        say(&format!("VERBENA_CHECK_SUPPRESSIONS: {}: {why}\n", file.display()));
        Suppressions::default()
    })
}

/// Has the checker hear of forks, in this process and its children.
fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that lives as long as the process, as the object is linked with
        // -z nodelete.
        unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
    }
}

unsafe extern "C" fn before_fork() {
    note(|checker, site| checker.forking(site));
}

/// Writes to standard error. Not by `eprintln`, which takes a lock: this is called at exit, too.
fn say(text: &str) {
    let text = format!("verbena: {text}");
    // SAFETY: bytes of ours.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Whether calls are checked.
pub(crate) fn is_on() -> bool {
    CHECK.get().is_some()
}

/// Asks the checker for something that no finding follows from. `None` where calls are not checked.
fn look<T>(f: impl FnOnce(&mut Checker<Place>) -> T) -> Option<T> {
    let check = CHECK.get().as_ref()?;
    let is_told = !check.has_stopped.load(Ordering::Relaxed);
    is_told.then(|| f(&mut check.checker.lock()))
}

/// Tells the checker of the call that the program is in, and says where that is for [`note_at`].
/// Nothing where calls are not checked.
fn note(tell: impl FnOnce(&mut Checker<Place>, &Place) -> Vec<Finding<Place>>) -> Option<Place> {
    let check = CHECK.get().as_ref()?;
    let mut found = None;
    ffi_guard::nothing(|| {
        // What it did not hear of would look like a mistake later.
        if process::room(ROOM).is_err() && !check.has_stopped.swap(true, Ordering::Relaxed) {
            say("check: stopped, the heap is at its end\n");
        }
        if check.has_stopped.load(Ordering::Relaxed) {
            return;
        }
        let place = found.insert(Place::here());
        let mut checker = check.checker.lock();
        check.tell(&tell(&mut checker, place));
    });
    found
}

/// Tells the checker more of a call whose place is known.
fn note_at(place: &Place, tell: impl FnOnce(&mut Checker<Place>, &Place) -> Vec<Finding<Place>>) {
    if let Some(check) = CHECK.get().as_ref().filter(|check| !check.has_stopped.load(Ordering::Relaxed)) {
        ffi_guard::nothing(|| {
            let mut checker = check.checker.lock();
            check.tell(&tell(&mut checker, place));
        });
    }
}

/// Takes an object out of the memory that it has from `Box::into_raw`. What it was is said where it
/// is used later.
///
/// # Safety
///
/// From `Box::into_raw`, and no thread uses it any more.
pub(crate) unsafe fn take<T>(object: *mut T, kind: &'static str) -> T {
    let Some(check) = CHECK.get() else {
        // SAFETY: as the caller says.
        return *unsafe { Box::from_raw(object) };
    };
    // SAFETY: as the caller says; the bytes that are left are never dropped.
    let value = unsafe { object.read() };
    keep(check, handle(object), Memory::Owned(Layout::new::<T>()), kind);
    value
}

/// Keeps the memory of an object that is counted. What it was is said where it is used later.
pub(crate) fn keep_counted<T: Send + Sync + 'static>(object: &Arc<T>, kind: &'static str) {
    if let Some(check) = CHECK.get() {
        let share: Weak<T> = Arc::downgrade(object);
        let memory = Memory::Counted { _share: share };
        keep(check, Arc::as_ptr(object).expose_provenance() as Handle, memory, kind);
    }
}

fn keep(check: &Check, object: Handle, memory: Memory, kind: &'static str) {
    let oldest = check.kept.lock().keep(object, memory);
    note(|checker, site| {
        oldest.into_iter().for_each(|oldest| checker.forgotten(oldest));
        checker.destroyed(object, kind, site);
        Vec::new()
    });
}

/// The name of an object for the checker.
fn handle<T>(object: *mut T) -> Handle {
    object.expose_provenance() as Handle
}

/// Tells of the objects that are left when the program ends, and ends it with [`FOUND`].
extern "C" fn at_last() {
    let leave = || {
        let _leaving = process::Leaving::begin();
        let Some(check) = CHECK.get() else { return };
        // Another thread may hold the lock for ever.
        let has_stopped = check.has_stopped.load(Ordering::Relaxed);
        if let Some(mut checker) = check.checker.try_lock().filter(|_| !has_stopped) {
            check.tell(&checker.leaks());
        }
        if check.is_error && check.has_found.load(Ordering::Relaxed) {
            // SAFETY: what the program has written to its streams, then its end.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(FOUND);
            }
        }
    };
    if std::panic::catch_unwind(leave).is_err() {
        process::fail();
    }
}

// SAFETY: the section holds functions of this type, which the dynamic linker calls at exit, behind
// the exit handlers of the program (ELF gABI, "Initialization and Termination Functions"); this one
// lives as long as the process.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_LAST: extern "C" fn() = at_last;
