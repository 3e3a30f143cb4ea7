//! What the responder remembers of requests that it has executed and that may come again (IBA 1.4
//! §9.7.5.1.2, responder resources): READs, atomics, ATOMIC WRITEs and FLUSHes.
//!
//! A duplicate is answered from here or not at all. One that was never asked for gets the same
//! silence whatever key it bears. Otherwise a connected peer could try keys without ever meeting
//! the error that a new request with a wrong one is.

use std::collections::VecDeque;

use wire::bth::{AtomicEth, Reth};
use wire::{Psn, Rkey};

use super::Connection;
use crate::op::Remote;

/// FLUSHes remembered. The kernel's requester does not count them among its READs; it has 128
/// packets outstanding at most.
const MAX_FLUSHES: usize = 128;

/// Requests remembered, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Resources {
    /// READs, atomics and ATOMIC WRITEs: as many as the requester may have outstanding.
    counted: VecDeque<Executed>,
    flushes: VecDeque<(Psn, Rkey)>,
}

/// A request that was executed and may come again.
#[derive(Debug)]
pub(super) enum Executed {
    Read {
        psn: Psn,
        packets: u32,
        from: Remote,
        /// At an XRC target, the shared receive queue whose domain the memory is of.
        srq: Option<u32>,
    },
    Atomic {
        psn: Psn,
        addr: u64,
        rkey: Rkey,
        /// The value that was there before.
        original: u64,
    },
    AtomicWrite {
        psn: Psn,
        rkey: Rkey,
    },
}

impl Resources {
    /// Remembers one of `limit`, which is at least 1.
    pub(super) fn keep(&mut self, executed: Executed, limit: usize) {
        keep(&mut self.counted, executed, limit);
    }
    pub(super) fn keep_flush(&mut self, psn: Psn, rkey: Rkey) {
        keep(&mut self.flushes, (psn, rkey), MAX_FLUSHES);
    }

    /// Whether a READ asks for what one did that was executed, or for a part of it that begins at a
    /// later packet (IBA 1.4 §9.7.5.1.2): under the same key, at the address that belongs to
    /// its PSN.
    pub(super) fn has_read(&self, conn: &Connection, at: Psn, reth: Reth, for_srq: Option<u32>) -> bool {
        self.counted.iter().rev().any(|executed| {
            let &Executed::Read { psn, packets, from, srq } = executed else { return false };
            let skipped = u64::from(at.since(psn).max(0) as u32) * conn.mtu as u64;
            let rest = from.length.saturating_sub(skipped);
            (0..packets as i32).contains(&at.since(psn))
                && (reth.rkey, for_srq) == (from.rkey, srq)
                && reth.addr == from.addr.wrapping_add(skipped)
                && (u64::from(reth.length) <= rest && (reth.length > 0 || rest == 0))
        })
    }
    /// What the atomic at a PSN found, if it was executed.
    pub(super) fn atomic(&self, at: Psn, eth: AtomicEth) -> Option<u64> {
        self.counted.iter().rev().find_map(|executed| match *executed {
            Executed::Atomic { psn, addr, rkey, original } => {
                ((psn, addr, rkey) == (at, eth.addr, eth.rkey)).then_some(original)
            }
            _ => None,
        })
    }
    /// Whether an ATOMIC WRITE was executed. The answer says nothing of memory, so the address need
    /// not be compared: the kernel's requester forgets it when it asks again.
    pub(super) fn has_atomic_write(&self, at: Psn, key: Rkey) -> bool {
        let is_it =
            |e: &Executed| matches!(*e, Executed::AtomicWrite { psn, rkey } if (psn, rkey) == (at, key));
        self.counted.iter().rev().any(is_it)
    }
    /// Whether a FLUSH was executed. The address is not compared, as in
    /// [`Resources::has_atomic_write`].
    pub(super) fn has_flush(&self, at: Psn, key: Rkey) -> bool {
        self.flushes.iter().rev().any(|&flush| flush == (at, key))
    }
}

fn keep<T>(queue: &mut VecDeque<T>, one: T, limit: usize) {
    while queue.len() >= limit.max(1) {
        queue.pop_front();
    }
    queue.push_back(one);
}
