//! What this process exports to others.
//!
//! All queue pairs and regions that peers may reach stand in tables of this process's own. What the
//! process at the other end of a ring has named, or was told of, stands in the tables of that ring,
//! too, which that process reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use locks::{Mutex, Rank};
use nic::peer_memory::{Grant, Region};
use sys::fork::Fd;
use wire::Qpn;

use super::tables::{self, Entry};
use crate::memory::SharedMemory;
use crate::ring::Word;

/// Processes that are remembered because they are not to be believed.
const REMEMBERED: usize = 16;
/// Environments that were made, in this process and before it was forked; and how often each
/// changes at most before its count is another one's.
static ENVS: AtomicU64 = AtomicU64::new(0);
const CHANGES_BITS: u32 = 48;

/// What this process exports, and to which processes.
pub(crate) struct ExportTable {
    all: Mutex<All>,
    /// Changes of what may be reached: what was peer_exports before one is looked at anew. It
    /// begins where no other environment of the process, or of its parent, comes to.
    changes: AtomicU64,
    tables: AtomicU8,
    /// Numbers of processes that kept us waiting for nothing, the last ones.
    banned: [AtomicI32; REMEMBERED],
    next: AtomicUsize,
}

/// What may be reached, and by which ring.
#[derive(Default)]
struct All {
    /// Laid out as the tables that others read. Empty until there is something.
    words: Box<[Word]>,
    /// The ring by which a queue pair's peer was heard, whose packet bore the right numbers.
    has_received: BTreeMap<Qpn, u64>,
    rings: BTreeMap<u64, PeerExports>,
}

/// What the process at the other end of a ring is peer_exports.
struct PeerExports {
    tables: Arc<Tables>,
    entries: BTreeSet<Entry>,
}

/// Tables, and the descriptor by which the other process maps them.
pub(crate) struct Tables {
    memory: SharedMemory,
    pub(crate) fd: Fd,
    /// The inode of that.
    pub(crate) inode: u64,
}

/// How a region is peer_exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum As {
    /// The peer has named it by its key.
    Named,
    /// The queue pair exports it to the peer for a message.
    Told,
}

/// The outcome of showing a region.
pub(crate) enum ExportOutcome {
    /// There is no region that is to be peer_exports.
    Nothing,
    /// The region is peer_exports.
    Done,
    /// The region is peer_exports, in tables that the other process does not know yet.
    First(Arc<Tables>),
}

/// An entry that was taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleared(pub(super) Entry);

impl Default for ExportTable {
    fn default() -> Self {
        Self {
            all: Mutex::new(Rank::ExportTables, All::default()),
            changes: AtomicU64::new(ENVS.fetch_add(1, Ordering::Relaxed) << CHANGES_BITS),
            tables: AtomicU8::new(0),
            banned: [const { AtomicI32::new(-1) }; REMEMBERED],
            next: AtomicUsize::new(0),
        }
    }
}

impl Tables {
    fn new() -> std::io::Result<Self> {
        let (memory, fd) = SharedMemory::create_read_only(tables::BYTES)?;
        let inode = sys::inode(&fd)?;
        Ok(Self { memory, fd, inode })
    }
}

impl All {
    /// The tables of this process's own, made where there are none.
    fn words(&mut self) -> &[Word] {
        if self.words.is_empty() {
            self.words = std::iter::repeat_with(|| Word::new(0)).take(tables::WORDS).collect();
        }
        &self.words
    }

    /// Clears an entry wherever it is peer_exports.
    fn clear(&mut self, entry: Entry) -> bool {
        let was = !self.words.is_empty() && tables::clear(&self.words, entry);
        for peer_exports in self.rings.values_mut() {
            if peer_exports.entries.remove(&entry) {
                tables::clear(&peer_exports.tables.memory, entry);
            }
        }
        was
    }
}

