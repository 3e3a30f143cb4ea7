//! What RC promises is the same over a network and between processes of one host: each test runs
//! over both.

use std::time::Duration;

use crate::support::both_ways::{
    End, LEN, LONG, Pair, SEND, WAYS, WIRING, bytes, connect, elsewhere, signaled,
};
use crate::support::{DEPTH, Endpoint, RIGHTS, Way, Wiring, wire_up};
use nic::{Access, Buffer, EventKind, Qp, QpInit, QpState, Srq, SrqAttr, WindowType};
use transport::op::{AtomicOp, Bind, Completed, Data, LocalOp, RecvWr, SendOp, SendWr, Status};
use wire::roce::SendTail;
use wire::{Psn, Rkey};

use Status::{RemoteAccess, RnrRetryExceeded, Success, WrFlush};

fn atomic(at: u64, key: Rkey, op: AtomicOp) -> SendOp {
    SendOp::Atomic { addr: at, rkey: key, op }
}

#[test]
fn requests_have_their_effect_and_complete_in_the_order_in_which_they_were_posted() {
    for way in WAYS {
        let mut pair = Pair::new(way);
        let Pair { a, b, .. } = &pair;
        a.memory.write(0, &bytes(LONG, 1));
        for n in 0..4 {
            b.receive(100 + n, 200_000, LONG);
        }
        let counter = b.memory.addr() + 8;
        a.request(1, b.write(1_000), 0, 5_000);
        a.request(2, SEND, 0, 40);
        a.request(3, b.write(1_000), 100, 3_000);
        a.request(4, b.read(1_000), 300_000, 5_000);
        a.request(5, SEND, 0, LONG);
        a.request(6, atomic(counter, b.memory.key(), AtomicOp::FetchAdd(5)), 320_000, 8);
        a.request(7, b.write(8), 320_000, 8);
        let compare = AtomicOp::CompareSwap { compare: 0, swap: 9 };
        a.post(SendWr {
            fence: true,
            ..signaled(8, atomic(counter, b.memory.key(), compare), a.memory.sge(320_008, 8))
        });
        let immediate = |op| match op {
            SendOp::Write { addr, rkey, .. } => SendOp::Write { addr, rkey, immediate: Some(*b"imm!") },
            other => other,
        };
        a.request(9, immediate(b.write(50_000)), 0, 2_000);
        a.request(10, SendOp::Send(SendTail::Immediate(*b"last")), 0, LONG);
        pair.pass();
        let Pair { a, b, .. } = &pair;
        assert_eq!(a.sent(), (1..=10).map(|n| (n, Success)).collect::<Vec<_>>(), "{way:?}");
        let got: Vec<_> = b.all_received().iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.tail)).collect();
        let [none, imm, last] =
            [SendTail::None, SendTail::Immediate(*b"imm!"), SendTail::Immediate(*b"last")];
        let long = LONG as u32;
        let expected = [
            (100, Completed::Receive, 40, none),
            (101, Completed::Receive, long, none),
            (102, Completed::ReceiveWriteImmediate, 2_000, imm),
            (103, Completed::Receive, long, last),
        ];
        assert_eq!(got, expected, "{way:?}");
        let mut area = bytes(5_000, 1);
        area[..3_000].copy_from_slice(&bytes(LONG, 1)[100..3_100]);
        assert!(b.memory.holds(1_000, &area) && a.memory.holds(300_000, &area), "{way:?}");
        assert!(b.memory.holds(200_000, &bytes(LONG, 1)) && b.memory.holds(50_000, &bytes(2_000, 1)));
        // The WRITE after the FETCH ADD may have had either of what was there; the fenced one has
        // what it left.
        assert_eq!(a.memory.read(320_000, 8), 0_u64.to_ne_bytes());
        assert_eq!(
            (a.memory.read(320_008, 8), b.memory.read(8, 8)),
            (vec![0; 8], 9_u64.to_ne_bytes().to_vec())
        );
    }
}

