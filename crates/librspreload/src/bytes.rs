//! Bytes: the families of read(2), write(2), recv(2), send(2), and sendfile(2).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::{iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, ssize_t, timespec};

use crate::rdma::Calls;
use crate::sockets::found;
use crate::table::{self, Entry, Way};
use crate::{connector, errno, failed, passing, real};

/// What carries a descriptor's bytes.
enum Carrier {
    /// An rsocket.
    Rdma(Arc<Entry>, &'static Calls),
    /// Nothing yet, or nothing any more; what the call says.
    Refused(c_int),
    /// The kernel.
    Other,
}

fn carrier(fd: c_int) -> Carrier {
    match found(fd) {
        Some((entry, calls)) => match connector::outcome(fd, &entry) {
            Way::Rdma => Carrier::Rdma(entry, calls),
            Way::Connecting => Carrier::Refused(libc::EAGAIN),
            _ => Carrier::Other,
        },
        None if table::is_lost(fd) => Carrier::Refused(libc::ENOTCONN),
        None => Carrier::Other,
    }
}

/// A write to a stream that is over sends SIGPIPE, as TCP does (tcp(7)).
fn wrote(n: ssize_t, flags: c_int) -> ssize_t {
    if n < 0 && errno() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGPIPE) };
        failed(libc::EPIPE);
    }
    n
}

macro_rules! reads {
    ($($(#[$doc:meta])+ fn $name:ident($($arg:ident: $t:ty),*) => $theirs:expr;)*) => {
        $(
            $(#[$doc])+
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $t),*) -> ssize_t {
                // SAFETY: the man page's contract.
                unsafe {
                    match carrier(fd) {
                        Carrier::Rdma(entry, calls) => ($theirs)(calls, entry.rsocket),
                        Carrier::Refused(errno) => failed(errno) as ssize_t,
                        Carrier::Other => real::$name(fd, $($arg),*),
                    }
                }
            }
        )*
    };
}

reads! {
    /// read(2).
    fn read(buf: *mut c_void, len: usize) => |calls: &Calls, fd| (calls.rrecv)(fd, buf, len, 0);
    /// readv(2).
    fn readv(iov: *const iovec, count: c_int) => |calls: &Calls, fd| (calls.rreadv)(fd, iov, count);
    /// recv(2).
    fn recv(buf: *mut c_void, len: usize, flags: c_int) => |calls: &Calls, fd| (calls.rrecv)(fd, buf, len, flags);
    /// recvfrom(2).
    fn recvfrom(buf: *mut c_void, len: usize, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t)
        => |calls: &Calls, fd| (calls.rrecvfrom)(fd, buf, len, flags, addr, addrlen);
    /// recvmsg(2).
    fn recvmsg(msg: *mut msghdr, flags: c_int) => |calls: &Calls, fd| (calls.rrecvmsg)(fd, msg, flags);
    /// write(2).
    fn write(buf: *const c_void, len: usize) => |calls: &Calls, fd| wrote((calls.rsend)(fd, buf, len, 0), 0);
    /// writev(2).
    fn writev(iov: *const iovec, count: c_int) => |calls: &Calls, fd| wrote((calls.rwritev)(fd, iov, count), 0);
    /// send(2).
    fn send(buf: *const c_void, len: usize, flags: c_int) => |calls: &Calls, fd| wrote((calls.rsend)(fd, buf, len, flags), flags);
    /// sendto(2): a stream has its peer, and the address does not count.
    fn sendto(buf: *const c_void, len: usize, flags: c_int, addr: *const sockaddr, addrlen: socklen_t)
        => |calls: &Calls, fd| {
            let _ = (addr, addrlen);
            wrote((calls.rsend)(fd, buf, len, flags), flags)
        };
}

/// sendmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the man page's contract.
    unsafe {
        match carrier(fd) {
            Carrier::Rdma(entry, calls) => wrote((calls.rsendmsg)(entry.rsocket, msg, flags), flags),
            Carrier::Refused(errno) => failed(errno) as ssize_t,
            Carrier::Other => {
                passing::prepare(msg);
                real::sendmsg(fd, msg, flags)
            }
        }
    }
}

