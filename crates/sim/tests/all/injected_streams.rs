//! Faults by rules on streams of simulated hosts: bytes that are late, wait for their turn, come
//! again or are changed; streams that are cut or cut off; connections that are refused.

use std::sync::Arc;
use std::time::Duration;

use faults::FaultLink;
use nic::rdma_cm::EventKind;
use nic::{Link, QpState};
use sim::{Faults, Sim, SimEnv};

use crate::support::Way;
use crate::support::connections::{
    MESSAGE_LEN, MESSAGES, Party, Side, connected_on, message_bytes, param, resolved,
};
use crate::support::work::Run;

const NO_RULE: &str = "loss=0%";
/// Seeds of the random work.
const SEEDS: u64 = 30;

fn faulty(rules: &str, seed: u64, env: Arc<SimEnv>) -> Arc<dyn Link> {
    let link = FaultLink::new(env.clone(), env);
    link.set(&rules.parse().unwrap_or_else(|error| panic!("{error}")), seed);
    Arc::new(link)
}

/// A connection, with rules at the client.
struct Connected {
    sim: Sim,
    client: Party,
    server: Party,
    ours: Side,
    theirs: Side,
}

fn connected(rules: &str) -> Connected {
    let (sim, client, server, ours, theirs) =
        connected_on(Way::Stream, 3, false, |n, env| faulty(if n == 1 { rules } else { NO_RULE }, 7, env));
    Connected { sim, client, server, ours, theirs }
}

impl Connected {
    /// Both sides send; how long it takes until all has come, in milliseconds.
    fn exchange(&mut self) -> u128 {
        let began = self.sim.elapsed();
        self.ours.send_all(&self.client.node);
        self.theirs.send_all(&self.server.node);
        while self.ours.received + self.theirs.received < 2 * MESSAGES {
            assert!(self.sim.step(began + Duration::from_secs(60)), "nothing comes any more");
            [&mut self.ours, &mut self.theirs].into_iter().for_each(Side::poll);
        }
        for side in [&self.ours, &self.theirs] {
            let inbox = side.inbox.as_ref().unwrap();
            assert!(inbox.holds(0, &message_bytes(MESSAGES as usize * MESSAGE_LEN)));
        }
        (self.sim.elapsed() - began).as_millis()
    }

    /// Both ends have ended, and each was told once.
    fn has_ended(&mut self) {
        for (party, side) in [(&self.client, &mut self.ours), (&self.server, &mut self.theirs)] {
            side.poll();
            let told: Vec<_> = std::iter::from_fn(|| party.next()).map(|event| event.kind).collect();
            assert_eq!(told, [EventKind::Disconnected]);
            assert_eq!(side.endpoint.as_ref().unwrap().qp.state(), QpState::Error);
        }
    }
}

#[test]
fn bytes_are_late_wait_for_their_turn_and_come_again_and_all_arrive_in_order() {
    for (rules, least, most) in [
        (NO_RULE, 0, 2),
        ("delay=30ms,from=40ms", 30, 45),
        ("delay=20ms,jitter=10ms,from=40ms", 20, 80),
        // 15,000 bytes and headers each way.
        ("rate=1mbit,from=40ms", 120, 140),
        ("loss=100%,nth=4,dir=out", 200, 205),
        ("loss=50%,op=send,from=40ms", 200, 8_000),
        ("partition,from=40ms,until=540ms", 590, 610),
        ("port-down,from=40ms,until=140ms", 190, 210),
        ("stop,from=40ms,until=300ms", 250, 290),
        ("duplicate=100%; delay=1ms,reorder=50%", 0, 20),
        ("chaos", 0, 3_000),
    ] {
        let mut connected = connected(rules);
        connected.sim.run_for(Duration::from_millis(15));
        let took = connected.exchange();
        assert!((least..=most).contains(&took), "{rules}: {took} ms");
    }
}

#[test]
fn random_work_has_its_effect_over_streams_with_faults() {
    sim::each_seed("injected_streams", "random_work", SEEDS, |seed| {
        let rules = ["delay=2ms,jitter=2ms; loss=2%", "rate=50mbit", "chaos"][seed as usize % 3];
        let mut run = Run::on(seed, Way::Stream, |_| Faults::none(), |n, env| faulty(rules, seed + n, env));
        run.go();
        assert!(run.finish(), "{rules}: a stream loses nothing");
    });
}

