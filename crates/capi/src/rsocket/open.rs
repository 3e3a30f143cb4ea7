//! From a socket to a connection and its end.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libc::{sockaddr, socklen_t};
use nic::Errno;
use rdma_core_abi::cma::rdma_sockaddr;
use rsocket::{How, Phase};

use crate::cma::sockaddr as address;
use crate::ffi_guard;
use crate::instance;
use crate::rsocket::config;
use crate::rsocket::mirror::Mirror;
use crate::rsocket::object::{Rsocket, State};
use crate::rsocket::options::{Options, in_family};
use crate::rsocket::{set_list, table, timers};

const FLAGS: c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// socket(2), for the code of the shared object itself.
pub extern "C" fn own_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

/// `rsocket`, socket(2): a byte stream or datagrams. errno: EAFNOSUPPORT for other families than
/// AF_INET and AF_INET6; EPROTONOSUPPORT for another protocol than TCP, of datagrams UDP;
/// ESOCKTNOSUPPORT for another type; ENODEV where there is no device; EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    ffi_guard::making(|| {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return Err(Errno::EAFNOSUPPORT);
        }
        let (is_datagram, own_protocol) = match kind & !FLAGS {
            libc::SOCK_STREAM => (false, libc::IPPROTO_TCP),
            libc::SOCK_DGRAM => (true, libc::IPPROTO_UDP),
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        if protocol != 0 && protocol != own_protocol {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let instance = instance::get()?;
        instance.check()?;
        if instance.node().devices().is_empty() {
            return Err(Errno::ENODEV);
        }
        let (settings, options) = (config::get().settings, Options::new(domain));
        let rsocket = match is_datagram {
            true => Rsocket::datagram(&instance, settings, options)?,
            false => Rsocket::new(&instance, settings, options),
        };
        rsocket.give_descriptor(kind & FLAGS)
    })
}

impl Rsocket {
    /// Gives it a descriptor, by which the program finds it.
    fn give_descriptor(self: &Arc<Self>, flags: c_int) -> Result<c_int, Errno> {
        let mirror = Mirror::new(flags)?;
        let fd = mirror.fd();
        self.nonblocking.store(flags & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
        self.lock().mirror = Some(mirror);
        // A set of this number was closed by close(2).
        set_list::forget(fd);
        table::add(fd, self.clone());
        Ok(fd)
    }

    /// The address of this end, or of the peer.
    fn address(&self, of_peer: bool) -> Result<SocketAddr, Errno> {
        let state = self.lock();
        if let Some(datagram) = &state.datagram {
            return datagram.address(of_peer);
        }
        let (socket, domain) = (state.socket.as_ref().ok_or(Errno::EBADF)?, state.options.domain);
        if of_peer {
            let is_connected = matches!(socket.phase(), Phase::Connected | Phase::Accepting);
            let peer = socket.peer_addr().filter(|_| is_connected).ok_or(Errno::ENOTCONN)?;
            return Ok(in_family(domain, peer));
        }
        let any: SocketAddr = match domain {
            libc::AF_INET6 => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
            _ => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        Ok(socket.local_addr().map_or(any, |addr| in_family(domain, addr)))
    }
}

/// Writes an address as accept(2) does: cut to the room there is, with its whole length.
///
/// # Safety
///
/// A length, and so many bytes.
pub(super) unsafe fn put(addr: &SocketAddr, to: *mut sockaddr, len: *mut socklen_t) {
    // SAFETY: all-zero bytes are an address of no family.
    let mut whole: rdma_sockaddr = unsafe { std::mem::zeroed() };
    let size = address::write(addr, &mut whole);
    // SAFETY: as the caller says.
    unsafe {
        let n = size.min(*len as usize);
        to.cast::<u8>().copy_from_nonoverlapping((&raw const whole).cast(), n);
        *len = size as socklen_t;
    }
}

/// Reads an address of a caller.
///
/// # Safety
///
/// NULL, or so many bytes.
pub(super) unsafe fn take(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno::EFAULT);
    }
    let least = |family: c_int| match family {
        libc::AF_INET => Ok(size_of::<libc::sockaddr_in>()),
        libc::AF_INET6 => Ok(size_of::<libc::sockaddr_in6>()),
        _ => Err(Errno::EAFNOSUPPORT),
    };
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller has so many bytes.
    let family = unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() };
    if (len as usize) < least(family.into())? {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as above.
    unsafe { address::read_ip(addr) }
}

/// `rbind`, bind(2). errno: EBADF; EINVAL for a bound socket and a short address; EAFNOSUPPORT;
/// EADDRINUSE, EADDRNOTAVAIL.
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    ffi_guard::making(|| {
        let rsocket = table::find(socket)?;
        // SAFETY: the man page's contract.
        let addr = unsafe { take(addr, len)? };
        let mut state = rsocket.lock();
        match &mut state.datagram {
            Some(datagram) => datagram.bind(&addr)?,
            None => state.stream_socket()?.bind(addr)?,
        }
        Ok(0)
    })
}

/// `rlisten`, listen(2). errno: EBADF; EINVAL for a socket that is or was connected; EADDRINUSE;
/// EOPNOTSUPP for datagrams.
pub unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    ffi_guard::making(|| {
        let rsocket = table::find(socket)?;
        {
            let mut state = rsocket.lock();
            state.stream_socket()?.listen(0)?;
            state.set_backlog(backlog);
            state.settle(false);
        }
        rsocket.instance.host.later().run();
        Ok(0)
    })
}

