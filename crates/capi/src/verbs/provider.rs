//! What rdma-core's own provider libraries ask of libibverbs when they are loaded: programs link libmlx5 and libefa
//! for their direct verbs even where no such adapter is.

use std::ffi::{c_char, c_void};

/// A provider offers itself, from its constructor. No adapter of the kernel is ever shown here, so none is asked for.
pub unsafe extern "C" fn verbs_register_driver(_ops: *const c_void) {}

/// The same in the older form that stands in node IBVERBS_1.1.
pub unsafe extern "C" fn ibv_register_driver(_name: *const c_char, _init: *const c_void) {}

/// Where sysfs is mounted.
pub unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
