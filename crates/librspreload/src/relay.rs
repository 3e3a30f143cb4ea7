//! A stream by RDMA that another process uses by an ordinary socket: a thread of the process that
//! has the connection carries the bytes between the two.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libc::{pollfd, sockaddr, sockaddr_in, socklen_t};
use sys::fork::Fd;
use sys::thread::with_signals_blocked;

use crate::rdma::Calls;
use crate::table::Entry;
use crate::{errno, real};

/// Bytes that are under way in one direction, at most.
const ROOM: usize = 1 << 16;

/// The length of an address, as calls take it.
const LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;

/// A TCP socket, which children of this process do not have.
fn tcp(domain: c_int) -> Option<Fd> {
    // SAFETY: no pointers.
    Fd::open_raw(|| unsafe { real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }).ok()
}

fn name_of(fd: &Fd) -> Option<sockaddr_in> {
    // SAFETY: all-zero bytes are an address of no family, which lives across the call.
    unsafe {
        let mut name: sockaddr_in = std::mem::zeroed();
        let mut len = LEN;
        (real::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &raw mut len) == 0).then_some(name)
    }
}

/// Two TCP sockets of this host that are connected to each other: options of TCP and resets are to
/// be had of them, as of any connection.
pub fn pair() -> Option<(Fd, Fd)> {
    let (listener, first) = (tcp(libc::AF_INET)?, tcp(libc::AF_INET)?);
    let (at, from) = (listener.as_raw_fd(), first.as_raw_fd());
    // SAFETY: addresses that live across the calls.
    unsafe {
        let mut any: sockaddr_in = std::mem::zeroed();
        any.sin_family = libc::AF_INET as _;
        any.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
        let is_bound = real::bind(at, (&raw const any).cast(), LEN) == 0;
        if !is_bound || real::listen(at, 8) < 0 {
            return None;
        }
        let to = name_of(&listener)?;
        if real::connect(from, (&raw const to).cast(), LEN) < 0 {
            return None;
        }
        let own = name_of(&first)?;
        // Another process may have found the listener, too.
        for _ in 0..8 {
            let (mut peer, mut len) = (any, LEN);
            let accept = || real::accept4(at, (&raw mut peer).cast(), &raw mut len, libc::SOCK_CLOEXEC);
            let second = Fd::open_raw(accept).ok()?;
            if (peer.sin_port, peer.sin_addr.s_addr) == (own.sin_port, own.sin_addr.s_addr) {
                return Some((first, second));
            }
        }
    }
    None
}

/// Bytes on their way in one direction.
struct Half {
    bytes: Vec<u8>,
    /// The bytes that have not gone on.
    from: usize,
    until: usize,
    is_open: bool,
}

impl Half {
    fn new() -> Self {
        Self { bytes: vec![0; ROOM], from: 0, until: 0, is_open: true }
    }

    fn is_empty(&self) -> bool {
        self.from == self.until
    }

    /// Whether it is over.
    fn is_done(&self) -> bool {
        !self.is_open && self.is_empty()
    }

    /// Carries what there is. `end` tells the far end that nothing more comes.
    ///
    /// # Errors
    ///
    /// The errno of either end.
    fn carry(
        &mut self,
        read: impl Fn(*mut c_void, usize) -> isize,
        write: impl Fn(*const c_void, usize) -> isize,
        end: impl Fn(),
    ) -> Result<(), c_int> {
        let would_wait = |n: isize| match (n, errno()) {
            (0.., _) => Ok(n.cast_unsigned()),
            (_, libc::EAGAIN | libc::EINTR) => Err(None),
            (_, error) => Err(Some(error)),
        };
        while !self.is_done() {
            if self.is_empty() {
                match would_wait(read(self.bytes.as_mut_ptr().cast(), ROOM)) {
                    Ok(0) => {
                        self.is_open = false;
                        end();
                        return Ok(());
                    }
                    Ok(n) => (self.from, self.until) = (0, n),
                    Err(error) => return error.map_or(Ok(()), Err),
                }
            }
            let left = &self.bytes[self.from..self.until];
            match would_wait(write(left.as_ptr().cast(), left.len())) {
                Ok(n) => self.from += n,
                Err(error) => return error.map_or(Ok(()), Err),
            }
        }
        Ok(())
    }
}

