//! The table and its copies, over memory of the test's own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use transport::op::{self, AtomicOp, Fault, Memory, Remote, Sge, SharedBytes, Tail};
use wire::icrc::{PAGE, Remainder};

use super::*;
use crate::error::Error;

const RIGHTS: u32 = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;

fn region(table: &Table, bytes: &mut [u8], access: u32) -> (Mr, u64) {
    let addr = bytes.as_mut_ptr() as u64;
    (register(table, 1, addr, bytes.len() as u64, addr, access, 0xabcd).unwrap(), addr)
}

fn register(
    table: &Table,
    pd: u32,
    addr: u64,
    len: u64,
    iova: u64,
    access: u32,
    random: u32,
) -> Result<Mr, Error> {
    // SAFETY: each test keeps its bytes for as long as it uses a view, and looks at them while none
    // is at work.
    unsafe { table.register(pd, addr, len, iova, access, random) }
}

fn reregister(
    table: &Table,
    mr: Mr,
    pd: Option<u32>,
    place: Option<(u64, u64, u64)>,
    access: Option<u32>,
) -> Result<(), Error> {
    // SAFETY: as for `register`.
    unsafe { table.reregister(mr, pd, place, access) }
}

#[test]
fn a_range_that_wraps_64_bits_is_refused() {
    let (table, mut bytes) = (Table::new(), vec![0; 64]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let view = table.view(1, RIGHTS);
    for (addr, length) in
        [(u64::MAX, 2), (addr, u64::MAX), (addr + 1, 64), (addr - 1, 8), (u64::MAX - 7, u64::MAX)]
    {
        let range = Remote { addr, length, rkey: mr.key };
        assert_eq!(view.check(range, op::Access::Write), Err(Fault::Range), "{addr:#x}+{length:#x}");
    }
    assert!(register(&table, 1, u64::MAX - 3, 8, 0, 0, 0).is_err());
}

#[test]
fn a_zero_length_region_grants_nothing() {
    let (table, mut bytes) = (Table::new(), vec![0; 64]);
    let addr = bytes.as_mut_ptr() as u64;
    let mr = register(&table, 1, addr, 0, addr, RIGHTS, 7).unwrap();
    let range = Remote { addr, length: 1, rkey: mr.key };
    assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Read), Err(Fault::Range));
}

#[test]
fn keys_stay_in_their_slot_after_65536_registrations() {
    let (table, mut bytes) = (Table::new(), vec![0; 8]);
    let addr = bytes.as_mut_ptr() as u64;
    let new = |i: u32| register(&table, 1, addr, 8, addr, RIGHTS, i.wrapping_mul(0x9e37_79b9)).unwrap();
    let (view, range) = (table.view(1, RIGHTS), |mr: Mr| Remote { addr, length: 8, rkey: mr.key });
    let stays = new(1);
    let mut last = None;
    for i in 0..70_000_u32 {
        let mr = new(i);
        assert_ne!(mr.key.0 >> 16, 0);
        assert_ne!(mr.key.0 >> 16, stays.key.0 >> 16);
        assert_ne!(Some(mr), last);
        assert_eq!(view.check(range(mr), op::Access::Write), Ok(()));
        table.deregister(mr).unwrap();
        assert!(table.deregister(mr).is_err());
        assert_eq!(view.check(range(mr), op::Access::Write), Err(Fault::Key));
        last = Some(mr);
    }
    assert_eq!(view.check(range(stays), op::Access::Write), Ok(()));
}

