//! What adapters of some makers have, and these have not: enhanced connection establishment
//! (ibv_query_ece(3)) and data in order (ibv_query_qp_data_in_order(3)).

use std::ffi::{c_int, c_uint};

use rdma_core_abi::verbs::{ibv_ece, ibv_qp};

use crate::ffi_guard::{self, Errno};

/// ibv_query_ece(3): EOPNOTSUPP. Enhanced connection establishment lets two adapters of one vendor
/// agree on options; a software adapter has none, and neither have the kernel's.
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    ffi_guard::or_errno(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// ibv_set_ece(3): EOPNOTSUPP, as [`ibv_query_ece`].
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    ffi_guard::or_errno(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// ibv_query_qp_data_in_order(3): 0, whatever is asked. The last word of a message is written last,
/// but the processor copies what lies before it in any order.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}
