//! The process that has a connection lends it: to its children, and to processes that get a
//! descriptor by SCM_RIGHTS (unix(7)). They have an ordinary socket, whose bytes a thread here
//! carries ([`crate::relay`]).

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{POLLIN, sockaddr, socklen_t};
use sys::fork::Fd;
use sys::per_process::PerProcess;
use sys::thread::with_signals_blocked;
use sys::{ControlBuffer, files};

use crate::rdma::{self, Calls};
use crate::table::{self, Entry, Way};
use crate::{real, relay};

/// What a child asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A socket for a stream.
    Stream,
    /// That this process listens no more by RDMA.
    Listener,
    /// Nothing: the child uses the stream no more.
    Closed,
}

impl Request {
    /// As a message.
    pub fn encode(self, id: u32) -> [u8; 8] {
        ((u64::from(id) << 8) | self as u64).to_ne_bytes()
    }

    fn decode(bytes: [u8; 8]) -> Option<(Self, usize)> {
        let word = u64::from_ne_bytes(bytes);
        let all = [Self::Stream, Self::Listener, Self::Closed];
        Some((*all.get((word & 0xff) as usize)?, usize::try_from(word >> 8).ok()?))
    }
}

/// Room for an address of IP.
const NAME: usize = size_of::<libc::sockaddr_in6>();

/// An address, as calls write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    bytes: [u8; NAME],
    len: u8,
}

/// The addresses of the peer and of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names([Name; 2]);

/// Bytes of an answer.
pub const ANSWER: usize = 2 * (NAME + 1);

impl Names {
    /// The names of a stream.
    fn of(calls: &Calls, rsocket: c_int) -> Self {
        Self([calls.rgetpeername, calls.rgetsockname].map(|ask| {
            let (mut storage, mut len) = ([0_u64; 16], size_of::<[u64; 16]>() as socklen_t);
            // SAFETY: room for any address, which lives across the call.
            let failed = unsafe { ask(rsocket, storage.as_mut_ptr().cast(), &raw mut len) } < 0;
            let mut name =
                Name { bytes: [0; NAME], len: if failed { 0 } else { len.min(NAME as u32) as u8 } };
            // SAFETY: so many bytes are there, and there is room for as many.
            unsafe { storage.as_ptr().cast::<u8>().copy_to_nonoverlapping(name.bytes.as_mut_ptr(), NAME) };
            name
        }))
    }

    fn encode(&self) -> [u8; ANSWER] {
        let mut all = [0; ANSWER];
        for (to, name) in all.chunks_exact_mut(NAME + 1).zip(&self.0) {
            to[0] = name.len;
            to[1..].copy_from_slice(&name.bytes);
        }
        all
    }

    /// As `encode` wrote them.
    pub fn decode(bytes: &[u8; ANSWER]) -> Self {
        Self([0, 1].map(|at| {
            let (len, from) = (bytes[at * (NAME + 1)], at * (NAME + 1) + 1);
            let mut name = Name { bytes: [0; NAME], len: len.min(NAME as u8) };
            name.bytes.copy_from_slice(&bytes[from..from + NAME]);
            name
        }))
    }

    /// Writes one of them as getpeername(2) and getsockname(2) do; false where it is not known.
    ///
    /// # Safety
    ///
    /// Their contract.
    pub unsafe fn put(&self, of_peer: bool, addr: *mut sockaddr, len: *mut socklen_t) -> bool {
        let name = self.0[usize::from(!of_peer)];
        if name.len == 0 || addr.is_null() || len.is_null() {
            return false;
        }
        // SAFETY: the caller has a length and so many bytes.
        unsafe {
            let n = usize::from(name.len).min(*len as usize);
            addr.cast::<u8>().copy_from_nonoverlapping(name.bytes.as_ptr(), n);
            *len = name.len.into();
        }
        true
    }
}

/// The names of connections whose descriptors are ordinary sockets by now.
static NAMES: PerProcess<Mutex<BTreeMap<c_int, Names>>> = PerProcess::new(Mutex::default);

fn known() -> MutexGuard<'static, BTreeMap<c_int, Names>> {
    NAMES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of a descriptor.
pub fn names(fd: c_int) -> Option<Names> {
    known().get(&fd).copied()
}

/// The names of all descriptors.
pub fn all_names() -> BTreeMap<c_int, Names> {
    known().clone()
}

/// The descriptor is closed.
pub fn forget(fd: c_int) {
    known().remove(&fd);
}

/// Another descriptor is the same from now on.
pub fn copy(fd: c_int, copy: c_int, names: Names) {
    if fd != copy {
        known().insert(copy, names);
        table::mark_lent(copy);
    }
}

