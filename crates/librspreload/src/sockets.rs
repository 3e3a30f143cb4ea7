//! From socket(2) to close(2): a TCP socket of the program, and an rsocket beside it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::{sockaddr, socklen_t};

use crate::rdma::{self, Calls};
use crate::table::{self, Entry, Way};
use crate::{failed, forks, real, rules};

/// Level of librdmacm's own options, and the environment's variables for them (rsocket(7)).
const SOL_RDMA: c_int = 0x1_0000;
const SIZES: [(&str, c_int); 3] = [("RS_SQ_SIZE", 0), ("RS_RQ_SIZE", 1), ("RS_INLINE", 2)];

/// The entry of a descriptor, and the functions for its rsocket.
pub(crate) fn found(fd: c_int) -> Option<(Arc<Entry>, &'static Calls)> {
    Some((table::find(fd)?, rdma::calls()?))
}

/// Likewise, of a stream by RDMA.
pub(crate) fn stream(fd: c_int) -> Option<(Arc<Entry>, &'static Calls)> {
    Some((table::stream(fd)?, rdma::calls()?))
}

/// socket(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd < 0 || !rules::wants(domain, kind, protocol) {
        return fd;
    }
    if let Some(calls) = rdma::calls() {
        // SAFETY: no pointers.
        let rsocket = unsafe { (calls.rsocket)(domain, kind | libc::SOCK_CLOEXEC, protocol) };
        // Without a device all goes by TCP.
        if rsocket >= 0 {
            set_sizes(calls, rsocket);
            table::add(fd, rsocket, Way::Open);
        }
    }
    fd
}

/// A listening rsocket at the address of a listening socket; `None` where another process has one
/// there, or there is no device.
pub(crate) fn listener_beside(calls: &Calls, fd: c_int, backlog: c_int) -> Option<c_int> {
    let (mut name, mut len) = ([0_u64; 16], size_of::<[u64; 16]>() as socklen_t);
    let at: *mut sockaddr = name.as_mut_ptr().cast();
    // SAFETY: room for any address, which lives across the calls.
    unsafe {
        if real::getsockname(fd, at, &raw mut len) < 0 {
            return None;
        }
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let rsocket = (calls.rsocket)((*at).sa_family.into(), kind, 0);
        if rsocket < 0 {
            return None;
        }
        set_sizes(calls, rsocket);
        if (calls.rbind)(rsocket, at, len) < 0 || (calls.rlisten)(rsocket, backlog) < 0 {
            (calls.rclose)(rsocket);
            return None;
        }
        Some(rsocket)
    }
}

fn set_sizes(calls: &Calls, rsocket: c_int) {
    for (name, option) in SIZES {
        if let Some(size) = std::env::var(name).ok().and_then(|text| text.parse::<c_int>().ok()) {
            // SAFETY: an int that lives across the call. Where it fails the default stays.
            unsafe { (calls.rsetsockopt)(rsocket, SOL_RDMA, option, (&raw const size).cast(), 4) };
        }
    }
}

/// bind(2): both get the address, and the same port.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let bound = real::bind(fd, addr, len);
        let Some((entry, calls)) = found(fd).filter(|_| bound == 0) else { return bound };
        let mut given = [0_u64; 16];
        let mut size = size_of_val(&given) as socklen_t;
        let given: *mut sockaddr = given.as_mut_ptr().cast();
        if real::getsockname(fd, given, &raw mut size) < 0 || (calls.rbind)(entry.rsocket, given, size) < 0 {
            // An address without a device, or a port that another has there.
            table::is_tcp(fd, &entry);
        }
        bound
    }
}

/// listen(2): peers connect by either.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        let listens = real::listen(fd, backlog);
        if let Some((entry, calls)) = found(fd).filter(|(entry, _)| listens == 0 && entry.way() == Way::Open)
        {
            let way = if (calls.rlisten)(entry.rsocket, backlog) == 0 { Way::Listening } else { Way::Tcp };
            entry.is_connected(calls, way);
        }
        listens
    }
}

/// accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { accept4(fd, addr, len, 0) }
}

