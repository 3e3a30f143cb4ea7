//! Protection domains and memory regions (ibv_alloc_pd(3), ibv_reg_mr(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::verbs::{
    IBV_ACCESS_ZERO_BASED, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_INPUT,
    IBV_REREG_MR_FLAGS_SUPPORTED, ibv_context, ibv_mr, ibv_pd, ibv_sge, ibv_td,
};
use nic::memory::RegionOn;

use crate::border::{self, Errno};
use crate::verbs::context::Context;
use crate::verbs::import;
use crate::verbs::parent::Td;

/// A protection domain as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub nic: Arc<nic::Pd>,
    /// Regions and queue pairs in it, and parent domains over it.
    pub users: AtomicU32,
    /// What a parent domain stands over.
    parent: Option<Parent>,
}

/// What a parent domain stands over, counted in there.
pub(crate) struct Parent {
    pd: *mut ibv_pd,
    td: *mut ibv_td,
}

impl Parent {
    /// Counts a parent domain in at a protection domain, and at a thread domain where it has one.
    ///
    /// # Safety
    ///
    /// A domain of ours that lives, and a thread domain likewise or NULL.
    pub unsafe fn take(pd: *mut ibv_pd, td: *mut ibv_td) -> Parent {
        let parent = Parent { pd, td };
        // SAFETY: as the caller says.
        unsafe { parent.count(|users| _ = users.fetch_add(1, Ordering::AcqRel)) };
        parent
    }

    /// # Safety
    ///
    /// Both still live.
    unsafe fn count(&self, count: impl Fn(&AtomicU32)) {
        // SAFETY: as the caller says.
        unsafe {
            count(&Pd::of(self.pd).users);
            if !self.td.is_null() {
                count(&Td::of(self.td).users);
            }
        }
    }
}

impl Pd {
    /// # Safety
    ///
    /// `pd` came from [`ibv_alloc_pd`] and lives.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Pd {
        // SAFETY: the C part is the first field.
        unsafe { &*pd.cast::<Pd>() }
    }

    /// A parent domain.
    ///
    /// # Safety
    ///
    /// What it stands over lives.
    pub unsafe fn with_parent(context: *mut ibv_context, parent: Parent) -> *mut ibv_pd {
        // SAFETY: as the caller says.
        let nic = unsafe { Pd::of(parent.pd) }.nic.clone();
        Pd::make(context, nic, Some(parent))
    }

    /// A domain for a context.
    pub fn make(context: *mut ibv_context, nic: Arc<nic::Pd>, parent: Option<Parent>) -> *mut ibv_pd {
        let c = ibv_pd { context, handle: import::remember_domain(&nic) };
        Box::into_raw(Box::new(Pd { c: c.into(), nic, users: AtomicU32::new(0), parent })).cast()
    }
}

/// A region as C sees it, and the adapter's. It keeps its domain alive.
#[repr(C)]
struct Mr {
    c: UnsafeCell<ibv_mr>,
    nic: nic::Mr,
    /// The domain it was registered in: its device has the table of regions, whatever domain it has gone to since.
    pd: Arc<nic::Pd>,
    /// The device memory it lies on.
    on: Option<RegionOn>,
}

/// `ibv_alloc_pd`. errno: ENOMEM at the limit of domains.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    border::or_null(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let nic = Arc::new(unsafe { Context::usable(context)? }.nic.alloc_pd()?);
        Ok(Pd::make(context, nic, None))
    })
}

/// `ibv_dealloc_pd`: EBUSY while regions, queue pairs or parent domains use it.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    border::or_errno(|| {
        // SAFETY: a domain of ours, by the man page's contract.
        if unsafe { Pd::of(pd) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `Pd::make`, and used by nobody.
        let ours = unsafe { Box::from_raw(pd.cast::<Pd>()) };
        if let Some(parent) = &ours.parent {
            // SAFETY: what it stands over lives as long as it, by the EBUSY of both.
            unsafe { parent.count(|users| _ = users.fetch_sub(1, Ordering::AcqRel)) };
        }
        Ok(())
    })
}

/// Registers memory; see [`nic::memory::Table::register`] for the errors.
fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr {
    border::or_null(|| {
        // SAFETY: a domain of ours and its context, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        let nic = ours.nic.register(addr.expose_provenance() as u64, length as u64, iova, access)?;
        // SAFETY: as above.
        Ok(unsafe { make(pd, nic, addr, length, None) })
    })
}

/// Registers `length` bytes of device memory at `at`, named by offsets; `addr` is NULL then, as rdma-core has it.
pub(crate) fn register_on(
    pd: *mut ibv_pd,
    at: u64,
    length: usize,
    access: c_uint,
    on: RegionOn,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: a domain of ours, as the caller has checked.
    let nic = unsafe { Pd::of(pd) }.nic.register(at, length as u64, 0, access)?;
    // SAFETY: as above.
    Ok(unsafe { make(pd, nic, std::ptr::null_mut(), length, Some(on)) })
}

