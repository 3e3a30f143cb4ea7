//! Memory of the processes of one host, which they reach by themselves. A WRITE or READ of a
//! connection between two of them needs nothing of the target, neither its processor nor its
//! library.
//!
//! A process says which of its regions and queue pairs others may reach, and takes that back. The
//! way to a peer's memory is a short cut: where it is closed (no such region, other rights, a queue
//! pair that is not connected so, memory that is not mapped) the request goes as packets,
//! and the peer's responder says what is wrong.

use transport::Short;
use transport::op::{DirectOutcome, Fault, FragmentOutcome, Remote};
use wire::{Mtu, Qpn, Rkey};

#[cfg(doc)]
use crate::link::Link;
use crate::link::{Fill, Path, PathCache};
pub use crate::memory::rights::terms;
pub use crate::memory::transfer::{Copy, Piece, Prepared, Regions, Transfer};

/// What a link does for processes of the same host beside packets ([`Link::local`]): short
/// messages, fragments of long ones, and copies in memory of the other process. None of the calls
/// needs more of the caller than that the named objects are its own; they may be made with the lock
/// of a queue pair held.
pub trait LocalLink: Send + Sync {
    /// Sends a short message to a process of this host in less than packets, after all that was
    /// sent on this path. False where it has to be a packet, and nothing has been sent.
    fn send_short(&self, _path: &Path, _short: &Short, _bytes: &[u8], _way: &mut PathCache) -> bool {
        false
    }
    /// The longest fragment in bytes that [`LocalLink::send_fragment`] takes; 0 where it takes
    /// none.
    fn max_fragment(&self) -> usize {
        0
    }
    /// Sends several packets as one fragment to a process of this host, after all that was sent on
    /// this path. The fragment is the headers of one packet, and `len` bytes that `fill` stores.
    /// After the headers stands what else the receiver has to know, last of all the path MTU, by
    /// its code.
    ///
    /// # Errors
    ///
    /// What `fill` says; nothing has been sent then, nor where it is not [`FragmentOutcome::Sent`].
    fn send_fragment(
        &self,
        _path: &Path,
        _headers: &[u8],
        _len: usize,
        _fill: &mut Fill<'_>,
    ) -> Result<FragmentOutcome, Fault> {
        Ok(FragmentOutcome::Unavailable)
    }
    /// A table for the regions of one more adapter, which are these. `None`: there are enough.
    fn table(&self, regions: &Regions) -> Option<u8>;
    /// From now on peers may reach a region, which has this slot of a table.
    fn publish(&self, table: u8, slot: u16, region: &Region);
    /// Peers may not reach a region any more. Returns when no peer does: at once, unless one does
    /// just now.
    fn withdraw(&self, table: u8, slot: u16);
    /// A queue pair in RTR knows its peer, which may speak soon: what answers and
    /// [`LocalLink::open`] need is made now, where it is not there.
    fn prepare(&self, _path: &Path) {}
    /// From now on the peer of a queue pair may reach regions of its protection domain. False where
    /// it could otherwise: then it can not any more, and may again when [`LocalLink::close`] has
    /// waited.
    fn open(&self, grant: &Grant<'_>) -> bool;
    /// The peer of a queue pair may not reach regions any more. `wait`: returns when it does not.
    fn close(&self, qpn: Qpn, wait: bool);
    /// Whether it does not now: [`LocalLink::close`] would return at once. It may not any more.
    fn is_closed(&self, _qpn: Qpn) -> bool {
        true
    }
    /// The peer of a queue pair has named a region by its key in a request that was executed just
    /// now, in this thread: the peer's process reaches the region from now on. `access`: what the
    /// queue pair lets the peer do (`enum ibv_access_flags`).
    fn named(&self, _qpn: Qpn, _key: Rkey, _access: u32) {}
    /// What came from the peer of a queue pair just now, in this thread, bore the numbers of the
    /// connection. Whether it is known from now on in which process the peer is.
    fn has_received(&self, _qpn: Qpn) -> bool {
        true
    }
    /// A queue pair exports its peer the region of a local key for a message. Whether the peer's
    /// process reaches that from now on.
    fn told(&self, _qpn: Qpn, _key: Rkey) -> bool {
        true
    }
    /// Whether a path leads to this host.
    fn is_local(&self, path: &Path) -> bool;
    /// Whether there is a way by memory to the process at the end of a path, and packets on it take
    /// that way.
    fn carries(&self, _path: &Path) -> bool {
        false
    }
    /// The channel to the process of this host at the end of a path, by number, and for how many
    /// bytes of packets there is room in it. `None` where packets go as by a network.
    fn channel(&self, _path: &Path) -> Option<(u16, u32)> {
        None
    }
    /// Whether memory of the process at the end of a path is reached now, some of it.
    fn reaches(&self, path: &Path) -> bool;
    /// Whether what the peer at the end of a path names lies, as it seems, in memory that both
    /// processes map: a copy takes no longer than in memory of our own.
    fn is_mapped(&self, _path: &Path, _remote: Remote, _way: &PathCache) -> bool {
        false
    }
    /// From how many bytes on a message goes in pieces that both ends copy; `None`: where that is
    /// faster.
    fn shares_from(&self) -> Option<u32> {
        None
    }
    /// Copies between memory of ours and what the peer names, or changes that: what was there goes
    /// to the piece. The last word of a WRITE becomes visible last. An atomic is done at once for
    /// all threads that change the bytes by instructions, and only in memory that both processes
    /// map. Where it can not, nothing is copied, or a part, as when a connection breaks.
    /// `Unavailable` where memory of the process is not reached at all, else `Refused`.
    ///
    /// `cache` is of the transfer's path, and of what went on it before. A FLUSH has no pieces.
    /// `Refused` where it would have to wait for anything, or is for all of a region.
    fn copy(&self, prepared: &Prepared<'_>, cache: &mut PathCache) -> DirectOutcome;
}

/// What a peer reaches of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The region's key.
    pub key: u32,
    /// The region's protection domain.
    pub pd: u32,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// Where it is.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The address that peers have for its first byte.
    pub iova: u64,
    /// What is visible in it is persistent, as long as it is mapped: a file in memory.
    pub persists: bool,
}

/// A queue pair that lets its peer reach memory.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// To the peer.
    pub path: &'a Path,
    /// The queue pair's protection domain.
    pub pd: u32,
    /// The table of its regions.
    pub table: u8,
    /// `enum ibv_access_flags`: what it lets the peer do; and its [`terms`].
    pub access: u32,
}

/// A peer that may export us bytes of its memory.
pub(crate) struct Peer<'a> {
    pub(crate) local: &'a dyn LocalLink,
    pub(crate) path: Path,
    /// Our queue pair.
    pub(crate) from: Qpn,
    /// The queue pair's path MTU.
    pub(crate) mtu: Mtu,
}

impl std::fmt::Debug for Peer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("path", &self.path).field("from", &self.from).finish_non_exhaustive()
    }
}
