//! Messages of connection managers to a process of this host. Its communication id says which one
//! it is, or the name of the service that a peer asks for. So none has to land in the socket of a
//! process that happens to share the port, and be handed on from there.
//!
//! They go by the ring to that process, where there is one. A message alone is not worth making
//! one, and goes over the connection to the name. The bearer of a service's name is found among the
//! readers of our rings by the number of its process. That may be another one's by now, or the
//! service too: a process that has no such service hands the message on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::Path;
use node::Name;
use transport::TxBatch;
use wire::icrc::{self, Flow};

use super::{Head, Rings, TxRing, Way, datagram};
use crate::counters::Counters;
use crate::names::Bearer;
use crate::world::RealWorld;

impl Rings {
    /// Hands messages to the process of this host that bears one of `names`; false where they have
    /// to go by the network.
    pub(crate) fn hand_over(
        &self,
        names: &[Name],
        path: &Path,
        batch: &mut TxBatch,
        world: &RealWorld,
    ) -> bool {
        let version = world.interfaces.version();
        let interface = self.interface_here(path, world);
        let Some(interface) = interface.filter(|_| !path.dest.is_multicast()) else { return false };
        // To ask for a name that no process bears is a few system calls.
        let known = names.iter().find(|name| world.names.known(**name).is_some());
        let mut names = known.map_or(names, std::slice::from_ref).iter();
        let head = Head::new(path, version, interface);
        names.any(|&name| match self.ring_to(name) {
            Some(ring) => self.push_message(&ring, head, batch, world),
            None => {
                let ring = world.names.known(name).and_then(|bearer| self.ring_of_process(&bearer));
                ring.is_some_and(|ring| self.push_message(&ring, head, batch, world))
                    || over_connection(name, path, interface, batch, world)
            }
        })
    }

    /// Sends messages by a ring; false where that is of no use. Those of a thread that sits are
    /// answers to what came just now, as a rule. The peer that waits for them is about to look, so
    /// its engine is woken a little later, if it still sleeps then ([`Rings::pay`]).
    fn push_message(&self, ring: &TxRing, head: Head, batch: &mut TxBatch, world: &RealWorld) -> bool {
        let (bytes, runs) = batch.parts_mut();
        let (sent, owes) = ring.send_message(head, bytes, runs, self.seat.is_mine(), &world.counters);
        if owes {
            self.owes.store(true, Ordering::Release);
        }
        self.have_sent(sent, batch, world)
    }

    /// Wakes the readers that are owed a wake and still sleep.
    pub(crate) fn pay(&self, counters: &Counters) {
        if self.owes.load(Ordering::Relaxed) && self.owes.swap(false, Ordering::AcqRel) {
            for way in self.tx.read().values() {
                if let Way::Ring(ring) = way {
                    ring.pay(counters);
                }
            }
        }
    }

    /// A ring to the process that bears the name of a service, if there is one.
    fn ring_of_process(&self, bearer: &Bearer) -> Option<Arc<TxRing>> {
        let tx = self.tx.read();
        let theirs = tx.values().find_map(|way| match way {
            Way::Ring(ring) if ring.bearer().seems_same_process(bearer) => Some(ring),
            _ => None,
        });
        theirs.filter(|_| !bearer.has_declined()).cloned()
    }

    /// The ring to the process that bears a name, if it is there.
    pub(super) fn ring_to(&self, name: Name) -> Option<Arc<TxRing>> {
        let Name::Block(block) = name else { return None };
        match self.tx.read().get(&block) {
            Some(Way::Ring(ring)) => Some(ring.clone()),
            _ => None,
        }
    }
}

/// Sends each message over the connection to a name; false where no process bears it that we may
/// send to so.
fn over_connection(name: Name, path: &Path, interface: u32, batch: &mut TxBatch, world: &RealWorld) -> bool {
    let head = datagram(path, interface);
    let flow = Flow { source: head.source, dest: head.dest };
    let (mut bytes, runs) = batch.parts_mut();
    for run in runs {
        let (packets, rest) = bytes.split_at_mut(run.len);
        for packet in packets.chunks_mut(run.size) {
            icrc::seal(&flow, 0, packet);
            let message = node::world::Datagram { bytes: packet, ..head };
            if !world.names.hand_over(name, &message, &world.reactor, &world.counters) {
                return false;
            }
        }
        bytes = rest;
    }
    true
}