/// A descriptor becomes an ordinary socket, with the flags that it has.
pub fn stand_in(fd: c_int, socket: c_int, names: Names) {
    // SAFETY: no pointers.
    unsafe {
        let own = real::fcntl(fd, libc::F_GETFD, 0);
        let close_on_exec = if own & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        if own < 0 || real::dup3(socket, fd, close_on_exec) < 0 {
            return;
        }
        real::fcntl(fd, libc::F_SETFL, flags as usize);
    }
    known().insert(fd, names);
    table::mark_lent(fd);
}

/// Makes a stream an ordinary socket for all processes, this one's descriptors among them. `None`
/// where it was lent before, or there is no socket or thread to be had.
pub fn lend(calls: &'static Calls, entry: &Arc<Entry>) -> Option<(Names, Fd)> {
    if !entry.begin_to_lend() {
        return None;
    }
    let names = Names::of(calls, entry.rsocket);
    let lent = relay::pair()
        .and_then(|(own, theirs)| relay::start(calls, entry.clone(), own).then_some((names, theirs)));
    let Some((names, theirs)) = lent else {
        entry.is_not_lent();
        return None;
    };
    for fd in table::take_all(entry) {
        stand_in(fd, theirs.as_raw_fd(), names);
    }
    Some((names, theirs))
}

/// This process listens no more by RDMA. Connections that wait go on by TCP.
pub fn give_up_listener(calls: &'static Calls, entry: &Entry) {
    if entry.way() == Way::Listening {
        entry.becomes(Way::Tcp);
        relay::hand_on_waiting(calls, entry.rsocket);
        // SAFETY: no pointers.
        unsafe { (calls.rshutdown)(entry.rsocket, libc::SHUT_RDWR) };
    }
}

/// Answers a child, and its children, in a thread of its own, as long as one of them is there.
/// The entries live as long, unless the child has closed them.
pub fn serve(channel: Fd, entries: Vec<Arc<Entry>>) {
    let mut entries: Vec<_> = entries.into_iter().map(Some).collect();
    let run = move || {
        let Some(calls) = rdma::calls() else { return };
        while let Some((request, id, back)) = next(&channel) {
            let Some(kept) = entries.get_mut(id) else { continue };
            let entry = if request == Request::Listener { kept.clone() } else { kept.take() };
            let none = Names([Name { bytes: [0; NAME], len: 0 }; 2]);
            let lent = match (request, &entry) {
                (Request::Stream, Some(stream)) => lend(calls, stream),
                (Request::Listener, Some(listener)) => {
                    give_up_listener(calls, listener);
                    None
                }
                _ => None,
            };
            // An error says that the child is gone.
            _ = match lent {
                Some((names, socket)) => sys::send_descriptor(&back, &names.encode(), &socket),
                None => send(&back, &none.encode()),
            };
        }
    };
    let thread = std::thread::Builder::new().name("rsocket-child".to_owned()).stack_size(1 << 18);
    // Without a thread the child's calls fail with ENOTCONN.
    _ = with_signals_blocked(|| thread.spawn(run));
}

fn send(to: &Fd, bytes: &[u8]) -> std::io::Result<()> {
    let from: *const c_void = bytes.as_ptr().cast();
    // SAFETY: so many bytes.
    match unsafe { real::send(to.as_raw_fd(), from, bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
        0.. => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The next request, and where its answer goes; `None` once no child is left.
fn next(channel: &Fd) -> Option<(Request, usize, Fd)> {
    loop {
        // SAFETY: open as long as `channel` is.
        files::wait_for(unsafe { BorrowedFd::borrow_raw(channel.as_raw_fd()) }, POLLIN, None).ok()?;
        let (mut bytes, mut control) = ([0; 8], ControlBuffer::new());
        let got = sys::receive(channel, &mut bytes, &mut control, libc::MSG_CMSG_CLOEXEC).ok()?;
        if got.len == 0 {
            return None;
        }
        let back = sys::take_descriptors(got.control).pop();
        if let (Some((request, id)), Some(back)) = (Request::decode(bytes), back) {
            return Some((request, id, back));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_names_come_back_as_they_were_sent() {
        for request in [Request::Stream, Request::Listener, Request::Closed] {
            assert_eq!(Request::decode(request.encode(70_000)), Some((request, 70_000)));
        }
        assert_eq!(Request::decode([0xff; 8]), None);
        let names = Names([Name { bytes: [7; NAME], len: 16 }, Name { bytes: [9; NAME], len: 28 }]);
        assert_eq!(Names::decode(&names.encode()), names);
    }
}
