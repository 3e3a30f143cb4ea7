//! What the adapter asks of the environment around it, a trait for each thing: [`Link`] carries its
//! packets, [`Frames`] whole Ethernet frames, [`Platform`] gives time, randomness and threads that
//! may wait.
//!
//! None of the calls may wait, but for the work that [`Platform::persist`] hands to a thread of its
//! own: they are made with the lock of a queue pair held, or of a registry.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use transport::TxBatch;
use transport::op::{Fault, SharedBytes};
use wire::{Address, Qpn};

use crate::errno::Errno;
use crate::fate::{Arrival, Fate, FrameArrival};
use crate::faults::Faults;
use crate::peer_memory::LocalLink;
use crate::stream::{NewStream, Stream};

/// Where packets go, and from which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our address.
    pub source: Address,
    /// The peer's address, of the same family.
    pub dest: Address,
    /// Index of our interface (the scope of a link-local address).
    pub interface: u32,
    /// Destination queue pair. Its upper bits tell peer processes apart, so flows to two of them
    /// never share a source port.
    pub dest_qpn: Qpn,
    /// IPv4 ToS or IPv6 traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 leaves the system's default.
    pub hop_limit: u8,
    /// Counts up when the flow is suspected to end at a process that is stopped: each value leaves
    /// from another source port.
    pub source_port_epoch: u32,
    /// What goes to a multicast group does not come back to this host.
    pub no_multicast_loop: bool,
}

/// Stores the bytes of a message where they leave.
pub type Fill<'a> = dyn FnMut(SharedBytes<'_>) -> Result<(), Fault> + 'a;

/// Packets from an address to another, and the multicast groups that are taken in. The link alone
/// looks inside an address: over UDP it sends RoCE v2.
pub trait Link: Send + Sync + 'static {
    /// Seals (ICRC) and sends the packets of `batch`, in order. What can not be sent is lost and
    /// counted, as on any wire; protocols above retransmit.
    fn send(&self, path: &Path, batch: &mut TxBatch);
    /// Like [`Link::send`], for the queue pair whose way is `cache`, and which is locked.
    fn send_connected(&self, path: &Path, batch: &mut TxBatch, _cache: &mut PathCache) {
        self.send(path, batch);
    }
    /// Whether packets can go to an address at all. Asked when a queue pair or an address handle
    /// learns its peer.
    ///
    /// # Errors
    ///
    /// ENETUNREACH for an address of a network that the link is not on.
    fn can_reach(&self, _dest: Address) -> Result<(), Errno> {
        Ok(())
    }
    /// The way to processes of the same host beside packets, where there is one. A link that
    /// captures has none: then all goes as packets.
    fn local(&self) -> Option<&dyn LocalLink> {
        None
    }
    /// Whether what was sent on this path lies where only a process of this host takes it, which
    /// has not taken all. False where the process ended.
    fn has_unread(&self, _path: &Path) -> bool {
        false
    }
    /// The UDP port that packets of a path leave from, once one has left. Link layers without ports
    /// have none.
    fn source_port(&self, _path: &Path) -> Option<u16> {
        None
    }
    /// A packet of a path does not leave, or leaves otherwise: a fault of this name befell it, in a
    /// link over this one.
    fn fault(&self, _path: &Path, _packet: &[u8], _what: &'static str) {}
    /// What sees the packets that arrive before the node does, where anything is to.
    fn tap(&self) -> Option<&dyn Tap> {
        None
    }
    /// The faults that it brings about by itself, where there are any.
    fn faults(&self) -> Option<&dyn Faults> {
        None
    }
    /// A stream of this node is new: what is sent and read by it goes by the stream that this gives
    /// back, which decorates it or is it.
    fn stream(&self, _new: &NewStream, stream: Arc<dyn Stream>) -> Arc<dyn Stream> {
        stream
    }
    /// The Ethernet frames of this node go by what this gives back, which decorates `frames` or is
    /// it. Asked once for each device.
    fn frames(&self, frames: Arc<dyn Frames>) -> Arc<dyn Frames> {
        frames
    }
    /// Takes what is sent to a multicast group in through an interface, until [`Link::leave`]. Not
    /// called twice for the same group.
    ///
    /// # Errors
    ///
    /// The system's, such as ENODEV or ENOBUFS.
    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno>;
    /// Undoes [`Link::join`].
    fn leave(&self, interface: u32, group: IpAddr);
}