#[test]
fn another_protection_domain_has_no_access() {
    let (table, mut bytes) = (Table::new(), vec![0; 8]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let range = Remote { addr, length: 8, rkey: mr.key };
    assert_eq!(table.view(2, RIGHTS).check(range, op::Access::Read), Err(Fault::Key));
    assert_eq!(table.view(1, 0).check(range, op::Access::Read), Err(Fault::Rights));
}

#[test]
fn memory_that_is_not_mapped_or_read_only_is_refused_at_registration() {
    static READ_ONLY: [u8; 4096] = [7; 4096];
    let table = Table::new();
    let addr = READ_ONLY.as_ptr() as u64;
    assert_eq!(register(&table, 1, addr, 4096, addr, Access::LOCAL_WRITE, 0), Err(Error::Fault));
    assert!(register(&table, 1, addr, 4096, addr, 0, 0).is_ok());
    assert_eq!(register(&table, 1, 0x1000, 4096, 0x1000, 0, 0), Err(Error::Fault));
}

#[test]
fn memory_that_was_unmapped_or_became_read_only_is_an_error_and_the_process_lives() {
    accesses_to_memory_that_changes();
}

#[test]
fn the_same_holds_where_the_program_has_taken_the_signal_handlers() {
    guard::handler::install();
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default disposition; the test ends if anything faults.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    accesses_to_memory_that_changes();
}

fn accesses_to_memory_that_changes() {
    const LEN: usize = 3 * 4096;
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a mapping of our own.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0) };
    let (table, addr) = (Table::new(), at as u64);
    let mr = register(&table, 1, addr, LEN as u64, addr, RIGHTS, 1).unwrap();
    let view = table.view(1, RIGHTS);
    let to = |length| Remote { addr, length, rkey: mr.key };
    let bytes = vec![7; LEN];
    view.write(to(LEN as u64), 0, &bytes, Tail::End).unwrap();
    // SAFETY: the middle page of the mapping.
    unsafe { libc::mprotect(at.byte_add(4096), 4096, libc::PROT_READ) };
    let mut back = vec![0; LEN];
    view.read(to(LEN as u64), 0, &mut back).unwrap();
    assert_eq!(back, bytes);
    assert_eq!(view.write(to(LEN as u64), 0, &bytes, Tail::End), Err(Fault::Unmapped));
    assert_eq!(view.write(to(4096), 4096, &bytes[..8], Tail::End), Err(Fault::Unmapped));
    let words = [const { AtomicU64::new(0) }; LEN / 8];
    let shared = SharedBytes::new(&words, LEN);
    view.read_shared(to(LEN as u64), 0, shared).unwrap();
    assert_eq!(shared.to_vec(), bytes);
    assert_eq!(view.write_shared(to(LEN as u64), 0, shared, Tail::End), Err(Fault::Unmapped));
    let cell = Remote { addr: addr + 4096, ..to(8) };
    for op in [
        AtomicOp::FetchAdd(1),
        AtomicOp::Write(1),
        AtomicOp::CompareSwap { compare: 0x0707_0707_0707_0707, swap: 1 },
    ] {
        assert_eq!(view.atomic(cell, op), Err(Fault::Unmapped));
        assert_eq!(view.atomic(to(8), op).map(drop), Ok(()), "the first page is writable");
    }
    // SAFETY: no thread has a reference into it.
    unsafe { libc::munmap(at, LEN) };
    for len in [1, 8, 63, 64, 4096, LEN] {
        assert_eq!(view.read(to(len as u64), 0, &mut back[..len]), Err(Fault::Unmapped));
        assert_eq!(view.read_for_icrc(to(len as u64), 0, &mut back[..len]), Err(Fault::Unmapped));
        let shared = SharedBytes::new(&words, len);
        assert_eq!(view.read_shared(to(len as u64), 0, shared), Err(Fault::Unmapped));
        assert_eq!(view.write_shared(to(len as u64), 0, shared, Tail::End), Err(Fault::Unmapped));
    }
}

#[test]
fn scatter_and_gather_cross_elements_at_any_offset() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let sges = [
        Sge { addr: addr + 3, length: 5, lkey: mr.key },
        Sge { addr: addr + 20, length: 0, lkey: mr.key },
        Sge { addr: addr + 32, length: 17, lkey: mr.key },
    ];
    let view = table.view(1, RIGHTS);
    let src: Vec<u8> = (1..=22).collect();
    for at in 0..22 {
        view.scatter(&sges, at, &src[at as usize..], Tail::End).unwrap();
        let mut back = vec![0; 22 - at as usize];
        view.gather(&sges, at, &mut back).unwrap();
        assert_eq!(back, src[at as usize..]);
    }
    assert_eq!(bytes[3..8], src[..5]);
    assert_eq!(bytes[32..49], src[5..]);
    assert_eq!(view.scatter(&sges, 1, &src, Tail::End), Err(Fault::Range));
}

