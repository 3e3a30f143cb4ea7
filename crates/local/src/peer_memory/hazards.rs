//! What an initiator uses of another process's tables just now, said in memory that both map. It
//! says so before it looks, and a thread that takes an entry back clears it before it looks here.
//! One of the two sees the other.
//!
//! | word | what |
//! |---|---|
//! | 2 n | 0: free. Else an access: 1 (bit 63), the thread as its process numbers it (23 bits), table (8), slot of the region (16), entry of the queue pair (16) |
//! | 2 n + 1 | not used |
//! | 64 | the other way: what the page says by which the owner is known, while it is there ([`granted`]) |

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::ring::Word;

use crate::peer_memory::fences::{At, fence_behind_exchange};
use crate::peer_memory::tables::Entry;

/// Bytes of it.
pub(crate) const BYTES: usize = 4096;
/// Accesses at once.
const ACCESSES: usize = 16;
/// Where the owner says that what it exports may be used.
const GRANTED: usize = 64;
const ACCESS: u64 = 1 << 63;
/// Where the number of a thread is, and its bits: Linux has 2^22 at most.
const THREAD: u32 = 40;
const THREADS: u32 = (1 << 23) - 1;

/// An access; what it uses stays while it is not dropped.
#[derive(Debug)]
pub(super) struct Access<'a>(&'a Word);

/// The word by which the owner grants what it exports.
pub(super) fn granted(memory: &[Word]) -> Option<&Word> {
    memory.get(GRANTED)
}

/// Says that an access begins to use a queue pair's entry and a region's. `None`: too many threads
/// do.
#[inline]
pub(super) fn begin(memory: &[Word], thread: u32, queue_pair: Entry, region: Entry) -> Option<Access<'_>> {
    let (Entry::QueuePair(queue_pair), Entry::Region(table, slot)) = (queue_pair, region) else {
        return None;
    };
    let thread = u64::from(thread & THREADS) << THREAD;
    let access = ACCESS | thread | u64::from(table) << 32 | u64::from(slot) << 16 | u64::from(queue_pair);
    let mut places = memory.as_chunks::<2>().0.iter().take(ACCESSES).map(|place| &place[0]);
    let place = places.find(|place| {
        place.load(Relaxed) == 0 && place.compare_exchange(0, access, AcqRel, Relaxed).is_ok()
    })?;
    fence_behind_exchange(At::InUse);
    Some(Access(place))
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// The threads whose accesses use an entry, with where each says so. To be called when the entry is
/// cleared, which puts a fence before this.
pub(super) fn users(memory: &[Word], entry: Entry) -> impl Iterator<Item = (usize, u32)> {
    memory.as_chunks::<2>().0.iter().take(ACCESSES).enumerate().filter_map(move |(at, place)| {
        let access = place[0].load(Acquire);
        let used = match entry {
            Entry::QueuePair(queue_pair) => access as u16 == queue_pair,
            Entry::Region(table, slot) => (access >> 32) as u8 == table && (access >> 16) as u16 == slot,
        };
        (access & ACCESS != 0 && used).then_some((at, (access >> THREAD) as u32 & THREADS))
    })
}