/// A region for a domain.
///
/// # Safety
///
/// A domain of ours that lives.
pub(crate) unsafe fn make(
    pd: *mut ibv_pd,
    nic: nic::Mr,
    addr: *mut c_void,
    length: usize,
    on: Option<RegionOn>,
) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    let (ours, context) = unsafe { (Pd::of(pd), (*pd).context) };
    ours.users.fetch_add(1, Ordering::AcqRel);
    let c = ibv_mr { context, pd, addr, length, handle: nic.key.0 >> 16, lkey: nic.key.0, rkey: nic.key.0 };
    Box::into_raw(Box::new(Mr { c: c.into(), nic, pd: ours.nic.clone(), on })).cast()
}

/// `ibv_rereg_mr`: the keys stay; what peers send meanwhile is refused as an access error. Answers an
/// `ibv_rereg_mr_err_code` with errno: EINVAL for flags, arguments or rights that are not legal, or device memory;
/// EFAULT for memory not mapped with these rights; ENODEV for a parent's region in a forked child. Whatever fails,
/// the region is as it was.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    border::or(IBV_REREG_MR_ERR_INPUT, || {
        let has = |flag: u32| flags.cast_unsigned() & flag != 0;
        let (to_pd, to_memory) = (has(IBV_REREG_MR_CHANGE_PD), has(IBV_REREG_MR_CHANGE_TRANSLATION));
        let rights = has(IBV_REREG_MR_CHANGE_ACCESS).then_some(access.cast_unsigned());
        // SAFETY: a region of ours, by the man page's contract; its own domain and key do not change while this lives.
        let ours = unsafe { &*mr.cast::<Mr>() };
        if flags.cast_unsigned() & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
            || (to_memory && (addr.is_null() || length == 0))
            || (to_pd && pd.is_null())
            || (rights.is_none() && access != 0)
            || ours.on.is_some()
        {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as above; the context outlives its regions.
        let (old_pd, context) = unsafe { ((*mr).pd, Context::of((*mr).context)) };
        if !context.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        // SAFETY: a domain of ours, by the man page's contract.
        let new_pd = to_pd.then(|| unsafe { Pd::of(pd) });
        let at = addr.expose_provenance() as u64;
        let range = to_memory.then_some((at, length as u64, at));
        ours.pd.reregister(ours.nic, new_pd.map(|p| &*p.nic), range, rights)?;
        if let Some(new) = new_pd {
            new.users.fetch_add(1, Ordering::AcqRel);
            // SAFETY: a domain lives as long as its regions.
            unsafe { Pd::of(old_pd) }.users.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: C-visible fields of a region that nobody else touches now, and that `ours` holds in a cell.
        unsafe {
            if to_pd {
                (*mr).pd = pd;
            }
            if to_memory {
                ((*mr).addr, (*mr).length) = (addr, length);
            }
        }
        Ok(0)
    })
}

/// `ibv_reg_mr`. errno: EINVAL for illegal access flags, EFAULT for memory not mapped with these rights, ENOMEM at
/// the limit, EOPNOTSUPP for on-demand paging where the kernel (before 5.14) cannot tell what is mapped. With
/// `IBV_ACCESS_ZERO_BASED` addresses count from the first byte.
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

/// Takes away what [`make`] made: the region itself, and whether it is this process's.
///
/// # Safety
///
/// It is used by nobody any more.
pub(crate) unsafe fn forget(mr: *mut ibv_mr) -> (nic::Mr, Arc<nic::Pd>, Option<RegionOn>, bool) {
    // SAFETY: made by `Box::into_raw` in `make`.
    let mr = unsafe { Box::from_raw(mr.cast::<Mr>()) };
    let Mr { c, nic, pd: domain, on } = *mr;
    let ibv_mr { pd, context, .. } = c.into_inner();
    // SAFETY: a domain lives as long as its regions, by `ibv_dealloc_pd`'s EBUSY; so does their context.
    let ours = unsafe {
        Pd::of(pd).users.fetch_sub(1, Ordering::AcqRel);
        Context::of(context).instance.is_ours()
    };
    (nic, domain, on, ours)
}

/// `ibv_dereg_mr`: no access is under way any more when it returns.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    border::or_errno(|| {
        // SAFETY: a region of ours, by the man page's contract. Device memory under it stays until the end of this call.
        let (nic, pd, _on, ours) = unsafe { forget(mr) };
        // In a forked child accesses that were under way in the parent never end.
        if ours { Ok(pd.deregister(nic)?) } else { Ok(()) }
    })
}

/// `ibv_advise_mr`, through the context's table. EINVAL for flags, or a region without on-demand paging; EOPNOTSUPP
/// for other advice; EFAULT for a key, range or memory that does not exist; EPERM for a region that may not be
/// written.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    border::or_errno(|| {
        // SAFETY: a domain of ours, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        let write = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Some(false),
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Some(true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => None,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || num_sges == 0 {
            return Err(Errno(libc::EINVAL));
        }
        for i in 0..num_sges as usize {
            // SAFETY: the caller's array has `num_sges` elements.
            let ibv_sge { addr, length, lkey } = unsafe { *sg_list.add(i) };
            ours.nic.prefetch(transport::Sge { addr, length, lkey: wire::Rkey(lkey) }, write)?;
        }
        Ok(())
    })
}
