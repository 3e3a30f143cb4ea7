//! The fences between what a process says to another one and what it then looks at. Each stands
//! between a store and a later load of other memory, and pairs with one of the other process: one
//! of the two sees what the other one said.
//!
//! They are here by name so that `loom_tests` exports of each that it is needed: there a model
//! leaves one out.

/// Where a fence is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum At {
    /// An initiator said what it uses, and looks that up.
    InUse,
    /// An entry was taken back. The thread that did it looks for accesses that use it; what it then
    /// writes is not seen before.
    TakenBack,
    /// Bytes were pulled, and their queue pair is looked up once more.
    Pulled,
}

#[cfg(not(loom))]
#[inline]
pub(super) fn fence(_: At) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Like [`fence`], where the store is an exchange that has just succeeded. Of x86-64 no load passes
/// a locked instruction before it, so there it costs nothing more. See AMD64 Architecture
/// Programmer's Manual, volume 2, 7.2, and Intel SDM, volume 3A, "Memory Ordering".
#[cfg(not(loom))]
#[inline]
pub(super) fn fence_behind_exchange(at: At) {
    if cfg!(target_arch = "x86_64") {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    } else {
        fence(at);
    }
}

#[cfg(loom)]
pub(super) use model::{fence, fence as fence_behind_exchange};

#[cfg(loom)]
pub(super) mod model {
    use std::cell::Cell;

    use crate::peer_memory::fences::At;

    thread_local! {
        /// The one that is left out. All threads of a model are one of the system's.
        pub(crate) static LEFT_OUT: Cell<Option<At>> = const { Cell::new(None) };
    }

    pub(crate) fn fence(at: At) {
        if LEFT_OUT.get() != Some(at) {
            loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
        }
    }
}