#[test]
fn what_a_page_adds_to_an_icrc_is_found_on_the_way_or_not_told() {
    let (table, mut bytes) = (Table::new(), (0..3 * PAGE).map(|at| (at / 5) as u8).collect::<Vec<u8>>());
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let (view, mut page) = (table.view(1, RIGHTS), vec![0; PAGE + 3]);
    for from in [0, 1, 12, 77, PAGE, 2 * PAGE] {
        let sges = [Sge { addr, length: bytes.len() as u32, lkey: mr.key }];
        let all = Remote { addr, length: bytes.len() as u64, rkey: mr.key };
        let to = &mut page[from % 4..][..PAGE];
        for known in [view.gather_for_icrc(&sges, from as u64, to), view.read_for_icrc(all, from as u64, to)]
        {
            assert!(to == &bytes[from..from + PAGE]);
            assert!(known.unwrap().is_none_or(|known| known == Remainder::of(to)));
        }
        // Of several pieces, and where no caller asks.
        let pieces = [7, PAGE as u32].map(|length| Sge { length, ..sges[0] });
        assert_eq!(view.gather_for_icrc(&pieces, 0, to), Ok(None));
        assert!(to[..7] == bytes[..7] && to[7..] == bytes[..PAGE - 7]);
        assert_eq!(view.sealing(false).gather_for_icrc(&sges, from as u64, to), Ok(None));
        assert!(to == &bytes[from..from + PAGE]);
    }
}

/// A region that windows may be bound to, and its address.
fn bindable(table: &Table, bytes: &mut [u8]) -> (Mr, u64) {
    region(table, bytes, RIGHTS | Access::MW_BIND)
}

fn bind(mw: Mw, low: u32, mr: Mr, addr: u64, length: u64) -> op::Bind {
    let access = Access::REMOTE_WRITE;
    op::Bind { window: mw.name(), key: mw.key(low), region: mr.key, addr, length, access }
}

#[test]
fn a_window_grants_its_part_of_the_region_and_no_more() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = bindable(&table, &mut bytes);
    let mw = table.alloc_window(1, WindowType::One, 0x7777_0000).unwrap();
    let view = table.view(1, RIGHTS);
    view.bind(&bind(mw, 7, mr, addr + 8, 16)).unwrap();
    let range = |at, length| Remote { addr: addr + at, length, rkey: mw.key(7) };
    assert_eq!(view.check(range(8, 16), op::Access::Write), Ok(()));
    assert_eq!(view.check(range(8, 16), op::Access::Read), Err(Fault::Rights));
    assert_eq!(view.check(range(7, 8), op::Access::Write), Err(Fault::Range));
    assert_eq!(view.check(range(8, 17), op::Access::Write), Err(Fault::Range));
    view.write(range(8, 16), 0, &[5; 16], Tail::End).unwrap();
    let sge = Sge { addr: addr + 8, length: 1, lkey: mw.key(7) };
    assert_eq!(view.gather(&[sge], 0, &mut [0]), Err(Fault::Key), "a window is no local key");
    view.bind(&bind(mw, 8, mr, addr, 4)).unwrap();
    assert_eq!(view.check(range(8, 16), op::Access::Write), Err(Fault::Key), "the old key is gone");
    view.bind(&bind(mw, 9, mr, addr, 0)).unwrap();
    for low in 7..10 {
        let range = Remote { addr, length: 1, rkey: mw.key(low) };
        assert_eq!(view.check(range, op::Access::Write), Err(Fault::Key), "unbound");
    }
    table.free_window(mw).unwrap();
    table.deregister(mr).unwrap();
    assert_eq!(bytes[8..24], [5; 16]);
}

#[test]
fn a_window_is_not_bound_across_protection_domains() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = bindable(&table, &mut bytes);
    let theirs = table.alloc_window(2, WindowType::Two, 0x7777_0000).unwrap();
    assert_eq!(table.view(1, RIGHTS).bind(&bind(theirs, 1, mr, addr, 8)), Err(Fault::Key));
    assert_eq!(table.view(2, RIGHTS).bind(&bind(theirs, 1, mr, addr, 8)), Err(Fault::Key));
    table.free_window(theirs).unwrap();
    table.deregister(mr).unwrap();
}

