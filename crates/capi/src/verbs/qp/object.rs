//! A queue pair as C sees it, and which there are.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use locks::{Mutex, Rank};
use rdma_core_abi::verbs::{ibv_context, ibv_qp, ibv_qp_ex, ibv_rwq_ind_table, ibv_xrcd};

use crate::checked;
use crate::instance::Instance;
use crate::verbs::device::context::Context;
use crate::verbs::live::Live;
use crate::verbs::qp::builder::Builder;
use crate::verbs::unacked::Unacked;

/// A queue pair as C sees it, and the adapter's. The plain queue pair is the first part of the
/// extended one.
#[repr(C)]
pub(crate) struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    pub nic: Arc<nic::Qp>,
    /// For the calls that build one request at a time, where it was made for them.
    pub builder: Option<Box<Builder>>,
    pub async_events: Unacked,
    pub over: Over,
    pub instance: Arc<Instance>,
    /// What must not be freed before it.
    kept: Mutex<Vec<Arc<dyn Send + Sync>>>,
    pub context: Arc<Context>,
}

/// What a queue pair was made over that C does not see in it. It lives as long as the queue pair,
/// by its EBUSY.
#[derive(Clone, Copy)]
pub(crate) enum Over {
    /// Nothing more: its domain and its queues are all.
    Nothing,
    /// The domain of an XRC target, which has neither protection domain nor completion queues.
    Xrcd(*mut ibv_xrcd),
    /// The table that a raw packet queue pair spreads its frames over; it has no completion queues
    /// then.
    Table(*mut ibv_rwq_ind_table),
}

/// The queue pairs there are.
static QPS: Live = Live::new();

/// The adapter's queue pair behind one that a program names; `None` where it is destroyed, or none
/// of this process.
pub(crate) fn find(qp: *mut ibv_qp) -> Option<Arc<nic::Qp>> {
    // SAFETY: it is in the table, and stays while it is looked at.
    QPS.with(qp, |qp| unsafe { Qp::of(qp) }.nic.clone())
}

/// Whether it is there and not destroyed.
pub(crate) fn exists(qp: *mut ibv_qp) -> bool {
    QPS.has(qp)
}

/// Keeps something until the queue pair is destroyed; nothing where it is.
pub(crate) fn keep(qp: *mut ibv_qp, what: Arc<dyn Send + Sync>) {
    QPS.with(qp, |qp| {
        // SAFETY: as in `find`.
        unsafe { Qp::of(qp) }.kept.lock().push(what);
    });
}

/// Brings the state that C sees up to date; of one that is destroyed there is none.
pub(crate) fn show_state(qp: *mut ibv_qp) {
    // SAFETY: as in `find`.
    QPS.with(qp, |qp| unsafe { (*qp).state = Qp::of(qp).nic.state() as u32 });
}

/// Runs `f` on all queue pairs of a context, while none can be freed.
pub(crate) fn each_of(context: &Context, mut f: impl FnMut(*mut ibv_qp, &Qp)) {
    QPS.each(|qp: *mut ibv_qp| {
        // SAFETY: as in `find`.
        let ours = unsafe { Qp::of(qp) };
        if std::ptr::eq(Arc::as_ptr(&ours.context), context) {
            f(qp, ours);
        }
    });
}

impl Qp {
    /// The C structure of an adapter's queue pair, with what all kinds have.
    pub(crate) fn blank(context: *mut ibv_context, qp_context: *mut c_void, nic: &nic::Qp) -> ibv_qp_ex {
        // SAFETY: integers, pointers, nullable functions, a mutex and a condition of zeroes.
        let mut ex: ibv_qp_ex = unsafe { std::mem::zeroed() };
        let c = &mut ex.qp_base;
        c.context = context;
        c.qp_context = qp_context;
        c.handle = nic.qpn().get();
        c.qp_num = nic.qpn().get();
        c.qp_type = nic.init().kind as u32;
        c.state = nic.state() as u32;
        ex
    }

    /// Makes the C object.
    pub(crate) fn make(
        c: ibv_qp_ex,
        nic: Arc<nic::Qp>,
        over: Over,
        builder: Option<Box<Builder>>,
        context: Arc<Context>,
    ) -> *mut ibv_qp {
        let qp = Box::into_raw(Box::new(Self {
            c: c.into(),
            nic,
            builder,
            async_events: Unacked::default(),
            over,
            instance: context.instance.clone(),
            kept: Mutex::new(Rank::Kept, Vec::new()),
            context,
        }));
        QPS.enter(qp);
        qp.cast()
    }

    /// From now on asynchronous events of the adapter's queue pair are told about this object.
    pub(crate) fn take_events(&self) {
        self.nic.cookie.store((&raw const *self).expose_provenance() as u64, Ordering::Release);
    }

    /// Frees the C object.
    ///
    /// # Safety
    ///
    /// From [`Qp::make`], and no thread uses it any more.
    pub(crate) unsafe fn free(qp: *mut ibv_qp) {
        QPS.leave(qp);
        checked::objects::pair_gone(qp);
        // SAFETY: as the caller says.
        drop(unsafe { checked::take(qp.cast::<Self>(), "queue pair") });
    }

    /// # Safety
    ///
    /// `qp` came from `ibv_create_qp` or another call that makes one, and lives.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*qp.cast::<Self>() }
    }

    /// The C object of an adapter's queue pair.
    pub(crate) fn c_of(qp: &dyn nic::Subject) -> *mut ibv_qp {
        std::ptr::with_exposed_provenance_mut(qp.cookie() as usize)
    }
}
