//! A process that takes a ring and exports memory which is not its own, so that the process at the
//! other end writes there in its place.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::support::exported::{KEY, copy};
use crate::support::{
    BLOCK, Recording, TIMEOUT, V4, alone, batch, counter, is_peer_memory_reachable, path, raw, settled,
    start_with,
};
use linux::{Config, name_messages};
use nic::Link;
use nic::peer_memory::{Copy, Piece};
use transport::op::{DirectOutcome, Remote};
use wire::Rkey;

/// Bytes of tables.
const TABLES: usize = local::fuzzed::WORDS * 8;
/// Where pages may be by which processes are known, and where this test maps one.
const PAGE: u64 = (1 << 44) + (77 << 12);

/// A page of this process at an address, whose first words are these.
fn map(address: u64, says: [u64; 4]) {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where nothing is, or one of this test's in its place.
    unsafe {
        let at = libc::mmap(address as *mut _, 4096, rights, flags | libc::MAP_FIXED, -1, 0);
        assert_eq!(at as u64, address);
        at.cast::<[u64; 4]>().write(says);
    }
}

fn word(address: u64) -> u64 {
    // SAFETY: a page that this test has mapped.
    unsafe { (address as *const u64).read_volatile() }
}

/// What came with a ring: the word to repeat, and the inode of its memory.
struct Offer {
    connection: OwnedFd,
    nonce: u64,
    ring: u64,
}

/// A victim, and the process that takes its ring.
fn offered() -> (Recording, Offer, OwnedFd) {
    let listener = raw::bear(&raw::own_text(BLOCK));
    let victim = start_with(Config::default());
    victim.env().send(&path(V4), &mut batch(0, &[64]));
    let connection = raw::accept(&listener);
    let (bytes, memory) = raw::receive(&connection, TIMEOUT).unwrap();
    let nonce = name_messages::read_ring_offer(&bytes).unwrap();
    let ring = raw::inode(&memory.unwrap());
    (victim, Offer { connection, nonce, ring }, listener)
}

/// Whether the victim takes a page at an address for the exporter's; `says`: its words, given the
/// offer and the inode of the tables.
fn takes(address: u64, says: impl FnOnce(&Offer, u64) -> [u64; 4]) -> bool {
    let (victim, offer, _listener) = offered();
    let (tables, _) = raw::memory(TABLES);
    let says = says(&offer, raw::inode(&tables));
    map(address, says);
    raw::send(&offer.connection, &name_messages::export(address, says[0]), Some(&tables));
    let end = std::time::Instant::now() + TIMEOUT;
    // What a WRITE begins with; or the page is refused.
    let outcome = || (word(address + 64) != 0, counter(&victim, "peer_memory_refused"));
    while outcome() == (false, 0) && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (is_written, refused) = outcome();
    assert_eq!(is_written, refused == 0, "nothing is written before the page has proven who it is");
    let remote = Remote { addr: 0, length: 8, rkey: Rkey(KEY) };
    let pieces = [Piece { addr: (&raw const says) as u64, len: 8 }];
    // SAFETY: the piece is `says`, which lives across the call and is read only.
    let outcome = unsafe { copy(victim.env(), remote, Copy::Write, &pieces) };
    assert_ne!(outcome, DirectOutcome::Done);
    refused == 0
}

#[test]
fn nothing_is_written_to_a_process_that_has_not_repeated_what_came_with_the_ring() {
    let _alone = alone();
    if !is_peer_memory_reachable() {
        return;
    }
    // The exporter is this very process, which may reach itself: so the kernel refuses nothing
    // here.
    assert!(takes(PAGE, |offer, tables| [5, offer.nonce, tables, offer.ring]), "an honest one");
    assert!(!takes(PAGE, |offer, tables| [5, offer.nonce ^ 1, tables, offer.ring]), "another word");
    assert!(!takes(PAGE, |offer, tables| [5, offer.nonce, tables + 1, offer.ring]), "other tables");
    assert!(!takes(PAGE, |offer, tables| [5, offer.nonce, tables, offer.ring + 1]), "another ring");
}

#[test]
fn no_page_is_taken_for_a_process_s_where_such_pages_are_not() {
    let _alone = alone();
    if !is_peer_memory_reachable() {
        return;
    }
    for address in [(1 << 44) - 4096, 1 << 45, 1 << 40] {
        assert!(!takes(address, |offer, tables| [5, offer.nonce, tables, offer.ring]), "{address:x}");
    }
}

#[test]
fn buffers_that_a_exporter_shows_are_bounded_each_and_in_sum() {
    let _alone = alone();
    let (victim, offer, _listener) = offered();
    let show = |bytes: usize, address: u64| {
        let (memory, _) = raw::memory(bytes);
        raw::send(&offer.connection, &name_messages::buffer(address, true), Some(&memory));
    };
    let machine = {
        // SAFETY: all zero is a valid one, which the kernel fills.
        unsafe {
            let mut about: libc::sysinfo = std::mem::zeroed();
            assert_eq!(libc::sysinfo(&raw mut about), 0);
            about.totalram as usize * about.mem_unit as usize
        }
    };
    show(machine.next_multiple_of(4096) + 4096, 1 << 46);
    assert_eq!(settled(&victim, "buffers_refused", 1), 1, "longer than the memory of the machine");
    show(1 << 20, (1 << 46) + 8);
    assert_eq!(settled(&victim, "buffers_refused", 2), 2, "no page begins there");
    show(1 << 20, 1 << 46);
    assert_eq!(settled(&victim, "buffers_mapped", 1), 1);
}
