//! The local path of an RC queue pair: what goes to a process of the same host without packets
//! ([`LocalPath`]). The engine beside this folder knows carriers and packets only, and asks here
//! where a request begins, where one leaves and where a fragment arrives.
//!
//! | file | what |
//! |---|---|
//! | `choice` | the rule that chooses the way of a request |
//! | `direct` | requests that one process executes in the memory of the other |
//! | `fragments` | several packets of a SEND or WRITE as one fragment through the ring |
//! | `zero_copy` | long SENDs and WRITEs that both ends copy |
//! | `reads` | long READs that both ends copy |
//! | `answers` | READ responses as fragments |
//! | `receive` | fragments that arrive, and how messages are cut into them |
//! | `backoff` | how long a way that was refused is not tried again |

mod answers;
mod backoff;
mod choice;
mod direct;
mod fragments;
mod reads;
mod receive;
mod zero_copy;

use wire::Psn;

pub(super) use answers::{Fragment, send_fragment};
use backoff::Backoff;
pub(super) use choice::CopyPath;
pub(super) use fragments::Left;
pub(super) use receive::{Arrival, MIN_FRAGMENT};
use zero_copy::ZeroCopy;

#[cfg(doc)]
use crate::op::LocalPath;

/// The requester's part of the local path.
#[derive(Debug, Default)]
pub(super) struct Local {
    /// Requests that could not be executed directly.
    refused: Backoff,
    /// Messages that both ends copy, once one was long enough.
    zero_copy: Option<Box<ZeroCopy>>,
    /// The number after the last packet that was neither exported nor placed.
    other_until: Psn,
    /// A request was executed without a packet, since that was last asked.
    executed: bool,
    /// The request posted last needs packets: that was seen when it was posted.
    needs_packets: bool,
    /// The peer has acknowledged a request of this connection: it takes what is sent next, by
    /// number, state and address. Until then nothing is executed without it.
    proven: bool,
    /// PSNs of requests that were executed without packets.
    unsent_psns: u32,
    /// Bytes that this turn has copied ([`direct::QUANTUM_BYTES`]).
    copied: u64,
}

impl Local {
    /// The first PSN of the connection.
    pub(super) fn start(&mut self, sq_psn: Psn) {
        self.other_until = sq_psn;
    }

    /// Packets have left; `next` is the PSN after them.
    #[inline]
    pub(super) fn sent(&mut self, next: Psn) {
        self.other_until = next;
    }

    /// A SEND leaves as a packet without a choice of its way.
    #[inline]
    pub(super) fn passed_by(&mut self) {
        self.needs_packets = false;
    }

    /// All before `una` is acknowledged.
    #[inline]
    pub(super) fn progress(&mut self, una: Psn) {
        self.proven = true;
        if let Some(zero_copy) = &mut self.zero_copy {
            zero_copy.progress(una);
            if self.other_until.before(una) {
                self.other_until = una;
            }
        }
    }

    /// Whether requests were executed without a packet, since that was last asked.
    pub(super) fn take_executed(&mut self) -> bool {
        std::mem::take(&mut self.executed)
    }

    /// How many PSNs no packet has borne of those that requests have taken, once.
    pub(super) fn take_unsent_psns(&mut self) -> u32 {
        std::mem::take(&mut self.unsent_psns)
    }
}
