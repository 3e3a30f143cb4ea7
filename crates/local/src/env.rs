//! What stands between rings and the host around them: what rings ask of it, and what comes by a
//! ring to it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nic::Path;
use sys::clock::Clock;
use sys::fork::Fd;
use transport::Short;
use transport::op::SharedBytes;
use transport::rc::AckDelay;

use crate::counters::Counters;
use crate::record::Ends;

/// What rings ask of the host around them.
pub trait Env {
    /// A number that is another one when the interfaces or their addresses have changed. It is
    /// asked for first: what is known by then may be kept with it.
    fn version(&self) -> u64;
    /// The ends of a path, as the process there sees them; `None` where the path does not lead to
    /// an address of this host.
    fn ends(&self, path: &Path) -> Option<Ends>;
    /// The process that bears a block of queue pair numbers.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED where no process bears it, those of connect(2) otherwise.
    fn owner(&self, block: u16) -> io::Result<Arc<dyn NameOwner>>;
    /// Wakes the engine thread: packets wait for room in a ring
    /// ([`Rings::go_on`](crate::Rings::go_on)).
    fn wake_engine(&self);
    /// The host's time.
    fn clock(&self) -> &Clock;
    /// What is counted.
    fn counters(&self) -> &Counters;
}

/// The connection to a process that reads a ring of ours. No message asks it anything.
pub trait NameOwner: Send + Sync {
    /// Tells the connection from all others there are and were.
    fn token(&self) -> u64;
    /// The block of queue pair numbers that the process bears; `None` for another name of it.
    fn block(&self) -> Option<u16>;
    /// The number of the process; 0 where it has none here.
    fn pid(&self) -> i32;
    /// Whether it is of a build with another protocol number, which takes packets only.
    fn is_other_build(&self) -> bool;
    /// Whether it takes what comes by the network only.
    fn has_declined(&self) -> bool;
    /// Hands it the memory of a ring by which packets will come, and what it has to repeat.
    ///
    /// # Errors
    ///
    /// Those of sendmsg(2).
    fn offer_ring(&self, memory: &Fd, nonce: u64) -> io::Result<()>;
    /// Tells it that there is something in the ring.
    fn wake_reader(&self);
    /// The socket.
    fn fd(&self) -> &Fd;
}

/// The connection of a process that writes a ring which we read. No message asks it anything.
pub trait Connection: Send + Sync {
    /// Tells the connection from all others there are and were; not 0.
    fn token(&self) -> u64;
    /// Exports the process these tables, for the ring that was offered here.
    fn export(&self, tables: &Fd, guard: Known);
    /// Lets it map a buffer that lies at this address here. False where it is not told.
    fn export_buffer(&self, address: u64, writable: bool, buffer: &Fd) -> bool;
    /// Tells it that such a buffer is gone.
    fn tell_gone(&self, address: u64);
    /// Gives it what wakes a thread of this process, with the ring that was offered here.
    fn give(&self, wake_fd: &Fd);
    /// Whether the other end is gone.
    fn is_gone(&self) -> bool;
    /// The socket.
    fn fd(&self) -> &Fd;
}

/// The page by which others know a process whose memory they reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The address of the page.
    pub address: u64,
    /// What the page's first eight bytes say.
    pub says: u64,
}

/// What takes in what comes by rings.
pub trait PacketHandler {
    /// What it keeps for each ring: where the packets of the last record came from, and what it
    /// found out about them.
    type Origin: Send;

    /// The records from now on come from there. Nothing is known before the first one.
    fn come_from(&self, ends: &Ends, origin: &mut Option<Self::Origin>);
    /// Packets, one after the other, each of `size` bytes (1 or more) but for the last, which may
    /// be shorter. The last four bytes of each are room for an ICRC that was not filled in.
    fn packets(&self, now: Instant, origin: &Self::Origin, ack_delay: AckDelay, packets: &[u8], size: usize);
    /// A short message, perhaps with an ACK, in place of their packets.
    fn short(
        &self,
        now: Instant,
        origin: &mut Self::Origin,
        ack_delay: AckDelay,
        short: &Short,
        bytes: &[u8],
    );
    /// Several packets of a message as one fragment: the headers of one, and all of their payload.
    fn fragment(
        &self,
        now: Instant,
        origin: &Self::Origin,
        ack_delay: AckDelay,
        headers: &[u8],
        payload: SharedBytes<'_>,
    );
    /// ACKs held back that need not wait for the program leave, as all was read that was there.
    fn release(&self);
}

/// Where what comes by rings goes ([`Rings::delivery`](crate::Rings::delivery)).
pub struct Delivery<'a, H: PacketHandler> {
    /// What takes it in.
    pub(crate) handler: H,
    pub(crate) counters: &'a Counters,
    /// An ACK is held back until all is read that is there.
    pub(crate) ack_waits: &'a AtomicBool,
}

impl<H: PacketHandler> Delivery<'_, H> {
    /// All is read that is there: ACKs that wait for that leave.
    #[inline]
    pub(crate) fn all_is_read(&self) {
        // A thread that had one wait meanwhile comes by here, too.
        if self.ack_waits.load(Ordering::Relaxed) && self.ack_waits.swap(false, Ordering::AcqRel) {
            self.handler.release();
        }
    }
}

/// The outcome of an attempt to read a ring or a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drained {
    /// Another thread holds the token.
    Busy,
    /// Nothing was there to read.
    Empty,
    /// Packets were dispatched.
    Some {
        /// There were more at once than any single packet of ours.
        bulk: bool,
    },
}

impl Drained {
    /// The outcome of two attempts, this one and one after it.
    #[inline]
    #[must_use]
    pub fn plus(self, next: Self) -> Self {
        match (self, next) {
            (Self::Some { bulk }, Self::Some { bulk: more }) => Self::Some { bulk: bulk || more },
            (_, Self::Some { .. }) => next,
            _ => self,
        }
    }
}
