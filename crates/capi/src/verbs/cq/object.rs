//! A completion queue as C sees it.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nic::device::CqSlot;
use rdma_core_abi::verbs::{ibv_cq, ibv_cq_ex, ibv_pd};

use crate::instance::Instance;
use crate::verbs::cq::channel::Channel;
use crate::verbs::cq::reader::Reader;
use crate::verbs::device::context::Context;
use crate::verbs::unacked::Unacked;

/// A completion queue as C sees it, and the adapter's. The plain queue is the first part of the
/// extended one.
#[repr(C)]
pub(crate) struct Cq {
    pub c: UnsafeCell<ibv_cq_ex>,
    pub nic: Arc<nic::Cq>,
    pub completion_events: Unacked,
    pub async_events: Unacked,
    /// Queue pairs that complete to it, a side each.
    pub users: AtomicU32,
    /// What `wc_flags` says of the network header of a receive on a connection.
    pub connection_flags: u32,
    /// For the calls that read one completion at a time.
    pub reader: Reader,
    pub instance: Arc<Instance>,
    pub context: Arc<Context>,
    /// The parent domain it was made with, or NULL.
    pub domain: *mut ibv_pd,
    pub slot: CqSlot,
}

impl Cq {
    /// # Safety
    ///
    /// `cq` came from `ibv_create_cq` and lives.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*cq.cast::<Self>() }
    }

    /// Takes its events back; those that another thread is just adding find no object any more.
    pub(crate) fn withdraw(&self, context: &Context, channel: Option<&Channel>) {
        {
            let _completions = channel.map(|c| c.handing_out.begin());
            let _async = context.handing_out.begin();
            self.nic.cookie.store(0, Ordering::Release);
        }
        if let Some(channel) = channel {
            channel.nic.forget(&self.nic);
        }
        context.events.forget(&self.nic);
    }

    /// The C object of an adapter's queue.
    pub(crate) fn c_of(cq: &dyn nic::Subject) -> *mut ibv_cq {
        std::ptr::with_exposed_provenance_mut(cq.cookie() as usize)
    }
}
