//! Opened devices (ibv_open_device(3)) and their function tables.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use abi::verbs::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device, verbs_context};
use nic::device::async_events::AsyncEventQueue;

use crate::eventfd::Counter;
use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::device::{self, Device};
use crate::verbs::event::HandingOut;
use crate::verbs::live::Live;
use crate::verbs::{
    cq, cq_ex, dm, flow, flow_counter, import, memory, post, qp, qp_ex, query, srq, window, wq, xrc,
};

/// An opened device as C sees it, and what it stands for.
#[repr(C)]
pub(crate) struct Context {
    c: UnsafeCell<verbs_context>,
    pub nic: Arc<nic::Device>,
    pub instance: Arc<Instance>,
    pub events: Arc<AsyncEventQueue>,
    /// For the events of [`Context::events`].
    pub handing_out: HandingOut,
    _fd: Counter,
    /// What `cmd_fd` is.
    pub command: Mutex<OwnedFd>,
    closed: AtomicBool,
}

// SAFETY: what C sees is plain data, set when it is made; all else is locked or shared by itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// # Safety
    ///
    /// `context` came from [`ibv_open_device`], and is not closed or something made on it is not destroyed.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: as the caller says.
        unsafe { &*Context::whole(context) }
    }

    /// One more share. What is made on a context has one, so that a program may close the device first.
    ///
    /// # Safety
    ///
    /// As for [`Context::of`].
    pub unsafe fn share(context: *mut ibv_context) -> Arc<Context> {
        // SAFETY: the inside of the `Arc` that `open` made.
        unsafe {
            let whole = Context::whole(context);
            Arc::increment_strong_count(whole);
            Arc::from_raw(whole)
        }
    }

    /// # Safety
    ///
    /// As for [`Context::of`].
    unsafe fn whole(context: *mut ibv_context) -> *const Context {
        // SAFETY: the C part is the first field, and the context lies inside it at a fixed place.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// Whether the program has closed it.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Like [`Context::of`], where something is to be made or waited for: ENODEV for a parent's context in a forked child
    /// and for one closed, EIO after the device became fatal.
    ///
    /// # Safety
    ///
    /// As for [`Context::of`].
    pub unsafe fn usable<'a>(context: *mut ibv_context) -> Result<&'a Context, Errno> {
        // SAFETY: as the caller says.
        let ours = unsafe { Context::of(context) };
        if ours.is_closed() {
            return Err(Errno(libc::ENODEV));
        }
        ours.instance.check()?;
        Ok(ours)
    }
}

/// The contexts there are that programs have not closed.
static CONTEXTS: Live = Live::new();

/// A share of a context that a thread has waited on, if nobody has closed it meanwhile.
pub(crate) fn still_open(context: *mut ibv_context) -> Option<Arc<Context>> {
    // SAFETY: it is in the table, and stays while it is looked at.
    CONTEXTS.with(context, |context| unsafe { Context::share(context) })
}

/// Opens a device. In a forked child a device that the parent listed is the child's of the same name.
pub(crate) fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    // SAFETY: a device of our list, by the man page's contract.
    let device = unsafe { device::of_this_process(device)? };
    // SAFETY: as above.
    let ours = unsafe { Device::of(device) };
    ours.instance.check()?;
    let fd = Counter::new()?;
    let command = import::command_fd(&ours.nic)?;
    let events = AsyncEventQueue::new(Box::new(fd.clone()));
    ours.nic.tell(&events);
    // SAFETY: every field is an integer, a pointer, a nullable function or a mutex of zeroes; those C looks at are set below.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    c.query_device_ex = Some(query::query_device_ex);
    c.query_port = Some(query::query_port);
    c.query_rt_values = Some(query::query_rt_values);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.create_qp_ex = Some(qp_ex::create_qp_ex);
    c.modify_cq = Some(cq::modify_cq);
    c.context.device = device;
    c.context.cmd_fd = command.as_raw_fd();
    c.context.async_fd = fd.fd();
    c.context.num_comp_vectors = 1;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    dm::enter(&mut c);
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    c.advise_mr = Some(memory::advise_mr);
    c.alloc_null_mr = Some(memory::alloc_null_mr);
    c.alloc_parent_domain = Some(memory::alloc_parent_domain);
    c.alloc_td = Some(memory::alloc_td);
    c.dealloc_td = Some(memory::dealloc_td);
    c.context.ops.alloc_mw = Some(window::alloc_mw);
    c.context.ops.dealloc_mw = Some(window::dealloc_mw);
    c.context.ops.bind_mw = Some(window::bind_mw);
    c.context.ops.poll_cq = Some(cq::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    c.context.ops.post_srq_recv = Some(srq::post_srq_recv);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.get_srq_num = Some(srq::get_srq_num);
    c.post_srq_ops = Some(srq::post_srq_ops);
    c.ibv_create_flow = Some(flow::create_flow);
    c.ibv_destroy_flow = Some(flow::destroy_flow);
    flow_counter::enter(&mut c);
    c.create_wq = Some(wq::create_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.destroy_wq = Some(wq::destroy_wq);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.open_qp = Some(xrc::open_qp);
    let context = Context {
        c: c.into(),
        nic: ours.nic.clone(),
        instance: ours.instance.clone(),
        events,
        handing_out: HandingOut::default(),
        _fd: fd,
        command: Mutex::new(command),
        closed: AtomicBool::new(false),
    };
    let whole = Arc::into_raw(Arc::new(context)).cast_mut().cast::<ibv_context>();
    // SAFETY: inside the allocation just made.
    let context = unsafe { whole.byte_add(offset_of!(verbs_context, context)) };
    CONTEXTS.enter(context);
    Ok(context)
}

/// `ibv_open_device`. errno: ENODEV for a device that the parent listed and a forked child has not;
/// EIO after the device became fatal; EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    ffi_guard::or_null(|| open(device))
}

/// `ibv_close_device`: what was made on it ends, as in the kernel when the file closes: queue pairs are destroyed, regions and
/// windows are no more. The objects themselves are freed by their own calls, before or after.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: a context of ours that is not closed, by the man page's contract.
        let ours = unsafe { Context::of(context) };
        if ours.instance.is_ours() && !ours.closed.swap(true, Ordering::AcqRel) {
            qp::end_all(ours);
            window::end_all(ours);
            memory::end_all(ours);
        }
        CONTEXTS.leave(context);
        // SAFETY: the share that `open` gave to the program.
        drop(unsafe { Arc::from_raw(Context::whole(context)) });
        Ok(0)
    })
}
