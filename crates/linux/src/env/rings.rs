//! What rings ask of the real environment, and messages of the connection manager that go by them.

use std::io;
use std::sync::Arc;

use local::Counters;
use local::record::Ends;
use nic::Path;
use stack::Name;
use stack::env::{Datagram, HandedOver};
use sys::clock::Clock;
use transport::TxBatch;
use wire::Address;
use wire::icrc::{self, Flow};

use super::LinuxEnv;
use crate::counters::add;
use crate::fabric::FabricHost;
use crate::sockets::{ROCE_PORT, endpoint};
use crate::to_handler::datagram;

impl local::Env for LinuxEnv {
    #[inline]
    fn version(&self) -> u64 {
        self.interfaces.version()
    }

    fn ends(&self, path: &Path) -> Option<Ends> {
        if let (Address::Lid(source), Address::Lid(dest)) = (path.source, path.dest) {
            return self.fabric.as_ref().map(|_| Ends {
                source: source.into(),
                dest: dest.into(),
                interface: 0,
            });
        }
        let known = self.interfaces.current();
        let interface = known.at_end(path)?.index;
        Some(Ends {
            source: endpoint(path.source.ip()?, ROCE_PORT, path.interface).into(),
            dest: endpoint(path.dest.ip()?, ROCE_PORT, interface).into(),
            interface,
        })
    }

    fn owner(&self, block: u16) -> io::Result<Arc<dyn local::NameOwner>> {
        Ok(self.names.owner(Name::Block(block), &self.reactor)?)
    }

    fn wake_engine(&self) {
        self.alarm.set(0);
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters.local
    }
}

impl LinuxEnv {
    /// Has a range of memory watched by userfaultfd(2), as `watch` does: no other process touches
    /// it from then on, and none is in a copy when `watch` is called.
    pub fn watched<T>(&self, range: std::ops::Range<u64>, watch: impl FnOnce() -> T) -> T {
        let _coming = self.rings.coming(range, self);
        watch()
    }

    /// Hands messages of the connection manager to the process of this host that bears one of
    /// `names`. Hosts of a fabric have no network: there they take their way through the plane.
    pub(super) fn hand_over_here(&self, names: &[Name], path: &Path, batch: &mut TxBatch) -> HandedOver {
        let Some(fabric) = &self.fabric else {
            let is_taken = self.hand_to_owner(names, path, batch);
            return if is_taken { HandedOver::Done } else { HandedOver::NotHere };
        };
        let before = batch.len();
        fabric.pass_shared(path, batch);
        let has_come = !batch.is_empty();
        let is_taken = has_come && self.hand_to_host(fabric, names, path, batch);
        if has_come && !is_taken && fabric.is_answered(path, batch) {
            return HandedOver::Unclaimed;
        }
        let lost = if is_taken { before - batch.len() } else { before };
        add(&self.counters.packets_dropped_sending, lost);
        HandedOver::Done
    }

    /// Hands messages to the process of a fabric's host that bears one of `names`, as that host
    /// knows them.
    pub(super) fn hand_to_host(
        &self,
        fabric: &FabricHost,
        names: &[Name],
        path: &Path,
        batch: &mut TxBatch,
    ) -> bool {
        // The first name says the address that the listener is asked at.
        let at = names.iter().find_map(|name| match name {
            Name::Port { addr, .. } => *addr,
            Name::Block(_) | Name::Shared { .. } => None,
        });
        let names: Vec<Name> = names.iter().map(|name| fabric.name(*name, at)).collect();
        self.hand_to_owner(&names, path, batch)
    }

    fn hand_to_owner(&self, names: &[Name], path: &Path, batch: &mut TxBatch) -> bool {
        let version = self.interfaces.version();
        let ends = self.rings.ends_here(path, self);
        let Some(ends) = ends.filter(|_| !path.dest.is_multicast()) else { return false };
        // To ask for a name that no process bears is a few system calls.
        let known = names.iter().find(|name| self.names.known(**name).is_some());
        let mut names = known.map_or(names, std::slice::from_ref).iter();
        names.any(|&name| {
            if let Name::Block(block) = name
                && let Some(sent) = self.rings.hand_to_block(block, path, (version, &ends), batch, self)
            {
                return sent;
            }
            let owner = self.names.known(name);
            owner
                .is_some_and(|owner| self.rings.hand_to_process(&*owner, path, (version, &ends), batch, self))
                || self.over_connection(name, &ends, batch)
        })
    }

    /// Sends each message over the connection to a name; false where no process bears it that we
    /// may send to so.
    fn over_connection(&self, name: Name, ends: &Ends, batch: &mut TxBatch) -> bool {
        let head = datagram(ends);
        // No ICRC covers what goes between LIDs.
        let flow = Flow::between(&ends.source, &ends.dest);
        let (mut bytes, runs) = batch.parts_mut();
        for run in runs {
            let (packets, rest) = bytes.split_at_mut(run.len);
            for packet in packets.chunks_mut(run.size) {
                if let Some(flow) = &flow {
                    icrc::seal(flow, 0, packet);
                }
                let message = Datagram { bytes: packet, ..head };
                if !self.names.hand_over(name, &message, &self.reactor, &self.counters) {
                    return false;
                }
            }
            bytes = rest;
        }
        true
    }
}
