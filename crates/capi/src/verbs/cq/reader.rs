//! The completion that a thread reads field by field (ibv_create_cq_ex(3)).

use std::cell::Cell;
use std::sync::atomic::AtomicBool;

use nic::Stamp;
use rdma_core_abi::verbs::{ibv_wc, ibv_wc_tm_info};

/// The completion being read. Only the thread that polls touches it: `start_poll` took the queue's
/// mutex, or the program promised to use one thread.
pub(crate) struct Reader {
    pub single_threaded: bool,
    /// `start_poll` has taken the queue; tells an `end_poll` that ends nothing.
    pub polling: AtomicBool,
    pub current: Cell<ibv_wc>,
    pub stamp: Cell<Stamp>,
    pub tm: Cell<ibv_wc_tm_info>,
}

// SAFETY: the cells are used by one thread at a time, see above.
unsafe impl Sync for Reader {}

impl Default for Reader {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Reader {
    pub(crate) fn new(single_threaded: bool) -> Self {
        Self {
            single_threaded,
            polling: AtomicBool::new(false),
            // SAFETY: integers only.
            current: Cell::new(unsafe { std::mem::zeroed() }),
            stamp: Cell::default(),
            tm: Cell::default(),
        }
    }
}
