//! An InfiniBand subnet: every port is a neighbour of every other, a packet goes to the port that
//! bears its LID, and the test is the subnet manager. With a fabric ([`Sim::lay_fabric`]) its
//! tables are asked first, and it has a manager of its own.

use std::net::IpAddr;

use nic::device::IbPort;
use nic::device::port::PortState;
use stack::env::{AckDelay, Datagram, IbLink, Input, InputHandler, Interface};
use wire::Qpn;

use super::fabric::Passed;
use super::{Sim, What};
use crate::by_lid::ByLid;
use crate::env::{Host, HostId, INTERFACE, ProcessId};
use crate::same_host::block;

/// What the MTU of IPoIB leaves of a packet of 2,048 bytes (RFC 4391 §7).
const IPOIB_MTU: u32 = 2_044;

impl Host {
    /// The InfiniBand port, where packets pass.
    fn active_port(&self) -> Option<&IbPort> {
        let port = &self.interface.infiniband.as_ref()?.port;
        (self.interface.up && port.state == PortState::Active).then_some(port)
    }

    /// Whether packets to a LID come to this host; those to a group come to each with members.
    fn takes(&self, packet: &ByLid) -> bool {
        let lid = packet.dest.lid();
        self.active_port().is_some_and(|port| match packet.dest.is_multicast() {
            true => !self.groups.is_empty(),
            false => port.bears(lid),
        })
    }

    /// The processes that a packet is for.
    fn takers(&self, packet: &ByLid) -> Vec<ProcessId> {
        match packet.dest_qpn {
            Qpn::MULTICAST => self.processes.iter().copied().collect(),
            Qpn::GSI => self.processes.first().copied().into_iter().collect(),
            qpn => self.owner(block(qpn)).into_iter().collect(),
        }
    }
}

impl Sim {
    /// A host with one InfiniBand port, `mlx5_0`, whose interface `ib0` bears `addresses`.
    pub fn add_ib_host(&mut self, port: IbPort, addresses: &[IpAddr]) -> HostId {
        self.add_host_with(|_| Interface {
            index: INTERFACE,
            name: "ib0".to_owned(),
            mac: [0; 6],
            mtu: IPOIB_MTU,
            up: true,
            loopback: false,
            speed_mbps: None,
            addresses: addresses.to_vec(),
            infiniband: Some(IbLink { device: "mlx5_0".to_owned(), port }),
        })
    }

    /// Changes the InfiniBand port of a host, as its subnet manager would; its processes are told.
    /// Nothing where it has none.
    pub fn change_ib_port(&mut self, host: HostId, change: impl FnOnce(&mut IbPort)) {
        self.change_interface(host, |interface| {
            if let Some(link) = &mut interface.infiniband {
                change(&mut link.port);
            }
        });
    }

    pub(super) fn send_by_lid(&mut self, from: ProcessId, packet: &ByLid) {
        self.counters.sent += 1;
        let Some(source) = self.node(from).map(|node| node.env().host()) else { return };
        let passed = match &mut self.fabric {
            Some(fabric) => fabric.pass(from, source, packet),
            None => Passed::To(self.neighbours(source, packet)),
        };
        let Passed::To(dests) = passed else {
            self.counters.lost += 1;
            return self.note_by_lid("lost", packet);
        };
        if dests.is_empty() {
            self.counters.refused += 1;
            return self.note_by_lid("nowhere", packet);
        }
        for dest in dests {
            let fate = self.network.launch(source, dest, self.shared.clock.nanos());
            self.counters.repeated += u64::from(fate.arrivals.len() > 1);
            // The link layer drops a packet whose checksum is wrong (VCRC, IBA 1.4 §7.8.1).
            let arrivals = &fate.arrivals[usize::from(fate.corrupt.is_some()).min(fate.arrivals.len())..];
            self.counters.corrupted += u64::from(fate.corrupt.is_some());
            self.counters.lost += u64::from(arrivals.is_empty());
            self.note_by_lid(if arrivals.is_empty() { "lost" } else { "sent" }, packet);
            for &at in arrivals {
                self.schedule_at(at, What::ByLid { to: dest, packet: packet.clone() });
            }
        }
    }

    /// The hosts that a packet comes to where every port is a neighbour.
    fn neighbours(&self, source: HostId, packet: &ByLid) -> Vec<HostId> {
        let hosts = self.shared.hosts();
        let leaves = hosts[source.0].active_port().is_some();
        (0..hosts.len()).filter(|&n| leaves && hosts[n].takes(packet)).map(HostId).collect()
    }

    pub(super) fn arrive_by_lid(&mut self, to: HostId, packet: &ByLid) {
        let takers = {
            let host = &self.shared.hosts()[to.0];
            if host.takes(packet) { host.takers(packet) } else { Vec::new() }
        };
        if takers.is_empty() {
            self.counters.refused += 1;
            return self.note_by_lid("refused", packet);
        }
        for process in takers {
            self.counters.delivered += 1;
            self.note_by_lid("arrived", packet);
            let ack_delay = self.dice.pick(&[AckDelay::No, AckDelay::Briefly, AckDelay::ForProgram]);
            let &ByLid { source, dest, ref bytes, .. } = packet;
            let (source, dest, interface) = (source.into(), dest.into(), INTERFACE);
            let run = Datagram { source, dest, interface, forwarded: false, ack_delay, bytes };
            self.tell(process, Input::Unsealed { run, size: bytes.len().max(1) });
            if let Some(node) = self.node(process) {
                node.release(false);
            }
        }
    }

    fn note_by_lid(&mut self, word: &str, packet: &ByLid) {
        let ByLid { source, dest, dest_qpn, bytes } = packet;
        let head = bytes.first_chunk().copied().unwrap_or([0; 8]);
        let ends = u64::from(source.lid()) << 16 | u64::from(dest.lid());
        self.note(word, &[ends, dest_qpn.get().into(), u64::from_le_bytes(head), bytes.len() as u64]);
    }
}
