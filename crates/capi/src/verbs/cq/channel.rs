//! Completion channels (ibv_create_comp_channel(3)). Their events are in `cq_event`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use locks::Rank;
use rdma_core_abi::verbs::{ibv_comp_channel, ibv_context};

use crate::checked;
use crate::eventfd::{self, Counter};
use crate::ffi_guard;
use crate::instance::Instance;
use crate::verbs::abi_1_0::contexts;
use crate::verbs::device::context::Context;
use crate::verbs::live::Live;
use crate::verbs::unacked::HandingOut;

/// A channel as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    pub nic: Arc<nic::Channel>,
    /// Completion queues that report to it.
    pub users: AtomicI32,
    /// For the events of the queues.
    pub handing_out: HandingOut,
    context: Arc<Context>,
    fd: Counter,
}

/// The channels there are.
static CHANNELS: Live = Live::new();

impl Channel {
    /// # Safety
    ///
    /// `channel` came from [`ibv_create_comp_channel`] and lives.
    pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*channel.cast::<Self>() }
    }

    /// Runs `f` on a channel that a thread has waited on; `None` where another has destroyed it
    /// meanwhile.
    pub(crate) fn with<R>(channel: *mut ibv_comp_channel, f: impl FnOnce(&Self) -> R) -> Option<R> {
        // SAFETY: it is in the table, and stays while it is looked at.
        CHANNELS.with(channel, |channel| f(unsafe { Self::of(channel) }))
    }

    /// What counts its events, and whose they are.
    pub(crate) fn counter(&self) -> (Arc<Instance>, Counter) {
        (self.context.instance.clone(), self.fd.clone())
    }
}

/// ibv_create_comp_channel(3). errno: EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    ffi_guard::or_null(|| {
        let context = contexts::real(context);
        // SAFETY: a context of ours, by the man page's contract.
        let shared = unsafe {
            Context::usable(context)?;
            Context::share(context)
        };
        let fd = Counter::of(eventfd::A_WAKE)?;
        let c = ibv_comp_channel { context, fd: fd.fd(), refcnt: 0 };
        let nic = nic::Channel::new(Box::new(fd.clone()));
        let users = AtomicI32::new(0);
        let handing_out = HandingOut::new(Rank::HandingOutCompletionEvents);
        let channel = Channel { c: c.into(), nic, users, handing_out, context: shared, fd };
        let channel = Box::into_raw(Box::new(channel)).cast();
        CHANNELS.enter(channel);
        Ok(channel)
    })
}

/// `ibv_destroy_comp_channel`, ibv_create_comp_channel(3): EBUSY while completion queues report to
/// it.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a channel of ours, by the man page's contract.
        if unsafe { Channel::of(channel) }.users.load(Ordering::Acquire) > 0 {
            return Err(checked::refusals::in_use("ibv_destroy_comp_channel", channel));
        }
        CHANNELS.leave(channel);
        // SAFETY: made by `Box::into_raw` in `ibv_create_comp_channel`, and no thread uses it.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        Ok(())
    })
}
