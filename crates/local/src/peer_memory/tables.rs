//! What a process lets others reach, in memory that they can read: its queue pairs that have a peer
//! on this host, and its regions.
//!
//! | words | what |
//! |---|---|
//! | 0..2^17 | an entry of two words for each number of a queue pair, by its lower 16 bits; where two have the same the second is not there |
//! | then 2^18 for each of four adapters | an entry of four words for each slot of its table of regions |
//!
//! An entry of a queue pair: its number (upper 24 bits), its peer's (24), the table of its regions
//! (4), rights (12); its protection domain (upper half), [`ends`] of its path. One of a region: key
//! (upper half) and protection domain; first address; whether what is visible in it is persistent
//! (the uppermost bit), whether the queue pair exports it for messages (the next one), rights (14
//! bits) and length; the address that peers have for the first byte. An entry whose first word is 0
//! is none: that word is written last, and taken back first.
//!
//! A reader checks all of it; what is written there by a process that means harm reaches that
//! process's own memory and no other.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use nic::peer_memory::{Grant, Region};
use transport::op::Remote;
use wire::{Address, Qpn, Rkey};

use super::fences::{At, fence};
use crate::ring::Word;

/// Tables of regions.
pub(super) const TABLES: u8 = 4;
const QUEUE_PAIRS: usize = if cfg!(loom) { 1 } else { 1 << 16 };
const QUEUE_PAIR_WORDS: usize = 2;
const REGIONS: usize = if cfg!(loom) { 2 } else { 1 << 16 };
const REGION_WORDS: usize = 4;
/// Words of all of it.
pub(super) const WORDS: usize = QUEUE_PAIRS * QUEUE_PAIR_WORDS + TABLES as usize * REGIONS * REGION_WORDS;
/// Bytes of all of it.
pub(super) const BYTES: usize = WORDS * size_of::<Word>();
/// Bits of a region's length.
const LENGTH_BITS: u32 = 48;
/// Bits of rights: `enum ibv_access_flags` but for hints.
const RIGHTS_BITS: u32 = 12;
const RIGHTS: u32 = (1 << RIGHTS_BITS) - 1;
/// A region's right that its owner has given no peer, but its memory: what is visible in it is
/// persistent.
pub(super) const PERSISTS: u32 = 1 << 15;

/// Likewise: the queue pair exports it to the peer for a message, whatever its rights are.
pub(super) const TOLD: u32 = 1 << 14;

/// Where an entry is: what an access says it uses, and the thread that takes it back waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Entry {
    /// Of a queue pair.
    QueuePair(u16),
    /// A slot of a table of regions.
    Region(u8, u16),
}

/// What an initiator found of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pd: u32,
    table: u8,
}

impl Found {
    /// The entry of a region that its peer names by a key.
    pub(super) fn region(self, key: u32) -> Entry {
        Entry::Region(self.table, (key >> 16) as u16)
    }
}

/// The entry of a queue pair.
pub(super) fn queue_pair(qpn: Qpn) -> Entry {
    Entry::QueuePair(qpn.get() as u16)
}

/// A number for the two ends of a connection, as the one that lets memory be reached sees them.
pub(super) fn ends(here: Address, there: Address) -> u32 {
    // Odd, and otherwise any: a multiplication a half of an address, none of which waits for
    // another.
    const FACTORS: [u64; 4] =
        [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0xd6e8_feb8_6659_fd93];
    let halves = |address: Address| {
        let bits = address.to_bits();
        [(bits >> 64) as u64, bits as u64]
    };
    let ([a, b], [c, d]) = (halves(here), halves(there));
    let sum = [a, b, c, d]
        .iter()
        .zip(FACTORS)
        .fold(0, |sum: u64, (half, factor)| sum.wrapping_add(half.wrapping_mul(factor)));
    (sum >> 32) as u32
}

fn words(memory: &[Word], entry: Entry) -> Option<&[Word]> {
    let (first, len) = match entry {
        Entry::QueuePair(at) => (usize::from(at) * QUEUE_PAIR_WORDS, QUEUE_PAIR_WORDS),
        Entry::Region(table, slot) => {
            let tables = QUEUE_PAIRS * QUEUE_PAIR_WORDS;
            let slot = usize::from(table) * REGIONS + usize::from(slot);
            (tables + slot * REGION_WORDS, REGION_WORDS)
        }
    };
    memory.get(first..first + len)
}

fn first_of_queue_pair(qpn: Qpn, peer: Qpn, table: u8, access: u32) -> u64 {
    let (table, rights) = (u64::from(table) << RIGHTS_BITS, u64::from(access & RIGHTS));
    u64::from(qpn.get()) << 40 | u64::from(peer.get()) << 16 | table | rights
}