impl ExportTable {
    /// A process of this number is exported nothing any more, by whatever connection it comes.
    pub(crate) fn ban(&self, pid: i32) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % REMEMBERED;
        self.banned[at].store(pid, Ordering::Relaxed);
    }

    /// Whether that was said of it.
    pub(crate) fn is_banned(&self, pid: i32) -> bool {
        self.banned.iter().any(|known| known.load(Ordering::Relaxed) == pid)
    }

    /// The number of a table of regions that no adapter has.
    pub(crate) fn table(&self) -> Option<u8> {
        let taken = self.tables.try_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < tables::TABLES).then_some(taken + 1)
        });
        taken.ok()
    }

    /// How often what may be reached has changed.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn have_changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn publish(&self, table: u8, slot: u16, region: &Region) {
        tables::publish(self.all.lock().words(), table, slot, region);
        self.have_changed();
    }

    /// Takes a region's entry back; what to wait for.
    pub(crate) fn withdraw(&self, table: u8, slot: u16) -> Option<Cleared> {
        let entry = Entry::Region(table, slot);
        let was = self.all.lock().clear(entry);
        self.have_changed();
        was.then_some(Cleared(entry))
    }

    /// Enters a queue pair, where it is not entered so already. False where it was entered
    /// otherwise: that is taken back, and to be waited for before this is called again.
    pub(crate) fn open(&self, grant: &Grant<'_>) -> bool {
        let mut all = self.all.lock();
        if tables::is_open(all.words(), grant) {
            return true;
        }
        if tables::widen(all.words(), grant) {
            let entry = tables::queue_pair(grant.qpn);
            let peer_exports =
                all.rings.values().filter(|peer_exports| peer_exports.entries.contains(&entry));
            peer_exports.for_each(|peer_exports| _ = tables::widen(&peer_exports.tables.memory, grant));
            drop(all);
            self.have_changed();
            return true;
        }
        if tables::is_of(all.words(), grant.qpn) {
            drop(all);
            self.close(grant.qpn);
            return false;
        }
        tables::open(all.words(), grant);
        drop(all);
        self.have_changed();
        true
    }

    /// Takes a queue pair's entry back, if it has one; what to wait for.
    pub(crate) fn close(&self, qpn: Qpn) -> Option<Cleared> {
        let entry = tables::queue_pair(qpn);
        let mut all = self.all.lock();
        if all.words.is_empty() {
            return None;
        }
        if tables::is_of(&all.words, qpn) {
            all.has_received.remove(&qpn);
            all.clear(entry);
            self.have_changed();
        }
        Some(Cleared(entry))
    }

    /// The peer of a queue pair was heard by a ring. Whether what it names may be peer_exports
    /// there.
    pub(crate) fn hear(&self, qpn: Qpn, ring: u64) -> bool {
        let mut all = self.all.lock();
        let is_open = !all.words.is_empty() && tables::is_of(&all.words, qpn);
        if is_open {
            all.has_received.insert(qpn, ring);
        }
        is_open
    }

    /// The ring by which a queue pair's peer was heard.
    pub(crate) fn has_received(&self, qpn: Qpn) -> Option<u64> {
        self.all.lock().has_received.get(&qpn).copied()
    }

    /// Exports the region of a key to the process at the other end of a ring, of which a queue
    /// pair's peer is. `give` may give it the buffer that the region is, whose rights these
    /// are.
    pub(crate) fn export(
        &self,
        ring: u64,
        qpn: Qpn,
        key: u32,
        how: As,
        give: impl FnOnce(u64, u64, u32),
    ) -> ExportOutcome {
        let mut all = self.all.lock();
        let All { words, rings, .. } = &mut *all;
        let Some((queue_pair, entry, mut region)) = tables::found(words, qpn, key) else {
            return ExportOutcome::Nothing;
        };
        let is_new = !rings.contains_key(&ring);
        if is_new {
            let Ok(tables) = Tables::new() else { return ExportOutcome::Nothing };
            rings.insert(ring, PeerExports { tables: Arc::new(tables), entries: BTreeSet::new() });
        }
        let Some(peer_exports) = rings.get_mut(&ring) else { return ExportOutcome::Nothing };
        let memory = &peer_exports.tables.memory;
        match how {
            As::Named => {
                let (addr, len, access) = region.place();
                give(addr, len, access);
            }
            As::Told => region.tell(),
        }
        // Another queue pair may have the place.
        if !tables::enter_queue_pair(memory, qpn, queue_pair) {
            return ExportOutcome::Nothing;
        }
        tables::enter_region(memory, entry, region);
        peer_exports.entries.extend([tables::queue_pair(qpn), entry]);
        if is_new { ExportOutcome::First(peer_exports.tables.clone()) } else { ExportOutcome::Done }
    }

    /// The tables of a ring, where it has some.
    pub(crate) fn tables_of(&self, ring: u64) -> Option<Arc<Tables>> {
        self.all.lock().rings.get(&ring).map(|peer_exports| peer_exports.tables.clone())
    }

    /// A ring is no more.
    pub(crate) fn forget(&self, ring: u64) {
        let mut all = self.all.lock();
        all.rings.remove(&ring);
        all.has_received.retain(|_, by| *by != ring);
    }
}
