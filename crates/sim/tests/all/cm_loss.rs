//! Connections by rdma_cm over networks that lose a given share of all packets, repeat and reorder
//! them: every one ends established on both sides or failed on both.

use std::time::Duration;

use crate::support::plans::{Run, plans};
use sim::{Dice, Faults};

/// Ten times as many in a nightly run: VERBENA_SEEDS=10000.
const SEEDS: u64 = 1000;

fn losing(loss: f64, dice: &mut Dice) -> Faults {
    Faults::none()
        .loss(loss)
        .duplicate(0.1)
        .replay(0.1)
        .replay_delay(Duration::from_millis(dice.between(1, 600)))
        .reorder(0.2)
        .reorder_delay(Duration::from_millis(dice.between(1, 50)))
        .delay(Duration::from_micros(dice.between(1, 2_000)))
}

fn alike(name: &str, loss: f64, salt: u64) {
    sim::each_seed("cm_loss", name, SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(salt);
        let plans = plans(&mut dice);
        let outcome = Run::new(seed + salt * 1_000_000, losing(loss, &mut dice), plans.clone()).go();
        for (n, (client, server)) in outcome.into_iter().enumerate() {
            assert_eq!(client, server, "connection {n}");
            assert_eq!(client, !plans[n].reject, "connection {n}: repetitions outlast this network");
        }
    });
}

#[test]
fn one_packet_in_a_hundred_lost_both_sides_end_alike() {
    alike("one_packet_in_a_hundred", 0.01, 11);
}

#[test]
fn one_packet_in_twenty_lost_both_sides_end_alike() {
    alike("one_packet_in_twenty", 0.05, 12);
}

#[test]
fn one_packet_in_five_lost_both_sides_end_alike() {
    alike("one_packet_in_five", 0.2, 13);
}