#[test]
fn a_window_is_bound_only_where_the_region_lets_it() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let mw = table.alloc_window(1, WindowType::Two, 0x7777_0000).unwrap();
    let view = table.view(1, RIGHTS);
    for (access, why) in [(RIGHTS, "no MW_BIND"), (Access::MW_BIND, "write without local write")] {
        let (mr, addr) = region(&table, &mut bytes, access);
        assert_eq!(view.bind(&bind(mw, 1, mr, addr, 8)), Err(Fault::Rights), "{why}");
        table.deregister(mr).unwrap();
    }
    let (mr, addr) = bindable(&table, &mut bytes);
    assert_eq!(view.bind(&bind(mw, 1, mr, addr + 60, 8)), Err(Fault::Range));
    assert_eq!(view.bind(&bind(mw, 1, mr, u64::MAX, 8)), Err(Fault::Range));
    let foreign = op::Bind { key: mr.key, ..bind(mw, 1, mr, addr, 8) };
    assert_eq!(view.bind(&foreign), Err(Fault::Key), "the key of another slot");
    let gone = bind(mw, 1, mr, addr, 8);
    table.free_window(mw).unwrap();
    assert_eq!(view.bind(&gone), Err(Fault::Key), "the window is gone");
    table.deregister(mr).unwrap();
}

#[test]
fn a_window_of_type_2_is_good_on_the_queue_pair_that_bound_it_until_it_is_invalidated_there() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = bindable(&table, &mut bytes);
    let mw = table.alloc_window(1, WindowType::Two, 0x7777_0000).unwrap();
    let (ours, other) =
        (table.view(1, RIGHTS).on(wire::Qpn::new(5)), table.view(1, RIGHTS).on(wire::Qpn::new(6)));
    let wish = bind(mw, 3, mr, addr, 8);
    ours.bind(&wish).unwrap();
    assert_eq!(ours.bind(&bind(mw, 4, mr, addr, 8)), Err(Fault::Rights), "it is bound");
    let range = Remote { addr, length: 8, rkey: wish.key };
    assert_eq!(ours.check(range, op::Access::Write), Ok(()));
    assert_eq!(other.check(range, op::Access::Write), Err(Fault::Key));
    assert_eq!(other.invalidate(wish.key), Err(Fault::Key));
    assert_eq!(table.deregister(mr), Err(Error::Busy));
    assert_eq!(reregister(&table, mr, None, None, Some(RIGHTS)), Err(Error::Busy));
    assert_eq!(ours.invalidate(mr.key), Err(Fault::Key), "a region is not invalidated");
    ours.invalidate(wish.key).unwrap();
    assert_eq!(ours.invalidate(wish.key), Err(Fault::Key));
    assert_eq!(ours.check(range, op::Access::Write), Err(Fault::Key));
    table.deregister(mr).unwrap();
    table.free_window(mw).unwrap();
    assert!(table.free_window(mw).is_err());
}

#[test]
fn a_region_that_is_registered_again_keeps_its_key() {
    let (table, mut one, mut two) = (Table::new(), vec![1_u8; 64], vec![2_u8; 32]);
    let (mr, addr) = region(&table, &mut one, Access::LOCAL_WRITE);
    let read = |pd: u32, addr, length| {
        let mut byte = [0];
        let sge = Sge { addr, length, lkey: mr.key };
        table.view(pd, RIGHTS).gather(&[sge], 0, &mut byte).map(|()| byte[0])
    };
    assert_eq!(read(1, addr, 1), Ok(1));
    let to = two.as_mut_ptr() as u64;
    reregister(&table, mr, None, Some((to, 32, 0x1000)), None).unwrap();
    assert_eq!(
        (read(1, addr, 1), read(1, 0x1000, 1), read(1, 0x1020, 1)),
        (Err(Fault::Range), Ok(2), Err(Fault::Range))
    );
    reregister(&table, mr, Some(2), None, None).unwrap();
    assert_eq!((read(1, 0x1000, 1), read(2, 0x1000, 1)), (Err(Fault::Key), Ok(2)));
    assert_eq!(reregister(&table, mr, None, Some((0x1000, 32, 0)), None), Err(Error::Fault));
    assert_eq!(read(2, 0x1000, 1), Ok(2), "it is what it was");
    let range = Remote { addr: 0x1000, length: 1, rkey: mr.key };
    assert_eq!(table.view(2, RIGHTS).check(range, op::Access::Read), Err(Fault::Rights));
    reregister(&table, mr, None, None, Some(RIGHTS)).unwrap();
    assert_eq!(table.view(2, RIGHTS).check(range, op::Access::Read), Ok(()));
    table.deregister(mr).unwrap();
}

