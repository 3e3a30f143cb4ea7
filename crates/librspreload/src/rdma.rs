//! librdmacm's functions of rsockets, found in the library that the dynamic linker gives the
//! program.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t, ssize_t};
use rdma_core_abi::verbs::{IBV_TRANSPORT_IWARP, ibv_device};

/// A function of a library. Its name ends with a zero byte.
///
/// # Safety
///
/// A handle of dlopen(3).
unsafe fn symbol(library: *mut c_void, name: &str) -> Option<*mut c_void> {
    debug_assert!(name.ends_with('\0'));
    // SAFETY: an open library, as the caller says, and a string of C.
    let at = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    (!at.is_null()).then_some(at)
}

macro_rules! calls {
    ($($name:ident($($t:ty),*) -> $out:ty;)*) => {
        /// The functions.
        #[allow(missing_docs, reason = "the C names")]
        pub struct Calls {
            $(pub $name: unsafe extern "C-unwind" fn($($t),*) -> $out,)*
        }

        impl Calls {
            /// Finds them all; `None` where the library lacks one.
            ///
            /// # Safety
            ///
            /// A handle of dlopen(3), of librdmacm.
            unsafe fn find(library: *mut c_void) -> Option<Self> {
                Some(Self {
                    $($name: {
                        // SAFETY: an open library, as the caller says.
                        let at = unsafe { symbol(library, concat!(stringify!($name), "\0"))? };
                        // SAFETY: the function of this name has this type (<rdma/rsocket.h>).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($t),*) -> $out>(at) }
                    },)*
                })
            }
        }
    };
}

calls! {
    rsocket(c_int, c_int, c_int) -> c_int;
    rbind(c_int, *const sockaddr, socklen_t) -> c_int;
    rlisten(c_int, c_int) -> c_int;
    raccept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rconnect(c_int, *const sockaddr, socklen_t) -> c_int;
    rshutdown(c_int, c_int) -> c_int;
    rclose(c_int) -> c_int;
    rgetpeername(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rgetsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rsetsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    rgetsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    rfcntl(c_int, c_int, c_int) -> c_int;
    rrecv(c_int, *mut c_void, usize, c_int) -> ssize_t;
    rrecvfrom(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    rrecvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    rreadv(c_int, *const iovec, c_int) -> ssize_t;
    rsend(c_int, *const c_void, usize, c_int) -> ssize_t;
    rsendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    rwritev(c_int, *const iovec, c_int) -> ssize_t;
    rpoll(*mut pollfd, nfds_t, c_int) -> c_int;
    repoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    repoll_wait(c_int, *mut epoll_event, c_int, c_int) -> c_int;
}

static FOUND: AtomicPtr<Calls> = AtomicPtr::new(std::ptr::null_mut());
/// What was looked for and not found.
static MISSING: u8 = 0;

/// Whether the host has an iWARP device. Such a device connects to the peer's TCP port itself, so
/// that a server without rsockets would read an MPA request (RFC 5044) as its client's first bytes.
fn has_iwarp() -> bool {
    type List = *mut *mut ibv_device;
    // SAFETY: as of librdmacm below.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return false;
    }
    // SAFETY: just opened.
    let found =
        unsafe { (symbol(library, "ibv_get_device_list\0"), symbol(library, "ibv_free_device_list\0")) };
    let (Some(get), Some(free)) = found else { return false };
    // SAFETY: the functions of these names have these types (<infiniband/verbs.h>).
    let (get, free) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*mut c_int) -> List>(get),
            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(List)>(free),
        )
    };
    // SAFETY: no count is asked for; the list, which is not NULL, ends with NULL and is freed once.
    unsafe {
        let list = get(std::ptr::null_mut());
        if list.is_null() {
            return false;
        }
        let mut devices = (0..).map(|n| list.add(n).read()).take_while(|device| !device.is_null());
        let has = devices.any(|device| (*device).transport_type == IBV_TRANSPORT_IWARP);
        free(list);
        has
    }
}

/// The functions of librdmacm; `None`, which standard error says, where sockets stay TCP's.
fn look_up() -> Option<Calls> {
    // SAFETY: its constructors are those of a library that RDMA programs load by this name.
    let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let calls = match library.is_null() {
        true => None,
        // SAFETY: just opened.
        false => unsafe { Calls::find(library) },
    };
    let why = match &calls {
        None => "librdmacm.so.1 with repoll_wait is not there",
        Some(_) if has_iwarp() => "this host has an iWARP device",
        Some(_) => return calls,
    };
    eprintln!("verbena: librspreload.so: {why}; sockets stay TCP's");
    None
}

/// The functions, looked for at the first call; `None` where the library is not there or is too
/// old for sets of epoll(7), and on a host with an iWARP device.
pub fn calls() -> Option<&'static Calls> {
    let missing = (&raw const MISSING).cast_mut().cast::<Calls>();
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        let new = look_up().map_or(missing, |calls| Box::into_raw(Box::new(calls)));
        // Where two threads look at once both find the same.
        FOUND.store(new, Ordering::Release);
        found = new;
    }
    if found == missing {
        return None;
    }
    // SAFETY: made above, and never freed.
    unsafe { found.as_ref() }
}

/// The functions, where they were looked for and found.
pub fn calls_if_found() -> Option<&'static Calls> {
    let is_known = !FOUND.load(Ordering::Acquire).is_null();
    is_known.then(calls)?
}
