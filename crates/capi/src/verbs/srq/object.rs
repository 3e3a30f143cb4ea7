//! Shared receive queues (ibv_create_srq(3), ibv_modify_srq(3), ibv_query_srq(3),
//! ibv_post_srq_recv(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use locks::{Mutex, Rank};
use nic::{SrqAttr, limits};
use rdma_core_abi::verbs::{
    self as v, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_xrcd,
};
use transport::op::RecvWr;

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::cq::object::Cq;
use crate::verbs::device::context::Context;
use crate::verbs::live::Live;
use crate::verbs::memory::pd::Pd;
use crate::verbs::qp::request;
use crate::verbs::unacked::Unacked;
use crate::verbs::xrcd::Xrcd;

/// A shared receive queue as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Srq {
    c: UnsafeCell<ibv_srq>,
    pub nic: Arc<nic::Srq>,
    pub async_events: Unacked,
    /// Queue pairs that take receives from it.
    pub users: AtomicU32,
    kind: Kind,
    instance: Arc<Instance>,
    /// What must not be freed before it.
    kept: Mutex<Vec<Arc<dyn Send + Sync>>>,
}

/// The shared receive queues there are.
static SRQS: Live = Live::new();

/// Whether one that a program names is there and not destroyed.
pub(crate) fn exists(srq: *mut ibv_srq) -> bool {
    SRQS.has(srq)
}

/// Keeps something until the queue is destroyed; nothing where it is.
pub(crate) fn keep(srq: *mut ibv_srq, what: Arc<dyn Send + Sync>) {
    SRQS.with(srq, |srq| {
        // SAFETY: it is in the table, and stays while it is looked at.
        unsafe { Srq::of(srq) }.kept.lock().push(what);
    });
}

/// What kind of queue it is, and what it uses: objects of ours that live as long as it, by their
/// EBUSY.
#[derive(Clone, Copy)]
enum Kind {
    Basic,
    /// For XRC: its domain, and where its receives complete.
    Xrc {
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
    },
    /// For tag matching: where all completes.
    Tm {
        cq: *mut ibv_cq,
        max_tags: u32,
    },
}

impl Kind {
    /// Says of all it uses whether it uses it.
    ///
    /// # Safety
    ///
    /// They live.
    unsafe fn uses(self, count: impl Fn(&AtomicU32)) {
        let (xrcd, cq) = match self {
            Self::Basic => return,
            Self::Xrc { xrcd, cq } => (Some(xrcd), cq),
            Self::Tm { cq, .. } => (None, cq),
        };
        // SAFETY: as the caller says.
        unsafe {
            if let Some(xrcd) = xrcd {
                count(&Xrcd::of(xrcd).users);
            }
            count(&Cq::of(cq).users);
        }
    }
}

impl Srq {
    /// # Safety
    ///
    /// `srq` came from [`ibv_create_srq`] and lives.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*srq.cast::<Self>() }
    }

    /// Like [`Srq::of`]: ENODEV for a parent's queue in a forked child.
    ///
    /// # Safety
    ///
    /// As for [`Srq::of`].
    pub(crate) unsafe fn usable<'a>(srq: *mut ibv_srq) -> Result<&'a Self, Errno> {
        // SAFETY: as the caller says.
        let ours = unsafe { Self::of(srq) };
        if ours.instance.is_ours() { Ok(ours) } else { Err(Errno(libc::ENODEV)) }
    }

    /// The C object of an adapter's queue.
    pub(crate) fn c_of(srq: &dyn nic::Subject) -> *mut ibv_srq {
        std::ptr::with_exposed_provenance_mut(srq.cookie() as usize)
    }
}

/// # Safety
///
/// Objects of ours that live, as ibv_create_srq(3) asks.
pub(crate) unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: as the caller says.
    unsafe { create_with(pd, init, Kind::Basic) }
}

/// Like [`create`], for a queue of another kind.
///
/// # Safety
///
/// As for [`create`].
unsafe fn create_with(
    pd: *mut ibv_pd,
    init: &mut ibv_srq_init_attr,
    kind: Kind,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: as the caller says.
    let (context, domain) = unsafe { ((*pd).context, Pd::of(pd)) };
    // SAFETY: as above.
    let ours = unsafe { Context::usable(context)? };
    let attr = SrqAttr { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge, limit: 0 };
    let events = ours.events.clone();
    let nic = match kind {
        Kind::Basic => nic::Srq::create(&domain.nic, attr, events),
        Kind::Xrc { xrcd, cq } => {
            // SAFETY: as above.
            let (xrcd, cq) = unsafe { (Xrcd::usable(xrcd)?, Cq::of(cq)) };
            nic::Srq::create_xrc(&domain.nic, attr, events, xrcd.nic.clone(), cq.nic.clone())
        }
        Kind::Tm { cq, max_tags } => {
            // SAFETY: as above.
            let cq = unsafe { Cq::of(cq) };
            nic::Srq::create_tm(&domain.nic, attr, events, max_tags, cq.nic.clone())
        }
    };
    let nic = nic.inspect_err(checked::refusals::tell("ibv_create_srq"))?;
    // SAFETY: as above.
    unsafe { kind.uses(|n| _ = n.fetch_add(1, Ordering::AcqRel)) };
    // SAFETY: integers, pointers, a mutex and a condition of zeroes.
    let mut c: ibv_srq = unsafe { std::mem::zeroed() };
    c.context = context;
    c.srq_context = init.srq_context;
    c.pd = pd;
    c.handle = nic.number();
    domain.users.fetch_add(1, Ordering::AcqRel);
    let srq = Box::into_raw(Box::new(Srq {
        c: c.into(),
        nic: nic.clone(),
        async_events: Unacked::default(),
        users: AtomicU32::new(0),
        kind,
        instance: ours.instance.clone(),
        kept: Mutex::new(Rank::Kept, Vec::new()),
    }));
    SRQS.enter(srq);
    match kind {
        Kind::Basic => checked::objects::shared_made(srq.cast(), pd, std::ptr::null_mut()),
        Kind::Xrc { cq, .. } => checked::objects::shared_made(srq.cast(), pd, cq),
        Kind::Tm { .. } => {}
    }
    init.attr.max_sge = nic.query().max_sge;
    nic.cookie.store(srq.expose_provenance() as u64, Ordering::Release);
    Ok(srq.cast())
}

