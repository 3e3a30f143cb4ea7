//! Protection domains and thread domains (ibv_alloc_pd(3), ibv_alloc_td(3),
//! ibv_alloc_parent_domain(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core_abi::verbs::{
    self as v, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::memory::handles;

/// A protection domain as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub nic: Arc<nic::Pd>,
    /// Regions, windows, queues and parent domains in it.
    pub users: AtomicU32,
    /// Of a parent domain: whose protection it gives, and its thread domain or NULL.
    parent: Option<(*mut ibv_pd, *mut ibv_td)>,
    /// Of a context that is closed first something is left until its domains are gone, and with
    /// them all that is in them.
    _context: Arc<Context>,
}

/// A thread domain, a promise that one thread uses what is made with it: nothing here depends on
/// that.
#[repr(C)]
struct Td {
    c: UnsafeCell<ibv_td>,
    /// Parent domains that have it.
    users: AtomicU32,
    _context: Arc<Context>,
}

impl Td {
    /// # Safety
    ///
    /// `td` came from [`alloc_td`] and lives.
    unsafe fn of<'a>(td: *mut ibv_td) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*td.cast::<Self>() }
    }
}

impl Pd {
    /// # Safety
    ///
    /// `pd` came from [`ibv_alloc_pd`] and lives.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*pd.cast::<Self>() }
    }

    /// A domain for a context.
    ///
    /// # Safety
    ///
    /// A context of ours that is not closed.
    pub(crate) unsafe fn make(
        context: *mut ibv_context,
        nic: Arc<nic::Pd>,
        parent: Option<(*mut ibv_pd, *mut ibv_td)>,
    ) -> *mut ibv_pd {
        let c = ibv_pd { context, handle: handles::remember_domain(&nic) };
        // SAFETY: as the caller says.
        let shared = unsafe { Context::share(context) };
        let pd = Self { c: c.into(), nic, users: AtomicU32::new(0), parent, _context: shared };
        Box::into_raw(Box::new(pd)).cast()
    }
}

/// ibv_alloc_pd(3). errno: ENOMEM at the limit of domains.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let nic = Arc::new(unsafe { Context::usable(context)? }.nic.alloc_pd()?);
        // SAFETY: as above.
        let pd = unsafe { Pd::make(context, nic, None) };
        checked::objects::domain_made(pd);
        Ok(pd)
    })
}

/// ibv_alloc_td(3), through the context's table. EINVAL for a mask that is not known.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let mask = unsafe { Context::usable(context).map(|_| (*attr).comp_mask)? };
        if mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let c = ibv_td { context };
        // SAFETY: as above.
        let _context = unsafe { Context::share(context) };
        Ok(Box::into_raw(Box::new(Td { c: c.into(), users: AtomicU32::new(0), _context })).cast())
    })
}

/// `ibv_dealloc_td`, ibv_alloc_td(3), through the context's table: EBUSY while parent domains use
/// it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a thread domain of ours, by the man page's contract.
        if unsafe { Td::of(td) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `alloc_td`, and no thread uses it.
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })
}

/// ibv_alloc_parent_domain(3), through the context's table: a domain that stands for another one.
/// Its allocators are not asked: no queue here lies in memory that a program could provide. EINVAL
/// without a domain, for a mask that is not known, or for one of the two allocators alone. Unlike
/// rdma-core: the program's allocators are never called.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | v::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let attr = unsafe { Context::usable(context).map(|_| &*attr)? };
        let (pd, td, mask) = (attr.pd, attr.td, attr.comp_mask);
        let given = attr.alloc.is_some() && attr.free.is_some();
        let claimed = mask & v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        if pd.is_null() || mask & !KNOWN != 0 || (claimed && !given) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: domains of ours, by the man page's contract.
        let nic = unsafe {
            if !td.is_null() {
                Td::of(td).users.fetch_add(1, Ordering::AcqRel);
            }
            let ours = Pd::of(pd);
            ours.users.fetch_add(1, Ordering::AcqRel);
            ours.nic.clone()
        };
        // SAFETY: as above.
        Ok(unsafe { Pd::make(context, nic, Some((pd, td))) })
    })
}

/// `ibv_dealloc_pd`, ibv_alloc_pd(3): EBUSY while regions, windows, queues or parent domains use
/// it.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(pd)?;
        // SAFETY: a domain of ours, by the man page's contract.
        if unsafe { Pd::of(pd) }.users.load(Ordering::Acquire) > 0 {
            return Err(checked::refusals::in_use("ibv_dealloc_pd", pd));
        }
        checked::objects::domain_gone(pd);
        // SAFETY: made by `Box::into_raw` in `Pd::make`, and no thread uses it.
        let gone = unsafe { checked::take(pd.cast::<Pd>(), "protection domain") };
        if let Some((parent, td)) = gone.parent {
            // SAFETY: they live as long as this one, by their EBUSY.
            unsafe {
                Pd::of(parent).users.fetch_sub(1, Ordering::AcqRel);
                if !td.is_null() {
                    Td::of(td).users.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
        Ok(())
    })
}
