//! Hosts of an InfiniBand subnet.

use std::sync::Arc;
use std::time::Instant;

use nic::device::IbPort;
use nic::device::async_events::EventKind;
use nic::device::port::{LinkRate, PhysState, PortState};
use nic::{AddressVector, Link, QpAttr, QpState, mask};
use sim::{Faults, HostId, Sim, SimEnv};
use stack::Config;
use wire::{Guid, Mtu, Pkey, Psn, Qkey};

use super::{Endpoint, SimNode};

pub(crate) const PREFIX: u64 = 0xfe80 << 48;
pub(crate) const QKEY: Qkey = Qkey(0x1234);

/// An active port as a subnet manager leaves one, with a GUID beside its own.
pub(crate) fn port(lid: u16) -> IbPort {
    let guid = 0x0002_c903_0000_0000 | u64::from(lid) << 4;
    IbPort {
        state: PortState::Active,
        phys_state: PhysState::LinkUp,
        lid,
        lmc: 0,
        sm_lid: 1,
        sm_sl: 0,
        subnet_timeout: 18,
        init_type_reply: 0,
        max_vl: 4,
        capabilities: 0x0010_c848,
        rate: LinkRate { width: 2, speed: 32 },
        mtu_max: Mtu::M4096,
        mtu_active: Mtu::M2048,
        subnet_prefix: PREFIX,
        guids: vec![Guid(guid), Guid(guid | 1)],
        pkeys: vec![Pkey(0xffff), Pkey(0), Pkey(0), Pkey(0)],
        grh_required: false,
        node_guid: Guid(guid - 1),
        system_image_guid: Guid(guid - 1),
        vendor_id: 0x2c9,
        device_id: 4115,
        client_reregister: 0,
    }
}

/// Processes on hosts of a subnet, one on each.
pub(crate) struct Subnet {
    pub sim: Sim,
    pub hosts: Vec<HostId>,
    pub nodes: Vec<SimNode>,
}

impl Subnet {
    pub(crate) fn new(seed: u64, faults: Faults, ports: &[IbPort]) -> Self {
        Self::on_links(seed, faults, ports, |_, env| env)
    }

    /// Each process is on the link that `decorate` puts over the port of this LID.
    pub(crate) fn on_links(
        seed: u64,
        faults: Faults,
        ports: &[IbPort],
        decorate: impl Fn(u16, Arc<SimEnv>) -> Arc<dyn Link>,
    ) -> Self {
        let mut sim = Sim::new(seed, faults);
        let hosts: Vec<_> = ports.iter().map(|port| sim.add_ib_host(port.clone(), &[])).collect();
        let start = |(host, port): (&HostId, &IbPort)| {
            let process = sim.start_on(*host, &Config::default(), |env| decorate(port.lid, env));
            sim.node(process).unwrap()
        };
        let nodes = hosts.iter().zip(ports).map(start).collect();
        Self { sim, hosts, nodes }
    }

    pub(crate) fn now(&self) -> Instant {
        self.sim.now()
    }

    /// What a device has counted under a name.
    pub(crate) fn counted(&self, host: usize, name: &str) -> u64 {
        let counted = self.nodes[host].devices()[0].counted();
        counted.iter().find(|(counter, _)| *counter == name).unwrap().1
    }

    /// Brings a datagram queue pair to RTS, with the P_Key at an index.
    pub(crate) fn datagrams(&self, host: usize, pkey_index: u16) -> Endpoint {
        let end = Endpoint::of(&self.nodes[host], nic::QpType::Ud);
        let attr = QpAttr { port: 1, qkey: QKEY, pkey_index, sq_psn: Psn::new(1), ..QpAttr::default() };
        let modify = |state, bits| {
            end.qp.modify(self.now(), &attr.with_state(state), mask::STATE | bits).unwrap();
        };
        modify(QpState::Init, mask::PKEY_INDEX | mask::PORT | mask::QKEY);
        modify(QpState::Rtr, 0);
        modify(QpState::Rts, mask::SQ_PSN);
        end
    }
}

/// An address by LID alone.
pub(crate) fn to_lid(dlid: u16) -> AddressVector {
    AddressVector { dlid, port: 1, ..AddressVector::default() }
}

/// The kinds of the asynchronous events that have come.
pub(crate) fn events(end: &Endpoint) -> Vec<EventKind> {
    std::iter::from_fn(|| end.events.pop()).map(|event| event.kind).collect()
}
