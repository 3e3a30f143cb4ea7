//! Opened devices (ibv_open_device(3)) and their function tables.

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use abi::verbs::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device, verbs_context};
use nic::events::EventQueue;

use crate::border::{self, Errno};
use crate::fds::Counter;
use crate::instance::Instance;
use crate::verbs::device::Device;
use crate::verbs::{cq, post, query};

/// An opened device as C sees it, and what it stands for.
#[repr(C)]
pub(crate) struct Context {
    c: verbs_context,
    pub nic: Arc<nic::Device>,
    pub instance: Arc<Instance>,
    pub events: Arc<EventQueue>,
    _fd: Counter,
}

impl Context {
    /// # Safety
    ///
    /// `context` came from [`ibv_open_device`] and is not closed.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: the C part is the first field, and the context lies inside it at a fixed place.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }
}

/// Opens a device.
pub(crate) fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    // SAFETY: a device of our list, by the man page's contract.
    let ours = unsafe { Device::of(device) };
    if !ours.instance.is_ours() {
        // A list that the parent made before a fork.
        return Err(Errno(libc::ENODEV));
    }
    let fd = Counter::new()?;
    let events = EventQueue::new(Box::new(fd.clone()));
    // SAFETY: every field is an integer, a pointer, a nullable function or a mutex of zeroes; those C looks at are set below.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    c.query_device_ex = Some(query::query_device_ex);
    c.query_port = Some(query::query_port);
    c.context.device = device;
    c.context.cmd_fd = fd.fd();
    c.context.async_fd = fd.fd();
    c.context.num_comp_vectors = 1;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    c.context.ops.poll_cq = Some(cq::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    let context = Context { c, nic: ours.nic.clone(), instance: ours.instance.clone(), events, _fd: fd };
    let whole = Box::into_raw(Box::new(context)).cast::<ibv_context>();
    // SAFETY: inside the allocation just made.
    Ok(unsafe { whole.byte_add(offset_of!(verbs_context, context)) })
}

/// `ibv_open_device`. errno: ENODEV for a device listed before a fork; EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    border::or_null(|| open(device))
}

/// `ibv_close_device`: frees the context; what was made on it must be destroyed before.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: made by `Box::into_raw` in `open`, and used by nobody any more, by the man page's contract.
        drop(unsafe {
            Box::from_raw(context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>())
        });
        Ok(0)
    })
}
