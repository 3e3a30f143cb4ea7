//! Hosts of a fabric with switches: tables of its subnet manager, counters of each port, cables
//! that are cut.

use std::time::Duration;

use crate::support::subnet::to_lid;
use crate::support::{Endpoint, SimNode, Wiring, send, wire_up_by};
use fabric::net::Net;
use nic::QpType;
use sim::{Faults, Sim};
use stack::Config;
use transport::op::{RecvWr, Status};
use wire::{Mtu, Psn};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M2048, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };

/// A host at each of two switches, which two cables join.
const NET: &str = "\
Switch 3 \"leaf0\"
[1] \"a\"[1]
[2] \"leaf1\"[2]
[3] \"leaf1\"[3]

Switch 3 \"leaf1\"
[1] \"b\"[1]

Ca 1 \"a\"
Ca 1 \"b\"
";

struct Pair {
    sim: Sim,
    ends: [Endpoint; 2],
}

impl Pair {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut sim = Sim::new(seed, faults);
        sim.lay_fabric(&Net::parse(NET).unwrap(), seed).unwrap();
        let hosts = ["a", "b"].map(|name| sim.add_fabric_host(name, &[]).unwrap());
        let nodes: [SimNode; 2] = hosts.map(|host| {
            let process = sim.start(host, &Config::default());
            sim.node(process).unwrap()
        });
        let lids = ["a", "b"]
            .map(|name| sim.with_fabric(|fabric, _| fabric.describe(name).unwrap()[0].ports[0].lid).unwrap());
        let ends = [0, 1].map(|n| Endpoint::of(&nodes[n], QpType::Rc));
        for n in 0..2 {
            let to = to_lid(lids[1 - n]);
            wire_up_by(&nodes[n], &ends[n], &ends[1 - n], &to, &WIRING, (Psn::new(1), Psn::new(1)));
        }
        Self { sim, ends }
    }

    fn cut(&mut self, port: u8, cut: bool) {
        self.sim.with_fabric(|fabric, _| fabric.set_cut("leaf0", port, cut).unwrap()).unwrap();
    }

    /// Packets that have left a port, and those that it has discarded.
    fn counted(&mut self, node: &str, port: u8) -> (u64, u64) {
        let counters = self.sim.with_fabric(|fabric, _| fabric.counters_of(node, port).unwrap()).unwrap();
        (counters.transmit_packets, counters.transmit_discards.into())
    }

    /// The port of the first switch by which packets go to the second one.
    fn way(&mut self) -> u8 {
        let (hops, lost) = self.sim.with_fabric(|fabric, _| fabric.trace("a", "b").unwrap()).unwrap();
        assert_eq!((hops.len(), lost), (3, None));
        hops[1].from.1
    }

    fn send(&mut self, wr_id: u64) {
        let receive = RecvWr { wr_id, sges: [].into_iter().collect() };
        self.ends[1].qp.post_receive(receive).unwrap();
        self.ends[0].qp.post_send(self.sim.now(), send(wr_id, b"")).unwrap();
    }

    fn statuses(&self) -> Vec<Status> {
        Endpoint::poll(&self.ends[0].sends).iter().map(|c| c.status).collect()
    }
}

#[test]
fn packets_between_hosts_of_a_fabric_are_counted_at_each_switch_of_their_way() {
    let mut pair = Pair::new(1, Faults::none());
    let out = pair.way();
    let before = [pair.counted("leaf0", out), pair.counted("leaf1", 1), pair.counted("leaf0", 1)];
    (0..5).for_each(|n| {
        pair.send(n);
        pair.sim.run_for(Duration::from_millis(1));
    });
    assert_eq!(pair.statuses(), [Status::Success; 5]);
    let after = [pair.counted("leaf0", out), pair.counted("leaf1", 1), pair.counted("leaf0", 1)];
    let more = [0, 1, 2].map(|n| after[n].0 - before[n].0);
    assert_eq!(more, [5, 5, 5], "messages to each switch's port, acknowledgements back");
    let other = pair.counted("leaf0", 5 - out);
    assert_eq!(other.1, 0);
}

#[test]
fn a_cut_cable_loses_packets_until_the_subnet_manager_has_found_the_other() {
    sim::seeds::each_seed("fabric", "a_cut_cable_loses_packets", 50, |seed| {
        let mut pair = Pair::new(seed, Faults::lossy());
        let first = pair.way();
        pair.cut(first, true);
        let cut = pair.counted("leaf0", first);
        pair.send(1);
        pair.sim.run_for(Duration::from_secs(1));
        assert_eq!(pair.statuses(), [Status::Success]);
        let other = pair.way();
        assert_ne!(other, first);
        assert!(pair.counted("leaf0", other).0 > 0);
        let after = pair.counted("leaf0", first);
        assert!(after.0 == cut.0 && after.1 > cut.1, "the first packet was discarded: {after:?}");
        // Without any cable nothing arrives; with one again it does.
        pair.cut(other, true);
        pair.send(2);
        pair.sim.run_for(Duration::from_millis(5));
        assert_eq!(pair.statuses(), []);
        pair.cut(first, false);
        pair.sim.run_for(Duration::from_secs(1));
        assert_eq!(pair.statuses(), [Status::Success]);
    });
}
