//! Where in a program a call is.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::{self, Display, Formatter};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::Path;
use std::ptr::{without_provenance, without_provenance_mut};
use std::sync::Arc;

use check::Site;
use sys::per_process::Kept;

use super::recent;

/// Frames of a call that are kept.
const FRAMES: usize = 32;

/// The return addresses of a call, the innermost first. Names are looked up when it is printed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place(Arc<[usize]>);

impl Place {
    /// Where the calling thread is, from the frame that called this shared object on.
    #[inline(never)]
    pub(super) fn here() -> Self {
        let mark = 0_u8;
        let frame = (&raw const mark).expose_provenance();
        if let Some(place) = recent::find(frame) {
            return place;
        }
        let own = OWN.get_or_make(|| addresses_with(Self::here as fn() -> Self as usize));
        let (mut frames, mut count, mut returns) = ([0; FRAMES], 0, Vec::new());
        // SAFETY: the unwinder of the C library's compiler keeps nothing between calls.
        unsafe {
            backtrace::trace_unsynchronized(|at| {
                let (at, address) = (at.sp().addr().wrapping_sub(size_of::<usize>()), at.ip().addr());
                // The outermost frame has none.
                if at > frame && address != 0 {
                    returns.push((at, address));
                }
                if count > 0 || !own.contains(&address) {
                    frames[count] = address;
                    count += 1;
                }
                count < FRAMES
            });
        }
        let place = Self(frames[..count].into());
        recent::remember(frame, returns, &place);
        place
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

/// The addresses of this shared object. A frame of the program is outside of them.
static OWN: Kept<Range<usize>> = Kept::new();

/// What is looked for among the loaded objects, and what is found.
struct Search {
    address: usize,
    found: Range<usize>,
}

/// The addresses that the loaded segments of one object span: of the object that has an address.
fn addresses_with(address: usize) -> Range<usize> {
    let mut search = Search { address, found: 0..0 };
    // SAFETY: the function gets the value that it expects, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(in_object), (&raw mut search).cast()) };
    search.found
}

/// Looks into one object; 1 ends the search (dl_iterate_phdr(3)).
unsafe extern "C" fn in_object(object: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: as dl_iterate_phdr(3) describes its callback; the value is that of `addresses_with`.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    // SAFETY: as many headers as the object says.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let base = object.dlpi_addr as usize;
    let (mut first, mut end) = (usize::MAX, 0);
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = base.wrapping_add(header.p_vaddr as usize);
        (first, end) = (first.min(start), end.max(start.saturating_add(header.p_memsz as usize)));
    }
    let has_it = (first..end).contains(&search.address);
    if has_it {
        search.found = first..end;
    }
    c_int::from(has_it)
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
