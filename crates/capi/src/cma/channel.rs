//! Event channels and events (rdma_create_event_channel(3), rdma_get_cm_event(3), rdma_ack_cm_event(3)).

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use abi::cma::{rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param};
use node::{EventChannel, EventKind, UdParam};

use crate::border::{self, Errno};
use crate::cma::id::CmId;
use crate::fds::{self, Counter};
use crate::instance::{self, Instance};
use crate::verbs::ah;
use crate::verbs::event::HandingOut;

/// What stands behind a channel.
pub(crate) struct Channel {
    pub node: Arc<EventChannel>,
    pub handing_out: HandingOut,
    instance: Arc<Instance>,
    _fd: Counter,
}

/// The channels there are, by the address of their C structure. Programs end (`rping` does) with one thread waiting in
/// `rdma_get_cm_event` while another destroys the channel: what that thread does next must not touch what is gone.
static CHANNELS: Mutex<BTreeMap<usize, Arc<Channel>>> = Mutex::new(BTreeMap::new());

fn channels() -> std::sync::MutexGuard<'static, BTreeMap<usize, Arc<Channel>>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channel behind a C structure. EBADF where it was destroyed, or never one of ours.
pub(crate) fn find(channel: *mut rdma_event_channel) -> Result<Arc<Channel>, Errno> {
    channels().get(&channel.addr()).cloned().ok_or(Errno(libc::EBADF))
}

/// Makes a channel.
pub(crate) fn create(instance: &Arc<Instance>) -> Result<*mut rdma_event_channel, Errno> {
    let fd = Counter::new()?;
    let c = Box::into_raw(Box::new(rdma_event_channel { fd: fd.fd() }));
    let channel = Channel {
        node: EventChannel::new(Box::new(fd.clone())),
        handing_out: HandingOut::default(),
        instance: instance.clone(),
        _fd: fd,
    };
    channels().insert(c.expose_provenance(), Arc::new(channel));
    Ok(c)
}

/// Frees a channel.
///
/// # Safety
///
/// It came from [`create`].
pub(crate) unsafe fn destroy(channel: *mut rdma_event_channel) {
    if channels().remove(&channel.addr()).is_some() {
        // SAFETY: made by `Box::into_raw` in `create`, and in the table until now.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// `rdma_create_event_channel`. errno: ENODEV where there is no device, EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    border::or_null(|| {
        let instance = instance::get()?;
        if instance.node().devices().is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        create(&instance)
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

/// `rdma_get_cm_event`: waits on the channel's descriptor unless that is non-blocking. errno: EINVAL for NULL, EAGAIN,
/// EINTR, EBADF for a channel destroyed, ENODEV for a parent's channel in a forked child.
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        Errno(libc::EINVAL).set();
        return -1;
    }
    let fd = border::or_minus_one(|| {
        let ours = find(channel)?;
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        // A peer may wait for the ACK of what this thread has polled.
        ours.instance.host.rest();
        // SAFETY: it is in the table.
        Ok(unsafe { (*channel).fd })
    });
    if fd < 0 {
        return -1;
    }
    loop {
        // SAFETY: this frame has nothing to drop while it waits.
        if unsafe { !fds::wait(fd) } {
            return -1;
        }
        let found = border::or_minus_one(|| {
            let Some(found) = next(&*find(channel)?)? else { return Ok(0) };
            // SAFETY: the caller's variable.
            unsafe { *event = found };
            Ok(1)
        });
        if found != 0 {
            return found.min(0);
        }
        // The event was taken back with its identifier.
    }
}

/// The oldest event as a C object, `None` where there is none any more.
fn next(channel: &Channel) -> Result<Option<*mut rdma_cm_event>, Errno> {
    let _handing_out = channel.handing_out.begin();
    let Some(event) = channel.instance.node().next_event(&channel.node) else { return Ok(None) };
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
        return Ok(None);
    }
    // SAFETY: identifiers live until their events are acknowledged, and none is withdrawn just now.
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
        // SAFETY: a union of integers and pointers.
        param: unsafe { std::mem::zeroed() },
    };
    if event.kind == EventKind::User {
        c.param.arg = event.arg;
        return Ok(Some(Box::into_raw(Box::new(Event { c, private_data: Vec::new() })).cast()));
    }
    let mut private_data = event.private_data;
    if let Some(ud) = &event.ud {
        c.param.ud = datagram(ud, &mut private_data);
        return Ok(Some(Box::into_raw(Box::new(Event { c, private_data })).cast()));
    }
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
    Ok(Some(Box::into_raw(Box::new(Event { c, private_data })).cast()))
}

/// Parameters of a datagram service or a group; the private data of a group's event is what the program gave at its join.
fn datagram(ud: &UdParam, private_data: &mut [u8]) -> rdma_ud_param {
    rdma_ud_param {
        private_data: if private_data.is_empty() {
            std::ptr::with_exposed_provenance(ud.context as usize)
        } else {
            private_data.as_mut_ptr().cast_const().cast()
        },
        private_data_len: private_data.len() as u8,
        ah_attr: ah::to_c(&ud.av),
        qp_num: ud.qpn.get(),
        qkey: ud.qkey.0,
    }
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
