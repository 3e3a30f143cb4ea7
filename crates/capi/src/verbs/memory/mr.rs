//! Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3), ibv_advise_mr(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::Advice;
use nic::memory::dm::RegionOn;
use rdma_core_abi::verbs::{
    self as v, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ZERO_BASED, ibv_mr, ibv_pd, ibv_sge,
};
use transport::Sge;
use wire::Rkey;

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::live::Live;

use crate::verbs::memory::mapping::{Mapping, PAGE};
use crate::verbs::memory::pd::Pd;

/// A region as C sees it, and the adapter's. It keeps its domain alive.
#[repr(C)]
struct Mr {
    c: UnsafeCell<ibv_mr>,
    nic: nic::Mr,
    /// The domain it was registered in: its device has the table of regions, whatever domain it has
    /// gone to since.
    pd: Arc<nic::Pd>,
    access: c_uint,
    /// What it lies on, where that is not the program's own memory.
    on: Option<Under>,
    /// Of another context's region that was imported here.
    imported: bool,
}

/// The regions there are.
static MRS: Live = Live::new();

/// Ends the regions of a context, as its file is closing: peers find no memory of this program any
/// more, which may free it. Their C objects stay.
pub(crate) fn end_all(context: &Context) {
    MRS.each(|mr: *mut ibv_mr| {
        // SAFETY: it is in the table, and stays while it is looked at; so does its context.
        let (ours, of) = unsafe { (&*mr.cast::<Mr>(), Context::of((*mr).context)) };
        if std::ptr::eq(of, context) && !ours.imported {
            // An error says that it is no more.
            _ = ours.pd.deregister(ours.nic);
        }
    });
}

/// What a region lies on and keeps; held, never looked at.
#[derive(Debug)]
pub(crate) enum Under {
    Device(#[expect(dead_code, reason = "held for its drop")] RegionOn),
    Mapping(#[expect(dead_code, reason = "held for its drop")] Mapping),
}

/// Registers memory; see [`nic::memory::Table::register`] for the errors.
pub(crate) fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: a domain of ours and its context, by the man page's contract.
    let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
    let start = addr.expose_provenance() as u64;
    // SAFETY: memory that the program lets its peers read and write until it deregisters it, by the
    // man page's contract.
    let nic = unsafe { ours.nic.register(start, length as u64, iova, access) };
    let nic = nic.inspect_err(checked::refusals::tell("ibv_reg_mr"))?;
    // SAFETY: as above.
    let mr = unsafe { make(pd, nic, addr, length, access, None) };
    checked::objects::region_is_at(nic.key.0, start, iova);
    Ok(mr)
}

/// Registers `length` bytes of device memory at `at`, named by offsets; `addr` is NULL then, as
/// rdma-core has it.
pub(crate) fn register_on(
    pd: *mut ibv_pd,
    at: u64,
    length: usize,
    access: c_uint,
    on: RegionOn,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: a domain of ours, as the caller has checked; the device memory stays while `on`
    // lives, which the region keeps.
    let nic = unsafe { Pd::of(pd).nic.register(at, length as u64, 0, access)? };
    // SAFETY: as above.
    Ok(unsafe { make(pd, nic, null_mut(), length, access, Some(Under::Device(on))) })
}

/// The C object of a region of a domain.
///
/// # Safety
///
/// A domain of ours that lives.
pub(crate) unsafe fn make(
    pd: *mut ibv_pd,
    nic: nic::Mr,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
    on: Option<Under>,
) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    unsafe { enter(pd, nic, addr, length, access, on, false) }
}

/// The C object of another context's region.
///
/// # Safety
///
/// As for [`make`].
pub(crate) unsafe fn make_imported(pd: *mut ibv_pd, nic: nic::Mr, length: usize) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    unsafe { enter(pd, nic, null_mut(), length, 0, None, true) }
}

