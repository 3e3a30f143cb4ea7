//! What the engine waits for: an epoll instance, and for each descriptor in it what it is.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use locks::{Mutex, MutexGuard, Rank};
use nic::Work;
use sys::Epoll;

use crate::fabric::{FabricHost, MadPort};
use crate::frames::FrameSocket;
use crate::inspected::Inspected;
use crate::names::{Connection, Listener, NameOwner};
use crate::rx_socket::RxSocket;
use crate::tcp::{TcpListener, TcpStream};
use crate::tx::SendSocket;

/// Readable.
pub(crate) const IN: u32 = libc::EPOLLIN as u32;
/// Nothing but errors and hang-ups, which are always told.
pub(crate) const ERRORS_ONLY: u32 = 0;
/// Readable, writable, or half closed by the peer; each told once it becomes so.
pub(crate) const STREAM: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
/// The other end is gone.
pub(crate) const HANG_UP: u32 = libc::EPOLLRDHUP as u32;

/// What a descriptor in the epoll instance is.
#[derive(Clone)]
pub(crate) enum Source {
    /// The engine's wake descriptor.
    WakeFd,
    /// Notifications about links and addresses.
    Interfaces,
    /// Notifications about neighbours.
    Neighbours,
    /// Packets.
    Receive(Arc<RxSocket>),
    /// Whole frames.
    Frames(Arc<FrameSocket>),
    /// The error queue of a socket that sends.
    Send(Arc<SendSocket>),
    /// Other processes that want to hand us packets.
    Listener(Arc<Listener>),
    /// A connection from a process that hands us packets.
    Connection(Arc<Connection>),
    /// A process that bears a name.
    NameOwner(Arc<NameOwner>),
    /// Commands that ask for what this process has.
    Inspected(Arc<Inspected>),
    /// The fabric that this process is on a host of, by its own token.
    Fabric(u64, Arc<FabricHost>),
    /// QP1 of a port of that host, by its own token.
    MadPort(u64, Arc<MadPort>),
    /// A stream of an iWARP device.
    Stream(Arc<TcpStream>),
    /// Peers that connect to an iWARP device.
    StreamListener(Arc<TcpListener>),
    /// The UDP socket of a datagram rsocket, and what is to be done where something is there.
    Service(Weak<dyn Work>),
}

/// The epoll instance and its descriptors, each by a token that is never used twice.
pub(crate) struct Reactor {
    epoll: Epoll,
    sources: Mutex<BTreeMap<u64, Source>>,
    next: AtomicU64,
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Epoll::new()?;
        // Where the system refuses every call that waits there is no engine, and so no device.
        epoll.wait(&mut [libc::epoll_event { events: 0, u64: 0 }], Some(Duration::ZERO))?;
        Ok(Self { epoll, sources: Mutex::new(Rank::Reactor, BTreeMap::new()), next: AtomicU64::new(1) })
    }

    /// A token for [`Reactor::add`].
    pub(crate) fn token(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, token: u64, fd: &impl AsRawFd, events: u32, source: Source) -> io::Result<()> {
        self.lock().insert(token, source);
        let result = self.epoll.add(fd.as_raw_fd(), events, token);
        if result.is_err() {
            self.lock().remove(&token);
        }
        result
    }

    /// Waits for nothing on a descriptor until [`Reactor::resume`]. Not even the kernel's check
    /// whether a thread waits is made with each packet.
    pub(crate) fn pause(&self, fd: &impl AsRawFd) {
        // It fails only where another thread has just removed the descriptor.
        let _ = self.epoll.remove(fd.as_raw_fd());
    }

    /// Waits again; of what is there already the engine is told at once. A descriptor removed
    /// meanwhile stays so.
    pub(crate) fn resume(&self, token: u64, fd: &impl AsRawFd, events: u32) {
        let sources = self.lock();
        if sources.contains_key(&token) {
            // It cannot fail but for want of kernel memory, which it gave back a moment ago.
            let _ = self.epoll.add(fd.as_raw_fd(), events, token);
        }
    }

    /// Waits for other events of a descriptor; of those that are there already the engine is told
    /// at once. A descriptor removed meanwhile stays so.
    pub(crate) fn change(&self, token: u64, fd: &impl AsRawFd, events: u32) {
        let sources = self.lock();
        if sources.contains_key(&token) {
            // It cannot fail: the descriptor is there.
            let _ = self.epoll.change(fd.as_raw_fd(), events, token);
        }
    }

    pub(crate) fn remove(&self, token: u64, fd: &impl AsRawFd) {
        if self.lock().remove(&token).is_some() {
            let _ = self.epoll.remove(fd.as_raw_fd());
        }
    }

    /// What `token` stands for; `None` where it was removed since the event.
    pub(crate) fn get(&self, token: u64) -> Option<Source> {
        self.lock().get(&token).cloned()
    }

    /// Waits for events.
    pub(crate) fn wait<'a>(
        &self,
        events: &'a mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> io::Result<&'a [libc::epoll_event]> {
        self.epoll.wait(events, timeout)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Source>> {
        self.sources.lock()
    }
}