/// `raccept`, accept(2): the peer is connected already. errno: EBADF; EINVAL where the socket does
/// not listen; EOPNOTSUPP for datagrams; EAGAIN, EINTR; EMFILE, ENFILE.
pub unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    ffi_guard::making(|| unsafe { accept(socket, addr, len) })
}

/// # Safety
///
/// NULL, or a length and so many bytes.
unsafe fn accept(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> Result<c_int, Errno> {
    let listener = table::find(socket)?;
    let wait = !listener.is_nonblocking();
    let child = listener.block(wait, None, |state| match state.stream_socket() {
        Ok(s) if s.phase() == Phase::Listening => state.accepted.pop_front().map(Ok),
        Ok(_) => Some(Err(Errno::EINVAL)),
        Err(error) => Some(Err(error)),
    })?;
    // There is room for another.
    listener.take_requests();
    let peer = child.address(true);
    let fd = child.give_descriptor(0)?;
    let idle = child.lock().options.keep_alive();
    if idle.is_some() {
        timers::keep_alive(&child, idle);
    }
    if !addr.is_null()
        && !len.is_null()
        && let Ok(peer) = peer
    {
        // SAFETY: as the caller says.
        unsafe { put(&peer, addr, len) };
    }
    Ok(fd)
}

/// What connect(2) says of a socket now; `None` while it is being connected.
fn outcome(state: &mut State) -> Option<Result<(), Errno>> {
    let Some(socket) = &mut state.socket else { return Some(Err(Errno::EBADF)) };
    match socket.phase() {
        Phase::Connected => Some(Ok(())),
        Phase::Connecting => None,
        _ => Some(Err(socket.take_error().unwrap_or(Errno::ECONNREFUSED))),
    }
}

/// `rconnect`, connect(2). Of datagrams it says where they go and come from, and does not wait.
/// errno: EBADF; EINPROGRESS, EALREADY, EISCONN; ECONNREFUSED, ETIMEDOUT,
/// ENETUNREACH, EHOSTUNREACH; EPROTO where the listener is no rsocket.
pub unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    ffi_guard::making(|| {
        let rsocket = table::find(socket)?;
        // SAFETY: the man page's contract.
        let addr = unsafe { take(addr, len)? };
        {
            let mut state = rsocket.lock();
            if let Some(datagram) = &mut state.datagram {
                datagram.connect(addr)?;
                drop(state);
                rsocket.instance.host.later().run();
                return Ok(0);
            }
            let socket = state.socket.as_mut().ok_or(Errno::EBADF)?;
            let begun = socket.connect(addr);
            state.settle(false);
            begun?;
        }
        rsocket.instance.host.later().run();
        let (wait, timeout) = (!rsocket.is_nonblocking(), rsocket.lock().options.send_timeout);
        // As of sockets, SO_SNDTIMEO counts (socket(7)).
        let until = timeout.map(|timeout| Instant::now() + timeout);
        match rsocket.block(wait, until, outcome) {
            Err(Errno::EAGAIN) => Err(Errno::EINPROGRESS),
            done => done.map(|()| 0),
        }
    })
}

/// `rshutdown`, shutdown(2). A listener listens no more: its port is free, and connections that
/// wait to be accepted are reset. errno: EBADF; EINVAL for another `how`; ENOTCONN.
pub unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    ffi_guard::or_minus_one(|| {
        let rsocket = table::find(socket)?;
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(Errno::EINVAL),
        };
        let reset = {
            let mut state = rsocket.lock();
            match &mut state.datagram {
                Some(datagram) => datagram.engine.shutdown(how)?,
                None => state.stream_socket()?.shutdown(how)?,
            }
            let listens = state.socket.as_ref().is_some_and(|socket| socket.phase() == Phase::Listening);
            let reset = if listens { Vec::new() } else { state.take_waiting() };
            state.settle(true);
            reset
        };
        // Connections that end take other locks.
        drop(reset);
        rsocket.instance.host.later().run();
        Ok(0)
    })
}

/// `rclose`, close(2): returns at once, and what was written goes on. Where SO_LINGER is set and
/// the descriptor may wait, it waits as long as that says; with SO_LINGER of 0 what has not arrived
/// is lost. errno: EBADF.
pub unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    ffi_guard::or_minus_one(|| match table::close(socket) {
        Err(Errno::EBADF) if set_list::close(socket) => Ok(0),
        closed => closed.map(|()| 0),
    })
}

/// `rgetpeername`, getpeername(2). errno: EBADF, ENOTCONN, EFAULT.
pub unsafe extern "C" fn rgetpeername(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { name(socket, addr, len, true) }
}

/// `rgetsockname`, getsockname(2). errno: EBADF, EFAULT.
pub unsafe extern "C" fn rgetsockname(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { name(socket, addr, len, false) }
}

/// # Safety
///
/// NULL, or a length and so many bytes.
pub(super) unsafe fn name(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t, of_peer: bool) -> c_int {
    ffi_guard::or_minus_one(|| {
        let found = table::find(socket)?.address(of_peer)?;
        if addr.is_null() || len.is_null() {
            return Err(Errno::EFAULT);
        }
        // SAFETY: as the caller says.
        unsafe { put(&found, addr, len) };
        Ok(0)
    })
}
