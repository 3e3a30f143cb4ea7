//! An opened device as C sees it: what `ibv_open_device` makes (`open`), and everything made on it
//! has a share of.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use locks::{Mutex, Rank};
use nic::device::async_events::AsyncEventQueue;
use rdma_core_abi::verbs::{ibv_context, verbs_context};

use crate::eventfd::Counter;
use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::live::Live;
use crate::verbs::unacked::HandingOut;

/// An opened device as C sees it, and what it stands for.
#[repr(C)]
pub(crate) struct Context {
    c: UnsafeCell<verbs_context>,
    pub nic: Arc<nic::Device>,
    pub instance: Arc<Instance>,
    pub events: Arc<AsyncEventQueue>,
    /// For the events of [`Context::events`].
    pub handing_out: HandingOut,
    fd: Counter,
    /// What `cmd_fd` is.
    pub command: Mutex<OwnedFd>,
    closed: AtomicBool,
    /// Removals of the device before it was opened.
    removals: u64,
}

// SAFETY: what C sees is plain data, set when it is made; all else is locked or shared by itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes one for the program, which has a share of it until it closes the device. `c` is what C
    /// sees, but for its descriptors; `fd` counts `events`; `command` is what `cmd_fd` is.
    pub(crate) fn make(
        mut c: verbs_context,
        nic: Arc<nic::Device>,
        instance: Arc<Instance>,
        events: Arc<AsyncEventQueue>,
        fd: Counter,
        command: OwnedFd,
    ) -> *mut ibv_context {
        c.context.cmd_fd = command.as_raw_fd();
        c.context.async_fd = fd.fd();
        let removals = nic.removals();
        let context = Self {
            c: c.into(),
            nic,
            instance,
            events,
            handing_out: HandingOut::new(Rank::HandingOutAsyncEvents),
            fd,
            command: Mutex::new(Rank::Kept, command),
            closed: AtomicBool::new(false),
            removals,
        };
        let whole = Arc::into_raw(Arc::new(context)).cast_mut().cast::<ibv_context>();
        // SAFETY: inside the allocation just made.
        let context = unsafe { whole.byte_add(offset_of!(verbs_context, context)) };
        CONTEXTS.enter(context);
        context
    }

    /// The program closes the device: false where it has done so before.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Takes the program's share away.
    ///
    /// # Safety
    ///
    /// From [`Context::make`], and once.
    pub(crate) unsafe fn give_up(context: *mut ibv_context) {
        CONTEXTS.leave(context);
        // SAFETY: the share that `make` gave to the program.
        drop(unsafe { Arc::from_raw(Self::whole(context)) });
    }

    /// # Safety
    ///
    /// `context` came from [`Context::make`], and is not closed or something made on it is not
    /// destroyed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        // SAFETY: as the caller says.
        unsafe { &*Self::whole(context) }
    }

    /// Makes one more share of a context. What is made on a context has one, so that a program may
    /// close the device first.
    ///
    /// # Safety
    ///
    /// As for [`Context::of`].
    pub(crate) unsafe fn share(context: *mut ibv_context) -> Arc<Self> {
        // SAFETY: the inside of the `Arc` that `make` made.
        unsafe {
            let whole = Self::whole(context);
            Arc::increment_strong_count(whole);
            Arc::from_raw(whole)
        }
    }

    /// # Safety
    ///
    /// As for [`Context::of`].
    unsafe fn whole(context: *mut ibv_context) -> *const Self {
        // SAFETY: the C part is the first field, and the context lies inside it at a fixed place.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast::<Self>() }
    }

    /// What counts its events, and whose they are.
    pub(crate) fn counter(&self) -> (Arc<Instance>, Counter) {
        (self.instance.clone(), self.fd.clone())
    }

    /// Whether the program has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Like [`Context::of`], where something is to be made or waited for: ENODEV for a parent's
    /// context in a forked child and for one closed, EIO after the device became fatal or was
    /// removed.
    ///
    /// # Safety
    ///
    /// As for [`Context::of`].
    pub(crate) unsafe fn usable<'a>(context: *mut ibv_context) -> Result<&'a Self, Errno> {
        // SAFETY: as the caller says.
        let ours = unsafe { Self::of(context) };
        if ours.is_closed() {
            return Err(Errno(libc::ENODEV));
        }
        ours.instance.check()?;
        if ours.is_removed() {
            return Err(Errno(libc::EIO));
        }
        Ok(ours)
    }

    /// Whether the device was removed since this context was opened. The device may be back, for
    /// contexts that are opened later.
    pub(crate) fn is_removed(&self) -> bool {
        self.nic.removals() != self.removals
    }
}

/// The contexts there are that programs have not closed.
static CONTEXTS: Live = Live::new();

/// A share of a context that a thread has waited on, if no other thread has closed it meanwhile.
pub(crate) fn still_open(context: *mut ibv_context) -> Option<Arc<Context>> {
    // SAFETY: it is in the table, and stays while it is looked at.
    CONTEXTS.with(context, |context| unsafe { Context::share(context) })
}

/// Whether a context was opened by this process; sets errno where not.
///
/// # Safety
///
/// A context of ours that is not closed.
pub(crate) unsafe fn is_ours(context: *mut ibv_context) -> bool {
    // SAFETY: as the caller says.
    let ours = unsafe { Context::of(context) }.instance.is_ours();
    if !ours {
        ffi_guard::set_errno(Errno(libc::ENODEV));
    }
    ours
}
