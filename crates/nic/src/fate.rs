//! What becomes of a packet that arrives: counted where it is dropped, and told to a [`Tap`] that
//! shows the packet.
//!
//! [`Tap`]: crate::link::Tap

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::Endpoint;

/// A packet that has arrived, BTH to ICRC, which is not checked yet.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Sender; over UDP with the port it sent from.
    pub source: Endpoint,
    /// Our address it was sent to.
    pub dest: Endpoint,
    /// Index of our interface.
    pub interface: u32,
    /// Another process of this host has handed it on.
    pub forwarded: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A whole Ethernet frame that has arrived, from the destination's hardware address on.
#[derive(Clone, Copy, Debug)]
pub struct FrameArrival<'a> {
    /// Index of our interface.
    pub interface: u32,
    /// This host has sent it by this interface.
    pub outgoing: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// What became of a packet that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// A queue pair or the connection manager has it.
    #[default]
    Taken,
    /// Another process of this host has it, which owns the queue pair.
    PassedOn,
    /// Dropped, for the reason that the counter of this name counts.
    Dropped(&'static str),
    /// A fault befell it, of this name, before the node saw it.
    Fault(&'static str),
}

thread_local! {
    static LAST: Cell<Fate> = const { Cell::new(Fate::Taken) };
}

impl Fate {
    /// The fate of the packet that this thread deals with.
    #[cold]
    pub fn set(self) {
        LAST.set(self);
    }

    /// What was set in this thread since the last call; [`Fate::Taken`] if nothing was.
    pub fn take() -> Self {
        LAST.take()
    }
}

/// Packets dropped for one reason.
#[derive(Debug)]
pub struct DropCounter {
    reason: &'static str,
    count: AtomicU64,
}

impl DropCounter {
    /// A counter at 0; `reason` is its name.
    pub const fn new(reason: &'static str) -> Self {
        Self { reason, count: AtomicU64::new(0) }
    }

    /// Counts packets that this thread drops.
    #[cold]
    pub fn add(&self, packets: u32) {
        if packets > 0 {
            self.count.fetch_add(packets.into(), Ordering::Relaxed);
            Fate::Dropped(self.reason).set();
        }
    }

    /// Packets so far.
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Name and packets so far.
    pub fn snapshot(&self) -> (&'static str, u64) {
        (self.reason, self.get())
    }
}
