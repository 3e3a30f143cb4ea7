//! Event channels and events (rdma_create_event_channel(3), rdma_get_cm_event(3), rdma_ack_cm_event(3)).

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::cma::{rdma_cm_event, rdma_cm_event_param, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use node::{EventChannel, EventKind};

use crate::border::{self, Errno};
use crate::cma::id::CmId;
use crate::fds::{self, Counter};
use crate::instance;

/// An event channel as C sees it, and the node's.
#[repr(C)]
pub(crate) struct Channel {
    c: rdma_event_channel,
    pub node: Arc<EventChannel>,
    _fd: Counter,
}

impl Channel {
    /// # Safety
    ///
    /// `channel` came from [`create`] and lives.
    pub unsafe fn of<'a>(channel: *mut rdma_event_channel) -> &'a Channel {
        // SAFETY: the C part is the first field.
        unsafe { &*channel.cast::<Channel>() }
    }
}

/// Makes a channel.
pub(crate) fn create() -> Result<*mut rdma_event_channel, Errno> {
    let fd = Counter::new()?;
    let c = rdma_event_channel { fd: fd.fd() };
    let node = EventChannel::new(Box::new(fd.clone()));
    Ok(Box::into_raw(Box::new(Channel { c, node, _fd: fd })).cast())
}

/// Frees a channel.
///
/// # Safety
///
/// It came from [`create`] and nobody uses it.
pub(crate) unsafe fn destroy(channel: *mut rdma_event_channel) {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
}

/// `rdma_create_event_channel`. errno: ENODEV where there is no device, EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    border::or_null(|| {
        if instance::get()?.node().devices().is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        create()
    })
}

/// `rdma_destroy_event_channel`: its identifiers must be destroyed before.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: the man page's contract.
        border::nothing(|| unsafe { destroy(channel) });
    }
}

/// An event as C sees it. Its private data lives as long as it does.
#[repr(C)]
struct Event {
    c: rdma_cm_event,
    private_data: Vec<u8>,
}

/// `rdma_get_cm_event`: waits on the channel's descriptor unless that is non-blocking. -1 with EAGAIN or EINTR.
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        Errno(libc::EINVAL).set();
        return -1;
    }
    loop {
        // SAFETY: a channel of ours; this frame has nothing to drop while it waits.
        if unsafe { !fds::wait((*channel).fd) } {
            return -1;
        }
        // SAFETY: as above.
        let found = border::or_null(|| unsafe { next(channel) });
        if !found.is_null() {
            // SAFETY: the caller's variable.
            unsafe { *event = found };
            return 0;
        }
        // The event was taken back with its identifier.
    }
}

/// The oldest event as a C object, NULL where there is none.
///
/// # Safety
///
/// A channel of ours that lives.
unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: as the caller says.
    let Some(event) = unsafe { Channel::of(channel) }.node.pop() else { return Ok(std::ptr::null_mut()) };
    let pointer = |id: &node::Id| {
        std::ptr::with_exposed_provenance_mut::<rdma_cm_id>(id.cookie.load(Ordering::Acquire) as usize)
    };
    let listener = event.listener.as_deref().map_or(std::ptr::null_mut(), pointer);
    let id = match event.kind {
        // SAFETY: a listener lives as long as events name it.
        EventKind::ConnectRequest => unsafe { CmId::incoming(&event.id, listener)? },
        _ => pointer(&event.id),
    };
    if id.is_null() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: identifiers live until their events are acknowledged.
    unsafe {
        CmId::of(id).refresh();
        // An event of a request counts with the listener, as the identifier may be destroyed before it is acknowledged.
        CmId::of(if listener.is_null() { id } else { listener }).unacked.hand_out();
    }
    let mut c = rdma_cm_event {
        id,
        listen_id: listener,
        event: event.kind as u32,
        status: event.status,
        param: rdma_cm_event_param { arg: 0 },
    };
    let mut private_data = event.private_data;
    c.param.conn = rdma_conn_param {
        private_data: if private_data.is_empty() {
            std::ptr::null()
        } else {
            private_data.as_mut_ptr().cast_const().cast()
        },
        private_data_len: private_data.len() as u8,
        responder_resources: event.param.responder_resources,
        initiator_depth: event.param.initiator_depth,
        flow_control: event.param.flow_control.into(),
        retry_count: event.param.retry_count,
        rnr_retry_count: event.param.rnr_retry_count,
        srq: event.param.srq.into(),
        qp_num: event.param.qp_num,
    };
    Ok(Box::into_raw(Box::new(Event { c, private_data })).cast())
}

/// `rdma_ack_cm_event`: frees the event; `rdma_destroy_id` waits for it. errno: EINVAL for NULL.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    border::or_minus_one(|| {
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: made by `Box::into_raw` in `next`, by the man page's contract.
        let event = unsafe { Box::from_raw(event.cast::<Event>()) };
        debug_assert!(event.private_data.len() <= usize::from(u8::MAX));
        let counted = if event.c.listen_id.is_null() { event.c.id } else { event.c.listen_id };
        // SAFETY: destruction waits for this acknowledgement.
        unsafe { CmId::of(counted) }.unacked.ack(1);
        Ok(0)
    })
}
