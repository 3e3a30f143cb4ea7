//! Requests that come again (IBA 1.4 §9.7.5.1.2): answered from what the responder remembers, or
//! not at all.

use crate::support::*;
use transport::rc::State;
use wire::bth::{AtomicEth, Feth, Reth};
use wire::roce::{Op, ReadAt, SendAt, SendTail, WriteAt};
use wire::{Mtu, Rkey};

const MTU: u32 = 256;
/// A key that no region has.
const BAD_KEY: Rkey = Rkey(KEY + 9);

fn responder() -> End {
    End::new(Mtu::M256, 1 << 16, rts())
}
fn reth(region: usize, offset: u64, length: u32) -> Reth {
    let s = sge(region, offset, length);
    Reth { addr: s.addr, rkey: s.lkey, length }
}
fn read(offset: u64, length: u32) -> Op {
    Op::ReadRequest(reth(0, offset, length))
}
fn flush(reth: Reth) -> Op {
    Op::Flush(Feth { placement: 1, selectivity: 0 }, reth)
}
fn fetch_add(reth: Reth) -> Op {
    Op::FetchAdd(AtomicEth { addr: reth.addr, rkey: reth.rkey, swap_or_add: 1, compare: 0 })
}
/// What is answered to one request.
fn answers(b: &mut End, psn: i64, op: Op) -> Vec<(i32, Op)> {
    let payload: &[u8] = if matches!(op, Op::AtomicWrite(_)) { &[1; 8] } else { &[] };
    b.hear(psn, op, payload);
    b.sent().into_iter().map(|s| (s.psn, s.op)).collect()
}
fn answered_at(b: &mut End, psn: i64, op: Op) -> Vec<i32> {
    answers(b, psn, op).into_iter().map(|(psn, _)| psn).collect()
}

/// A responder after ten WRITEs and one request of each kind. Their PSNs: 10 (a READ of five
/// packets), 15 (FETCH ADD), 16 (ATOMIC WRITE) and 17 (FLUSH).
fn after_one_of_each() -> End {
    let mut b = responder();
    for psn in 0..10 {
        b.hear(psn, Op::Write(WriteAt::Only(reth(1, 0, 0), None)), &[]);
    }
    assert_eq!(answered_at(&mut b, 10, read(4 * 256, 5 * MTU - 6)), [9, 10, 11, 12, 13, 14]);
    assert_eq!(answered_at(&mut b, 15, fetch_add(reth(1, 64, 8))), [15]);
    assert_eq!(answered_at(&mut b, 16, Op::AtomicWrite(reth(1, 72, 8))), [16]);
    assert_eq!(answered_at(&mut b, 17, flush(reth(1, 0, 80))), [17]);
    b
}

/// Historic bug 19.
#[test]
fn what_was_never_asked_for_meets_silence_whatever_its_key() {
    let mut b = after_one_of_each();
    let memory_asked = b.cx.memory.asked.get();
    for rkey in [Rkey(KEY), Rkey(KEY + 1), BAD_KEY] {
        let all = |psn, region, offset, length| (psn, Reth { rkey, ..reth(region, offset, length) });
        let places =
            [all(5, 0, 0, 24), all(11, 1, 0, 24), all(15, 0, 0, 8), all(16, 0, 0, 8), all(17, 0, 0, 8)];
        for (psn, reth) in places {
            assert_eq!(answers(&mut b, psn, Op::ReadRequest(reth)), [], "READ at {psn} under {rkey:?}");
        }
        for psn in [5, 11, 17] {
            assert_eq!(answers(&mut b, psn, fetch_add(all(0, 1, 64, 8).1)), [], "{psn}, {rkey:?}");
            assert_eq!(answers(&mut b, psn, Op::AtomicWrite(all(0, 1, 72, 8).1)), [], "{psn}, {rkey:?}");
        }
        for psn in [5, 11, 16] {
            assert_eq!(answers(&mut b, psn, flush(all(0, 1, 0, 8).1)), [], "{psn}, {rkey:?}");
        }
    }
    // What memory was never asked it can not tell by the time it takes either.
    assert_eq!(b.cx.memory.asked.get(), memory_asked);
    assert_eq!(b.rc.state(), State::Rts);
    assert_eq!(b.cx.memory.bytes(1)[64..72], 1_u64.to_ne_bytes(), "executed once");
}