/// Sees each packet that arrives: to show it, or to lose, change or repeat it.
pub trait Tap {
    /// Packets of one sender have arrived, `size` bytes each but for the last, which may be
    /// shorter. Called before [`Tap::arrived`], and not for those that another process of this host
    /// passes on.
    fn arrive(&self, _run: &Arrival<'_>, _size: usize) {}
    /// Whether each packet is to be shown by [`Tap::arrived`]; else they go to the node together.
    fn sees_each(&self) -> bool {
        true
    }
    /// A packet has arrived. `deliver` takes one on to the node; what became of it is known
    /// then.
    fn arrived(&self, packet: &Arrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate);
    /// A whole Ethernet frame has arrived that a rule steers to a queue pair, as [`Tap::arrived`].
    fn frame_arrived(&self, frame: &FrameArrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        deliver(frame.bytes);
    }
}

/// What an environment knows of the way of short messages and copies on one path, from one to the
/// next. The queue pair that has it gives it with that path only, and forgets it when nothing is to
/// be sent any more.
#[derive(Default)]
pub struct PathCache {
    known: Option<Box<dyn Any + Send + Sync>>,
    /// What a link that decorates the environment's keeps beside it.
    beside: Option<Box<dyn Any + Send + Sync>>,
}

impl PathCache {
    /// Whether the last one left something.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// What the last one left, if it is such.
    #[inline]
    pub fn known<T: Any>(&self) -> Option<&T> {
        self.known.as_ref()?.downcast_ref()
    }

    /// Like [`PathCache::known`], to be changed.
    #[inline]
    pub fn known_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.known.as_mut()?.downcast_mut()
    }

    /// The next one finds this.
    pub fn know<T: Any + Send + Sync>(&mut self, known: T) {
        self.known = Some(Box::new(known));
    }

    /// The queue pair has another path from now on, or none: nothing stays.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The next one has to find its way.
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// What a decorating link keeps of the path, made where there is nothing yet; `None` where
    /// another kind of link has left something. It stays until the queue pair forgets all.
    #[inline]
    pub fn beside<T: Any + Send + Sync>(&mut self, make: impl FnOnce() -> T) -> Option<&T> {
        self.beside.get_or_insert_with(|| Box::new(make())).downcast_ref()
    }

    /// Like [`PathCache::beside`], to be changed.
    #[inline]
    pub fn beside_mut<T: Any + Send + Sync>(&mut self, make: impl FnOnce() -> T) -> Option<&mut T> {
        self.beside.get_or_insert_with(|| Box::new(make())).downcast_mut()
    }
}

impl std::fmt::Debug for PathCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathCache").field("is_known", &self.is_known()).finish_non_exhaustive()
    }
}

/// Whole Ethernet frames of an interface. An environment that has none implements nothing: each
/// call then says EPERM, as for a process that may not (CAP_NET_RAW).
pub trait Frames: Send + Sync + 'static {
    /// Gets ready to send frames on an interface; once for each [`Frames::close_frames`].
    ///
    /// # Errors
    ///
    /// EPERM where the process may not.
    fn open_frames(&self, _interface: u32) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    /// Undoes [`Frames::open_frames`].
    fn close_frames(&self, _interface: u32) {}
    /// Sends a frame, from the destination's hardware address to the end of the payload.
    ///
    /// # Errors
    ///
    /// EMSGSIZE for one longer than the link takes, EINVAL for one shorter than its header, others
    /// where it was lost.
    fn send_frame(&self, _interface: u32, _frame: &[u8]) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    /// Begins or ends to take in all frames of an interface. Not called twice with the same wish.
    ///
    /// # Errors
    ///
    /// The system's. Ending does not fail.
    fn watch_frames(&self, _interface: u32, _watch: bool) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
    /// A frame does not leave: a fault of this name befell it, in a decorator of this.
    fn frame_fault(&self, _interface: u32, _frame: &[u8], _what: &'static str) {}
}

