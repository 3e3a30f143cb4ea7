//! Which contexts are of 1.0.

use std::collections::BTreeSet;

use locks::{Mutex, MutexGuard, Rank};
use rdma_core_abi::verbs::ibv_context;

use crate::verbs::abi_1_0::layout::Context;
use sys::per_process::PerProcess;

/// The old contexts there are, by address: `ibv_create_comp_channel` has one version for both
/// kinds.
static CONTEXTS: PerProcess<Mutex<BTreeSet<usize>>> =
    PerProcess::new(|| Mutex::new(Rank::Objects, BTreeSet::new()));

pub(super) fn contexts() -> MutexGuard<'static, BTreeSet<usize>> {
    CONTEXTS.get().lock()
}

/// The new context of an old one; any other as it is.
pub(crate) fn real(context: *mut ibv_context) -> *mut ibv_context {
    if contexts().contains(&context.addr()) {
        // SAFETY: the table says that it is an old context that lives.
        unsafe { (*context.cast::<Context>()).real }
    } else {
        context
    }
}