#[test]
fn a_message_alone_says_all_that_it_is_and_does_no_more_than_it_may() {
    let imm = *b"imm!";
    for (way, len) in WAYS.into_iter().flat_map(|way| [0, 1, 64, 1000, 1024].map(|len| (way, len))) {
        let mut pair = Pair::new(way);
        pair.a.memory.write(0, &bytes(1024, 6));
        let parts = |end: &End, cut: usize| {
            Data::Sges([end.memory.sge(0, cut), end.memory.sge(cut, len - cut)].into_iter().collect())
        };
        let write =
            |end: &End, rkey| SendOp::Write { addr: end.memory.addr() + 9, rkey, immediate: Some(imm) };
        let (tail, key) = (SendTail::Immediate(imm), pair.b.memory.key());
        let ops = [SEND, SendOp::Send(tail), write(&pair.b, key)];
        for (n, op) in ops.into_iter().flat_map(|op| [op.clone(), op]).enumerate() {
            let Pair { a, b, .. } = &pair;
            b.memory.write(0, &[0; 4096]);
            b.receive(n as u64, 2000, 1024);
            // Of one element, and of two.
            let data = parts(a, if n % 2 == 0 { 0 } else { len / 3 });
            a.post(SendWr { data, ..signaled(n as u64, op.clone(), a.memory.sge(0, 0)) });
            pair.pass();
            let Pair { a, b, .. } = &pair;
            assert_eq!(a.sent(), [(n as u64, Success)], "{way:?} {len} {op:?}");
            let (completed, at, tail) = match op {
                SendOp::Send(tail) => (Completed::Receive, 2000, tail),
                _ => (Completed::ReceiveWriteImmediate, 9, tail),
            };
            let got: Vec<_> =
                b.all_received().iter().map(|c| (c.wr_id, c.opcode, c.byte_len, c.tail)).collect();
            assert_eq!(got, [(n as u64, completed, len as u32, tail)], "{way:?} {op:?}");
            let mut expected = vec![0; 4096];
            expected[at..at + len].copy_from_slice(&bytes(1024, 6)[..len]);
            assert!(b.memory.holds(0, &expected), "{way:?} {len} {op:?}");
        }
        // By a wrong key nothing is written and no receive is taken; without bytes there is nothing
        // to reach.
        pair.b.memory.write(0, &[0; 4096]);
        pair.b.receive(90, 2000, 1024);
        let wrong = write(&pair.b, Rkey(key.0 ^ 1));
        pair.a.request(91, wrong, 0, len);
        pair.pass();
        let refused = len > 0;
        assert_eq!(pair.a.sent(), [(91, if refused { RemoteAccess } else { Success })], "{way:?} {len}");
        assert_eq!(pair.b.received(), [(90, if refused { WrFlush } else { Success })], "{way:?} {len}");
        assert!(pair.b.memory.holds(0, &[0; 4096]), "{way:?} {len}");
    }
}

#[test]
fn writes_and_reads_alone_are_done_where_they_name_and_say_so() {
    for way in WAYS {
        let mut pair = Pair::new(way);
        let Pair { a, b, .. } = &pair;
        a.memory.write(0, &bytes(LONG, 3));
        let before = pair.sim.counters().sent;
        for n in 0..20 {
            let at = 10_000 * n as usize;
            a.request(2 * n, b.write(at), 0, 1 + 497 * n as usize);
            a.request(2 * n + 1, b.read(at), 200_000 + at / 2, 1 + 200 * n as usize);
        }
        let inline = Data::inline(b"at once");
        a.post(SendWr { data: inline, ..signaled(40, b.write(LEN - 7), a.memory.sge(0, 7)) });
        pair.pass();
        assert_eq!(pair.a.sent(), (0..=40).map(|n| (n, Success)).collect::<Vec<_>>(), "{way:?}");
        for n in 0..20 {
            let at = 10_000 * n;
            let written = bytes(LONG, 3);
            assert!(pair.b.memory.holds(at, &written[..1 + 497 * n]));
            assert!(pair.a.memory.holds(200_000 + at / 2, &written[..1 + (200 * n).min(497 * n)]));
        }
        assert!(pair.b.memory.holds(LEN - 7, b"at once"));
        let sent = pair.sim.counters().sent - before;
        assert_eq!(sent == 0, way.is_one_host(), "{sent} packets");
        assert_eq!(pair.sim.counters().copied, if way.is_one_host() { 41 } else { 0 });
    }
}

