//! Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).
//!
//! A parent domain is a protection domain in all that takes one: the keys of one are good in the other. What a thread
//! domain promises, that one thread uses its objects, changes nothing here; and no queue lies in memory that a
//! program could give, so allocators are accepted and never asked.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::verbs::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, verbs_context,
};

use crate::border::{self, Errno};
use crate::verbs::context::Context;
use crate::verbs::memory::{Parent, Pd};

/// A thread domain as C sees it, and how many parent domains have it.
#[repr(C)]
pub(crate) struct Td {
    c: UnsafeCell<ibv_td>,
    pub users: AtomicU32,
}

impl Td {
    /// # Safety
    ///
    /// `td` came from [`alloc_td`] and lives.
    pub unsafe fn of<'a>(td: *mut ibv_td) -> &'a Td {
        // SAFETY: the C part is the first field.
        unsafe { &*td.cast::<Td>() }
    }
}

/// Enters the calls into a context's table.
pub(crate) fn enter(c: &mut verbs_context) {
    c.alloc_td = Some(alloc_td);
    c.dealloc_td = Some(dealloc_td);
    c.alloc_parent_domain = Some(alloc_parent_domain);
}

/// `ibv_alloc_td`. errno: EINVAL for an unknown `comp_mask`.
unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    border::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let mask = unsafe {
            Context::usable(context)?;
            (*attr).comp_mask
        };
        if mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Box::into_raw(Box::new(Td { c: ibv_td { context }.into(), users: AtomicU32::new(0) })).cast())
    })
}

/// `ibv_dealloc_td`: EBUSY while a parent domain has it.
unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    border::or_errno(|| {
        // SAFETY: a thread domain of ours, by the man page's contract.
        if unsafe { Td::of(td) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `alloc_td`, and used by nobody.
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })
}

/// `ibv_alloc_parent_domain`; `ibv_dealloc_pd` takes it back. errno: EINVAL for an unknown `comp_mask`, no domain, a
/// domain or thread domain of another context, or one of the two allocators alone.
unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    border::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let attr = unsafe {
            Context::usable(context)?;
            &*attr
        };
        let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        // SAFETY: NULL or objects of ours, as above.
        let elsewhere = unsafe {
            attr.pd.is_null()
                || (*attr.pd).context != context
                || (!attr.td.is_null() && (*attr.td).context != context)
        };
        if elsewhere
            || attr.comp_mask & !KNOWN != 0
            || (allocators && (attr.alloc.is_none() || attr.free.is_none()))
        {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: a domain of ours, as above.
        Ok(unsafe { Pd::with_parent(context, Parent::take(attr.pd, attr.td)) })
    })
}