/// Writes a queue pair's entry. False where another one has its place.
pub(super) fn open(memory: &[Word], grant: &Grant<'_>) -> bool {
    place(memory, grant.qpn, QueuePair::of(grant))
}

/// Writes the words of a queue pair's entry where none is. False where another one has its place.
fn place(memory: &[Word], qpn: Qpn, entry: QueuePair) -> bool {
    let Some([first, second]) = words(memory, queue_pair(qpn)) else { return false };
    // Its number and nothing else: the place is taken, and no peer finds itself there.
    let number = u64::from(qpn.get()) << 40;
    if first.compare_exchange(0, number, Relaxed, Relaxed).is_err() {
        return false;
    }
    // A thread that finds this finds that number in the first word, or what comes below.
    second.store(entry.0[1], Release);
    first.store(entry.0[0], Release);
    true
}

/// The words of a queue pair's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuePair([u64; 2]);

impl QueuePair {
    fn of(grant: &Grant<'_>) -> Self {
        let path = grant.path;
        let first = first_of_queue_pair(grant.qpn, path.dest_qpn, grant.table, grant.access);
        Self([first, u64::from(grant.pd) << 32 | u64::from(ends(path.source, path.dest))])
    }
}

/// The words of a region's entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfRegion([u64; 4]);

impl OfRegion {
    /// First address, length and rights.
    pub(super) fn place(self) -> (u64, u64, u32) {
        let [_, addr, len, _] = self.0;
        (addr, len & ((1 << LENGTH_BITS) - 1), (len >> LENGTH_BITS) as u32 & RIGHTS)
    }

    /// Notes that the queue pair of the entry exports it to the peer for messages.
    pub(super) fn tell(&mut self) {
        self.0[2] |= u64::from(TOLD) << LENGTH_BITS;
    }
}

/// What stands in the owner's tables of a queue pair, and of the region that its peer names by a
/// key, if that is of the queue pair's protection domain.
pub(super) fn found(memory: &[Word], qpn: Qpn, key: u32) -> Option<(QueuePair, Entry, OfRegion)> {
    let [first, second] = words(memory, queue_pair(qpn))? else { return None };
    let found = QueuePair([first.load(Relaxed), second.load(Relaxed)]);
    let entry = region(memory, qpn, Rkey(key)).filter(|_| is_of(memory, qpn))?;
    let [first, addr, len, iova] = words(memory, entry)? else { return None };
    let is_it = first.load(Relaxed) == u64::from(key) << 32 | found.0[1] >> 32;
    let region = OfRegion([first, addr, len, iova].map(|word| word.load(Relaxed)));
    is_it.then_some((found, entry, region))
}

/// Writes a queue pair's entry as it stands in the owner's tables. False where another one has its
/// place.
pub(super) fn enter_queue_pair(memory: &[Word], qpn: Qpn, entry: QueuePair) -> bool {
    let there = words(memory, queue_pair(qpn)).is_some_and(|words| words[0].load(Relaxed) == entry.0[0]);
    there || place(memory, qpn, entry)
}

/// Writes a region's entry as it stands in the owner's tables. That it is exported for messages
/// stays so.
pub(super) fn enter_region(memory: &[Word], entry: Entry, region: OfRegion) {
    let Some([first, addr, len, iova]) = words(memory, entry) else { return };
    let told = match first.load(Relaxed) == region.0[0] {
        true => len.load(Relaxed) & u64::from(TOLD) << LENGTH_BITS,
        false => 0,
    };
    addr.store(region.0[1], Relaxed);
    len.store(region.0[2] | told, Relaxed);
    iova.store(region.0[3], Relaxed);
    first.store(region.0[0], Release);
}

/// Whether a queue pair has its place in the table, and just this entry there.
pub(super) fn is_open(memory: &[Word], grant: &Grant<'_>) -> bool {
    let Some([first, second]) = words(memory, queue_pair(grant.qpn)) else { return false };
    QueuePair([first.load(Relaxed), second.load(Relaxed)]) == QueuePair::of(grant)
}

/// Lets the peer of a queue pair do more than its entry says, which is this one but for that. False
/// where it is another. An access that goes on keeps what it found.
pub(super) fn widen(memory: &[Word], grant: &Grant<'_>) -> bool {
    let Some([first, _]) = words(memory, queue_pair(grant.qpn)) else { return false };
    let before = first.load(Relaxed) as u32 & RIGHTS;
    let widens = before & !grant.access == 0 && is_open(memory, &Grant { access: before, ..*grant });
    if widens {
        let wide = first_of_queue_pair(grant.qpn, grant.path.dest_qpn, grant.table, grant.access);
        first.store(wide, Release);
    }
    widens
}

