//! Errors of RC are the same over a network and between processes of one host: each test runs over
//! both.

use std::sync::Arc;

use crate::support::both_ways::{LEN, LONG, Pair, SEND, WAYS, WIRING, connect, elsewhere, signaled};
use crate::support::{Endpoint, RIGHTS, Way};
use nic::{Access, Buffer, Pd, QpAttr, QpState, mask};
use transport::op::{SendWr, Status};
use wire::Rkey;

use Status::{
    LocalLength, LocalProtection, RemoteAccess, RemoteInvalidRequest, RetryExceeded, Success, WrFlush,
};

/// What is wrong with an access.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Key,
    KeyOfAnotherDomain,
    Behind,
    Before,
    Far,
    RightOfTheRegion,
    RightOfTheQueuePair,
    Deregistered,
    Reregistered,
}

const WRONG: [Wrong; 9] = [
    Wrong::Key,
    Wrong::KeyOfAnotherDomain,
    Wrong::Behind,
    Wrong::Before,
    Wrong::Far,
    Wrong::RightOfTheRegion,
    Wrong::RightOfTheQueuePair,
    Wrong::Deregistered,
    Wrong::Reregistered,
];

#[test]
fn an_access_that_is_not_allowed_ends_both_queue_pairs_and_touches_nothing() {
    for way in WAYS {
        for wrong in WRONG {
            for is_read in [false, true] {
                let mut pair = Pair::new(way);
                let Pair { a, b, .. } = &mut pair;
                a.memory.write(0, &[0xaa; 64]);
                b.memory.write(0, &[0xbb; LEN]);
                for n in 0..3 {
                    b.receive(n, 0, 8);
                }
                let op = if is_read { b.read(64) } else { b.write(64) };
                let key = b.memory.key();
                let other = |pd: &Arc<Pd>, rights| Buffer::new(pd, LEN, 0x10_0000, rights).unwrap();
                let mut kept = Vec::new();
                a.request(0, op.clone(), 0, 8);
                pair.pass();
                let Pair { a, b, .. } = &mut pair;
                let bad = match wrong {
                    Wrong::Key => elsewhere(op, Rkey(key.0 ^ 1), 0),
                    Wrong::KeyOfAnotherDomain => {
                        let pd = Arc::new(b.node.devices()[0].alloc_pd().unwrap());
                        kept.push(other(&pd, RIGHTS));
                        elsewhere(op, kept[0].key(), 0)
                    }
                    Wrong::Behind => elsewhere(op, key, LEN as i64 - 64 - 63),
                    Wrong::Before => elsewhere(op, key, -65),
                    Wrong::Far => elsewhere(op, key, i64::MAX),
                    Wrong::RightOfTheRegion => {
                        let right = if is_read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
                        kept.push(other(&b.endpoint.pd, RIGHTS & !right));
                        elsewhere(op, kept[0].key(), 0)
                    }
                    Wrong::RightOfTheQueuePair => {
                        let access = if is_read { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
                        b.modify(QpAttr { access, ..QpAttr::default() }, mask::ACCESS_FLAGS);
                        op
                    }
                    Wrong::Deregistered | Wrong::Reregistered => {
                        let again = Buffer::new(&b.endpoint.pd, LEN, 0x10_0000, RIGHTS).unwrap();
                        again.write(0, &[0xbb; LEN]);
                        b.memory = again;
                        op
                    }
                };
                a.request(1, bad, 0, 64);
                a.request(2, b.write(0), 0, 8);
                pair.pass();
                let Pair { a, b, .. } = &pair;
                let what = format!("{way:?} {wrong:?} read: {is_read}");
                assert_eq!(a.sent(), [(0, Success), (1, RemoteAccess), (2, WrFlush)], "{what}");
                assert_eq!(b.received(), [0, 1, 2].map(|n| (n, WrFlush)), "{what}");
                assert_eq!((a.state(), b.state()), (QpState::Error, QpState::Error), "{what}");
                assert!(b.memory.holds(128, &[0xbb; 1_000]) && b.memory.holds(0, &[0xbb; 64]), "{what}");
                assert!(a.memory.holds(8, &[0xaa; 56]), "{what}");
                let refused = if way.is_one_host() { 1 } else { 0 };
                assert_eq!(pair.sim.counters().copied, refused, "{what}");
            }
        }
    }
}

#[test]
fn memory_of_ones_own_that_is_not_registered_ends_the_queue_pair_and_not_the_peers() {
    for way in WAYS {
        for (which, len) in [(0, 64), (1, 64), (2, 64), (2, LONG)] {
            let mut pair = Pair::new(way);
            let Pair { a, b, .. } = &pair;
            b.receive(5, 0, LONG);
            let op = [b.write(0), b.read(0), SEND][which].clone();
            a.request(0, b.write(8), 0, 8);
            let mut sge = a.memory.sge(0, len);
            sge.lkey = Rkey(sge.lkey.0 ^ 1);
            a.post(signaled(1, op, sge));
            a.request(2, b.write(0), 0, 8);
            pair.pass();
            assert_eq!(pair.a.sent(), [(0, Success), (1, LocalProtection), (2, WrFlush)], "{way:?} {which}");
            assert_eq!((pair.b.received(), pair.b.state()), (vec![], QpState::Rts), "{way:?} {which}");
        }
    }
}

#[test]
fn a_message_that_is_too_long_for_its_receive_fails_on_both_sides() {
    for way in WAYS {
        for len in [64, LONG] {
            let mut pair = Pair::new(way);
            let Pair { a, b, .. } = &pair;
            b.receive(5, 0, len - 1);
            b.receive(6, 0, len);
            a.request(1, SEND, 0, len);
            a.request(2, SEND, 0, 8);
            pair.pass();
            assert_eq!(pair.a.sent(), [(1, RemoteInvalidRequest), (2, WrFlush)], "{way:?} {len}");
            assert_eq!(pair.b.received(), [(5, LocalLength), (6, WrFlush)], "{way:?} {len}");
            assert_eq!((pair.a.state(), pair.b.state()), (QpState::Error, QpState::Error));
        }
    }
}

#[test]
fn a_queue_pair_in_the_error_state_flushes_all_in_order_and_has_no_more_effect() {
    for way in WAYS {
        for len in [8, LONG] {
            let mut pair = Pair::new(way);
            let Pair { a, b, .. } = &pair;
            for n in 0..3 {
                a.receive(n, 0, 8);
            }
            a.request(1, b.write(0), 0, 8);
            // The peer has no receive for it.
            a.request(2, SEND, 0, len);
            a.request(3, b.write(0), 0, 8);
            a.post(SendWr { signaled: false, ..signaled(4, b.read(0), a.memory.sge(0, 8)) });
            a.go_to(QpState::Error);
            a.request(5, b.write(0), 0, 8);
            b.receive(9, 0, LONG);
            b.memory.write(0, &[7; 8]);
            pair.pass();
            let Pair { a, b, .. } = &pair;
            let sent = a.sent();
            let flushed = [(2, WrFlush), (3, WrFlush), (4, WrFlush), (5, WrFlush)];
            let after = match way {
                Way::Channel | Way::Shared | Way::Mapped => &sent[1..],
                // The WRITE has not been acknowledged yet.
                Way::Wire | Way::Stream => {
                    assert_eq!(sent[0], (1, WrFlush));
                    &sent[1..]
                }
            };
            assert_eq!(after, flushed, "{way:?}");
            assert_eq!(a.received(), [0, 1, 2].map(|n| (n, WrFlush)));
            assert_eq!(b.state(), QpState::Rts);
            b.request(1, a.read(0), 0, 8);
            b.request(2, a.write(0), 0, 8);
            pair.sim.run_for(std::time::Duration::from_secs(1));
            assert_eq!(pair.b.sent(), [(1, RetryExceeded), (2, WrFlush)], "{way:?}: nobody answers");
        }
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_or_reset_is_not_reached_any_more() {
    for way in WAYS {
        for destroyed in [false, true] {
            let mut pair = Pair::new(way);
            let Pair { a, b, .. } = &pair;
            a.request(1, b.write(0), 0, 8);
            if destroyed {
                b.endpoint.qp.destroy();
            } else {
                b.go_to(QpState::Reset);
            }
            b.memory.write(0, &[5; 8]);
            a.request(2, b.write(0), 0, 8);
            pair.sim.run_for(std::time::Duration::from_secs(1));
            let sent = pair.a.sent();
            assert_eq!(sent.last(), Some(&if way == Way::Wire { (2, WrFlush) } else { (2, RetryExceeded) }));
            assert!(pair.b.memory.holds(0, &[5; 8]), "{way:?}");
        }
    }
}

#[test]
fn a_queue_pair_that_begins_again_with_another_peer_is_that_ones() {
    for way in WAYS {
        let mut pair = Pair::new(way);
        pair.a.request(1, pair.b.write(0), 0, 8);
        pair.pass();
        let Pair { a, b, .. } = &mut pair;
        let first = std::mem::replace(&mut a.endpoint, Endpoint::new(&a.node));
        let memory = Buffer::new(&a.endpoint.pd, LEN, 0x10_0000, RIGHTS).unwrap();
        let before = std::mem::replace(&mut a.memory, memory);
        b.go_to(QpState::Reset);
        connect(a, b, &WIRING);
        let old = signaled(2, b.write(0), before.sge(0, 8));
        first.qp.post_send(a.now(), old).unwrap();
        a.memory.write(0, b"the new peer");
        a.request(3, b.write(64), 0, 12);
        pair.sim.run_for(std::time::Duration::from_secs(1));
        assert_eq!(pair.a.sent(), [(3, Success)], "{way:?}");
        let old: Vec<_> = Endpoint::poll(&first.sends).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(old, [(1, Success), (2, RetryExceeded)], "{way:?}");
        assert!(pair.b.memory.holds(64, b"the new peer"));
    }
}

#[test]
fn a_right_that_is_given_and_taken_back_while_they_run_holds_from_then_on() {
    for way in WAYS {
        let mut pair = Pair::new(way);
        for (n, access, status) in [
            (1, Access::REMOTE_READ | Access::REMOTE_WRITE, Success),
            (2, Access::REMOTE_WRITE, Success),
            (3, Access::REMOTE_READ, RemoteAccess),
        ] {
            pair.b.modify(QpAttr { access, ..QpAttr::default() }, mask::ACCESS_FLAGS);
            pair.a.request(n, pair.b.write(0), 0, 8);
            pair.pass();
            assert_eq!(pair.a.sent(), [(n, status)], "{way:?}");
        }
        pair.copied(2);
    }
}
