//! Faults by rules, and captures, of packets between InfiniBand ports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use capture::filter::Filter;
use capture::message::Lids;
use capture::{CaptureLink, Direction, Outcome, Packet, Protocol, Recorder};
use faults::FaultLink;
use nic::{AddressVector, Ah, Buffer, Datagram, QpType};
use sim::Faults;
use transport::op::{RecvWr, Status};
use wire::{LidAddress, Mtu, Psn, lrh};

use crate::support::subnet::{QKEY, Subnet, port, to_lid};
use crate::support::{Endpoint, RIGHTS, Wiring, send, wire_up_by};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M2048, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
const NEAR: u16 = 3;
const FAR: u16 = 0x1234;
const NO_RULE: &str = "loss=0%";

/// What links have shown: the LID of the process, the way, the ends, and what became of the packet.
#[derive(Default)]
struct Shown(Mutex<Vec<(u16, Direction, Lids, String)>>);

/// What one process shows.
struct Of(u16, Arc<Shown>);

impl Recorder for Of {
    fn time(&self) -> u64 {
        0
    }
    fn record(&self, packet: &Packet<'_>) {
        let Protocol::Infiniband(lids) = packet.protocol else { panic!("{packet:?}") };
        let [source, dest] = lids.ends().unwrap();
        let whole = lrh::on_link(source, dest, packet.bytes).unwrap();
        assert_eq!(whole.len(), lrh::LRH_LEN + packet.bytes.len() + lrh::VCRC_LEN);
        let outcome = match packet.outcome {
            Outcome::Good => "good",
            Outcome::Fault(what) | Outcome::Dropped(what) | Outcome::Lost(what) => what,
        };
        self.1.0.lock().unwrap().push((self.0, packet.direction, lids, outcome.to_owned()));
    }
}

/// Two ports with rules for the first one, and what both show.
fn subnet(rules: &str) -> (Subnet, Arc<Shown>) {
    let shown = Arc::new(Shown::default());
    let subnet = Subnet::on_links(1, Faults::none(), &[port(NEAR), port(FAR)], |lid, env| {
        let recorder = Arc::new(Of(lid, shown.clone()));
        let captured = Arc::new(CaptureLink::new(env.clone(), recorder, Filter::default()));
        let link = FaultLink::new(captured, env);
        let rules = if lid == NEAR { rules } else { NO_RULE };
        link.set(&rules.parse().unwrap_or_else(|error| panic!("{error}")), 7);
        Arc::new(link)
    });
    (subnet, shown)
}

/// Posts so many receives of 256 bytes.
fn receives(end: &Endpoint, count: u64) -> Buffer {
    let inbox = Buffer::new(&end.pd, 256, 0x1000, RIGHTS).unwrap();
    for wr_id in 0..count {
        let sges = [inbox.sge(0, 256)].into_iter().collect();
        end.qp.post_receive(RecvWr { wr_id, sges }).unwrap();
    }
    inbox
}

fn done(cq: &nic::Cq) -> Vec<(u64, Status)> {
    Endpoint::poll(cq).iter().map(|done| (done.wr_id, done.status)).collect()
}

/// Sends four messages from the first port to the second over a connection, one after the other:
/// what the sends and the receives end with.
fn connection(rules: &str) -> [Vec<(u64, Status)>; 2] {
    let (mut subnet, _) = subnet(rules);
    let ends = [0, 1].map(|n| Endpoint::of(&subnet.nodes[n], QpType::Rc));
    let to = [to_lid(FAR), to_lid(NEAR)];
    for n in 0..2 {
        let psns = (Psn::new(1), Psn::new(1));
        wire_up_by(&subnet.nodes[n], &ends[n], &ends[1 - n], &to[n], &WIRING, psns);
    }
    let _inbox = receives(&ends[1], 8);
    for wr_id in 0..4 {
        ends[0].qp.post_send(subnet.now(), send(wr_id, b"a message")).unwrap();
    }
    subnet.sim.run_for(Duration::from_millis(200));
    [done(&ends[0].sends), done(&ends[1].receives)]
}

#[test]
fn a_connection_between_lids_meets_the_rules_that_one_over_ip_meets() {
    let ok = |count| (0..count).map(|n| (n, Status::Success)).collect::<Vec<_>>();
    for rules in [
        "loss=100%,op=send,nth=2,dir=out",
        "loss=100%,op=ack,nth=1,dir=in",
        "corrupt=100%,dir=in,nth=1",
        "duplicate=100%",
        "delay=1ms,jitter=500us,peer=0x1234",
        "rate=10mbit",
        "rnr,dir=out,nth=2",
        "partition,peer=4660,until=5ms",
        "partition,peer=10.0.0.1; partition,peer=4661",
        "stop,from=0s,until=20ms",
    ] {
        assert_eq!(connection(rules), [ok(4), ok(4)], "{rules}");
    }
    let flushed = |from: u64| (from..4).map(|n| (n, Status::WrFlush));
    let failed = |status| ok(1).into_iter().chain([(1, status)]).chain(flushed(2)).collect::<Vec<_>>();
    for (rules, status) in [
        ("error=rem-access,nth=2", Status::RemoteAccess),
        ("error=general,nth=2", Status::General),
        ("error=rem-op,peer=4660,nth=2", Status::RemoteOperation),
    ] {
        assert_eq!(connection(rules), [failed(status), ok(1)], "{rules}");
    }
}

#[test]
fn datagrams_with_and_without_a_grh_are_lost_by_rules_and_shown_with_their_lids() {
    for is_global in [false, true] {
        let (mut subnet, shown) = subnet("loss=100%,dir=out,type=ud,peer=0x1234,nth=2");
        let ends = [0, 1].map(|n| subnet.datagrams(n, 0));
        let _inbox = receives(&ends[1], 8);
        let dgid = subnet.nodes[1].devices()[0].gid(0).unwrap().gid;
        let av = AddressVector { is_global, dgid, hop_limit: 1, sl: 6, ..to_lid(FAR) };
        for wr_id in 0..3 {
            let ah = Ah::new(&ends[0].pd, av).unwrap();
            let to = Datagram { ah, qpn: ends[1].qp.qpn(), qkey: QKEY };
            ends[0].qp.post_datagram(subnet.now(), send(wr_id, b"a message"), &to).unwrap();
        }
        subnet.sim.run_for(Duration::from_millis(10));
        assert_eq!(Endpoint::poll(&ends[1].receives).len(), 2);
        let lid = |lid| LidAddress::new(lid, 6, 0).unwrap();
        let dest = if is_global { lid(FAR).with_grh() } else { lid(FAR) };
        let lids = Lids::of(lid(NEAR), dest);
        let shown = std::mem::take(&mut *shown.0.lock().unwrap());
        let of = |own, direction| {
            let is_it = |shown: &&(u16, Direction, Lids, String)| (shown.0, shown.1) == (own, direction);
            let what: Vec<_> = shown.iter().filter(is_it).map(|shown| (shown.2, shown.3.as_str())).collect();
            what
        };
        let (good, lost) = ((lids, "good"), (lids, "loss"));
        assert_eq!(of(NEAR, Direction::Out), [good, lost, good]);
        assert_eq!(of(FAR, Direction::In), [good, good]);
        assert_eq!(shown.len(), 5);
    }
}