/// recvmmsg(2): one message after the other.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let (entry, calls) = match carrier(fd) {
            Carrier::Rdma(entry, calls) => (entry, calls),
            Carrier::Refused(errno) => return failed(errno),
            Carrier::Other => return real::recvmmsg(fd, msgs, count, flags, timeout),
        };
        let mut flags = flags & !libc::MSG_WAITFORONE;
        for at in 0..count {
            let msg = msgs.add(at as usize);
            let n = (calls.rrecvmsg)(entry.rsocket, &raw mut (*msg).msg_hdr, flags);
            if n <= 0 {
                return if at > 0 { at.cast_signed() } else { n as c_int };
            }
            (*msg).msg_len = n as u32;
            flags |= libc::MSG_DONTWAIT;
        }
        count.cast_signed()
    }
}

/// sendmmsg(2): one message after the other.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let (entry, calls) = match carrier(fd) {
            Carrier::Rdma(entry, calls) => (entry, calls),
            Carrier::Refused(errno) => return failed(errno),
            Carrier::Other => {
                (0..count as usize).for_each(|at| passing::prepare(&raw const (*msgs.add(at)).msg_hdr));
                return real::sendmmsg(fd, msgs, count, flags);
            }
        };
        for at in 0..count {
            let msg = msgs.add(at as usize);
            let n = wrote((calls.rsendmsg)(entry.rsocket, &raw const (*msg).msg_hdr, flags), flags);
            if n < 0 {
                return if at > 0 { at.cast_signed() } else { -1 };
            }
            (*msg).msg_len = n as u32;
        }
        count.cast_signed()
    }
}

/// Bytes of a file that are copied at once.
const PIECE: usize = 1 << 16;

/// sendfile(2), by a buffer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> ssize_t {
    // SAFETY: the man page's contract.
    unsafe {
        let (entry, calls) = match carrier(out) {
            Carrier::Rdma(entry, calls) => (entry, calls),
            Carrier::Refused(errno) => return failed(errno) as ssize_t,
            Carrier::Other => return real::sendfile(out, from, offset, count),
        };
        let mut at = match offset.is_null() {
            true => libc::lseek(from, 0, libc::SEEK_CUR),
            false => *offset,
        };
        if at < 0 {
            return -1;
        }
        let (mut buffer, mut done) = (vec![0_u8; PIECE.min(count)], 0);
        while done < count {
            let most = buffer.len().min(count - done);
            let n = libc::pread(from, buffer.as_mut_ptr().cast(), most, at);
            if n <= 0 {
                return finish_file(from, offset, at, if done > 0 { done as ssize_t } else { n });
            }
            let sent = wrote((calls.rsend)(entry.rsocket, buffer.as_ptr().cast(), n.cast_unsigned(), 0), 0);
            if sent < 0 {
                return finish_file(from, offset, at, if done > 0 { done as ssize_t } else { sent });
            }
            (at, done) = (at + sent as off_t, done + sent.cast_unsigned());
            if sent < n {
                break;
            }
        }
        finish_file(from, offset, at, done as ssize_t)
    }
}

/// Where the file goes on.
unsafe fn finish_file(from: c_int, offset: *mut off_t, at: off_t, done: ssize_t) -> ssize_t {
    // SAFETY: sendfile's contract.
    unsafe {
        match offset.is_null() {
            true => _ = libc::lseek(from, at, libc::SEEK_SET),
            false => *offset = at,
        }
    }
    done
}

/// sendfile(2), by the name of files that may be long: on these machines all are.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> ssize_t {
    // SAFETY: the man page's contract.
    unsafe { sendfile(out, from, offset, count) }
}

/// read(2), as the compiler calls it where it knows the buffer's size (_FORTIFY_SOURCE).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, buf: *mut c_void, len: usize, room: usize) -> ssize_t {
    // SAFETY: the man page's contract; no more than there is room for.
    unsafe { read(fd, buf, checked(len, room)) }
}

/// recv(2), likewise.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { recv(fd, buf, checked(len, room), flags) }
}

/// recvfrom(2), likewise.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { recvfrom(fd, buf, checked(len, room), flags, addr, addrlen) }
}

/// A length that fits the buffer, as the C library checks it: it ends the program.
fn checked(len: usize, room: usize) -> usize {
    if len > room {
        // SAFETY: no pointers.
        unsafe { libc::abort() };
    }
    len
}
