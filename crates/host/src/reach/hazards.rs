//! What an initiator uses of another process's tables just now, said in memory that both map: it says so before it looks, and whoever takes an
//! entry back clears it before he looks here. One of the two sees the other.
//!
//! | word | what |
//! |---|---|
//! | 2 n | 0: free. 1: somebody's. Else an access: 1 (bit 63), table (8 bits), slot of the region (16), entry of the queue pair (16) |
//! | 2 n + 1 | the thread, as its process numbers it |
//! | 64 | the other way: what the page says by which the owner is known, while it is there ([`granted`]) |

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ring::Word;

use crate::reach::fences::{At, fence};
use crate::reach::tables::Entry;

/// Bytes of it.
pub(crate) const BYTES: usize = 4096;
/// Accesses at once.
const ACCESSES: usize = 16;
/// Where the owner says that what he lends may be used.
const GRANTED: usize = 64;
const SOMEBODYS: u64 = 1;
const ACCESS: u64 = 1 << 63;

/// An access; what it uses stays while it is not dropped.
#[derive(Debug)]
pub(super) struct Access<'a>(&'a Word);

/// The word by which the owner grants what he lends.
pub(super) fn granted(memory: &[Word]) -> Option<&Word> {
    memory.get(GRANTED)
}

/// Says that an access begins to use a queue pair's entry and perhaps a region's. `None`: too many threads do.
pub(super) fn begin(memory: &[Word], thread: u32, queue_pair: u16) -> Option<Access<'_>> {
    let mut places = memory.chunks_exact(2).take(ACCESSES);
    let [access, who] = places.find(|place| {
        place[0].load(Relaxed) == 0 && place[0].compare_exchange(0, SOMEBODYS, Acquire, Relaxed).is_ok()
    })?
    else {
        return None;
    };
    who.store(thread.into(), Relaxed);
    access.store(ACCESS | u64::from(queue_pair), Release);
    fence(At::QueuePairInUse);
    Some(Access(access))
}

impl Access<'_> {
    /// Says which region it uses, too.
    pub(super) fn uses(&self, region: Entry) {
        let Entry::Region(table, slot) = region else { return };
        let queue_pair = self.0.load(Relaxed) & 0xffff;
        self.0.store(ACCESS | u64::from(table) << 32 | u64::from(slot) << 16 | queue_pair, Release);
        fence(At::RegionInUse);
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// The threads whose accesses use an entry, with where each says so. To be called when the entry is cleared, which puts a fence in front of this.
pub(super) fn users(memory: &[Word], entry: Entry) -> impl Iterator<Item = (usize, u32)> {
    memory.chunks_exact(2).take(ACCESSES).enumerate().filter_map(move |(at, place)| {
        let access = place[0].load(Acquire);
        let used = match entry {
            Entry::QueuePair(queue_pair) => access as u16 == queue_pair,
            // An access that has not said which region is none of a region yet: it looks after it has said so.
            Entry::Region(table, slot) => (access >> 32) as u8 == table && (access >> 16) as u16 == slot,
        };
        (access & ACCESS != 0 && used).then(|| (at, place[1].load(Relaxed) as u32))
    })
}