#[test]
fn another_key_or_address_than_what_was_executed_had_meets_silence() {
    let mut b = after_one_of_each();
    let (good_read, begin) = (reth(0, 4 * 256, 5 * MTU - 6), 10);
    let wrong = [
        ("key", begin, Reth { rkey: Rkey(KEY + 1), ..good_read }),
        ("address", begin, Reth { addr: good_read.addr + 4, length: 16, ..good_read }),
        ("address of another packet", begin + 1, good_read),
        (
            "address of this packet at another",
            begin,
            Reth { addr: good_read.addr + 256, length: 16, ..good_read },
        ),
        ("longer", begin, Reth { length: good_read.length + 1, ..good_read }),
        ("longer, later", begin + 4, reth(0, 8 * 256, 251)),
        ("nothing", begin, Reth { length: 0, ..good_read }),
        ("more than 2^31", begin, Reth { length: u32::MAX, ..good_read }),
        ("before it", begin - 1, Reth { addr: good_read.addr - 256, ..good_read }),
    ];
    for (name, psn, reth) in wrong {
        assert_eq!(answers(&mut b, psn, Op::ReadRequest(reth)), [], "READ, {name}");
    }
    let other_key = |r| Reth { rkey: Rkey(KEY), ..r };
    assert_eq!(answers(&mut b, 15, fetch_add(other_key(reth(1, 64, 8)))), []);
    assert_eq!(answers(&mut b, 15, fetch_add(reth(1, 56, 8))), []);
    assert_eq!(answers(&mut b, 16, Op::AtomicWrite(other_key(reth(1, 72, 8)))), []);
    assert_eq!(answers(&mut b, 17, flush(other_key(reth(1, 0, 80)))), []);
    assert_eq!(b.rc.state(), State::Rts);
}

#[test]
fn what_was_executed_is_answered_again_the_whole_or_a_part_of_it() {
    let mut b = after_one_of_each();
    let first = b.cx.memory.bytes(0)[7 * 256..8 * 256].to_vec();
    for _ in 0..3 {
        assert_eq!(answered_at(&mut b, 10, read(4 * 256, 5 * MTU - 6)), [10, 11, 12, 13, 14]);
        assert_eq!(answered_at(&mut b, 12, read(6 * 256, 3 * MTU - 6)), [12, 13, 14], "the rest");
        assert_eq!(answered_at(&mut b, 11, read(5 * 256, 2 * MTU)), [11, 12], "a part in the middle");
        assert_eq!(answered_at(&mut b, 14, read(8 * 256, 250)), [14]);
        b.hear(13, read(7 * 256, 256), &[]);
        assert_eq!(b.sent()[0].payload, first);
        assert_eq!(
            answers(&mut b, 15, fetch_add(reth(1, 64, 8))),
            [(15, Op::AtomicAcknowledge(aeth(14), 0))]
        );
        let word = Op::ReadResponse(ReadAt::Only(aeth(14)));
        assert_eq!(answers(&mut b, 16, Op::AtomicWrite(reth(1, 72, 8))), [(16, word)]);
        // The kernel's requester has forgotten the address when it asks again.
        assert_eq!(answers(&mut b, 16, Op::AtomicWrite(Reth { addr: 0, ..reth(1, 72, 8) })), [(16, word)]);
        assert_eq!(answers(&mut b, 17, flush(reth(1, 0, 80))), [(17, word)]);
    }
}

#[test]
fn a_read_of_nothing_is_answered_again_whatever_it_names() {
    let mut b = responder();
    let nothing = Op::ReadRequest(Reth { addr: 7, rkey: BAD_KEY, length: 0 });
    assert_eq!(answered_at(&mut b, 0, nothing), [0]);
    assert_eq!(answered_at(&mut b, 0, nothing), [0]);
    assert_eq!(answers(&mut b, 0, Op::ReadRequest(Reth { addr: 7, rkey: BAD_KEY, length: 1 })), []);
}

#[test]
fn reads_and_atomics_are_remembered_as_many_as_responder_resources() {
    let mut b = responder();
    for psn in 0..5 {
        assert_eq!(answered_at(&mut b, psn, read(psn as u64 * 8, 8)), [psn as i32]);
    }
    // SENDs and WRITEs take nothing of what is remembered, FLUSHes neither.
    b.post_receive(1, sge(1, 0, 8));
    assert_eq!(answered_at(&mut b, 5, Op::Send(SendAt::Only(SendTail::None))), [5]);
    for psn in 6..40 {
        assert_eq!(answered_at(&mut b, psn, flush(reth(1, 0, 8))), [psn as i32]);
    }
    assert_eq!(answers(&mut b, 0, read(0, 8)), [], "four are remembered");
    for psn in 1..5 {
        assert_eq!(answered_at(&mut b, psn, read(psn as u64 * 8, 8)), [psn as i32]);
    }
    assert_eq!(answered_at(&mut b, 40, fetch_add(reth(1, 0, 8))), [40]);
    assert_eq!(answers(&mut b, 1, read(8, 8)), []);
    assert_eq!(answered_at(&mut b, 2, read(16, 8)), [2]);
}

#[test]
fn a_read_asked_for_again_when_its_memory_has_gone_meets_silence() {
    let mut b = responder();
    assert_eq!(answered_at(&mut b, 0, read(0, 600)), [0, 1, 2]);
    b.cx.memory.regions[0].remote = false;
    assert_eq!(answers(&mut b, 0, read(0, 600)), []);
    assert_eq!(b.rc.state(), State::Rts);
    assert_eq!(answered_at(&mut b, 3, flush(reth(1, 0, 8))), [3], "what came after it is answered");
}