#[test]
fn a_fenced_request_has_what_reads_before_it_brought() {
    for way in WAYS {
        for len in [1_000, LONG] {
            let mut pair = Pair::new(way);
            let Pair { a, b, .. } = &pair;
            b.memory.write(0, &bytes(len, 9));
            b.receive(1, 300_000, 8);
            b.receive(2, 200_000, LONG);
            // Something is under way, so that the READ goes as packets everywhere.
            a.request(0, SEND, 0, 8);
            a.request(1, b.read(0), 0, len);
            a.post(SendWr { fence: true, ..signaled(2, SEND, a.memory.sge(0, len)) });
            a.post(SendWr { fence: true, ..signaled(3, b.write(0), a.memory.sge(200_000, len)) });
            pair.pass();
            assert_eq!(pair.a.sent(), [0, 1, 2, 3].map(|n| (n, Success)), "{way:?}");
            assert!(pair.b.memory.holds(200_000, &bytes(len, 9)), "{way:?}");
            assert!(pair.b.memory.holds(0, &vec![0; len]), "the WRITE comes last");
        }
    }
}

#[test]
fn a_message_without_a_receive_waits_for_one_as_often_as_it_may() {
    for way in WAYS {
        for len in [8, LONG] {
            let mut pair = Pair::with(way, Wiring { rnr_retry: 2, ..WIRING });
            let Pair { a, b, .. } = &pair;
            a.request(1, b.write(0), 0, 8);
            a.request(2, SEND, 0, len);
            a.request(3, b.write(0), 0, 8);
            pair.pass();
            assert_eq!(pair.a.sent(), [(1, Success), (2, RnrRetryExceeded), (3, WrFlush)], "{way:?} {len}");
            assert_eq!((pair.a.state(), pair.b.state()), (QpState::Error, QpState::Rts));

            let mut pair = Pair::new(way);
            pair.a.memory.write(0, &bytes(len, 4));
            pair.a.request(1, SEND, 0, len);
            pair.a.request(2, pair.b.write(0), 0, 8);
            pair.pass();
            assert_eq!(pair.a.sent(), [], "it waits, and what is behind it");
            pair.b.receive(7, 1_000, LONG);
            pair.pass();
            assert_eq!(
                (pair.a.sent(), pair.b.received()),
                (vec![(1, Success), (2, Success)], vec![(7, Success)])
            );
            assert!(pair.b.memory.holds(1_000, &bytes(len, 4)), "{way:?} {len}");
        }
    }
}

#[test]
fn nothing_leaves_a_drained_queue_and_nothing_reaches_the_memory_of_one_until_it_goes_on() {
    for way in WAYS {
        let mut pair = Pair::new(way);
        let Pair { a, b, .. } = &pair;
        a.go_to(QpState::Sqd);
        a.request(1, b.write(0), 0, 8);
        a.request(2, b.read(0), 0, 8);
        pair.pass();
        assert_eq!(pair.a.sent(), []);
        pair.a.go_to(QpState::Rts);
        pair.pass();
        assert_eq!(pair.a.sent(), [(1, Success), (2, Success)], "{way:?}");
        // Its peer still may, by packets: that is the responder's matter.
        pair.a.go_to(QpState::Sqd);
        pair.b.request(3, pair.a.write(0), 0, 8);
        pair.pass();
        assert_eq!(pair.b.sent(), [(3, Success)], "{way:?}");
        pair.copied(2);
    }
}

