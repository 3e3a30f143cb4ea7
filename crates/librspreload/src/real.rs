//! The C library's functions, as the next object behind this one has them.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    FILE, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

/// Calls of functions by name. Each is looked up once.
macro_rules! next {
    ($(fn $name:ident($($arg:ident: $t:ty),*) -> $out:ty;)*) => {
        $(
            /// The function of this name behind this object.
            pub unsafe fn $name($($arg: $t),*) -> $out {
                static AT: AtomicUsize = AtomicUsize::new(0);
                let mut at = AT.load(Ordering::Relaxed);
                if at == 0 {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: a string that ends with a zero byte.
                    at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) }.expose_provenance();
                    AT.store(at, Ordering::Relaxed);
                }
                if at == 0 {
                    return crate::failed(libc::ENOSYS) as isize as $out;
                }
                let at: *mut c_void = std::ptr::with_exposed_provenance_mut(at);
                // SAFETY: the function of this name has this type (POSIX, glibc).
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($t),*) -> $out>(at)($($arg),*)
                }
            }
        )*
    };
}

next! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, buf: *mut c_void, len: usize, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int;
    fn read(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, buf: *const c_void, len: usize, flags: c_int, addr: *const sockaddr, addrlen: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    fn write(fd: c_int, buf: *const c_void, len: usize) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: usize) -> ssize_t;
    fn splice(from: c_int, at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: usize, flags: c_uint) -> ssize_t;
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn sockatmark(fd: c_int) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(count: c_int, reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
}
