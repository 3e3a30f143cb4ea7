//! Requests being built one part at a time (ibv_wr_post(3)): what stands behind `ibv_wr_start` and
//! its end.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::AtomicBool;

use nic::Request;

use crate::ffi_guard::Errno;

/// Requests being built.
pub(crate) struct Builder {
    /// Bits of `send_ops_flags`.
    pub operations: u64,
    /// `wr_start` has taken the queue pair's mutex.
    pub building: AtomicBool,
    pub work: UnsafeCell<Work>,
}

// SAFETY: `work` is touched only by the thread that holds the queue pair's mutex, from `wr_start`
// on.
unsafe impl Sync for Builder {}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct Work {
    pub requests: Vec<Request>,
    /// The first failure: `wr_complete` answers it.
    pub failure: Option<Errno>,
}

impl Builder {
    pub(crate) fn new(operations: u64) -> Box<Self> {
        Box::new(Self { operations, building: AtomicBool::new(false), work: UnsafeCell::default() })
    }
}

impl Work {
    pub(crate) fn fail(&mut self, errno: c_int) {
        self.failure.get_or_insert(Errno(errno));
    }
}
