//! Completion channels (ibv_create_comp_channel(3), ibv_get_cq_event(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use abi::verbs::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::eventfd::{self, Counter};
use crate::ffi_guard::{self, Errno};
use crate::verbs::abi_1_0;
use crate::verbs::context::Context;
use crate::verbs::cq::Cq;
use crate::verbs::event::{self, HandingOut};
use crate::verbs::live::Live;

/// A channel as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    pub nic: Arc<nic::Channel>,
    /// Completion queues that report to it.
    pub users: AtomicI32,
    /// For the events of the queues.
    pub handing_out: HandingOut,
    _context: Arc<Context>,
    _fd: Counter,
}

/// The channels there are.
static CHANNELS: Live = Live::new();

impl Channel {
    /// # Safety
    ///
    /// `channel` came from [`ibv_create_comp_channel`] and lives.
    pub unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Channel {
        // SAFETY: the C part is the first field.
        unsafe { &*channel.cast::<Channel>() }
    }
}

/// `ibv_create_comp_channel`. errno: EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    ffi_guard::or_null(|| {
        let context = abi_1_0::real_context(context);
        // SAFETY: a context of ours, by the man page's contract.
        let shared = unsafe {
            Context::usable(context)?;
            Context::share(context)
        };
        let fd = Counter::new()?;
        let c = ibv_comp_channel { context, fd: fd.fd(), refcnt: 0 };
        let nic = nic::Channel::new(Box::new(fd.clone()));
        let users = AtomicI32::new(0);
        let handing_out = HandingOut::default();
        let channel = Channel { c: c.into(), nic, users, handing_out, _context: shared, _fd: fd };
        let channel = Box::into_raw(Box::new(channel)).cast();
        CHANNELS.enter(channel);
        Ok(channel)
    })
}

/// `ibv_destroy_comp_channel`: EBUSY while completion queues report to it.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a channel of ours, by the man page's contract.
        if unsafe { Channel::of(channel) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        CHANNELS.leave(channel);
        // SAFETY: made by `Box::into_raw` in `ibv_create_comp_channel`, and used by nobody.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        Ok(())
    })
}

/// `ibv_get_cq_event`: waits on the channel's descriptor unless that is non-blocking. -1 with EAGAIN or EINTR;
/// ENODEV for a parent's channel in a forked child, EBADF where another thread has destroyed it meanwhile.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel of ours and its context, by the man page's contract.
    if unsafe { !event::is_ours((*channel).context) } {
        return -1;
    }
    // SAFETY: as above.
    let fd = unsafe { (*channel).fd };
    loop {
        // SAFETY: this frame has nothing to drop while it waits.
        if unsafe { !eventfd::wait(fd) } {
            return -1;
        }
        let found = ffi_guard::or_minus_one(|| {
            // Another thread may have destroyed it meanwhile.
            // SAFETY: it is in the table, and stays while it is looked at.
            let next = CHANNELS.with(channel, |channel| unsafe { next(channel) });
            let Some(ours) = next.ok_or(Errno(libc::EBADF))? else { return Ok(0) };
            // SAFETY: the caller's variables; the queue lives until its events are acknowledged.
            unsafe {
                *cq = ours;
                *cq_context = (*ours).cq_context;
            }
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
        // The queue of this event was destroyed meanwhile.
    }
}

/// The queue of the channel's oldest event, handed out.
///
/// # Safety
///
/// A channel of ours that lives.
unsafe fn next(channel: *mut ibv_comp_channel) -> Option<*mut ibv_cq> {
    // SAFETY: as the caller says.
    let channel = unsafe { Channel::of(channel) };
    let _handing_out = channel.handing_out.begin();
    let popped = channel.nic.pop()?;
    let cq = Cq::c_of(&*popped);
    if cq.is_null() {
        return None;
    }
    // SAFETY: it is not withdrawn yet, and its destruction waits for what is handed out.
    unsafe { Cq::of(cq) }.completion_events.hand_out();
    Some(cq)
}

/// `ibv_ack_cq_events`: `ibv_destroy_cq` waits for it.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: a queue of ours, by the man page's contract.
    ffi_guard::nothing(|| unsafe { Cq::of(cq) }.completion_events.ack(nevents));
}