#[test]
fn the_null_region_reads_as_zero_and_forgets_what_is_written() {
    let table = Table::new();
    let mr = table.register_null(1, 9).unwrap();
    let view = table.view(1, RIGHTS);
    let sge = Sge { addr: 0xdead_0000, length: 8, lkey: mr.key };
    let mut bytes = [7; 8];
    view.scatter(&[sge], 0, &bytes, Tail::End).unwrap();
    view.gather(&[sge], 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    let range = Remote { addr: 0, length: 1, rkey: mr.key };
    assert_eq!(view.check(range, op::Access::Read), Err(Fault::Key), "peers have no part in it");
    table.deregister(mr).unwrap();
}

#[test]
fn bytes_that_processes_share_are_copied_as_our_own_are() {
    let (table, words) = (Table::new(), [const { AtomicU64::new(!0) }; 1024]);
    let mut bytes: Vec<u8> = (0..8000_u32).map(|n| (n % 251) as u8).collect();
    let source = bytes.clone();
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let null = table.register_null(1, 9).unwrap();
    let view = table.view(1, RIGHTS);
    let part = |from, length| Sge { addr: addr + from, length, lkey: mr.key };
    let nowhere = Sge { addr: 0, length: 700, lkey: null.key };
    // Of pieces that begin and end anywhere.
    let list = [part(3, 1500), nowhere, part(2001, 1801)];
    let to = SharedBytes::new(&words, 3995);
    view.gather_shared(&list, 5, to).unwrap();
    let expected = [&source[8..1503], &[0; 700], &source[2001..3801]].concat();
    assert_eq!(to.to_vec()[..], expected[..]);
    let range = |from, length| Remote { addr: addr + from, length, rkey: mr.key };
    view.write_shared(range(4001, 3999), 2, to, Tail::End).unwrap();
    view.scatter_shared(&[part(5, 9), nowhere, part(100, 3286)], 0, to, Tail::End).unwrap();
    view.read_shared(range(4000, 3998), 1, to).unwrap();
    assert_eq!(to.to_vec()[2..], expected[..3993]);
    assert_eq!(view.gather_shared(&[part(0, 8)], 0, to), Err(Fault::Range), "too short a list");
    assert_eq!(view.write_shared(range(4006, 3995), 0, to, Tail::End), Err(Fault::Range));
    assert_eq!(words[500].load(Ordering::Relaxed), !0, "nothing behind them is touched");
    table.deregister(mr).unwrap();
    table.deregister(null).unwrap();
    assert_eq!((&bytes[5..14], &bytes[100..3386]), (&expected[..9], &expected[709..]));
    assert_eq!(bytes[4003..7998], expected);
}

#[test]
fn memory_on_demand_may_come_and_go_and_the_process_lives() {
    let table = Table::new();
    // SAFETY: a new mapping, for this test alone.
    let at = unsafe {
        let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), 8192, rights, how, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let addr = at as u64;
    let everything = register(&table, 1, 0, u64::MAX, 0, RIGHTS | Access::ON_DEMAND, 1).unwrap();
    let view = table.view(1, RIGHTS);
    let range = |addr, length| Remote { addr, length, rkey: everything.key };
    let add = AtomicOp::FetchAdd(1);
    view.write(range(addr + 4090, 16), 0, &[3; 16], Tail::End).unwrap();
    let mut back = [0; 16];
    view.read(range(addr + 4090, 16), 0, &mut back).unwrap();
    assert_eq!((back, view.atomic(range(addr, 8), add)), ([3; 16], Ok(0)));
    let sge = |length| Sge { addr, length, lkey: everything.key };
    assert_eq!(table.prefetch(1, sge(8192), true), Ok(()));
    assert_eq!(table.prefetch(2, sge(8192), true), Err(Advice::Forbidden));
    // SAFETY: the second page of the mapping above becomes read-only, then the whole is given back.
    unsafe { libc::mprotect(at.byte_add(4096), 4096, libc::PROT_READ) };
    assert_eq!(view.write(range(addr + 4096, 8), 0, &[1; 8], Tail::End), Err(Fault::Unmapped));
    assert_eq!(view.atomic(range(addr + 4096, 8), add), Err(Fault::Unmapped));
    assert_eq!(view.read(range(addr + 4096, 10), 0, &mut back[..10]), Ok(()));
    assert_eq!(table.prefetch(1, sge(8192), true), Err(Advice::Fault));
    // SAFETY: as above.
    unsafe { libc::munmap(at, 8192) };
    assert_eq!(view.write(range(addr, 8), 0, &[1; 8], Tail::End), Err(Fault::Unmapped));
    assert_eq!(view.read(range(addr, 8), 0, &mut back[..8]), Err(Fault::Unmapped));
    assert_eq!(view.write(range(u64::MAX - 8, 8), 0, &[1; 8], Tail::End), Err(Fault::Unmapped));
    assert_eq!(table.prefetch(1, sge(8), false), Err(Advice::Fault));
    table.deregister(everything).unwrap();
}

#[test]
fn only_memory_on_demand_is_prefetched() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let sge = Sge { addr, length: 8, lkey: mr.key };
    assert_eq!(table.prefetch(1, sge, false), Err(Advice::NotOnDemand));
    reregister(&table, mr, None, None, Some(Access::ON_DEMAND)).unwrap();
    assert_eq!(table.prefetch(1, sge, false), Ok(()));
    assert_eq!(table.prefetch(1, sge, true), Err(Advice::Forbidden));
    assert_eq!(table.prefetch(1, Sge { length: 65, ..sge }, false), Err(Advice::Fault));
    table.deregister(mr).unwrap();
    assert_eq!(table.prefetch(1, sge, false), Err(Advice::NoKey));
}

