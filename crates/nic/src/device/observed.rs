//! What a device tells an observer of its queues, and which GIDs it reports.

use std::sync::Arc;

use wire::Gid;

use crate::cq::Cq;
use crate::device::adapter::{Adapter, CqSlot, DeviceConfig, Transport};
use crate::device::port::Port;
use crate::srq::Srq;

impl CqSlot {
    /// Lists the completion queue that it is counted for.
    pub fn list(&self, cq: &Arc<Cq>) {
        self.0.listed.add(cq);
    }
}

impl Adapter {
    /// Completion queues that exist, of those that were listed ([`CqSlot::list`]).
    pub fn cqs(&self) -> Vec<Arc<Cq>> {
        self.listed.all()
    }

    /// Shared receive queues that exist.
    pub fn srqs(&self) -> Vec<Arc<Srq>> {
        self.listed.all()
    }
}

/// How many entries the table has that a device reports.
pub fn gid_table_len(transport: Transport) -> usize {
    match transport {
        Transport::Roce | Transport::Ib => crate::limits::MAX_GIDS,
        Transport::Iwarp => 1,
    }
}

/// The GIDs that a device reports, with their indices. Peers of an iWARP device have no GIDs: it
/// reports one, the hardware address and zeros behind it, as the kernel's siw does.
pub fn reported_gids(config: &DeviceConfig, port: &Port) -> Vec<(usize, Gid)> {
    match config.transport {
        Transport::Roce | Transport::Ib => {
            port.gids.iter().map(|(index, entry)| (index, entry.gid)).collect()
        }
        Transport::Iwarp => {
            let mut gid = [0; 16];
            gid[..config.mac.len()].copy_from_slice(&config.mac);
            vec![(0, Gid(gid))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gid::GidTable;

    #[test]
    fn an_iwarp_device_reports_its_hardware_address_alone() {
        let config = |transport| DeviceConfig {
            id: crate::DeviceId(0),
            name: "siw0".to_owned(),
            transport,
            guid: wire::Guid(1),
            interface: 1,
            interface_name: "eth0".to_owned(),
            mac: [2, 0, 0, 0, 0, 1],
        };
        let gids =
            GidTable::updated(&GidTable::default(), [2, 0, 0, 0, 0, 1], &["10.0.0.1".parse().unwrap()]);
        let port = Port { up: true, mtu: wire::Mtu::M1024, speed_mbps: None, gids, ib: None };
        let reported = reported_gids(&config(Transport::Iwarp), &port);
        assert_eq!(reported, [(0, Gid([2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))]);
        assert_eq!(reported_gids(&config(Transport::Roce), &port).len(), 2);
    }
}
