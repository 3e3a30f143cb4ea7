//! fork(2): ibv_fork_init(3). An adapter that reads memory by itself needs pages that fork does not
//! give away; here the processor copies, through the page tables of the process, so every page
//! stays right after a fork.

use std::ffi::{c_int, c_void};

use crate::checked;
use rdma_core_abi::verbs::{IBV_FORK_UNNEEDED, ibv_fork_status};

/// ibv_fork_init(3): always 0, as there is nothing to prepare. rdma-core marks registered pages
/// with madvise(2); here the processor copies, and there is nothing to mark.
pub unsafe extern "C" fn ibv_fork_init() -> c_int {
    checked::objects::fork_prepared();
    0
}

/// ibv_is_fork_initialized(3): `IBV_FORK_UNNEEDED`. rdma-core answers so only where the kernel
/// copies pages at fork.
pub unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    checked::objects::fork_prepared();
    IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range`, ibv_fork_init(3): always 0, as the pages may be shared with a child.
/// rdma-core keeps the range out of a child.
pub unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`, ibv_fork_init(3): always 0. rdma-core gives the range to children again.
pub unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
