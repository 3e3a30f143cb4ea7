//! Unreliable connections between whole hosts.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::{Endpoint, Wiring, send, wire_up};
use nic::QpType;
use sim::{Faults, Sim};
use transport::op::{RecvWr, Status};
use wire::{Mtu, Psn};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M1024, timeout: 10, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 4 };
const MS: Duration = Duration::from_millis(1);

#[test]
fn a_connection_to_another_process_of_the_host_opens_the_way_before_its_first_message() {
    for together in [true, false] {
        let mut sim = Sim::new(1, Faults::none());
        let [here, there] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let host = sim.add_host(&[here], 1500);
        let (other, there) = if together { (host, here) } else { (sim.add_host(&[there], 1500), there) };
        let nodes = [host, other].map(|host| {
            let process = sim.start(host, &stack::Config::default());
            sim.node(process).unwrap()
        });
        let [ours, theirs] = nodes.each_ref().map(|node| Endpoint::of(node, QpType::Uc));
        wire_up(&nodes[1], &theirs, &ours, here, &WIRING, (Psn::new(1), Psn::new(1)));
        sim.run_for(MS);
        let before = sim.counters().sent;
        wire_up(&nodes[0], &ours, &theirs, there, &WIRING, (Psn::new(1), Psn::new(1)));
        sim.run_for(MS);
        // More than the four by which a flow gets a socket of its own at its owner.
        assert_eq!(sim.counters().sent - before, if together { 8 } else { 0 });
        theirs.qp.post_receive(RecvWr { wr_id: 1, sges: [].into_iter().collect() }).unwrap();
        ours.qp.post_send(stack::Env::now(&**nodes[0].env()), send(1, b"")).unwrap();
        sim.run_for(MS);
        let [received] = &Endpoint::poll(&theirs.receives)[..] else { panic!("the first message") };
        assert_eq!((received.wr_id, received.status), (1, Status::Success));
    }
}
