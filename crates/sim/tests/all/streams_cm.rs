//! Connections by rdma_cm over streams: established on both sides or failed on both, ended on both
//! whatever becomes of the stream, and nothing left of them.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::Way;
use crate::support::connections::{PORT, Party, param, resolved};
use crate::support::plans::{Run, plans};
use nic::Errno;
use nic::rdma_cm::EventKind;
use sim::{Dice, Faults, Sim};
use wire::mad::PortSpace;

const SEEDS: u64 = 1000;

fn slow(dice: &mut Dice) -> Faults {
    Faults::none()
        .loss(dice.pick(&[0.0, 0.1]))
        .clog(dice.pick(&[0.0, 0.05]))
        .clog_time(Duration::from_millis(dice.between(1, 300)))
        .jitter(Duration::from_micros(dice.below(1000)))
        .delay(Duration::from_micros(dice.between(1, 5_000)))
}

#[test]
fn over_streams_every_connection_is_established_on_both_sides_or_failed_on_both() {
    sim::each_seed("streams_cm", "over_streams_every_connection", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(3000);
        let plans = plans(&mut dice);
        let outcome = Run::by(Way::Stream, seed, slow(&mut dice), plans.clone()).go();
        for (n, both) in outcome.into_iter().enumerate() {
            assert_eq!(both, (!plans[n].reject, !plans[n].reject), "connection {n}");
        }
    });
}

#[test]
fn whatever_becomes_of_a_stream_both_sides_end_and_nothing_is_left() {
    sim::each_seed("streams_cm", "whatever_becomes_of_a_stream", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(4000);
        let partition = dice.pick(&[0.0, 0.01, 0.1]);
        let partition_time = dice.pick(&[100, 3_000, 60_000]) * Duration::from_millis(1);
        let reset = dice.pick(&[0.0, 0.02, 0.2, 0.5]);
        let faults = slow(&mut dice).stream_reset(reset).partition(partition).partition_time(partition_time);
        let plans = plans(&mut dice);
        Run::by(Way::Stream, seed + 1_000_000, faults, plans).go();
    });
}

#[test]
fn a_killed_server_ends_its_streams_and_leaves_its_port_to_the_next() {
    sim::each_seed("streams_cm", "a_killed_server", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(5000);
        let plans = plans(&mut dice);
        let mut run = Run::by(Way::Stream, seed + 2_000_000, slow(&mut dice), plans);
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
        assert_eq!(event.kind, EventKind::Rejected);
        drop(event);
        run.client.node.destroy(&id);
        run.server.node.destroy(&request.id);
        drop(request);
        run.nothing_is_left();
    });
}

/// A program that names no port gets one that no other stream to the same peer has.
#[test]
fn hundreds_of_streams_to_one_peer_have_a_port_each() {
    const STREAMS: usize = 400;
    let mut sim = Sim::new(1, Faults::none());
    let [here, there] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
    let [client, server] = [here, there].map(|address| {
        let host = sim.add_host(&[address], 1500);
        Party::with(&mut sim, host, address, &Way::Stream.config())
    });
    let _listener = server.listen();
    for _ in 0..STREAMS {
        let id = client.node.create_id(&client.channel, PortSpace::Tcp);
        client.node.resolve_addr(&id, None, (there, PORT).into(), Duration::from_secs(2)).unwrap();
    }
    sim.run_for(Duration::from_millis(10));
    let mut told = Vec::new();
    while let Some(event) = client.next() {
        match event.kind {
            EventKind::AddrResolved => client.node.resolve_route(&event.id, Duration::from_secs(2)).unwrap(),
            EventKind::RouteResolved => client.node.connect(&event.id, &param(), &[]).unwrap(),
            kind => told.push((kind, event.status)),
        }
        // No more at once than a listener keeps.
        sim.run_for(Duration::from_micros(10));
    }
    let mut asked = 0;
    while sim.step(Duration::from_secs(2)) {
        while let Some(event) = server.next() {
            server.node.reject(&event.id, &[]).unwrap();
            asked += 1;
        }
        told.extend(std::iter::from_fn(|| client.next()).map(|event| (event.kind, event.status)));
    }
    assert_eq!(asked, STREAMS);
    assert_eq!(told, vec![(EventKind::Rejected, -Errno::ECONNRESET.0); STREAMS]);
}
