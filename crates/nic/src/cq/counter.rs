//! Completion counters (ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3)): two numbers that
//! count what completed well and what did not, whether a completion was asked for or not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use transport::op::{Completed, Completion, Side, Status};

use crate::device::adapter::Adapter;
use crate::error::Error;
#[cfg(doc)]
use crate::limits;

/// Operations that are counted: `enum ibv_qp_attach_comp_cntr_op`. What peers do by RDMA is not: it
/// completes nothing here.
pub mod ops {
    /// SENDs.
    pub const SEND: u32 = 1;
    /// Receives, of WRITEs with immediate data too.
    pub const RECV: u32 = 1 << 1;
    /// READs.
    pub const READ: u32 = 1 << 2;
    /// WRITEs.
    pub const WRITE: u32 = 1 << 4;
    /// All of them.
    pub const ALL: u32 = SEND | RECV | READ | WRITE;
}

/// A counter. It wraps at 2^64. Queue pairs that count into it keep it, until they are destroyed;
/// it keeps its device's adapter.
#[derive(Debug)]
pub struct CompletionCounter {
    /// Completed well.
    pub done: AtomicU64,
    /// Completed in error.
    pub failed: AtomicU64,
    attached: AtomicU32,
    device: Arc<Adapter>,
}

impl CompletionCounter {
    /// A counter of zeroes.
    ///
    /// # Errors
    ///
    /// `Limit` at [`limits::MAX_COMPLETION_COUNTERS`].
    pub fn new(device: &Arc<Adapter>) -> Result<Arc<Self>, Error> {
        device.quotas.completion_counters.take(1)?;
        Ok(Arc::new(Self {
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            device: device.clone(),
        }))
    }

    /// Whether it is this device's.
    pub fn is_of(&self, device: &Arc<Adapter>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Whether queue pairs count into it.
    pub fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire) > 0
    }
}

impl Drop for CompletionCounter {
    fn drop(&mut self) {
        self.device.quotas.completion_counters.give(1);
    }
}

/// What a queue pair counts into; it counts itself out when dropped.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Each with its operations.
    counters: Vec<(u32, Arc<CompletionCounter>)>,
    /// Of each send request outstanding, oldest first, whether its program wants to see it
    /// complete: the engine completes all of them.
    wanted: VecDeque<bool>,
}

impl Counted {
    /// Counts these operations into a counter from now on; see [`crate::Qp::count_into`].
    pub(crate) fn attach(&mut self, counter: &Arc<CompletionCounter>, mask: u32) -> Result<(), Error> {
        if mask & !ops::ALL != 0 {
            return Err(Error::Unsupported("operations of peers are not counted"));
        }
        if mask == 0 {
            return Err(Error::Invalid("op_mask is 0: no operation to count"));
        }
        if self.counters.iter().any(|(taken, _)| taken & mask != 0) {
            return Err(Error::Busy);
        }
        counter.attached.fetch_add(1, Ordering::AcqRel);
        self.counters.push((mask, counter.clone()));
        Ok(())
    }

    /// Whether anything is counted.
    pub(crate) fn is_used(&self) -> bool {
        !self.counters.is_empty()
    }

    /// A send request is posted.
    pub(crate) fn posted(&mut self, signaled: bool) {
        self.wanted.push_back(signaled);
    }

    /// Counts a completion; whether the program wants to see it.
    pub(crate) fn completed(&mut self, side: Side, completion: &Completion) -> bool {
        let good = completion.status == Status::Success;
        let op = match (side, completion.opcode) {
            (Side::Receive, _) => ops::RECV,
            (Side::Send, Completed::Send) => ops::SEND,
            (Side::Send, Completed::Read) => ops::READ,
            (Side::Send, Completed::Write) => ops::WRITE,
            (Side::Send, _) => 0,
        };
        for (_, counter) in self.counters.iter().filter(|(mask, _)| mask & op != 0) {
            let value = if good { &counter.done } else { &counter.failed };
            value.fetch_add(1, Ordering::Release);
        }
        // A request that fails always shows.
        side == Side::Receive || self.wanted.pop_front().unwrap_or(true) || !good
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for (_, counter) in &self.counters {
            counter.attached.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