/// What the adapter needs of the machine beside ways to send.
pub trait Platform: Send + Sync + 'static {
    /// The adapter wants to be woken (by the node's `expire`) at `at` or earlier.
    fn wake_at(&self, at: Instant);
    /// Like [`Platform::wake_at`], where a millisecond later is as good: an environment that wakes
    /// by itself meanwhile need not be told.
    fn wake_about(&self, at: Instant) {
        self.wake_at(at);
    }
    /// An ACK waits for what else has come: [`Device::release`](crate::Device::release) is to be
    /// called when all is taken in. An environment that calls it in any case need not be told.
    fn ack_waits(&self) {}
    /// Fills `bytes` from a cryptographically secure generator.
    fn fill_random(&self, bytes: &mut [u8]);
    /// A peer waits until memory lies on its storage, or a receive until a peer copies nothing any
    /// more: `work` is run in a thread that may wait. Called with no lock held.
    fn persist(&self, work: Persist);
    /// Whether regions shall lie in large pages where they can: other processes copy them faster
    /// then.
    fn large_pages(&self) -> bool {
        false
    }
    /// Runs `work`, which takes long and which no thread waits for, in a thread of its own. False
    /// where there is none. Any lock may be held.
    fn in_background(&self, _work: Box<dyn FnOnce() + Send>) -> bool {
        false
    }
    /// Whether memory is watched by userfaultfd(2): what is not there of it comes from a process,
    /// perhaps never.
    fn is_late(&self, _addr: u64, _len: u64) -> bool {
        false
    }
    /// Has such memory brought, which is not there, by a thread that may wait for ever. Any lock
    /// may be held.
    fn bring(&self, _addr: u64, _len: u64) {}
    /// What this environment keeps of the memory of its processes by itself. The real one does not:
    /// there files do, by the system.
    fn storage(&self) -> Option<&dyn Storage> {
        None
    }
}

/// Memory that outlives its process, of an environment that is not the system's.
pub trait Storage {
    /// Whether all of these bytes outlive the process, once they are persistent.
    fn keeps(&self, addr: u64, len: u64) -> bool;
    /// Makes bytes persistent, as they are now.
    ///
    /// # Errors
    ///
    /// EIO where the storage fails, ENOMEM where it does not keep these bytes.
    fn persist(&self, addr: u64, len: u64) -> Result<(), Errno>;
}

/// Work that waits: for storage, on which memory shall lie before a peer is answered (FLUSH, IBA
/// annex A19), or for a peer that copies to the memory of a receive which failed.
pub struct Persist(Box<Work>);

/// Waits, then asks for the time.
type Work = dyn FnOnce(&mut dyn FnMut() -> Instant) + Send;

impl Persist {
    /// `work` waits, then asks for the time.
    pub(crate) fn new(work: impl FnOnce(&mut dyn FnMut() -> Instant) + Send + 'static) -> Self {
        Self(Box::new(work))
    }

    /// Waits until it is done, then lets the answer leave. Call it with no lock held; `now` is
    /// asked when the wait is over.
    pub fn run(self, mut now: impl FnMut() -> Instant) {
        (self.0)(&mut now);
    }
}

impl std::fmt::Debug for Persist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Persist")
    }
}

/// The way to tell an owner that there is something to fetch: the C functions write to an eventfd,
/// a simulation sets a mark. Called under the lock of the queue that it belongs to: it must not
/// wait, nor call back.
pub trait Signal: Send + Sync {
    /// Tells that there is one more thing to fetch.
    fn signal(&self);
    /// Tells that there is one thing less: the adapter took it back before the owner fetched it.
    fn take_back(&self);
}