/// Whether the entry of this number is this queue pair's.
pub(super) fn is_of(memory: &[Word], qpn: Qpn) -> bool {
    words(memory, queue_pair(qpn)).is_some_and(|words| words[0].load(Relaxed) >> 40 == u64::from(qpn.get()))
}

/// Writes a region's entry.
pub(super) fn publish(memory: &[Word], table: u8, slot: u16, region: &Region) {
    let Some([first, addr, len, iova]) = words(memory, Entry::Region(table, slot)) else { return };
    if region.len >> LENGTH_BITS != 0 {
        return;
    }
    addr.store(region.addr, Relaxed);
    let rights = region.access & RIGHTS | if region.persists { PERSISTS } else { 0 };
    len.store(u64::from(rights) << LENGTH_BITS | region.len, Relaxed);
    iova.store(region.iova, Relaxed);
    first.store(u64::from(region.key) << 32 | u64::from(region.pd), Release);
}

/// Takes an entry back; whether there was one. Accesses that were begun before may go on: see
/// `hazards`. An access that began later, or a process that is exported to later, finds nothing.
/// The same holds for a thread that sees anything that is written after this.
pub(super) fn clear(memory: &[Word], entry: Entry) -> bool {
    let was = words(memory, entry)
        .is_some_and(|words| words[0].load(Relaxed) != 0 && words[0].swap(0, AcqRel) != 0);
    fence(At::TakenBack);
    was
}

/// For an initiator: what the queue pair at the other end lets ours, `from`, do. `ends`: of the
/// path, as the other one sees it.
pub(super) fn look_up(memory: &[Word], qpn: Qpn, from: Qpn, ends: u32, right: u32) -> Option<Found> {
    let [first, second] = words(memory, queue_pair(qpn))? else { return None };
    let (entry, more) = (first.load(Acquire), second.load(Acquire));
    // Another queue pair may have the place by now, and the second word be its.
    let is_one = first.load(Relaxed) == entry;
    let is_it =
        is_one && entry >> 16 == u64::from(qpn.get()) << 24 | u64::from(from.get()) && more as u32 == ends;
    let table = (entry as u16 >> RIGHTS_BITS) as u8;
    let allowed = is_it && entry as u32 & RIGHTS & right == right && table < TABLES;
    allowed.then_some(Found { pd: (more >> 32) as u32, table })
}

/// The entry of a region that the peer of a queue pair names by a key, as far as that one's entry
/// says now.
pub(super) fn region(memory: &[Word], qpn: Qpn, key: Rkey) -> Option<Entry> {
    let [first, _] = words(memory, queue_pair(qpn))? else { return None };
    let table = (first.load(Relaxed) as u16 >> RIGHTS_BITS) as u8;
    (table < TABLES).then_some(Entry::Region(table, (key.0 >> 16) as u16))
}

/// Whether what a peer names by a key seems to be exported to us.
#[inline]
pub(super) fn seems_exported(memory: &[Word], qpn: Qpn, key: Rkey) -> bool {
    let first = region(memory, qpn, key).and_then(|entry| words(memory, entry));
    first.is_some_and(|words| (words[0].load(Relaxed) >> 32) as u32 == key.0)
}

/// Where the bytes would be that a peer names, as far as the entries say. Only a hint, for a thread
/// that has not said that it uses them.
pub(super) fn hint(memory: &[Word], qpn: Qpn, remote: Remote) -> Option<u64> {
    let [first, addr, _, iova] = words(memory, region(memory, qpn, remote.rkey)?)? else { return None };
    let is_it = (first.load(Acquire) >> 32) as u32 == remote.rkey.0;
    let at = remote.addr.checked_sub(iova.load(Relaxed)).filter(|_| is_it)?;
    addr.load(Relaxed).checked_add(at)
}

/// For an initiator: where the bytes that it names are, if it may.
pub(super) fn find(memory: &[Word], found: Found, remote: Remote, right: u32) -> Option<u64> {
    let [first, addr, len, iova] = words(memory, found.region(remote.rkey.0))? else { return None };
    if first.load(Acquire) != u64::from(remote.rkey.0) << 32 | u64::from(found.pd) {
        return None;
    }
    let (addr, len, iova) = (addr.load(Relaxed), len.load(Relaxed), iova.load(Relaxed));
    let at = remote.addr.checked_sub(iova)?;
    let inside = at.checked_add(remote.length)? <= len & ((1 << LENGTH_BITS) - 1);
    let allowed = (len >> LENGTH_BITS) as u32 & right == right;
    let first = addr.checked_add(at)?;
    // What no region has: an end beyond the last address.
    first.checked_add(remote.length)?;
    (inside && allowed).then_some(first)
}
