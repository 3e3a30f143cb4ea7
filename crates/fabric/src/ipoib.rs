//! Addresses of IPoIB: each port of a channel adapter has one. The net file gives it, or it is one
//! in 10.0.0.0/8, in the order of the net file, from 10.0.0.1 on. Nothing else carries IP: the
//! addresses are names, by which the connection manager finds ports.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use wire::mad::NodeType;

use crate::fabric::Fabric;
use crate::subnet::{PortId, Subnet};

/// 10.0.0.0.
const FIRST: u32 = 10 << 24;

/// What bears an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The first GID of the port.
    pub gid: [u8; 16],
    /// The first address of the host, by which names of its processes are told apart from those of
    /// other hosts.
    pub host: Ipv4Addr,
}

impl Fabric {
    /// The address of a port; `None` for those of switches and routers.
    pub fn ipoib_address(&self, port: PortId) -> Option<Ipv4Addr> {
        self.subnet.port(port).address.map(|(address, _)| address)
    }

    /// The first address of a host's devices.
    pub fn first_address(&self, host: &str) -> Option<Ipv4Addr> {
        let ports = self.subnet.all_ports();
        ports.filter(|at| self.subnet.node_at(*at).host() == host).find_map(|at| self.ipoib_address(at))
    }

    /// What bears an address of IPoIB, or a GID, which IPv6 addresses stand for.
    pub fn neighbour(&self, address: IpAddr) -> Option<Neighbour> {
        let bears = |at: PortId| match address {
            IpAddr::V4(v4) => self.ipoib_address(at) == Some(v4),
            IpAddr::V6(v6) => self.ipoib_address(at).is_some() && self.gid(at) == v6.to_bits(),
        };
        let at = self.subnet.all_ports().find(|at| bears(*at))?;
        let gid = self.gid(at);
        let host = self.first_address(self.subnet.node_at(at).host())?;
        Some(Neighbour { gid: gid.to_be_bytes(), host })
    }

    /// The first GID of a port.
    pub(crate) fn gid(&self, at: PortId) -> u128 {
        let port = self.subnet.port(at);
        u128::from(port.info.gid_prefix) << 64 | u128::from(port.guid.0)
    }
}

/// Where an address is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    File,
    Made,
}

/// Gives each port of an adapter an address that no other one has.
pub(crate) fn give_addresses(subnet: &mut Subnet) {
    let given: BTreeSet<Ipv4Addr> = subnet.ports.iter().filter_map(|port| Some(port.address?.0)).collect();
    let mut made = (FIRST + 1..).map(Ipv4Addr::from_bits).filter(|address| !given.contains(address));
    for at in subnet.all_ports() {
        let is_adapters = subnet.node_at(at).kind == NodeType::Ca && subnet.port(at).number > 0;
        if is_adapters && subnet.port(at).address.is_none() {
            subnet.port_mut(at).address = made.next().map(|address| (address, Source::Made));
        }
    }
}
