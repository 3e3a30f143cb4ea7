//! Messages of connection managers to a process of this host. Its communication id says which one
//! it is, or the name of the service that a peer asks for. So none has to land in the socket of a
//! process that happens to share the port, and be handed on from there.
//!
//! They go by the ring to that process, where there is one. A message alone is not worth making
//! one, and goes over the connection to the name. The owner of a service's name is found among the
//! readers of our rings by the number of its process. That may be another one's by now, or the
//! service too: a process that has no such service hands the message on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::Path;
use transport::TxBatch;

use super::{Head, PeerChannel, Rings, TxRing};
use crate::counters::Counters;
use crate::env::{Env, NameOwner};
use crate::record::Ends;

impl<O: Send> Rings<O> {
    /// Hands messages to the process that bears a block, by the ring to it. False where they have
    /// to go by the network; `None` where there is no such ring. The ends are those that were known
    /// after this version of the interfaces ([`Env::version`]).
    pub fn hand_to_block(
        &self,
        block: u16,
        path: &Path,
        (version, ends): (u64, &Ends),
        batch: &mut TxBatch,
        env: &impl Env,
    ) -> Option<bool> {
        let ring = self.ring_to(block)?;
        Some(self.push_message(&ring, Head::new(path, version, ends), batch, env))
    }

    /// Sends a batch to the process of this host that bears a block, which is to take it in at an
    /// interface that this number says; false where it is lost.
    pub fn send_to_port(
        &self,
        block: u16,
        (path, interface): (&Path, u32),
        batch: &mut TxBatch,
        env: &impl Env,
    ) -> bool {
        let version = env.version();
        let Some(ends) = self.ends_here(path, env) else { return false };
        let Some(ring) = self.to(block, env) else { return false };
        self.push(&ring, Head::new(path, version, &Ends { interface, ..ends }), batch, env)
    }

    /// Hands messages to the process at the end of a connection to a name of a service, by the ring
    /// to it. False where they have to go another way.
    pub fn hand_to_process(
        &self,
        owner: &dyn NameOwner,
        path: &Path,
        (version, ends): (u64, &Ends),
        batch: &mut TxBatch,
        env: &impl Env,
    ) -> bool {
        let ring = self.ring_of_process(owner);
        ring.is_some_and(|ring| self.push_message(&ring, Head::new(path, version, ends), batch, env))
    }

    /// Sends messages by a ring; false where that is of no use. Those of a thread that drives are
    /// answers to what came just now, as a rule. The peer that waits for them is about to look, so
    /// its engine is woken a little later, if it still sleeps then ([`Rings::send_pending_wakes`]).
    fn push_message(&self, ring: &TxRing, head: Head, batch: &mut TxBatch, env: &impl Env) -> bool {
        let (bytes, runs) = batch.parts_mut();
        let (sent, has_pending_wake) =
            ring.send_message(head, bytes, runs, self.driver_slot.is_mine(), env.counters());
        if has_pending_wake {
            self.has_pending_wake.store(true, Ordering::Release);
        }
        self.have_sent(sent, batch, env)
    }

    /// Wakes the readers that are owed a wake and still sleep.
    pub fn send_pending_wakes(&self, counters: &Counters) {
        if self.has_pending_wake.load(Ordering::Relaxed)
            && self.has_pending_wake.swap(false, Ordering::AcqRel)
        {
            for way in self.tx.read().values() {
                if let PeerChannel::Ring(ring) = way {
                    ring.send_pending_wakes(counters);
                }
            }
        }
    }

    /// A ring to the process that bears the name of a service, if there is one.
    fn ring_of_process(&self, owner: &dyn NameOwner) -> Option<Arc<TxRing>> {
        let tx = self.tx.read();
        let theirs = tx.values().find_map(|way| match way {
            PeerChannel::Ring(ring) if seems_same_process(&**ring.owner(), owner) => Some(ring),
            _ => None,
        });
        theirs.filter(|_| !owner.has_declined()).cloned()
    }

    /// The ring to the process that bears a block, if it is there.
    pub(super) fn ring_to(&self, block: u16) -> Option<Arc<TxRing>> {
        match self.tx.read().get(&block) {
            Some(PeerChannel::Ring(ring)) => Some(ring.clone()),
            _ => None,
        }
    }
}

/// Whether both are connections to one process, as far as one knows: it may have ended, and its
/// number be another one's.
fn seems_same_process(a: &dyn NameOwner, b: &dyn NameOwner) -> bool {
    a.pid() != 0 && a.pid() == b.pid()
}
