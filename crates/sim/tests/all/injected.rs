//! Faults by rules on simulated hosts: packets that are late, requests that fail, ports and devices
//! that go, an engine that stands still.

use std::sync::Arc;
use std::time::Duration;

use faults::FaultLink;
use nic::{Errno, QpState};
use sim::{Faults, Sim};
use transport::op::Status;

use crate::support::both_ways::{Pair, SEND};

const NO_RULE: &str = "loss=0%";

/// Two connected hosts, each with its rules.
fn pair(here: &str, there: &str) -> Pair {
    Pair::on_links(Sim::new(5, Faults::none()), |n, env| {
        let link = FaultLink::new(env.clone(), env);
        let rules = if n == 1 { here } else { there };
        link.set(&rules.parse().unwrap_or_else(|error| panic!("{error}")), 7);
        Arc::new(link)
    })
}

/// One end sends so many messages at once.
fn send_at_once(pair: &Pair, count: u64, len: usize) {
    (0..count).for_each(|n| pair.b.receive(n, 0, len));
    (0..count).for_each(|n| pair.a.request(n, SEND, 0, len));
}

#[test]
fn packets_of_rules_are_late_on_the_simulated_clock() {
    let mut pair = pair("delay=3ms,dir=out", NO_RULE);
    send_at_once(&pair, 1, 64);
    pair.sim.run_for(Duration::from_micros(2_900));
    assert_eq!(pair.b.received(), []);
    pair.sim.run_for(Duration::from_micros(300));
    assert_eq!(pair.b.received(), [(0, Status::Success)]);
    pair.pass();
    assert_eq!(pair.a.sent(), [(0, Status::Success)]);
}

#[test]
fn messages_survive_packets_that_overtake_each_other_and_wait_for_their_turn() {
    for rules in [
        "delay=1ms,jitter=1ms",
        "delay=200us,reorder=25%",
        "reorder=5%,dir=in",
        "rate=100mbit",
        "rate=200mbit,limit=3",
        "chaos",
    ] {
        pair(rules, rules).send_each(60, 5_000);
    }
}

#[test]
fn a_rate_is_kept() {
    let mut pair = pair("rate=1gbit,dir=out,type=rc,op=send", NO_RULE);
    // 1.27 Mbit with headers of 58 bytes a packet.
    send_at_once(&pair, 15, 10_000);
    let (mut received, mut took) = (0, Duration::ZERO);
    while received < 15 && took < Duration::from_millis(10) {
        took += Duration::from_micros(10);
        pair.sim.run_for(Duration::from_micros(10));
        received += pair.b.received().len();
    }
    assert!((1_260..1_320).contains(&took.as_micros()), "{took:?}");
}

#[test]
fn a_request_fails_with_the_status_that_a_rule_asks_for() {
    let of_peer = [
        ("retry-exc", Status::RetryExceeded),
        ("rem-access", Status::RemoteAccess),
        ("rem-inv-req", Status::RemoteInvalidRequest),
        ("rem-op", Status::RemoteOperation),
    ];
    let own = [
        ("rnr-retry-exc", Status::RnrRetryExceeded),
        ("loc-prot", Status::LocalProtection),
        ("loc-qp-op", Status::LocalQpOperation),
        ("fatal", Status::Fatal),
    ];
    for len in [64, 5_000] {
        for (word, status) in of_peer.into_iter().chain(own) {
            let rule = format!("error={word},nth=3");
            fails(pair(&rule, NO_RULE), len, status);
            // Losses change nothing about which request fails.
            fails(pair(&format!("loss=10%; {rule}"), NO_RULE), len, status);
        }
        for (word, status) in of_peer {
            fails(pair(NO_RULE, &format!("error={word},nth=3,dir=in")), len, status);
        }
    }
}

#[test]
fn a_receive_fails_with_the_status_that_a_rule_asks_for_and_the_peer_is_told() {
    for (word, status, told) in [
        ("loc-prot", Status::LocalProtection, Status::RemoteOperation),
        ("loc-len", Status::LocalLength, Status::RemoteInvalidRequest),
    ] {
        for len in [64, 5_000] {
            let mut pair = pair(NO_RULE, &format!("error={word},dir=in,nth=3"));
            send_at_once(&pair, 5, len);
            pair.pass();
            let (ok, flushed) = (Status::Success, Status::WrFlush);
            assert_eq!(pair.b.received(), [(0, ok), (1, ok), (2, status), (3, flushed), (4, flushed)]);
            assert_eq!(pair.a.sent(), [(0, ok), (1, ok), (2, told), (3, flushed), (4, flushed)]);
            assert_eq!((pair.a.state(), pair.b.state()), (QpState::Error, QpState::Error));
        }
    }
}