#[test]
fn a_stream_that_a_rule_cuts_ends_at_both_ends() {
    for rules in ["reset,nth=4,dir=out", "reset,op=send,nth=2,dir=in", "reset=100%,from=40ms"] {
        let mut connected = connected(rules);
        connected.sim.run_for(Duration::from_millis(15));
        connected.ours.send_all(&connected.client.node);
        connected.theirs.send_all(&connected.server.node);
        connected.sim.run_for(Duration::from_secs(1));
        connected.has_ended();
        assert!(connected.ours.received + connected.theirs.received < 2 * MESSAGES, "{rules}");
    }
}

#[test]
fn a_changed_byte_is_found_by_the_crc_and_ends_the_stream_at_both_ends() {
    for seed in 0..50 {
        let (mut sim, client, server, ours, theirs) = connected_on(Way::Stream, seed, false, |n, env| {
            faulty(if n == 2 { "corrupt,op=send,nth=3" } else { NO_RULE }, seed, env)
        });
        ours.send_all(&client.node);
        sim.run_for(Duration::from_secs(1));
        let mut connected = Connected { sim, client, server, ours, theirs };
        connected.has_ended();
        // Messages before it have come, and none that was changed.
        assert_eq!(connected.theirs.received, 2);
    }
}

#[test]
fn a_stream_that_is_cut_off_for_eight_seconds_is_given_up_and_before_that_goes_on() {
    for is_busy in [false, true] {
        let mut connected = connected("partition,from=1s");
        connected.sim.run_for(Duration::from_secs(1));
        if is_busy {
            connected.ours.send_all(&connected.client.node);
        }
        connected.sim.run_for(Duration::from_millis(7_900));
        assert!(connected.client.next().is_none() && connected.server.next().is_none());
        connected.sim.run_for(Duration::from_millis(400));
        connected.has_ended();
    }
    let mut short = connected("partition,from=1s,until=8s");
    short.sim.run_for(Duration::from_secs(20));
    short.exchange();
}

#[test]
fn a_queue_pair_that_is_destroyed_leaves_what_it_sent_on_its_way() {
    let mut connected = connected("delay=300ms,dir=out,from=40ms");
    connected.sim.run_for(Duration::from_millis(15));
    connected.ours.send_all(&connected.client.node);
    connected.client.node.disconnect(connected.ours.id.as_ref().unwrap()).unwrap();
    connected.ours.endpoint = None;
    connected.sim.run_for(Duration::from_secs(1));
    connected.theirs.poll();
    assert_eq!(connected.theirs.received, MESSAGES);
}

#[test]
fn connection_requests_over_streams_are_rejected_or_not_answered() {
    let rejected = |rules: [&str; 2]| {
        let mut sim = Sim::new(1, Faults::none());
        let addresses = [1, 2].map(|n| std::net::IpAddr::from([10, 0, 0, n]));
        let [client, server] = [0, 1].map(|n| {
            let host = sim.add_host(&[addresses[n]], 1500);
            Party::on(&mut sim, host, addresses[n], &Way::Stream.config(), |env| faulty(rules[n], 1, env))
        });
        let _listener = server.listen();
        let id = resolved(&mut sim, &client, addresses[1]);
        let mut side = Side::new(id.clone());
        side.equip(&client.node);
        client.node.connect(&id, &param(), &[]).unwrap();
        let told = client.wait(&mut sim);
        assert!(server.next().is_none(), "the server sees no request");
        (told.kind, sim.elapsed().as_secs())
    };
    assert_eq!(rejected(["reject,dir=out", NO_RULE]), (EventKind::Rejected, 0));
    assert_eq!(rejected([NO_RULE, "reject,dir=in"]), (EventKind::Rejected, 0));
    let (unanswered, after) = rejected(["unanswered,dir=out", NO_RULE]);
    assert!(matches!(unanswered, EventKind::Unreachable | EventKind::Rejected), "{unanswered:?}");
    assert!((9..=11).contains(&after), "{after}");
    assert!(matches!(rejected([NO_RULE, "unanswered"]).1, 9..=11));
}
