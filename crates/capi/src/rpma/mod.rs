//! librpma.

use std::ffi::c_int;

pub mod strings;

/// librpma's error codes (librpma.h).
pub const RPMA_E_UNKNOWN: c_int = -100_000;
/// Not supported.
pub const RPMA_E_NOSUPP: c_int = -100_001;
/// The provider failed; errno says how.
pub const RPMA_E_PROVIDER: c_int = -100_002;
/// Out of memory.
pub const RPMA_E_NOMEM: c_int = -100_003;
/// An invalid argument.
pub const RPMA_E_INVAL: c_int = -100_004;
/// No next completion.
pub const RPMA_E_NO_COMPLETION: c_int = -100_005;
/// No next event.
pub const RPMA_E_NO_EVENT: c_int = -100_006;
/// Try again.
pub const RPMA_E_AGAIN: c_int = -100_007;
/// The completion channel is shared.
pub const RPMA_E_SHARED_CHANNEL: c_int = -100_008;
/// The completion channel is not shared.
pub const RPMA_E_NOT_SHARED_CHNL: c_int = -100_009;