/// The third of five messages fails with this status.
fn fails(mut pair: Pair, len: usize, status: Status) {
    send_at_once(&pair, 5, len);
    pair.pass();
    let (ok, flushed) = (Status::Success, Status::WrFlush);
    assert_eq!(pair.a.sent(), [(0, ok), (1, ok), (2, status), (3, flushed), (4, flushed)]);
    assert_eq!(pair.b.received(), [(0, ok), (1, ok)]);
    assert_eq!(pair.a.state(), QpState::Error);
}

#[test]
fn a_message_finds_no_receive_and_arrives_when_it_comes_again() {
    for (here, there) in [("rnr,nth=2,dir=out", NO_RULE), (NO_RULE, "rnr,nth=2")] {
        for len in [64, 5_000] {
            let mut pair = pair(here, there);
            send_at_once(&pair, 4, len);
            pair.pass();
            let all: Vec<_> = (0..4).map(|n| (n, Status::Success)).collect();
            assert_eq!((pair.a.sent(), pair.b.received()), (all.clone(), all));
            let recoveries = pair.a.endpoint.qp.snapshot().reliable.map(|reliable| reliable.recoveries);
            assert_eq!(recoveries.map(|recoveries| recoveries.rnr_naks), Some(1));
        }
    }
}

#[test]
fn a_request_that_was_executed_before_finds_no_fault_in_the_way_of_the_next() {
    // The first message comes again, as its ACK is late, and a rule for messages acts on it then.
    let mut pair = pair(NO_RULE, "delay=6ms,op=ack,dir=out,nth=1; rnr,nth=2");
    for n in 0..2 {
        pair.b.receive(n, 0, 64);
        pair.a.request(n, SEND, 0, 64);
        pair.sim.run_for(Duration::from_millis(12));
        assert_eq!(
            (pair.a.sent(), pair.b.received()),
            (vec![(n, Status::Success)], vec![(n, Status::Success)])
        );
    }
}

#[test]
fn a_port_goes_down_and_up_and_a_device_goes_and_comes_back() {
    let mut down = pair("port-down,from=10ms,until=20ms", NO_RULE);
    let up = |pair: &Pair| pair.a.node.devices()[0].port().up;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let is_up = up(&down);
        send_at_once(&down, 1, 64);
        down.sim.run_for(Duration::from_millis(10));
        seen.push((is_up, down.a.sent().len()));
    }
    // What was sent while the port was down arrives later.
    assert_eq!(seen, [(true, 1), (false, 0), (true, 2)]);
    assert_eq!(down.a.state(), QpState::Rts);

    let mut gone = pair("device-removal,from=10ms,until=20ms", NO_RULE);
    gone.sim.run_for(Duration::from_millis(9));
    assert_eq!((up(&gone), gone.a.state()), (true, QpState::Rts));
    gone.sim.run_for(Duration::from_millis(2));
    assert_eq!((up(&gone), gone.a.state()), (false, QpState::Error));
    let device = gone.a.node.devices()[0].clone();
    assert!(device.port().gids.is_empty() && !device.is_there());
    gone.sim.run_for(Duration::from_millis(10));
    assert_eq!((up(&gone), gone.a.state()), (true, QpState::Error));
    assert_eq!((device.is_there(), device.removals()), (true, 1));
    assert!(!device.port().gids.is_empty());
}

#[test]
fn nothing_passes_while_the_engine_stands_still_and_all_goes_on_afterwards() {
    let mut pair = pair("stop,from=5ms,until=300ms", NO_RULE);
    pair.sim.run_for(Duration::from_millis(6));
    send_at_once(&pair, 3, 64);
    pair.sim.run_for(Duration::from_millis(290));
    assert_eq!((pair.a.sent(), pair.b.received()), (vec![], vec![]));
    pair.pass();
    let all: Vec<_> = (0..3).map(|n| (n, Status::Success)).collect();
    assert_eq!((pair.a.sent(), pair.b.received()), (all.clone(), all));
}

#[test]
fn the_object_that_a_rule_names_cannot_be_made() {
    let pair = pair("enomem,object=pd,nth=2", NO_RULE);
    let device = pair.a.node.devices()[0].clone();
    // The first is that of the endpoint.
    let refused = device.alloc_pd().map(drop).map_err(|error| error.errno());
    assert_eq!((refused, device.alloc_pd().is_ok()), (Err(Errno::ENOMEM), true));
    assert!(device.take_cq().is_ok());
}

#[test]
fn the_same_seed_makes_the_same_faults() {
    let run = || {
        let mut pair = pair("chaos", "loss=2%; reorder=20%");
        pair.send_each(20, 5_000);
        pair.sim.trace()
    };
    let first = run();
    assert!((0..2).all(|_| run() == first));
}