unsafe fn enter(
    pd: *mut ibv_pd,
    nic: nic::Mr,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
    on: Option<Under>,
    imported: bool,
) -> *mut ibv_mr {
    // SAFETY: as the caller says.
    let (ours, context) = unsafe { (Pd::of(pd), (*pd).context) };
    ours.users.fetch_add(1, Ordering::AcqRel);
    let key = nic.key.0;
    let c = ibv_mr { context, pd, addr, length, handle: key >> 16, lkey: key, rkey: key };
    let mr = Mr { c: c.into(), nic, pd: ours.nic.clone(), access, on, imported };
    let mr = Box::into_raw(Box::new(mr));
    MRS.enter(mr);
    // SAFETY: just made.
    unsafe {
        checked::objects::region_made(mr.cast(), if imported { IBV_ACCESS_LOCAL_WRITE } else { access })
    };
    mr.cast()
}

/// ibv_reg_mr(3). errno: EINVAL for illegal access flags, and for `IBV_ACCESS_FLUSH_PERSISTENT`
/// where the memory is not of a file mapped MAP_SHARED; EFAULT for memory not mapped with these
/// rights; ENOMEM at the limit. With `IBV_ACCESS_ZERO_BASED` addresses count from the first byte.
/// Unlike rdma_rxe: nothing is pinned: memory that is unmapped while registered is an access error.
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let access = access as c_uint;
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    let iova = if zero_based { 0 } else { addr.expose_provenance() as u64 };
    ffi_guard::or_null(|| register(pd, addr, length, iova, access))
}

/// Registers memory under another address, which lies at its place in a page: EINVAL where it does
/// not, as adapters translate page by page and uverbs asks it of all.
pub(crate) fn register_as(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    if !(iova ^ addr.addr() as u64).is_multiple_of(PAGE) {
        return Err(Errno(libc::EINVAL));
    }
    register(pd, addr, length, iova, access)
}

/// `ibv_reg_mr_iova`, ibv_reg_mr(3): work requests and peers name the first byte by `iova`. EINVAL
/// too where it lies elsewhere in its page than `addr`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ffi_guard::or_null(|| register_as(pd, addr, length, iova, access as c_uint))
}

/// `ibv_reg_mr_iova2`, ibv_reg_mr(3): what the header's `ibv_reg_mr` calls where access has
/// optional flags. errno as of [`ibv_reg_mr_iova`].
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    ffi_guard::or_null(|| register_as(pd, addr, length, iova, access))
}

/// ibv_rereg_mr(3): the key stays. 0, or IBV_REREG_MR_ERR_INPUT with errno: the region is what it
/// was. EINVAL for flags and arguments that do not fit each other, device memory or a dma-buf;
/// EINVAL and EFAULT as for `ibv_reg_mr`; EBUSY while windows are bound to it.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let (flags, access) = (flags.cast_unsigned(), access.cast_unsigned());
    let has = |bit| flags & bit != 0;
    let moves = has(v::IBV_REREG_MR_CHANGE_TRANSLATION);
    let bad = flags & !v::IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (moves && (length == 0 || addr.is_null()))
        || (has(v::IBV_REREG_MR_CHANGE_PD) && pd.is_null())
        || (access != 0 && !has(v::IBV_REREG_MR_CHANGE_ACCESS))
        // SAFETY: a region of ours, by the man page's contract.
        || unsafe { (*mr.cast::<Mr>()).on.is_some() };
    if bad {
        ffi_guard::set_errno(Errno(libc::EINVAL));
        return v::IBV_REREG_MR_ERR_INPUT;
    }
    ffi_guard::or(v::IBV_REREG_MR_ERR_INPUT, || {
        // SAFETY: a region of ours that no other thread changes meanwhile, and a domain of ours, by
        // the man page's contract.
        let (ours, new_pd) = unsafe {
            let ours = &mut *mr.cast::<Mr>();
            Context::usable(ours.c.get_mut().context)?;
            (ours, has(v::IBV_REREG_MR_CHANGE_PD).then(|| Pd::of(pd)))
        };
        let rights = if has(v::IBV_REREG_MR_CHANGE_ACCESS) { access } else { ours.access };
        let start = addr.expose_provenance() as u64;
        let iova = if rights & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { start };
        let place = moves.then_some((start, length as u64, iova));
        // SAFETY: as for registration.
        unsafe { ours.pd.reregister(ours.nic, new_pd.map(|p| &*p.nic), place, Some(rights))? };
        ours.access = rights;
        let c = ours.c.get_mut();
        if moves {
            (c.addr, c.length) = (addr, length);
        }
        if let Some(new) = new_pd {
            new.users.fetch_add(1, Ordering::AcqRel);
            // SAFETY: a domain lives as long as its regions, by its EBUSY.
            unsafe { Pd::of(c.pd) }.users.fetch_sub(1, Ordering::AcqRel);
            c.pd = pd;
            ours.pd = new.nic.clone();
        }
        // SAFETY: as above.
        unsafe { checked::objects::region_changed(mr, rights, place) };
        Ok(0)
    })
}

