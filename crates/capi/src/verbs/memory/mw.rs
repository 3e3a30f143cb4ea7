//! Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)), through the context's table.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nic::WindowType;
use rdma_core_abi::verbs::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp};
use transport::op::{Bind, Data, LocalOp, SendOp};
use wire::Rkey;

use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::live::Live;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::object::Qp;
use crate::verbs::qp::request;

/// A window as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Mw {
    c: UnsafeCell<ibv_mw>,
    nic: nic::Mw,
    pd: Arc<nic::Pd>,
}

/// The windows there are.
static MWS: Live = Live::new();

/// Ends the windows of a context, as its file is closing; their C objects stay.
pub(crate) fn end_all(context: &Context) {
    MWS.each(|mw: *mut ibv_mw| {
        // SAFETY: it is in the table, and stays while it is looked at; so does its context.
        let (ours, of) = unsafe { (Mw::of(mw), Context::of((*mw).context)) };
        if std::ptr::eq(of, context) {
            // An error says that it is no more.
            _ = ours.pd.free_window(ours.nic);
        }
    });
}

impl Mw {
    /// # Safety
    ///
    /// `mw` came from [`alloc_mw`] and lives.
    unsafe fn of<'a>(mw: *mut ibv_mw) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*mw.cast::<Self>() }
    }
}

/// ibv_alloc_mw(3). errno: EINVAL for a type that is not known, ENOMEM at the limit.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    ffi_guard::or_null(|| {
        // SAFETY: a domain of ours and its context, by the man page's contract.
        let (context, ours) = unsafe { ((*pd).context, Pd::of(pd)) };
        // SAFETY: as above.
        unsafe { Context::usable(context)? };
        let known = [WindowType::One, WindowType::Two].into_iter().find(|t| *t as u32 == kind);
        let nic = ours.nic.alloc_window(known.ok_or(Errno(libc::EINVAL))?)?;
        ours.users.fetch_add(1, Ordering::AcqRel);
        let rkey = ours.nic.window_key(nic).0;
        let c = ibv_mw { context, pd, rkey, handle: rkey >> 16, type_: kind };
        let mw = Box::into_raw(Box::new(Mw { c: c.into(), nic, pd: ours.nic.clone() }));
        MWS.enter(mw);
        Ok(mw.cast())
    })
}

/// `ibv_dealloc_mw`, ibv_alloc_mw(3): unbinds it; no access through it is under way any more when
/// it returns.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a window of ours and its context, by the man page's contract.
        let (ours, context) = unsafe { (Mw::of(mw), Context::of((*mw).context)) };
        // A context's end has ended its windows.
        if context.instance.is_ours() && !context.is_closed() {
            ours.pd.free_window(ours.nic)?;
        }
        MWS.leave(mw);
        // SAFETY: a domain lives as long as its windows, by its EBUSY; made by `Box::into_raw` in
        // `alloc_mw`, and no thread uses it.
        unsafe {
            Pd::of((*mw).pd).users.fetch_sub(1, Ordering::AcqRel);
            drop(Box::from_raw(mw.cast::<Mw>()));
        }
        Ok(())
    })
}

/// The binding of a window to what `info` says, under `key`.
///
/// # Safety
///
/// A window of ours, and a region of ours or NULL.
unsafe fn bind(mw: *mut ibv_mw, info: &ibv_mw_bind_info, key: Rkey) -> SendOp {
    // SAFETY: as the caller says.
    let (window, region) =
        unsafe { (Mw::of(mw).nic.name(), if info.mr.is_null() { Rkey(0) } else { Rkey((*info.mr).lkey) }) };
    let (addr, length, access) = (info.addr, info.length, info.mw_access_flags);
    SendOp::Local(LocalOp::Bind(Bind { window, key, region, addr, length, access }))
}

/// The binding of a window of type 2, which work requests ask for. EINVAL for another type and
/// without a region.
///
/// # Safety
///
/// A window of ours or NULL, and a region of ours or NULL.
pub(crate) unsafe fn bind_second(
    mw: *mut ibv_mw,
    info: &ibv_mw_bind_info,
    key: u32,
) -> Result<SendOp, Errno> {
    // SAFETY: as the caller says.
    if mw.is_null() || info.mr.is_null() || unsafe { (*mw).type_ } != WindowType::Two as u32 {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as above.
    Ok(unsafe { bind(mw, info, Rkey(key)) })
}

/// ibv_bind_mw(3): posts a request that binds a window of type 1 under a new key, or unbinds it
/// where the length is 0. Errors as `ibv_post_send`; EINVAL for another type, EPERM for a region of
/// another domain.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    request: *mut ibv_mw_bind,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: objects of ours and the caller's structure, by the man page's contract.
        let (queue, ours, request) = unsafe { (Qp::of(qp), Mw::of(mw), &*request) };
        if !queue.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        let info = &request.bind_info;
        if ours.nic.kind != WindowType::One || (info.mr.is_null() && (info.addr != 0 || info.length != 0)) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as above.
        if !info.mr.is_null() && unsafe { (*info.mr).pd != (*mw).pd } {
            return Err(Errno(libc::EPERM));
        }
        let key = ours.pd.window_key(ours.nic);
        // SAFETY: as above.
        let op = unsafe { bind(mw, info, key) };
        let wr = request::send_wr(request.wr_id, request.send_flags, op, Data::Sges(request::list(&[])));
        queue.nic.post_send(Instant::now(), wr)?;
        // SAFETY: as above.
        unsafe { (*mw).rkey = key.0 };
        Ok(())
    })
}
