//! Packets between LIDs, in a process on a host of a fabric.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ::fabric::plane::Arrival;
use local::rings::block;
use nic::Path;
use stack::Name;
use stack::env::Datagram;
use transport::TxBatch;
use wire::mad::MAD_LEN;
use wire::{Address, Endpoint, LidAddress, Qpn};

use super::LinuxEnv;
use crate::counters::add;
use crate::fabric::{FabricHost, ipoib};
use crate::reactor::{HANG_UP, IN, Reactor, Source};

/// Has the engine hear what the fabric says.
pub(super) fn listen(fabric: &Arc<FabricHost>, reactor: &Reactor) -> io::Result<()> {
    let token = reactor.token();
    reactor.add(token, &**fabric, IN | HANG_UP, Source::Fabric(token, fabric.clone()))?;
    fabric.mads().iter().try_for_each(|port| {
        let token = reactor.token();
        reactor.add(token, &**port, IN | HANG_UP, Source::MadPort(token, port.clone()))
    })
}

impl LinuxEnv {
    /// Sends a management datagram from QP1 of a port.
    pub(super) fn send_mad_by_fabric(&self, interface: u32, to: LidAddress, mad: &[u8; MAD_LEN]) {
        let fabric = self.fabric.as_ref().filter(|_| self.is_ours());
        if !fabric.is_some_and(|fabric| fabric.send_mad(interface, to, mad)) {
            add(&self.counters.packets_dropped_sending, 1);
        }
    }

    /// A name of this host, as the table that all hosts of a fabric share has it.
    pub(super) fn as_shared(&self, name: Name) -> Name {
        self.fabric.as_ref().map_or(name, |fabric| fabric.name(name, None))
    }

    /// Names of that table that are this host's, as the host knows them.
    pub(super) fn as_own(&self, names: Vec<Name>) -> Vec<Name> {
        let Some(fabric) = &self.fabric else { return names };
        let known = self.interfaces.current();
        let own = known.list.iter().flat_map(|port| port.addresses.iter().copied().chain(ipoib::gids(port)));
        let own: Vec<IpAddr> = own.collect();
        names.into_iter().filter_map(|name| fabric.own_name(name, &own)).collect()
    }

    /// Whether a path ends at a process of this system.
    pub(crate) fn leads_here(&self, path: &Path) -> bool {
        match path.dest {
            Address::Lid(_) => self.fabric.is_some(),
            Address::Ip(_) => self.interfaces.current().at_end(path).is_some(),
        }
    }

    /// Whether the process at the end of a path between LIDs is to have all as packets, because
    /// they are captured there, or meet faults.
    pub(super) fn is_shown_packets(&self, path: &Path) -> bool {
        let owner = self.names.owner(Name::Block(block(path.dest_qpn)), &self.reactor);
        owner.is_ok_and(|owner| owner.packets_only)
    }

    /// A packet, at the interface that takes in what went to its LID; 0 where none does. The
    /// sender says it of what went to a group, by the number of the port in the plane and one. For
    /// an IP address the interface is known.
    #[inline]
    pub(crate) fn at_interface<'a>(&self, datagram: Datagram<'a>) -> Datagram<'a> {
        let Endpoint::Lid(lid) = datagram.dest else { return datagram };
        let port = datagram.interface.checked_sub(1).filter(|_| lid.is_multicast());
        let found = match port {
            Some(port) => self.fabric.as_ref().and_then(|fabric| fabric.interface(port)),
            None => self.interfaces.current().with_lid(lid.lid()),
        };
        Datagram { interface: found.unwrap_or(0), ..datagram }
    }

    /// Sends packets that no ring takes from a host of a fabric: those to groups, and messages to
    /// QP1; others are lost.
    pub(crate) fn send_by_fabric(&self, fabric: &FabricHost, path: &Path, batch: &mut TxBatch) {
        if path.dest_qpn == Qpn::GSI {
            return self.send_messages(fabric, path, batch);
        }
        if !path.dest.is_multicast() {
            return add(&self.counters.packets_dropped_sending, batch.len());
        }
        for Arrival { port, packets } in fabric.ends_of(path, batch) {
            // Of what rules have taken a part, the rest is a batch of its own.
            let mut rest = packets.map(|arrives| rest_of(batch, &arrives));
            let batch = rest.as_mut().unwrap_or(&mut *batch);
            if batch.is_empty() {
                continue;
            }
            for block in fabric.plane().members(port) {
                if !self.rings.send_to_port(block, (path, port + 1), batch, self) {
                    add(&self.counters.packets_dropped_sending, batch.len());
                }
            }
        }
    }

    /// Sends messages of the connection manager, which have taken their way through the plane, to
    /// the processes that they are for.
    fn send_messages(&self, fabric: &FabricHost, path: &Path, batch: &mut TxBatch) {
        for packet in batch.iter() {
            let names = stack::owner_names_of(path.dest, packet);
            let mut message = TxBatch::new();
            message.push_packet(packet);
            if !self.hand_to_host(fabric, &names, path, &mut message) {
                add(&self.counters.packets_dropped_sending, 1);
            }
        }
    }
}

/// The packets of a batch that arrive.
fn rest_of(batch: &TxBatch, arrives: &[bool]) -> TxBatch {
    let mut rest = TxBatch::new();
    let arriving = batch.iter().zip(arrives).filter(|(_, arrives)| **arrives);
    arriving.for_each(|(packet, _)| rest.push_packet(packet));
    rest
}
