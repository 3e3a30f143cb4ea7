//! What a shared receive queue is to be like (rpma_srq_cfg_new(3)).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::codes::{answer, require};
use crate::object::{end, make, of, put, take};

/// `struct rpma_srq_cfg`.
pub struct SrqCfg {
    rq_size: AtomicU32,
    rcq_size: AtomicU32,
}

/// The page says 100; upstream's makes 20.
const SIZE: u32 = 20;

impl SrqCfg {
    /// Entries of the queue, and of its completion queue, or 0 for none; the default's where there
    /// is no configuration.
    ///
    /// # Safety
    ///
    /// It lives, or is NULL.
    pub unsafe fn sizes(cfg: *const Self) -> (u32, u32) {
        // SAFETY: as the caller says.
        let sizes = unsafe { cfg.as_ref() };
        let sizes =
            sizes.map(|cfg| (cfg.rq_size.load(Ordering::Relaxed), cfg.rcq_size.load(Ordering::Relaxed)));
        sizes.unwrap_or((SIZE, SIZE))
    }
}

/// rpma_srq_cfg_new(3). As with upstream's, `*cfg` is NULL where there is no memory.
pub unsafe extern "C" fn rpma_srq_cfg_new(cfg: *mut *mut SrqCfg) -> c_int {
    let new = || {
        require(!cfg.is_null())?;
        let new = make(SrqCfg { rq_size: AtomicU32::new(SIZE), rcq_size: AtomicU32::new(SIZE) });
        // SAFETY: the crate's contract.
        unsafe { put(cfg, new.unwrap_or_default()) }?;
        new.map(drop)
    };
    answer(new())
}

/// rpma_srq_cfg_delete(3).
pub unsafe extern "C" fn rpma_srq_cfg_delete(cfg: *mut *mut SrqCfg) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(cfg) }.map(|cfg| {
        if !cfg.is_null() {
            // SAFETY: likewise.
            unsafe { end(cfg) }
        }
    }))
}

/// rpma_srq_cfg_set_rq_size(3).
pub unsafe extern "C" fn rpma_srq_cfg_set_rq_size(cfg: *mut SrqCfg, rq_size: u32) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(cfg) }.map(|cfg| cfg.rq_size.store(rq_size, Ordering::Relaxed)))
}

/// rpma_srq_cfg_get_rq_size(3).
pub unsafe extern "C" fn rpma_srq_cfg_get_rq_size(cfg: *const SrqCfg, rq_size: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(cfg).and_then(|cfg| put(rq_size, cfg.rq_size.load(Ordering::Relaxed))) })
}

/// rpma_srq_cfg_set_rcq_size(3).
pub unsafe extern "C" fn rpma_srq_cfg_set_rcq_size(cfg: *mut SrqCfg, rcq_size: u32) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(cfg) }.map(|cfg| cfg.rcq_size.store(rcq_size, Ordering::Relaxed)))
}

/// rpma_srq_cfg_get_rcq_size(3).
pub unsafe extern "C" fn rpma_srq_cfg_get_rcq_size(cfg: *const SrqCfg, rcq_size: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(cfg).and_then(|cfg| put(rcq_size, cfg.rcq_size.load(Ordering::Relaxed))) })
}