/// Starts to carry bytes between a stream by RDMA and a socket, in a thread of its own, until both
/// halves have ended; false where there is none to be had.
pub fn start(calls: &'static Calls, stream: Arc<Entry>, socket: Fd) -> bool {
    let run = move || {
        let fd = socket.as_raw_fd();
        let carried = carry(calls, stream.rsocket, fd);
        if carried.is_err() {
            // What reads at the socket finds a reset, too.
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (value, len) = (&raw const linger, size_of_val(&linger) as socklen_t);
            // SAFETY: a value that lives across the call.
            unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value.cast(), len) };
        }
    };
    let thread = std::thread::Builder::new().name("rsocket-relay".to_owned()).stack_size(1 << 18);
    with_signals_blocked(|| thread.spawn(run)).is_ok()
}

fn carry(calls: &Calls, stream: c_int, socket: c_int) -> Result<(), c_int> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (mut from_peer, mut to_peer) = (Half::new(), Half::new());
    loop {
        // SAFETY: buffers of so many bytes, by `Half::carry`; no pointers.
        unsafe {
            from_peer.carry(
                |to, len| (calls.rrecv)(stream, to, len, flags),
                |from, len| real::send(socket, from, len, flags),
                || _ = real::shutdown(socket, libc::SHUT_WR),
            )?;
            to_peer.carry(
                |to, len| real::recv(socket, to, len, flags),
                |from, len| (calls.rsend)(stream, from, len, flags),
                || _ = (calls.rshutdown)(stream, libc::SHUT_WR),
            )?;
        }
        if from_peer.is_done() && to_peer.is_done() {
            return Ok(());
        }
        // A direction waits for bytes, or for room for them.
        let waits = |half: &Half, reads: bool| !half.is_done() && half.is_empty() == reads;
        let events = |reads: bool, writes: bool| {
            (libc::POLLIN * i16::from(reads)) | (libc::POLLOUT * i16::from(writes))
        };
        let wanted = [
            (stream, events(waits(&from_peer, true), waits(&to_peer, false))),
            (socket, events(waits(&to_peer, true), waits(&from_peer, false))),
        ];
        // An end that nothing is wanted of would say for ever that it is over.
        let mut fds =
            wanted.map(|(fd, events)| pollfd { fd: if events == 0 { -1 } else { fd }, events, revents: 0 });
        // SAFETY: an array of two.
        if unsafe { (calls.rpoll)(fds.as_mut_ptr(), 2, -1) } < 0 && errno() != libc::EINTR {
            return Err(errno());
        }
    }
}

/// Connections that wait at a listener by RDMA are carried to the listener by TCP.
pub fn hand_on_waiting(calls: &'static Calls, listener: c_int) {
    // SAFETY: an address that lives across the calls.
    unsafe {
        (calls.rfcntl)(listener, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK);
        let mut name = [0_u64; 16];
        let mut len = size_of_val(&name) as socklen_t;
        let at: *mut sockaddr = name.as_mut_ptr().cast();
        if (calls.rgetsockname)(listener, at, &raw mut len) < 0 {
            return;
        }
        loop {
            let stream = (calls.raccept)(listener, std::ptr::null_mut(), std::ptr::null_mut());
            if stream < 0 {
                return;
            }
            let stream = Entry::of_stream(stream);
            if let Some(socket) = tcp((*at).sa_family.into())
                && real::connect(socket.as_raw_fd(), at, len) == 0
            {
                start(calls, stream, socket);
            }
        }
    }
}
