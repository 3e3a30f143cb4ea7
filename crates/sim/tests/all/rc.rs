//! Two queue pairs, wired by hand, with random work in both directions over bad networks, and
//! between two processes of one host ([`Run`]).

use std::time::Duration;

use crate::support::Way;
use crate::support::both_ways::{Pair, SEND, signaled};
use crate::support::work::Run;
use sim::{Counters, Dice, Faults, Sim};
use transport::op::{SendWr, Status};

/// Seeds of each part.
const SEEDS: u64 = 1000;

/// Loss, copies, late and changed packets; never so bad that eight tries in a row fail by chance.
fn bad(dice: &mut Dice) -> Faults {
    let mut p = |most: f64| if dice.chance(0.5) { most * dice.below(1000) as f64 / 1000.0 } else { 0.0 };
    Faults::none()
        .loss(p(0.1))
        .duplicate(p(0.1))
        .replay(p(0.1))
        .reorder(p(0.1))
        .corrupt(p(0.05))
        .jitter(Duration::from_micros(dice.below(50)))
        .delay(Duration::from_micros(dice.between(1, 200)))
        .replay_delay(Duration::from_micros(dice.between(1, 10_000)))
        .reorder_delay(Duration::from_micros(dice.between(1, 2_000)))
}

/// Like [`bad`], with links that stop and directions that lose everything for a while.
fn worse(dice: &mut Dice) -> Faults {
    let clog_time = Duration::from_micros(dice.between(1, 20_000));
    let partition_time = Duration::from_micros(dice.between(1, 40_000));
    bad(dice).clog(0.002).clog_time(clog_time).partition(0.002).partition_time(partition_time)
}

/// None; copies that do not come about, now and then or mostly; memory that both map, or some of
/// it.
fn of_one_host(dice: &mut Dice) -> Faults {
    let unreached = dice.pick(&[0.0, 0.0, 0.1, 0.7]);
    let mapped = dice.pick(&[0.0, 0.0, 0.5, 1.0]);
    Faults::none().unreached(unreached).mapped(mapped).shared(dice.pick(&[0.0, 0.5, 1.0]))
}

/// Like [`of_one_host`], with ways that are cut for a while.
fn cut(dice: &mut Dice) -> Faults {
    let cut_time = Duration::from_micros(dice.between(1, 2_000));
    of_one_host(dice).cut(dice.pick(&[0.002, 0.02, 0.1])).cut_time(cut_time)
}

fn run(seed: u64, way: Way, faults: fn(&mut Dice) -> Faults) -> (bool, Counters, u64) {
    let mut run = Run::new(seed, way, faults);
    run.go();
    let (trace, counters) = (run.sim.trace(), run.sim.counters());
    (run.finish(), counters, trace)
}

#[test]
fn every_byte_arrives_once_and_in_order_whatever_single_packets_suffer() {
    let (mut failed, mut all) = (Vec::new(), 0);
    sim::each_seed("rc", "every_byte_arrives", SEEDS, |seed| {
        all += 1;
        if !run(seed, Way::Wire, bad).0 {
            failed.push(seed);
        }
    });
    assert!(failed.len() <= all.max(50) / 50, "too many queue pairs gave up: seeds {failed:?}");
}

#[test]
fn between_processes_of_one_host_every_byte_arrives_once_and_in_order_and_nothing_fails() {
    let (mut copied, mut not_copied, mut all) = (0, 0, 0);
    sim::each_seed("rc", "between_processes_of_one_host", SEEDS, |seed| {
        let (good, counters, _) = run(seed + 2_000_000, Way::Channel, of_one_host);
        assert!(good, "a channel loses nothing");
        assert_eq!((counters.lost, counters.sent - counters.by_channel), (0, 0), "{counters:?}");
        all += 1;
        copied += counters.copied;
        not_copied += counters.not_copied;
    });
    assert!(all < SEEDS || copied > 3 * SEEDS && not_copied > SEEDS / 2, "{copied} {not_copied}");
}

#[test]
fn between_processes_of_one_host_whose_way_is_cut_for_a_while_every_byte_arrives_once_and_in_order() {
    let (mut failed, mut all, mut lost) = (Vec::new(), 0, 0);
    sim::each_seed("rc", "whose_way_is_cut", SEEDS, |seed| {
        all += 1;
        let (good, counters, _) = run(seed + 3_000_000, Way::Channel, cut);
        lost += counters.lost;
        if !good {
            failed.push(seed);
        }
    });
    assert!(failed.len() <= all.max(20) / 20, "too many queue pairs gave up: seeds {failed:?}");
    assert!(all < SEEDS as usize || lost > 10 * SEEDS, "{lost} packets were lost");
}

#[test]
fn messages_to_and_fro_go_on_after_their_way_was_cut() {
    let mut lost = 0;
    sim::each_seed("rc", "messages_to_and_fro", SEEDS, |seed| {
        let faults = Faults::none().cut(0.03).cut_time(Duration::from_millis(3));
        let mut pair = Pair::on_links_by(Way::Channel, Sim::new(seed, faults), |_, link| link);
        for n in 0..60 {
            let (from, to) = if n % 2 == 0 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
            to.receive(n, 0, 8);
            // As programs do that measure latency: one in some completes visibly.
            from.post(SendWr { signaled: n % 8 < 2, ..signaled(n, SEND, from.memory.sge(8, 8)) });
            let end = pair.sim.elapsed() + Duration::from_secs(1);
            let mut received = to.received();
            while received.is_empty() && pair.sim.step(end) {
                received = to.received();
            }
            assert_eq!(received, [(n, Status::Success)]);
        }
        pair.pass();
        let sent = [pair.a.sent(), pair.b.sent()];
        assert!(sent.iter().flatten().all(|(_, status)| *status == Status::Success), "{sent:?}");
        assert_eq!(sent.map(|all| all.len()), [8, 8]);
        lost += pair.sim.counters().lost;
    });
    assert!(sim::seeds::single().is_some() || lost > SEEDS, "{lost} packets were lost");
}

#[test]
fn clogs_and_partitions_end_in_delivery_or_in_a_clean_error() {
    let (mut failed, mut all) = (Vec::new(), 0);
    sim::each_seed("rc", "clogs_and_partitions", SEEDS, |seed| {
        all += 1;
        if !run(seed + 1_000_000, Way::Wire, worse).0 {
            failed.push(seed);
        }
    });
    assert!(failed.len() <= all.max(4) / 4, "too many queue pairs gave up: seeds {failed:?}");
    assert!(all < SEEDS as usize || !failed.is_empty(), "no error was ever looked at");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for (way, faults) in [(Way::Wire, worse as fn(&mut Dice) -> Faults), (Way::Channel, of_one_host)] {
        for seed in 0..5 {
            let [first, again, other] = [seed, seed, seed + 1].map(|seed| run(seed, way, faults));
            assert_eq!(first, again);
            assert_ne!(first.2, other.2);
        }
    }
}
