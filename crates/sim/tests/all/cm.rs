//! Connections by rdma_cm between simulated nodes: established on both sides or failed on both,
//! ended on both, and nothing left of them.

use std::time::Duration;

use crate::support::connections::{param, resolved};
use crate::support::plans::{LIMIT, Run, bad, plans};
use nic::rdma_cm::EventKind;
use sim::Dice;

const SEEDS: u64 = 1000;

#[test]
fn every_connection_is_established_on_both_sides_or_failed_on_both() {
    let (mut established, mut asked) = (0, 0);
    sim::each_seed("cm", "every_connection", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(3000);
        let plans = plans(&mut dice);
        let outcome = Run::new(seed, bad(&mut dice), plans.clone()).go();
        for (n, (client, server)) in outcome.into_iter().enumerate() {
            assert_eq!(client, server, "connection {n}");
            assert!(!client || !plans[n].reject);
            asked += u64::from(!plans[n].reject);
            established += u64::from(client);
        }
    });
    // Nothing here is so bad that all of a minute's repetitions are lost.
    assert_eq!(established, asked);
}

#[test]
fn whatever_is_cut_off_both_sides_end_and_nothing_is_left() {
    sim::each_seed("cm", "whatever_is_cut_off", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(4000);
        let loss = dice.pick(&[0.0, 0.1, 0.3, 0.6]);
        let partition = dice.pick(&[0.0, 0.01, 0.1]);
        let partition_time = dice.pick(&[100, 3_000, 60_000]) * Duration::from_millis(1);
        let clog = dice.pick(&[0.0, 0.01, 0.1]);
        let clog_time = dice.pick(&[10, 300]) * Duration::from_millis(1);
        let faults = bad(&mut dice).loss(loss).partition(partition).partition_time(partition_time);
        let faults = faults.clog(clog).clog_time(clog_time);
        let plans = plans(&mut dice);
        Run::new(seed + 1_000_000, faults, plans).go();
    });
}

/// The client's side of a run whose server is killed at some time, and another takes its place.
#[test]
fn a_killed_server_ends_its_connections_and_leaves_its_port_to_the_next() {
    sim::each_seed("cm", "a_killed_server", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(5000);
        let plans = plans(&mut dice);
        let mut run = Run::new(seed + 2_000_000, bad(&mut dice), plans);
        // From a millisecond to four seconds, as often short as long.
        let most = 1 << dice.between(10, 22);
        let killed_at = Duration::from_micros(dice.below(most));
        while run.sim.elapsed() < killed_at && !run.is_over() {
            run.step();
        }
        let old = run.kill_server();
        run.run_out();
        drop(old);
        let id = resolved(&mut run.sim, &run.client, run.server.address);
        run.client.node.connect(&id, &param(), &[]).unwrap();
        run.sim.run_for(Duration::from_secs(1));
        let request = run.server.next().expect("a request at the new server");
        run.server.node.reject(&request.id, &[]).unwrap();
        run.sim.run_for(Duration::from_secs(1));
        let event = run.client.next().expect("the new server's answer");
        assert_eq!((event.kind, event.status), (EventKind::Rejected, 28));
        drop(event);
        run.client.node.destroy(&id);
        run.server.node.destroy(&request.id);
        drop(request);
        run.nothing_is_left();
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut dice = Dice::new(seed).fork(3000);
        let plans = plans(&mut dice);
        let mut run = Run::new(seed, bad(&mut dice), plans);
        while !run.is_over() && run.sim.elapsed() < LIMIT {
            run.step();
        }
        (run.sim.trace(), run.sim.counters())
    };
    for seed in 0..5 {
        assert_eq!(trace(seed), trace(seed));
    }
    assert_ne!(trace(0).0, trace(1).0);
}
