//! iWARP over streams that are cut anywhere, delayed, held up and reset. What RC promises holds
//! over them, but for what iWARP has not.

use std::time::Duration;

use crate::support::Way;
use crate::support::work::Run;
use sim::{Counters, Dice, Faults};

/// Seeds of each part.
const SEEDS: u64 = 1000;

/// Delays, pieces that come late, and links that stop for a while.
fn slow(dice: &mut Dice) -> Faults {
    let mut p = |most: f64| if dice.chance(0.5) { most * dice.below(1000) as f64 / 1000.0 } else { 0.0 };
    let [loss, clog] = [p(0.1), p(0.01)];
    Faults::none()
        .loss(loss)
        .clog(clog)
        .clog_time(Duration::from_micros(dice.between(1, 20_000)))
        .jitter(Duration::from_micros(dice.below(50)))
        .delay(Duration::from_micros(dice.between(1, 200)))
        .reorder_delay(Duration::from_micros(dice.between(1, 2_000)))
}

/// Like [`slow`], with resets, and directions that lose everything for a while, or for so long that
/// the stream is given up.
fn broken(dice: &mut Dice) -> Faults {
    let partition_time = dice.pick(&[100, 3_000, 20_000]) * Duration::from_millis(1);
    let (reset, partition) = dice.pick(&[(0.0, 0.002), (0.002, 0.0), (0.02, 0.0), (0.1, 0.0), (0.01, 0.01)]);
    slow(dice).stream_reset(reset).partition(partition).partition_time(partition_time)
}

fn run(seed: u64, faults: fn(&mut Dice) -> Faults) -> (bool, Counters, u64) {
    let mut run = Run::new(seed, Way::Stream, faults);
    run.go();
    let (trace, counters) = (run.sim.trace(), run.sim.counters());
    (run.finish(), counters, trace)
}

#[test]
fn every_byte_arrives_once_and_in_order_wherever_the_stream_is_cut() {
    sim::each_seed("streams", "every_byte_arrives", SEEDS, |seed| {
        let (good, counters, _) = run(seed, slow);
        assert!(good, "a stream loses nothing");
        assert_eq!(counters.sent, 0, "{counters:?}");
    });
}

#[test]
fn a_stream_that_is_reset_or_cut_off_ends_both_ends_with_each_request_completed_once() {
    let (mut failed, mut all) = (0, 0);
    sim::each_seed("streams", "a_stream_that_is_reset", SEEDS, |seed| {
        all += 1;
        failed += u64::from(!run(seed + 1_000_000, broken).0);
    });
    assert!(all < SEEDS || (all / 10..all).contains(&failed), "{failed} of {all}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        let [first, again, other] = [seed, seed, seed + 1].map(|seed| run(seed, broken));
        assert_eq!(first, again);
        assert_ne!(first.2, other.2);
    }
}
