//! What rings ask of the real environment, and messages of the connection manager that go by them.

use std::io;
use std::sync::Arc;

use local::Counters;
use local::record::Ends;
use nic::Path;
use stack::Name;
use stack::env::Datagram;
use sys::clock::Clock;
use transport::TxBatch;
use wire::icrc::{self, Flow};

use super::LinuxEnv;
use crate::sockets::{ROCE_PORT, endpoint};
use crate::to_handler::datagram;

impl local::Env for LinuxEnv {
    #[inline]
    fn version(&self) -> u64 {
        self.interfaces.version()
    }

    fn ends(&self, path: &Path) -> Option<Ends> {
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
    /// Hands messages of the connection manager to the process of this host that bears one of
    /// `names`; false where they have to go by the network.
    pub(super) fn hand_over_here(&self, names: &[Name], path: &Path, batch: &mut TxBatch) -> bool {
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
