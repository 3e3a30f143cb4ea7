//! Numbers as words: rpma_err_2str(3), rpma_utils_conn_event_2str(3).

use std::ffi::{c_char, c_int};

use super::*;

/// An error code in words; 0 is success.
pub unsafe extern "C" fn rpma_err_2str(ret: c_int) -> *const c_char {
    let words = match ret {
        0 => c"Success",
        RPMA_E_NOSUPP => c"Not supported",
        RPMA_E_PROVIDER => c"Provider error occurred",
        RPMA_E_NOMEM => c"Out of memory",
        RPMA_E_INVAL => c"Invalid argument",
        RPMA_E_NO_COMPLETION => c"No next completion available",
        RPMA_E_NO_EVENT => c"No next event available",
        RPMA_E_AGAIN => c"Temporary error, try again",
        RPMA_E_SHARED_CHANNEL => c"Completion channel is shared",
        RPMA_E_NOT_SHARED_CHNL => c"Completion channel is not shared",
        _ => c"Unknown error",
    };
    words.as_ptr()
}

/// A connection event, -1 to 4, in words.
pub unsafe extern "C" fn rpma_utils_conn_event_2str(conn_event: c_int) -> *const c_char {
    let words = match conn_event {
        -1 => c"Undefined connection event",
        0 => c"Connection established",
        1 => c"Connection closed",
        2 => c"Connection lost",
        3 => c"Connection rejected",
        4 => c"Connection unreachable",
        _ => c"Unsupported connection event",
    };
    words.as_ptr()
}
