//! A link that captures shows what was sent, what arrived, and why something was dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capture::filter::Filter;
use capture::{CaptureLink, Direction, Outcome, Packet, Recorder};
use faults::FaultLink;
use nic::Link;
use sim::{Faults, Sim, SimEnv};
use transport::op::Status;
use wire::icrc::{self, Flow};

use crate::support::Way;
use crate::support::both_ways::{Pair, SEND};

/// What a link has shown.
#[derive(Default)]
struct Shown {
    times: AtomicU64,
    sent: AtomicU64,
    taken: AtomicU64,
    dropped: Mutex<Vec<String>>,
    /// Whether it was to leave, and what befell it.
    faults: Mutex<Vec<(bool, String)>>,
}

impl Recorder for Shown {
    fn time(&self) -> u64 {
        self.times.fetch_add(1, Ordering::Relaxed)
    }
    fn record(&self, packet: &Packet<'_>) {
        let flow = Flow { source: packet.source, dest: packet.dest };
        let is_sealed = icrc::open(&flow, packet.bytes).is_ok();
        match (packet.direction, packet.outcome) {
            (Direction::Out, Outcome::Good) => {
                assert!(is_sealed, "as it was sent, with the port it was sent from");
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
            (Direction::In, Outcome::Good) => {
                assert!(is_sealed);
                self.taken.fetch_add(1, Ordering::Relaxed);
            }
            (Direction::In, Outcome::Dropped(reason)) => self.dropped.lock().unwrap().push(reason.to_owned()),
            (_, Outcome::Fault(what)) => {
                self.faults.lock().unwrap().push((packet.direction == Direction::Out, what.to_owned()));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn each_packet_is_shown_as_it_was_sent_and_with_what_became_of_it() {
    const LEN: usize = 9_000;
    let sim = Sim::new(7, Faults::none().corrupt(0.02).loss(0.02));
    let shown = Arc::new(Shown::default());
    let mut pair =
        Pair::on_links(sim, |_, link| Arc::new(CaptureLink::new(link, shown.clone(), Filter::default())));
    pair.send_each(200, LEN);
    let counters = pair.sim.counters();
    let dropped = shown.dropped.lock().unwrap();
    assert_eq!(shown.sent.load(Ordering::Relaxed), counters.sent);
    assert_eq!(shown.taken.load(Ordering::Relaxed) + dropped.len() as u64, counters.delivered);
    // A change of the BTH's masked byte is not covered by the ICRC.
    assert!(dropped.len() as u64 * 10 >= counters.corrupted * 9, "{} {}", dropped.len(), counters.corrupted);
    assert!(dropped.iter().all(|reason| reason == "icrc"), "{dropped:?}");
}

#[test]
fn faults_by_rules_are_mended_and_shown_with_their_names() {
    const LEN: usize = 5_000;
    let sim = Sim::new(3, Faults::none());
    let shown = Arc::new(Shown::default());
    let spec = "loss=2%,dir=out; duplicate=2%; corrupt=2%; loss=2%".parse().unwrap();
    let mut pair = Pair::on_links(sim, |n, link| {
        let captured = Arc::new(CaptureLink::new(link.clone(), shown.clone(), Filter::default()));
        let faulty = FaultLink::new(captured, link);
        faulty.set(&spec, u64::from(n));
        Arc::new(faulty)
    });
    pair.send_each(300, LEN);
    let faults = shown.faults.lock().unwrap();
    for expected in [(true, "loss"), (false, "loss"), (false, "corrupt"), (false, "duplicate")] {
        let count = faults.iter().filter(|(out, what)| (*out, what.as_str()) == expected).count();
        assert!(count > 10, "{expected:?}: {count}");
    }
    assert_eq!(shown.sent.load(Ordering::Relaxed), pair.sim.counters().sent, "what is lost did not leave");
}

/// How many packets have left.
#[derive(Default)]
struct Sent(AtomicU64);

impl Recorder for Sent {
    fn time(&self) -> u64 {
        0
    }
    fn record(&self, packet: &Packet<'_>) {
        self.0.fetch_add((packet.direction == Direction::Out).into(), Ordering::Relaxed);
    }
}

#[test]
fn a_process_that_does_not_run_is_waited_for_where_packets_are_shown_too() {
    let shown = Arc::new(Sent::default());
    let capture = |_, link: Arc<SimEnv>| -> Arc<dyn Link> {
        Arc::new(CaptureLink::new(link, shown.clone(), Filter::default()))
    };
    let mut pair = Pair::on_links_by(Way::Channel, Sim::new(1, Faults::none()), capture);
    pair.send_each(1, 100);
    let host = pair.a.node.env().host();
    // Far longer than all retries take: what is sent lies in the channel meanwhile.
    pair.sim.clog(host, host, Duration::from_secs(60));
    let before = shown.0.load(Ordering::Relaxed);
    pair.b.receive(1, 0, 100);
    pair.a.request(1, SEND, 0, 100);
    pair.sim.run_for(Duration::from_secs(50));
    assert_eq!(pair.a.sent(), []);
    assert_eq!(shown.0.load(Ordering::Relaxed), before + 1, "nothing is sent again");
    pair.sim.run_for(Duration::from_secs(20));
    assert_eq!((pair.a.sent(), pair.b.received()), (vec![(1, Status::Success)], vec![(1, Status::Success)]));
}
