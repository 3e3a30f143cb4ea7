//! What a connection is to be like (rpma_conn_cfg_new(3)). Numbers are taken as they are; what uses
//! them may fail.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::codes::{answer, require};
use crate::object::{end, make, of, put, take};
use crate::srq::Srq;
use crate::utils::DEFAULT_TIMEOUT_MS;

/// `struct rpma_conn_cfg`. Several threads may read and write one, as with upstream's.
pub struct ConnCfg {
    timeout_ms: AtomicI32,
    cq_size: AtomicU32,
    rcq_size: AtomicU32,
    sq_size: AtomicU32,
    rq_size: AtomicU32,
    shared_channel: AtomicBool,
    srq: AtomicPtr<Srq>,
}

/// What one says at a time.
#[derive(Clone, Copy)]
pub struct Values {
    /// Of each step of a request, in milliseconds.
    pub timeout_ms: c_int,
    /// Entries of the completion queue.
    pub cq_size: u32,
    /// Of the one for receives; 0: there is none.
    pub rcq_size: u32,
    /// Entries of the send queue.
    pub sq_size: u32,
    /// Of the receive queue.
    pub rq_size: u32,
    /// Whether both completion queues announce on one channel.
    pub shared_channel: bool,
    /// Where receives come from, or NULL.
    pub srq: *mut Srq,
}

impl Default for ConnCfg {
    fn default() -> Self {
        Self {
            timeout_ms: AtomicI32::new(DEFAULT_TIMEOUT_MS),
            cq_size: AtomicU32::new(10),
            rcq_size: AtomicU32::new(0),
            sq_size: AtomicU32::new(10),
            rq_size: AtomicU32::new(10),
            shared_channel: AtomicBool::new(false),
            srq: AtomicPtr::default(),
        }
    }
}

impl ConnCfg {
    /// What a configuration says, or what the default does where there is none.
    ///
    /// # Safety
    ///
    /// It lives, or is NULL.
    pub unsafe fn values(cfg: *const Self) -> Values {
        // SAFETY: as the caller says.
        unsafe { cfg.as_ref() }.map_or_else(|| Self::default().all(), Self::all)
    }

    fn all(&self) -> Values {
        Values {
            timeout_ms: self.timeout_ms.load(Ordering::Relaxed),
            cq_size: self.cq_size.load(Ordering::Relaxed),
            rcq_size: self.rcq_size.load(Ordering::Relaxed),
            sq_size: self.sq_size.load(Ordering::Relaxed),
            rq_size: self.rq_size.load(Ordering::Relaxed),
            shared_channel: self.shared_channel.load(Ordering::Relaxed),
            srq: self.srq.load(Ordering::Relaxed),
        }
    }
}

/// rpma_conn_cfg_new(3). As with upstream's, `*cfg` is NULL where there is no memory.
pub unsafe extern "C" fn rpma_conn_cfg_new(cfg: *mut *mut ConnCfg) -> c_int {
    let new = || {
        require(!cfg.is_null())?;
        let new = make(ConnCfg::default());
        // SAFETY: the crate's contract.
        unsafe { put(cfg, new.unwrap_or_default()) }?;
        new.map(drop)
    };
    answer(new())
}

/// rpma_conn_cfg_delete(3).
pub unsafe extern "C" fn rpma_conn_cfg_delete(cfg: *mut *mut ConnCfg) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(cfg) }.map(|cfg| {
        if !cfg.is_null() {
            // SAFETY: likewise.
            unsafe { end(cfg) }
        }
    }))
}

/// Sets one of them, where it can be so.
///
/// # Safety
///
/// It lives, or is NULL.
unsafe fn set(cfg: *mut ConnCfg, can_be: bool, set: impl FnOnce(&ConnCfg)) -> c_int {
    // SAFETY: as the caller says.
    answer(unsafe { of(cfg) }.and_then(|cfg| require(can_be).map(|()| set(cfg))))
}

/// Gets one of them.
///
/// # Safety
///
/// It lives, or is NULL; and so for the out parameter.
unsafe fn get<T>(cfg: *const ConnCfg, out: *mut T, value: impl FnOnce(Values) -> T) -> c_int {
    // SAFETY: as the caller says.
    answer(unsafe { of(cfg).and_then(|cfg| put(out, value(cfg.all()))) })
}

/// rpma_conn_cfg_set_timeout(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_timeout(cfg: *mut ConnCfg, timeout_ms: c_int) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, timeout_ms >= 0, |cfg| cfg.timeout_ms.store(timeout_ms, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_timeout(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_timeout(cfg: *const ConnCfg, timeout_ms: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, timeout_ms, |all| all.timeout_ms) }
}

/// rpma_conn_cfg_set_cq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_cq_size(cfg: *mut ConnCfg, cq_size: u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, true, |cfg| cfg.cq_size.store(cq_size, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_cq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_cq_size(cfg: *const ConnCfg, cq_size: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, cq_size, |all| all.cq_size) }
}

/// rpma_conn_cfg_set_rcq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_rcq_size(cfg: *mut ConnCfg, rcq_size: u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, true, |cfg| cfg.rcq_size.store(rcq_size, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_rcq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_rcq_size(cfg: *const ConnCfg, rcq_size: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, rcq_size, |all| all.rcq_size) }
}

/// rpma_conn_cfg_set_sq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_sq_size(cfg: *mut ConnCfg, sq_size: u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, true, |cfg| cfg.sq_size.store(sq_size, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_sq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_sq_size(cfg: *const ConnCfg, sq_size: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, sq_size, |all| all.sq_size) }
}

/// rpma_conn_cfg_set_rq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_rq_size(cfg: *mut ConnCfg, rq_size: u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, true, |cfg| cfg.rq_size.store(rq_size, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_rq_size(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_rq_size(cfg: *const ConnCfg, rq_size: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, rq_size, |all| all.rq_size) }
}

/// rpma_conn_cfg_set_compl_channel(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_compl_channel(cfg: *mut ConnCfg, shared: bool) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, true, |cfg| cfg.shared_channel.store(shared, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_compl_channel(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_compl_channel(cfg: *const ConnCfg, shared: *mut bool) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, shared, |all| all.shared_channel) }
}

/// rpma_conn_cfg_set_srq(3).
pub unsafe extern "C" fn rpma_conn_cfg_set_srq(cfg: *mut ConnCfg, srq: *mut Srq) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { set(cfg, !srq.is_null(), |cfg| cfg.srq.store(srq, Ordering::Relaxed)) }
}

/// rpma_conn_cfg_get_srq(3).
pub unsafe extern "C" fn rpma_conn_cfg_get_srq(cfg: *const ConnCfg, srq: *mut *mut Srq) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { get(cfg, srq, |all| all.srq) }
}