#[test]
fn atomics_are_done_between_writes_and_reads_in_their_order() {
    for way in WAYS {
        let mut pair = Pair::new(way);
        let Pair { a, b, .. } = &pair;
        let (at, key) = (b.memory.addr() + 16, b.memory.key());
        a.memory.write(0, &100_u64.to_ne_bytes());
        a.request(1, b.write(16), 0, 8);
        for n in 0..4 {
            a.request(2 + n, atomic(at, key, AtomicOp::FetchAdd(n)), 64 + 8 * n as usize, 8);
        }
        let last = atomic(at, key, AtomicOp::CompareSwap { compare: 106, swap: 1 });
        a.post(SendWr { fence: true, ..signaled(6, last, a.memory.sge(96, 8)) });
        a.post(SendWr { fence: true, ..signaled(7, b.read(16), a.memory.sge(104, 8)) });
        a.request(8, atomic(at + 8, Rkey(key.0 ^ 1), AtomicOp::FetchAdd(1)), 112, 8);
        pair.pass();
        let mut expected: Vec<_> = (1..8).map(|n| (n, Success)).collect();
        expected.push((8, RemoteAccess));
        assert_eq!(pair.a.sent(), expected, "{way:?}");
        let got: Vec<u64> =
            pair.a.memory.read(64, 48).chunks(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect();
        assert_eq!(got, [100, 100, 101, 103, 106, 1], "{way:?}");
    }
}

#[test]
fn a_window_is_good_until_it_is_invalidated_here_or_by_the_peer() {
    for way in WAYS {
        for by_peer in [false, true] {
            let mut pair = Pair::new(way);
            let Pair { a, b, .. } = &pair;
            let window = b.endpoint.pd.alloc_window(WindowType::Two).unwrap();
            let key = b.endpoint.pd.window_key(window);
            let (region, addr, length) = (b.memory.key(), b.memory.addr() + 100, 50);
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let bind = Bind { window: window.name(), key, region, addr, length, access };
            b.post(signaled(1, SendOp::Local(LocalOp::Bind(bind)), b.memory.sge(0, 0)));
            assert_eq!(b.sent(), [(1, Success)]);
            let op = elsewhere(b.write(100), key, 0);
            a.memory.write(0, b"window");
            a.request(1, op.clone(), 0, 6);
            a.request(2, b.write(0), 0, 6);
            pair.pass();
            let Pair { a, b, .. } = &pair;
            assert_eq!(a.sent(), [(1, Success), (2, Success)], "{way:?}");
            assert!(b.memory.holds(100, b"window"));
            if by_peer {
                b.receive(3, 0, 8);
                a.request(3, SendOp::Send(SendTail::Invalidate(key)), 0, 1);
            } else {
                b.post(signaled(3, SendOp::Local(LocalOp::Invalidate(key)), b.memory.sge(0, 0)));
                assert_eq!(b.sent(), [(3, Success)]);
                b.receive(3, 0, 8);
                a.request(3, SEND, 0, 1);
            }
            a.request(4, op, 0, 6);
            pair.pass();
            assert_eq!(pair.a.sent(), [(3, Success), (4, RemoteAccess)], "{way:?} {by_peer}");
        }
    }
}

/// Posted without waiting for any of them: the first ones need no packet, those after them do, and
/// a long one among these does not.
#[test]
fn a_stream_of_short_requests_keeps_its_order_whichever_way_each_goes() {
    for way in WAYS {
        let mut pair = Pair::apart(way);
        let Endpoint { pd, qp, .. } = &pair.a.endpoint;
        let cap = nic::QpCap { max_send_wr: 256, ..qp.init().cap };
        let init = QpInit { cap, ..qp.init().clone() };
        pair.a.endpoint.qp = Qp::create(&pair.a.node.devices()[0], pd, init).unwrap();
        connect(&pair.a, &pair.b, &WIRING);
        pair.prove();
        let Pair { a, b, .. } = &pair;
        let copies = pair.sim.counters().copied;
        // Each writes its number to one place, of which each tenth reads; and one writes it to the
        // begin of a long area.
        let [numbers, reads, area] = [0, 10_000, 50_000];
        for n in 0..200 {
            a.memory.write(numbers + 8 * n, &(n as u64).to_ne_bytes());
            match n {
                150 => a.request(150, b.write(0), numbers + 8 * n, LONG),
                n if n % 10 == 9 => a.request(n as u64, b.read(0), reads + 8 * n, 8),
                n => a.request(n as u64, b.write(0), numbers + 8 * n, 8),
            }
        }
        a.request(200, b.write(area + LONG), numbers, 8);
        pair.pass();
        let Pair { a, b, .. } = &pair;
        assert_eq!(a.sent(), (0..=200).map(|n| (n, Success)).collect::<Vec<_>>(), "{way:?}");
        for n in (9..200).step_by(10) {
            assert_eq!(a.memory.read(reads + 8 * n, 8), (n as u64 - 1).to_ne_bytes(), "{way:?} {n}");
        }
        assert_eq!(b.memory.read(0, 8), 198_u64.to_ne_bytes(), "{way:?}");
        let copies = pair.sim.counters().copied - copies;
        let expected = match way {
            Way::Wire | Way::Stream => 0..=0,
            Way::Channel | Way::Shared => 64..=99,
            Way::Mapped => 201..=201,
        };
        assert!(expected.contains(&copies), "{way:?} {copies}");
        // A program that waits for each is served at once again.
        let before = pair.sim.counters().copied;
        for n in 0..3 {
            pair.a.request(n, pair.b.write(0), numbers, 8);
            assert_eq!(way.is_one_host(), pair.a.sent() == [(n, Success)], "{way:?}");
            pair.pass();
            pair.a.sent();
        }
        assert_eq!(pair.sim.counters().copied - before, if way.is_one_host() { 3 } else { 0 });
    }
}

/// Both ways are tried, and what goes one way stays after what went the other before it.
#[test]
fn a_stream_of_long_requests_keeps_its_order_whichever_way_each_goes() {
    const ROUND: usize = 50;
    const ALL: usize = 10 * ROUND;
    const BYTES: usize = 200_000;
    let mut pair = Pair::new(Way::Channel);
    // From each word on they are others.
    let words: Vec<u8> = (0..(BYTES / 8 + ALL) as u64).flat_map(u64::to_ne_bytes).collect();
    pair.a.memory.write(0, &words);
    let reads = words.len();
    let before = pair.sim.counters();
    for round in 0..10 {
        for n in ROUND * round..ROUND * (round + 1) {
            match n % 10 {
                9 => pair.a.request(n as u64, pair.b.read(BYTES - 8), reads + 8 * n, 8),
                _ => pair.a.request(n as u64, pair.b.write(0), 8 * n, BYTES),
            }
        }
        pair.pass();
        let expected: Vec<_> = (ROUND * round..ROUND * (round + 1)).map(|n| (n as u64, Success)).collect();
        assert_eq!(pair.a.sent(), expected);
    }
    for n in (9..ALL).step_by(10) {
        let last = (BYTES / 8 + n - 2) as u64;
        assert_eq!(pair.a.memory.read(reads + 8 * n, 8), last.to_ne_bytes(), "{n}");
    }
    let counters = pair.sim.counters();
    let ways = [counters.copied - before.copied, counters.by_channel - before.by_channel];
    assert!(ways.iter().all(|times| *times > 100), "{ways:?}");
}

#[test]
fn a_list_that_takes_long_is_done_turn_by_turn_while_its_program_does_nothing() {
    // Two of these take more than a turn copies.
    const LONG: usize = 6 << 20;
    for way in WAYS {
        let mut pair = Pair::new(way);
        let Pair { a, b, .. } = &pair;
        let [from, to] = [a, b].map(|end| Buffer::new(&end.endpoint.pd, LONG, 0x80_0000, RIGHTS).unwrap());
        from.write(0, &bytes(LONG, 3));
        let there = SendOp::Write { addr: to.addr(), rkey: to.key(), immediate: None };
        let back = SendOp::Read { addr: to.addr(), rkey: to.key() };
        let mut list = a.endpoint.qp.sender(a.now());
        for n in 0..6 {
            let op = if n < 3 { &there } else { &back };
            let mut wr = signaled(n, op.clone(), from.sge(0, LONG));
            list.post(&mut wr, nic::PostFlags::default()).unwrap();
        }
        list.finish();
        let at_once = a.sent().len();
        assert_eq!(at_once, if way == Way::Mapped { 2 } else { 0 }, "{way:?}");
        pair.sim.run_for(Duration::from_secs(5));
        let Pair { a, .. } = &pair;
        let all: Vec<_> = (at_once as u64..6).map(|n| (n, Success)).collect();
        assert_eq!(a.sent(), all, "{way:?}");
        assert!(from.holds(0, &bytes(LONG, 3)) && to.holds(0, &bytes(LONG, 3)), "{way:?}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn queue_pairs_that_share_receives_take_them_in_the_order_in_which_messages_come() {
    for way in WAYS {
        let mut pair = Pair::apart(way);
        let Pair { a, b, .. } = &mut pair;
        let attr = SrqAttr { max_wr: 16, max_sge: 1, limit: 0 };
        let srq = Srq::create(&b.endpoint.pd, attr, b.endpoint.events.clone()).unwrap();
        let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
        for n in 0..3 {
            let mine = Endpoint::new(&a.node);
            let Endpoint { pd, sends, receives, events, .. } = Endpoint::new(&b.node);
            let cap = nic::QpCap { max_recv_wr: 0, max_recv_sge: 0, ..b.endpoint.qp.init().cap };
            let init = QpInit {
                srq: Some(srq.clone()),
                send_cq: sends.clone(),
                recv_cq: b.endpoint.receives.clone(),
                cap,
                ..b.endpoint.qp.init().clone()
            };
            let qp = Qp::create(&b.node.devices()[0], &b.endpoint.pd, init).unwrap();
            let shared = Endpoint { pd, qp, sends, receives, events };
            let psn = Psn::new(n);
            wire_up(&a.node, &mine, &shared, b.address, &WIRING, (psn, psn));
            wire_up(&b.node, &shared, &mine, a.address, &WIRING, (psn, psn));
            ours.push(mine);
            theirs.push(shared);
        }
        let lens = [8, LONG, 500, LONG, 40_000, 3, LONG, 9];
        for n in 0..lens.len() {
            let sges = [b.memory.sge(n, LONG)].into_iter().collect();
            srq.post(RecvWr { wr_id: n as u64, sges }).unwrap();
        }
        srq.modify(None, Some(2)).unwrap();
        pair.pass();
        for (n, len) in lens.into_iter().enumerate() {
            let mine = &ours[n % 3];
            let memory = Buffer::new(&mine.pd, LONG, 0, 0).unwrap();
            memory.write(0, &bytes(len, n as u8));
            mine.qp.post_send(pair.a.now(), signaled(n as u64, SEND, memory.sge(0, len))).unwrap();
            pair.pass();
            let done: Vec<_> = Endpoint::poll(&mine.sends).iter().map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(done, [(n as u64, Success)], "{way:?}");
            let got: Vec<_> =
                pair.b.all_received().iter().map(|c| (c.wr_id, c.status, c.byte_len, c.qpn)).collect();
            assert_eq!(got, [(n as u64, Success, len as u32, theirs[n % 3].qp.qpn())], "{way:?}");
            assert!(pair.b.memory.holds(n, &bytes(len, n as u8)), "{way:?} {n}");
            let told = pair.b.endpoint.events.pop().map(|event| event.kind);
            // Those of the first two are about connections.
            let told = if told == Some(EventKind::CommunicationEstablished) {
                pair.b.endpoint.events.pop().map(|event| event.kind)
            } else {
                told
            };
            assert_eq!(told, (n == lens.len() - 2).then_some(EventKind::SrqLimit), "{way:?} {n}");
        }
        // A long one that finds no receive, and takes the one that comes.
        let memory = Buffer::new(&ours[0].pd, LONG, 0, 0).unwrap();
        memory.write(0, &bytes(LONG, 77));
        ours[0].qp.post_send(pair.a.now(), signaled(90, SEND, memory.sge(0, LONG))).unwrap();
        pair.pass();
        assert_eq!(pair.b.received(), []);
        srq.post(RecvWr { wr_id: 91, sges: [pair.b.memory.sge(0, LONG)].into_iter().collect() }).unwrap();
        pair.pass();
        assert_eq!(pair.b.received(), [(91, Success)], "{way:?}");
        assert!(pair.b.memory.holds(0, &bytes(LONG, 77)));
        assert!(ours.len() as u32 <= DEPTH);
    }
}
