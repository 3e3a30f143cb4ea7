//! Protection domains and memory regions (ibv_alloc_pd(3), ibv_reg_mr(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::verbs::{IBV_ACCESS_ZERO_BASED, ibv_context, ibv_mr, ibv_pd};

use crate::border::{self, Errno};
use crate::verbs::context::Context;

/// A protection domain as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub nic: Arc<nic::Pd>,
    /// Regions and queue pairs in it.
    pub users: AtomicU32,
}

impl Pd {
    /// # Safety
    ///
    /// `pd` came from [`ibv_alloc_pd`] and lives.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Pd {
        // SAFETY: the C part is the first field.
        unsafe { &*pd.cast::<Pd>() }
    }
}

/// A region as C sees it, and the adapter's. It keeps its domain alive.
#[repr(C)]
struct Mr {
    c: UnsafeCell<ibv_mr>,
    nic: nic::Mr,
    pd: Arc<nic::Pd>,
}

/// `ibv_alloc_pd`. errno: ENOMEM at the limit of domains.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    border::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let nic = Arc::new(unsafe { Context::usable(context)? }.nic.alloc_pd()?);
        let c = ibv_pd { context, handle: 0 };
        Ok(Box::into_raw(Box::new(Pd { c: c.into(), nic, users: AtomicU32::new(0) })).cast())
    })
}

/// `ibv_dealloc_pd`: EBUSY while regions or queue pairs use it.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    border::or_errno(|| {
        // SAFETY: a domain of ours, by the man page's contract.
        if unsafe { Pd::of(pd) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `ibv_alloc_pd`, and used by nobody.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })
}

/// Registers memory; see [`nic::memory::Table::register`] for the errors.
fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr {
    border::or_null(|| {
        // SAFETY: a domain of ours and its context, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        let nic = ours.nic.register(addr.expose_provenance() as u64, length as u64, iova, access)?;
        ours.users.fetch_add(1, Ordering::AcqRel);
        let c = ibv_mr {
            // SAFETY: as above.
            context: unsafe { (*pd).context },
            pd,
            addr,
            length,
            handle: nic.key.0 >> 16,
            lkey: nic.key.0,
            rkey: nic.key.0,
        };
        Ok(Box::into_raw(Box::new(Mr { c: c.into(), nic, pd: ours.nic.clone() })).cast())
    })
}

/// `ibv_reg_mr`. errno: EINVAL for illegal access flags, EFAULT for memory not mapped with these rights, ENOMEM at the limit,
/// EOPNOTSUPP for on-demand paging. With `IBV_ACCESS_ZERO_BASED` addresses count from the first byte.
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = access as c_uint;
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    register(pd, addr, length, if zero_based { 0 } else { addr.expose_provenance() as u64 }, access)
}

/// `ibv_reg_mr_iova`: work requests and peers name the first byte by `iova`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    register(pd, addr, length, iova, access as c_uint)
}

/// `ibv_reg_mr_iova2`: what the header's `ibv_reg_mr` calls where access has optional flags.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register(pd, addr, length, iova, access)
}

/// `ibv_dereg_mr`: no access is under way any more when it returns.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    border::or_errno(|| {
        // SAFETY: made by `Box::into_raw` in `register`, by the man page's contract.
        let mr = unsafe { Box::from_raw(mr.cast::<Mr>()) };
        let ibv_mr { pd, context, .. } = mr.c.into_inner();
        // SAFETY: a domain lives as long as its regions, by `ibv_dealloc_pd`'s EBUSY; so does their context.
        let ours = unsafe {
            Pd::of(pd).users.fetch_sub(1, Ordering::AcqRel);
            Context::of(context).instance.is_ours()
        };
        // In a forked child accesses that were under way in the parent never end.
        if ours { Ok(mr.pd.deregister(mr.nic)?) } else { Ok(()) }
    })
}
