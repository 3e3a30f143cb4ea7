//! Completion queues made, resized, changed and destroyed (ibv_create_cq(3), ibv_resize_cq(3),
//! ibv_modify_cq(3)).

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nic::{CqExtras, Moderation, Transport, in_range};
use rdma_core_abi::verbs::{
    IBV_CQ_ATTR_MODERATE, IBV_WC_GRH, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr,
    ibv_pd,
};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::channel::Channel;
use crate::verbs::cq::clock::SystemClock;
use crate::verbs::cq::object::Cq;
use crate::verbs::cq::reader::Reader;
use crate::verbs::device::context::Context;
use crate::verbs::memory::pd::Pd;
use crate::verbs::unacked::Unacked;

/// What a completion queue is made from.
pub(crate) struct CqInit {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub stamped: bool,
    pub ignore_overrun: bool,
    /// The program asked for what tag matching says.
    pub tells_tags: bool,
    pub reader: Reader,
    /// A parent domain or NULL.
    pub domain: *mut ibv_pd,
}

/// Makes a completion queue; `complete` adds what an extended one has.
///
/// # Safety
///
/// Objects of ours that live, as ibv_create_cq_ex(3) asks.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    init: CqInit,
    complete: impl FnOnce(&mut ibv_cq_ex),
) -> Result<*mut ibv_cq, Errno> {
    let refused = checked::refusals::tell("ibv_create_cq");
    in_range("comp_vector", init.comp_vector, 0_u32, 0_u32).inspect_err(&refused)?;
    // SAFETY: as the caller says.
    let (ours, reports_to) =
        unsafe { (Context::usable(context)?, (!init.channel.is_null()).then(|| Channel::of(init.channel))) };
    let slot = ours.nic.take_cq()?;
    let extras = CqExtras {
        stamped: init.stamped,
        ignore_overrun: init.ignore_overrun,
        clock: Some(Arc::new(SystemClock)),
        moderated: Arc::downgrade(ours.nic.moderated()),
    };
    let nic = nic::Cq::with(init.cqe, reports_to.map(|c| c.nic.clone()), ours.events.clone(), extras);
    let nic = nic.inspect_err(refused)?;
    slot.list(&nic);
    // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    c.context = context;
    c.channel = init.channel;
    c.cq_context = init.cq_context;
    c.cqe = init.cqe as c_int;
    c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    complete(&mut c);
    if let Some(channel) = reports_to {
        channel.users.fetch_add(1, Ordering::AcqRel);
    }
    if !init.domain.is_null() {
        // SAFETY: as the caller says.
        unsafe { Pd::of(init.domain) }.users.fetch_add(1, Ordering::AcqRel);
    }
    // A port of InfiniBand has no header there. Programs that ask for tags are written for adapters
    // of Mellanox, which never tell of one.
    let is_silent = init.tells_tags || ours.nic.config.transport == Transport::Ib;
    let cq = Box::into_raw(Box::new(Cq {
        c: c.into(),
        nic: nic.clone(),
        completion_events: Unacked::default(),
        async_events: Unacked::default(),
        users: AtomicU32::new(0),
        connection_flags: if is_silent { 0 } else { IBV_WC_GRH },
        reader: init.reader,
        instance: ours.instance.clone(),
        // SAFETY: as the caller says.
        context: unsafe { Context::share(context) },
        domain: init.domain,
        slot,
    }));
    nic.cookie.store(cq.expose_provenance() as u64, Ordering::Release);
    checked::objects::queue_made(cq.cast(), init.cqe);
    Ok(cq.cast())
}

/// ibv_create_cq(3). errno: EINVAL for `cqe` or `comp_vector` out of range, ENOMEM at the limit of
/// queues.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    ffi_guard::or_null(|| {
        let invalid = |_| Errno(libc::EINVAL);
        let init = CqInit {
            cqe: u32::try_from(cqe).map_err(invalid)?,
            cq_context,
            channel,
            comp_vector: u32::try_from(comp_vector).map_err(invalid)?,
            stamped: false,
            ignore_overrun: false,
            tells_tags: false,
            reader: Reader::default(),
            domain: null_mut(),
        };
        // SAFETY: a context of ours, and a channel of ours or NULL, by the man page's contract.
        unsafe { create(context, init, |_| {}) }
    })
}

/// ibv_resize_cq(3): EINVAL below what the queue holds or above the limit.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        let size = u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))?;
        checked::objects::refuse_gone(cq)?;
        // SAFETY: a queue of ours, by the man page's contract.
        unsafe {
            let ours = Cq::of(cq);
            ours.instance.check()?;
            ours.nic.resize(size)?;
            (*cq).cqe = cqe;
            checked::objects::queue_resized(cq, size);
        }
        Ok(())
    })
}

/// ibv_modify_cq(3), through the context's table: holds completion events back until so many
/// completions came or so many microseconds passed. EINVAL for an empty mask and for attributes
/// that are not known.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Cq::of(cq), *attr) };
        ours.instance.check()?;
        if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
            return Err(Errno(libc::EINVAL));
        }
        let (count, period_us) = (attr.moderate.cq_count, attr.moderate.cq_period);
        ours.nic.moderate(Moderation { count, period_us });
        Ok(())
    })
}

/// `ibv_destroy_cq`, ibv_create_cq(3): EBUSY while queue pairs use it; waits until its events are
/// acknowledged.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(cq)?;
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        if ours.users.load(Ordering::Acquire) > 0 {
            return Err(checked::refusals::in_use("ibv_destroy_cq", cq));
        }
        // SAFETY: the channel outlives its queues, by its EBUSY.
        let channel = unsafe {
            let channel = (*cq).channel;
            (!channel.is_null()).then(|| Channel::of(channel))
        };
        // In a forked child no thread acknowledges what the parent was handed, and locks may be
        // held for ever.
        if ours.instance.is_ours() {
            ours.withdraw(&ours.context, channel);
            ours.completion_events.wait();
            ours.async_events.wait();
        }
        if let Some(channel) = channel {
            channel.users.fetch_sub(1, Ordering::AcqRel);
        }
        if !ours.domain.is_null() {
            // SAFETY: a domain lives as long as what uses it, by its EBUSY.
            unsafe { Pd::of(ours.domain) }.users.fetch_sub(1, Ordering::AcqRel);
        }
        checked::objects::queue_gone(cq);
        // SAFETY: made by `Box::into_raw` in `create`, and no thread uses it.
        drop(unsafe { checked::take(cq.cast::<Cq>(), "completion queue") });
        Ok(())
    })
}