/// ibv_create_srq(3); what was asked for is granted as asked, but a `max_sge` of 0 as 1. errno:
/// EINVAL for sizes out of range, ENOMEM at the limit.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: a domain of ours and the caller's structure, by the man page's contract.
    ffi_guard::or_null(|| unsafe { create(pd, &mut *attr) })
}

/// ibv_create_srq_ex(3), through the context's table; the header takes plain queues to
/// [`ibv_create_srq`] itself. errno: as there; EINVAL for no protection domain, for XRC no XRC
/// domain or completion queue, for tag matching no completion queue, no tags or more tags or
/// operations than the device has, and for other types; EOPNOTSUPP for a mask that is not known.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    ffi_guard::or_null(|| {
        // SAFETY: the caller's structure, by the man page's contract.
        let init = unsafe { &*attr };
        let given = |bit| init.comp_mask & bit != 0;
        if init.comp_mask >= v::IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let kind = if given(v::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { v::IBV_SRQT_BASIC };
        let kind = match kind {
            v::IBV_SRQT_BASIC => Kind::Basic,
            v::IBV_SRQT_XRC => {
                let both = v::IBV_SRQ_INIT_ATTR_XRCD | v::IBV_SRQ_INIT_ATTR_CQ;
                if init.comp_mask & both != both || init.xrcd.is_null() || init.cq.is_null() {
                    return Err(Errno(libc::EINVAL));
                }
                Kind::Xrc { xrcd: init.xrcd, cq: init.cq }
            }
            v::IBV_SRQT_TM => {
                let both = v::IBV_SRQ_INIT_ATTR_TM | v::IBV_SRQ_INIT_ATTR_CQ;
                let few = init.tm_cap.max_ops <= limits::MAX_TAG_OPS;
                if init.comp_mask & both != both || init.cq.is_null() || !few {
                    return Err(Errno(libc::EINVAL));
                }
                Kind::Tm { cq: init.cq, max_tags: init.tm_cap.max_num_tags }
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        if !given(v::IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the plain attributes are the first part of the extended ones; a domain of ours,
        // as above.
        unsafe { create_with(init.pd, &mut *attr.cast::<ibv_srq_init_attr>(), kind) }
    })
}

/// `ibv_destroy_srq`, ibv_create_srq(3): EBUSY while queue pairs use it; waits until its events are
/// acknowledged.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(srq)?;
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Srq::of(srq) };
        if ours.users.load(Ordering::Acquire) > 0 {
            return Err(checked::refusals::in_use("ibv_destroy_srq", srq));
        }
        // SAFETY: what it uses lives as long as it, by its EBUSY; the context as long as its
        // domain.
        let (context, pd) = unsafe { (Context::of((*srq).context), (*srq).pd) };
        if ours.instance.is_ours() {
            {
                let _handing_out = context.handing_out.begin();
                ours.nic.cookie.store(0, Ordering::Release);
            }
            ours.nic.destroy();
            ours.async_events.wait();
        }
        SRQS.leave(srq);
        checked::objects::shared_gone(srq);
        // SAFETY: as above; made by `Box::into_raw` in `create`, and no thread uses it.
        unsafe {
            Pd::of(pd).users.fetch_sub(1, Ordering::AcqRel);
            ours.kind.uses(|n| _ = n.fetch_sub(1, Ordering::AcqRel));
            drop(checked::take(srq.cast::<Srq>(), "shared receive queue"));
        }
        Ok(())
    })
}

/// ibv_modify_srq(3): EINVAL for a size below what is posted or above the device's, a limit above
/// the size. As in uverbs and rdma_rxe, other bits of the mask are ignored.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Srq::usable(srq)?, *attr) };
        let mask = mask.cast_unsigned();
        let max_wr = (mask & v::IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & v::IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(ours.nic.modify(max_wr, limit)?)
    })
}

/// ibv_query_srq(3).
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and the caller's structure, by the man page's contract.
        unsafe {
            let now = Srq::usable(srq)?.nic.query();
            *attr = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        }
        Ok(())
    })
}

/// ibv_get_srq_num(3), through the context's table.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and the caller's variable, by the man page's contract.
        unsafe { *number = Srq::of(srq).nic.number() };
        Ok(())
    })
}

/// ibv_post_srq_recv(3), through the context's table: takes the list in order; where one is
/// refused, `bad_wr` names it and those before it stay posted. EINVAL for too many elements, ENOMEM
/// for a full queue, ENODEV for a parent's queue in a forked child.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and a list of requests, by the man page's contract.
        let posted = unsafe {
            Srq::usable(srq).map_err(|e| (wr, e)).and_then(|ours| {
                request::each_receive(wr, |wr: RecvWr| ours.nic.post(wr).map_err(Errno::from))
            })
        };
        posted.map_err(|(at, e)| {
            // SAFETY: the caller's variable.
            unsafe { *bad_wr = at };
            e
        })
    })
}