/// The key of a region as a peer writes to all of it.
fn all_of(mr: Mr, addr: u64, length: u64) -> Remote {
    Remote { addr, length, rkey: mr.key }
}

#[test]
fn a_deregistration_waits_for_the_copy_under_way_and_lets_none_begin() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let (view, range) = (table.view(1, RIGHTS), all_of(mr, addr, 64));
    let under_way = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let done = view.remote(range, Access::REMOTE_WRITE, |_| {
                under_way.store(true, Ordering::SeqCst);
                // The other thread has taken the key back, and waits from here on.
                while view.check(range, op::Access::Write).is_ok() {
                    std::thread::yield_now();
                }
                for _ in 0..1000 {
                    std::thread::yield_now();
                }
                under_way.store(false, Ordering::SeqCst);
                Ok(())
            });
            assert_eq!(done, Ok(()), "what has begun is ended");
        });
        while !under_way.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        table.deregister(mr).unwrap();
        assert!(!under_way.load(Ordering::SeqCst), "the copy is over");
    });
    assert_eq!(view.check(range, op::Access::Write), Err(Fault::Key));
}

#[test]
fn copies_and_a_deregistration_at_the_same_moment_leave_memory_alone_from_then_on() {
    const WORDS: usize = 64;
    let table = Table::new();
    let words: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
    let (addr, length) = (words.as_ptr() as u64, 8 * WORDS as u64);
    let rounds = if std::env::var_os("VERBENA_THOROUGH").is_some() { 2_000 } else { 200 };
    for round in 0..rounds {
        let mr = register(&table, 1, addr, length, addr, RIGHTS, round).unwrap();
        let (view, range) = (table.view(1, RIGHTS), all_of(mr, addr, length));
        let copied = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut end = Ok(());
                while end.is_ok() {
                    end = view.write(range, 0, &[0xff; 8 * WORDS], Tail::End);
                    copied.store(true, Ordering::SeqCst);
                }
                assert_eq!(end, Err(Fault::Key));
            });
            while !copied.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            table.deregister(mr).unwrap();
            // The memory is the owner's alone again.
            words.iter().for_each(|word| word.store(1, Ordering::SeqCst));
        });
        let changed = words.iter().filter(|word| word.load(Ordering::SeqCst) != 1).count();
        assert_eq!(changed, 0, "a copy of round {round} came after the deregistration");
    }
}
