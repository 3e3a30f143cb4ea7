//! What fuzz targets call, and the test of layouts: the ends of memory that another process writes
//! to as it likes. No part of the crate's face.

use nic::peer_memory::{Grant, Region};
use transport::op::Remote;
use wire::Qpn;

use super::tables::Entry;
use super::{Proof, hazards, tables};
use crate::ring::Word;

/// Words of the tables that a process exports.
pub const WORDS: usize = tables::BYTES / size_of::<Word>();

/// The owner: enters a queue pair.
pub fn open(memory: &[Word], grant: &Grant<'_>) -> bool {
    tables::open(memory, grant)
}

/// The owner: enters a region.
pub fn publish(memory: &[Word], table: u8, slot: u16, region: &Region) {
    tables::publish(memory, table, slot, region);
}

/// The owner: takes a queue pair back.
pub fn close(memory: &[Word], qpn: Qpn) {
    tables::clear(memory, tables::queue_pair(qpn));
}

/// The owner: takes a region back.
pub fn withdraw(memory: &[Word], table: u8, slot: u16) {
    tables::clear(memory, Entry::Region(table, slot));
}

/// A number for the ends of a path, as the owner sees them.
pub fn ends(path: &nic::Path) -> u32 {
    tables::ends(path.source, path.dest)
}

/// An initiator: where the bytes that it names are, if the queue pair `qpn` lets its peer `from` do
/// so; between the two looks `meanwhile` runs.
pub fn look_up(
    memory: &[Word],
    (qpn, from, ends): (Qpn, Qpn, u32),
    remote: Remote,
    right: u32,
    meanwhile: impl FnOnce(),
) -> Option<u64> {
    let found = tables::look_up(memory, qpn, from, ends, right)?;
    meanwhile();
    tables::find(memory, found, remote, right)
}

/// The owner: which accesses an importer's memory says use a region; the places and threads.
pub fn users_of_region(memory: &[Word], table: u8, slot: u16) -> Vec<(usize, u32)> {
    hazards::users(memory, Entry::Region(table, slot)).collect()
}

/// Like [`users_of_region`], for a queue pair.
pub fn users_of_queue_pair(memory: &[Word], qpn: Qpn) -> Vec<(usize, u32)> {
    hazards::users(memory, tables::queue_pair(qpn)).collect()
}

/// An importer: says that it uses a queue pair and a region, and calls `meanwhile`. False where it
/// can not say so.
pub fn uses(
    memory: &[Word],
    thread: u32,
    qpn: Qpn,
    (table, slot): (u8, u16),
    meanwhile: impl FnOnce(),
) -> bool {
    let region = Entry::Region(table, slot);
    let Some(_access) = hazards::begin(memory, thread, tables::queue_pair(qpn), region) else { return false };
    meanwhile();
    true
}

/// The owner: the queue pair exports the region of a key to its peer for messages. False where it
/// is not there.
pub fn tell(memory: &[Word], qpn: Qpn, key: u32) -> bool {
    let Some((_, entry, mut region)) = tables::found(memory, qpn, key) else { return false };
    region.tell();
    tables::enter_region(memory, entry, region);
    true
}

/// Bytes in which an importer says what it uses.
pub const HAZARD_BYTES: usize = hazards::BYTES;

/// Which word of these bytes says that what is exported may be used.
pub fn granted_at() -> Option<usize> {
    let words: Vec<Word> = (0..hazards::BYTES / 8).map(|_| Word::new(0)).collect();
    let granted = hazards::granted(&words)?;
    words.iter().position(|word| std::ptr::eq(word, granted))
}

/// What a page says after its first word.
pub fn proof(nonce: u64, tables: u64, ring: u64) -> [u64; 3] {
    Proof { nonce, tables, ring }.words()
}
