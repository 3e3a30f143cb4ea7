//! fork(2): ibv_fork_init(3). An adapter that reads memory by itself needs pages that fork does not give away; here
//! the processor copies, through the page tables of the process, so every page stays right after a fork.

use std::ffi::{c_int, c_void};

use abi::verbs::{IBV_FORK_UNNEEDED, ibv_fork_status};

/// Always 0: there is nothing to prepare.
pub unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
pub unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// Always 0: the pages may be shared with a child.
pub unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Always 0.
pub unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