/// ibv_alloc_null_mr(3), through the context's table: for local use, reads as zero, what is written
/// is lost.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    ffi_guard::or_null(|| {
        // SAFETY: a domain of ours and its context, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        let nic = ours.nic.register_null()?;
        // SAFETY: as above.
        Ok(unsafe { make(pd, nic, null_mut(), usize::MAX, IBV_ACCESS_LOCAL_WRITE, None) })
    })
}

/// ibv_advise_mr(3), through the context's table: brings pages in before they are used, at once
/// whatever the flags. EINVAL for no elements, unknown flags or a region without on-demand paging;
/// ENOENT for a key of nothing; EFAULT beyond the region or the process's memory; EPERM for another
/// domain's region or one that may not be written; EOPNOTSUPP for other advice.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: v::ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    ffi_guard::or_errno(|| {
        let write = match advice {
            v::IBV_ADVISE_MR_ADVICE_PREFETCH | v::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
            v::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        if flags & !v::IBV_ADVISE_MR_FLAG_FLUSH != 0 || num_sge == 0 || sg_list.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: a domain of ours and its context, by the man page's contract.
        let ours = unsafe { Context::usable((*pd).context).map(|_| Pd::of(pd))? };
        for i in 0..num_sge as usize {
            // SAFETY: the caller's list has so many elements.
            let s = unsafe { *sg_list.add(i) };
            let sge = Sge { addr: s.addr, length: s.length, lkey: Rkey(s.lkey) };
            ours.nic.prefetch(sge, write).map_err(|why| {
                Errno(match why {
                    Advice::NoKey => libc::ENOENT,
                    Advice::Forbidden => libc::EPERM,
                    Advice::NotOnDemand => libc::EINVAL,
                    Advice::Fault => libc::EFAULT,
                })
            })?;
        }
        Ok(())
    })
}

/// Takes away the C object that [`make`] made; the memory under it stays as long as what is
/// returned.
///
/// # Safety
///
/// No thread uses it any more.
pub(crate) unsafe fn forget(mr: *mut ibv_mr) -> Option<Under> {
    MRS.leave(mr);
    // SAFETY: as the caller says.
    checked::objects::region_gone(unsafe { (*mr).lkey });
    // SAFETY: made by `Box::into_raw` in `enter`.
    let Mr { c, on, .. } = unsafe { checked::take(mr.cast::<Mr>(), "memory region") };
    // SAFETY: a domain lives as long as its regions, by `ibv_dealloc_pd`'s EBUSY.
    unsafe { Pd::of(c.into_inner().pd) }.users.fetch_sub(1, Ordering::AcqRel);
    on
}

/// `ibv_dereg_mr`, ibv_reg_mr(3): no access is under way any more when it returns. EBUSY while
/// windows are bound to it.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(mr)?;
        // SAFETY: a region of ours and its context, by the man page's contract.
        let (ours, context) = unsafe { (&*mr.cast::<Mr>(), Context::of((*mr).context)) };
        // In a forked child accesses that were under way in the parent never end. A context's end
        // has ended its regions.
        if context.instance.is_ours() && !context.is_closed() {
            checked::objects::region_going(ours.nic.key.0);
            ours.pd.deregister(ours.nic)?;
        }
        // SAFETY: as above, and no thread uses it.
        drop(unsafe { forget(mr) });
        Ok(())
    })
}
