//! Where in a program a call is.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::{without_provenance, without_provenance_mut};
use std::sync::Arc;

use check::Site;

/// Frames of a call that are kept.
const FRAMES: usize = 32;

/// The return addresses of a call, the innermost first. Names are looked up when it is printed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place(Arc<[usize]>);

impl Place {
    /// Where the calling thread is, from the frame that called this shared object on.
    pub(super) fn here() -> Self {
        let mut frames = Vec::with_capacity(FRAMES);
        let own = object_of(Self::here as fn() -> Self as usize);
        // SAFETY: the unwinder of the C library's compiler keeps nothing between calls.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                let address = frame.ip().addr();
                if !frames.is_empty() || object_of(address) != own {
                    frames.push(address);
                }
                frames.len() < FRAMES
            });
        }
        Self(frames.into())
    }

    /// Lines of the frames up to `main`.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for &address in self.0.iter().filter(|address| **address != 0) {
            let mut names = Vec::new();
            let tell = |symbol: &backtrace::Symbol| {
                names.extend(symbol.name().map(|name| {
                    let place = match (symbol.filename(), symbol.lineno()) {
                        (Some(file), Some(line)) => format!("{}:{line}", last_part(file)),
                        _ => place_in_object(address),
                    };
                    (format!("{name:#}"), place)
                }));
            };
            // A return address is behind its call.
            let call = without_provenance_mut(address.wrapping_sub(1));
            // SAFETY: the caller has the lock of the process's one checker.
            unsafe { backtrace::resolve_unsynchronized(call, tell) };
            if names.is_empty() {
                names.push(("unknown function".to_owned(), place_in_object(address)));
            }
            // What is around `main`, and around the function of a thread, is the C library's.
            let is_start =
                |(name, _): &(String, String)| name.starts_with("__libc_start") || name == "start_thread";
            if names.iter().any(is_start) {
                break;
            }
            let is_main = names.iter().any(|(name, _)| name == "main");
            lines.extend(names.into_iter().map(|(name, place)| format!("{name} ({place})")));
            if is_main {
                break;
            }
        }
        lines
    }
}

impl Site for Place {
    fn innermost(&self) -> String {
        let mut lines = self.lines();
        // Inline functions of rdma-core's headers are not the program's.
        let at = lines.iter().position(|line| !line.contains("verbs.h:")).unwrap_or_default();
        if lines.is_empty() { "an unknown place".to_owned() } else { lines.swap_remove(at) }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// The last part of a file's path.
fn last_part(file: &Path) -> String {
    file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
}

fn info(address: usize) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; the result says whether the structure was written.
    let found = unsafe { libc::dladdr(without_provenance(address), info.as_mut_ptr()) };
    // SAFETY: written where it was found.
    (found != 0).then(|| unsafe { info.assume_init() })
}

/// Where the object that has an address begins; 0 for none.
fn object_of(address: usize) -> usize {
    info(address).map_or(0, |info| info.dli_fbase.addr())
}

/// The file of the object that has an address, and the place in it.
fn place_in_object(address: usize) -> String {
    let Some(info) = info(address).filter(|info| !info.dli_fname.is_null()) else {
        return "unknown".to_owned();
    };
    // SAFETY: a string of the dynamic linker's, which stays as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    format!("{}+{:#x}", last_part(Path::new(&name)), address.wrapping_sub(info.dli_fbase.addr()))
}