/// accept4(2): whichever connection is there, one by RDMA first.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        forks::take_listener(fd);
        let listener = found(fd).filter(|(entry, _)| entry.way() == Way::Listening);
        let Some((entry, calls)) = listener else { return real::accept4(fd, addr, len, flags) };
        let waits = real::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK == 0;
        // A connection that went between the look and the call is waited for no longer.
        (calls.rfcntl)(entry.rsocket, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK);
        loop {
            let stream = (calls.raccept)(entry.rsocket, addr, len);
            if stream >= 0 {
                return adopt(calls, stream, flags);
            }
            if entry.way() != Way::Listening {
                // A child accepts by RDMA from now on.
                return real::accept4(fd, addr, len, flags);
            }
            if crate::errno() != libc::EAGAIN {
                return -1;
            }
            let entries = [entry.rsocket, fd].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            let mut fds = entries;
            let ready = (calls.rpoll)(fds.as_mut_ptr(), 2, if waits { -1 } else { 0 });
            if ready < 0 {
                return -1;
            }
            if fds[1].revents != 0 {
                // A connection wakes all threads that wait. One takes it. The others, in a wait for
                // the next by TCP, would not see one by RDMA.
                let _turn = entry.turn();
                if !waits || real::poll(&raw mut fds[1], 1, 0) != 0 {
                    return real::accept4(fd, addr, len, flags);
                }
            }
            if ready == 0 {
                return failed(libc::EAGAIN);
            }
        }
    }
}

/// The program's descriptor for a stream that was accepted.
fn adopt(calls: &Calls, rsocket: c_int, flags: c_int) -> c_int {
    let fd = table::placeholder(libc::AF_INET);
    if fd < 0 {
        // SAFETY: no pointers.
        unsafe { (calls.rclose)(rsocket) };
        return failed(libc::EMFILE);
    }
    // SAFETY: no pointers.
    unsafe {
        (calls.rfcntl)(rsocket, libc::F_SETFD, libc::FD_CLOEXEC);
        if flags & libc::SOCK_NONBLOCK != 0 {
            real::fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
            (calls.rfcntl)(rsocket, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK);
        }
        if flags & libc::SOCK_CLOEXEC == 0 {
            real::fcntl(fd, libc::F_SETFD, 0);
        }
    }
    table::add(fd, rsocket, Way::Rdma);
    fd
}

/// shutdown(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        match found(fd) {
            Some((entry, calls)) if entry.way() == Way::Rdma => (calls.rshutdown)(entry.rsocket, how),
            Some((entry, calls)) if entry.way() == Way::Listening => {
                (calls.rshutdown)(entry.rsocket, how);
                real::shutdown(fd, how)
            }
            _ => real::shutdown(fd, how),
        }
    }
}

/// Writes the name of a connection that another process carries on, where the descriptor is one.
unsafe fn lent_name(fd: c_int, of_peer: bool, addr: *mut sockaddr, len: *mut socklen_t) -> bool {
    let names = table::lent_names(fd);
    // SAFETY: as of the calls below.
    names.is_some_and(|names| unsafe { names.put(of_peer, addr, len) })
}

/// getpeername(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match stream(fd) {
            Some((entry, calls)) => (calls.rgetpeername)(entry.rsocket, addr, len),
            None if lent_name(fd, true, addr, len) => 0,
            None => real::getpeername(fd, addr, len),
        }
    }
}

/// getsockname(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match stream(fd) {
            Some((entry, calls)) => (calls.rgetsockname)(entry.rsocket, addr, len),
            None if lent_name(fd, false, addr, len) => 0,
            None => real::getsockname(fd, addr, len),
        }
    }
}

/// setsockopt(2): both get the option. What rsockets have not counts for the TCP socket alone.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let Some((entry, calls)) = found(fd).filter(|(entry, _)| entry.way() != Way::Tcp) else {
            return real::setsockopt(fd, level, name, value, len);
        };
        let by_rdma = (calls.rsetsockopt)(entry.rsocket, level, name, value, len);
        if level == SOL_RDMA {
            return by_rdma;
        }
        real::setsockopt(fd, level, name, value, len)
    }
}

/// getsockopt(2): the rsocket's for a stream by RDMA, but for what it has not.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let found = found(fd);
        if let Some((entry, calls)) = &found
            && entry.way() == Way::Rdma
            && (calls.rgetsockopt)(entry.rsocket, level, name, value, len) == 0
        {
            return 0;
        }
        let done = real::getsockopt(fd, level, name, value, len);
        if let Some((entry, _)) = found
            && (done, level, name) == (0, libc::SOL_SOCKET, libc::SO_ERROR)
            && *len as usize >= size_of::<c_int>()
        {
            let error = entry.take_error();
            if error != 0 {
                value.cast::<c_int>().write_unaligned(error);
            }
        }
        done
    }
}
