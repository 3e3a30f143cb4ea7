//! Memory of another process of this host that both map.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::exported::{Pair, copy};
use crate::support::{alone, counter};
use nic::peer_memory::{Copy, Piece};
use transport::op::{AtomicOp, DirectOutcome};

#[test]
fn what_both_map_is_copied_from_and_to_lists_of_any_pieces() {
    let _alone = alone();
    let Some(pair) = Pair::mapped() else { return };
    let ours: Vec<u8> = (0..=255).collect();
    let copied = |what, at, bytes: &[u8], size: usize| {
        let pieces: Vec<Piece> = bytes
            .chunks(size)
            .map(|piece| Piece { addr: piece.as_ptr() as u64, len: piece.len() as u64 })
            .collect();
        let remote = pair.remote(at, bytes.len() as u64);
        // SAFETY: the pieces are `bytes`, which are borrowed across the call; those that are
        // written to are nowhere used as atomics.
        unsafe { copy(pair.initiator.env(), remote, what, &pieces) }
    };
    for (at, len, size) in
        [(0, 8, 1), (3, 8, 1), (0, 21, 3), (5, 24, 3), (8, 40, 5), (1, 63, 8), (0, 256, 32), (7, 200, 100)]
    {
        let bytes = &ours[256 - len..];
        assert_eq!(copied(Copy::Write, at, bytes, size), DirectOutcome::Done, "{at} {len} {size}");
        let mut read = vec![0_u8; len];
        assert_eq!(copied(Copy::Read, at, &mut read[..], size), DirectOutcome::Done, "{at} {len} {size}");
        assert_eq!(read, bytes, "{at} {len} {size}");
    }
    assert_eq!(
        copied(Copy::Write, 0, &ours[..9], 1),
        DirectOutcome::Refused,
        "more pieces than are copied at once"
    );
    // Of ours something is not there.
    let gone = [Piece { addr: 8, len: 8 }];
    for what in [Copy::Write, Copy::Read] {
        // SAFETY: nothing is there, and nothing will be.
        let outcome = unsafe { copy(pair.initiator.env(), pair.remote(0, 8), what, &gone) };
        assert_eq!(outcome, DirectOutcome::Refused);
    }
    assert!(pair.copies(Copy::Write, pair.remote(0, 8), &mut [77]) && pair.word(0) == 77);
}

#[test]
fn atomics_of_both_ends_count_each_other_s() {
    const EACH: u64 = 20_000;
    let _alone = alone();
    let Some(pair) = Pair::mapped() else { return };
    let change = |at, op| {
        let mut before = 0_u64;
        let piece = Piece { addr: (&raw mut before) as u64, len: 8 };
        // SAFETY: the piece is `before`, a variable of ours.
        let outcome = unsafe { copy(pair.initiator.env(), pair.remote(at, 8), Copy::Atomic(op), &[piece]) };
        if outcome == DirectOutcome::Done { Ok(before) } else { Err(outcome) }
    };
    // SAFETY: words of the target's memory, which no code looks at otherwise meanwhile.
    let [ours, turns] = [0, 1].map(|at| unsafe { AtomicU64::from_ptr(pair.memory.as_ptr().add(at)) });
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for _ in 0..EACH {
                    change(0, AtomicOp::FetchAdd(3)).unwrap();
                    let mut seen = 0;
                    while let Ok(before) = change(8, AtomicOp::CompareSwap { compare: seen, swap: seen + 1 })
                        && before != seen
                    {
                        seen = before;
                    }
                }
            });
        }
        for _ in 0..EACH {
            ours.fetch_add(1, Ordering::Relaxed);
            turns.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(ours.load(Ordering::Relaxed), 7 * EACH);
    assert_eq!(turns.load(Ordering::Relaxed), 3 * EACH);
    assert_eq!(change(0, AtomicOp::Write(5)), Ok(7 * EACH));
    assert_eq!(change(4, AtomicOp::FetchAdd(1)), Err(DirectOutcome::Refused), "it is not aligned");
    assert!(counter(&pair.initiator, "direct_atomics") > 4 * EACH);
    pair.publish(nic::Access::REMOTE_WRITE);
    assert_eq!(change(0, AtomicOp::FetchAdd(1)), Err(DirectOutcome::Refused), "there is no right to it");
    assert_eq!(change(0, AtomicOp::Write(6)), Ok(5));
}
