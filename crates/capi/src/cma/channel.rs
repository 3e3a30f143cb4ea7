//! Event channels and events (rdma_create_event_channel(3), rdma_get_cm_event(3),
//! rdma_ack_cm_event(3)).

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic::rdma_cm::{EventKind, UdParam};
use rdma_core_abi::cma::{rdma_cm_event, rdma_conn_param, rdma_event_channel, rdma_ud_param};

use crate::checked;
use crate::cma::cm_id::CmId;
use crate::cma::event_channel::{self, Channel, create, find, free};
use crate::eventfd;
use crate::ffi_guard::{self, Errno};
use crate::instance;
use crate::verbs::ah;
use crate::waiting;

/// Frees a channel, if it is one of this process's. Identifiers that are still on it end as they do
/// in the kernel, which ends them when the file closes that their events came by: peers are told,
/// and no event comes any more. They are destroyed by `rdma_destroy_id` as ever.
fn destroy(channel: *mut rdma_event_channel) {
    let Some(ours) = free(channel) else { return };
    checked::identifiers::channel_gone(channel);
    for id in CmId::all_on(&ours) {
        id.instance.node().destroy(&id.node);
    }
}

/// rdma_create_event_channel(3). errno: ENODEV where there is no device, EMFILE, ENFILE, ENOMEM.
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    ffi_guard::or_null(|| {
        let instance = instance::get()?;
        if instance.node().devices().is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let (channel, _) = create(&instance)?;
        checked::identifiers::channel_made(channel);
        Ok(channel)
    })
}

/// rdma_destroy_event_channel(3): connections of identifiers that are still on it end.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    ffi_guard::nothing(|| destroy(channel));
}

/// An event as C sees it. Its private data lives as long as it does.
#[repr(C)]
struct Event {
    c: rdma_cm_event,
    private_data: Vec<u8>,
    /// The identifier whose destruction waits for the event.
    counted: Arc<CmId>,
}

/// rdma_get_cm_event(3): waits on the channel's descriptor unless that is non-blocking. errno:
/// EINVAL for NULL, EAGAIN, EINTR, EBADF for a channel destroyed and for a parent's in a forked
/// child. Unlike rdma-core: a channel destroyed is not undefined. A thread that waits goes on
/// waiting, as one does in the kernel; so does one that has taken events from the channel and asks
/// for the next just after another thread destroyed it (`rping` ends like this).
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        ffi_guard::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    let fd = ffi_guard::or_minus_one(|| {
        let ours = find(channel)?;
        // A peer may wait for the ACK of what this thread has polled.
        ours.instance.host.end_polling();
        // SAFETY: it is in the table.
        Ok(unsafe { (*channel).fd })
    });
    if fd < 0 {
        // SAFETY: this frame has nothing to drop while it waits.
        return unsafe { refused(channel) };
    }
    loop {
        // SAFETY: as above.
        if unsafe { !waiting::wait(fd, || find(channel).ok().map(|ours| ours.counter())) } {
            // SAFETY: as above.
            return unsafe { refused(channel) };
        }
        let found = ffi_guard::or_minus_one(|| {
            let ours = find(channel)?;
            let Some(found) = next(&ours)? else { return Ok(0) };
            event_channel::read_by_this_thread(channel, &ours);
            // SAFETY: the caller's variable.
            unsafe { *event = found };
            Ok(1)
        });
        if found > 0 {
            return 0;
        }
        if found < 0 {
            // SAFETY: as above.
            return unsafe { refused(channel) };
        }
        // The event was taken back with its identifier.
    }
}

/// What a thread gets that asked in vain, with errno set: -1, once a signal came where it would be
/// waiting had it asked before the channel was destroyed.
///
/// # Safety
///
/// As [`eventfd::wait`].
unsafe fn refused(channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the thread's own errno.
    let destroyed = unsafe { *libc::__errno_location() } == libc::EBADF;
    if destroyed && event_channel::came_too_late(channel) {
        // SAFETY: as the caller says; this frame has nothing to drop either.
        unsafe { eventfd::wait_for_nothing() };
    }
    -1
}

/// The oldest event as a C object, `None` where there is none any more.
fn next(channel: &Channel) -> Result<Option<*mut rdma_cm_event>, Errno> {
    let _handing_out = channel.handing_out.begin();
    let Some(mut event) = channel.instance.node().next_event(&channel.node) else { return Ok(None) };
    let Some((id, listener)) = identifiers(channel, &event) else { return Ok(None) };
    // SAFETY: a program that calls on an identifier while its event is fetched in another thread
    // finds either state.
    let shown = unsafe {
        join(&id, &mut event);
        id.refresh()
    };
    if let Err(why) = shown {
        // There is no device to hand out. As librdmacm where a device that the kernel names can not
        // be opened.
        (event.kind, event.status) = match event.kind {
            EventKind::ConnectRequest => {
                refuse(&id);
                return Ok(None);
            }
            EventKind::AddrResolved => (EventKind::AddrError, -why.0),
            EventKind::RouteResolved => (EventKind::RouteError, -why.0),
            kind => (kind, event.status),
        };
    }
    Ok(Some(hand_out(event, id, listener)))
}

/// The identifier that an event is about, and its listener. `None` where the program is not to see
/// the event.
fn identifiers(channel: &Channel, event: &stack::Event) -> Option<(Arc<CmId>, Option<Arc<CmId>>)> {
    let destroy = || channel.instance.node().destroy(&event.id);
    let listener = match event.listener.as_deref().map(CmId::of_node) {
        // The listener is being destroyed: no program will see its request.
        Some(None) => {
            destroy();
            return None;
        }
        listener => listener.flatten(),
    };
    let id = match &listener {
        // Without an identifier the program would not see the request: the peer is refused, as
        // librdmacm does.
        Some(listener) if event.kind == EventKind::ConnectRequest => {
            CmId::incoming(&event.id, listener).inspect_err(|_| destroy()).ok()
        }
        _ => CmId::of_node(&event.id),
    };
    Some((id?, listener))
}

/// An event of this identifier as a C object, until [`rdma_ack_cm_event`].
fn hand_out(mut event: stack::Event, id: Arc<CmId>, listener: Option<Arc<CmId>>) -> *mut rdma_cm_event {
    let mut c = rdma_cm_event {
        id: id.c(),
        listen_id: listener.as_ref().map_or(std::ptr::null_mut(), |l| l.c()),
        event: event.kind as u32,
        status: event.status,
        // SAFETY: a union of integers and pointers.
        param: unsafe { std::mem::zeroed() },
    };
    // An event of a request counts with the listener, as the identifier may be destroyed before it
    // is acknowledged.
    let counted = listener.unwrap_or(id);
    counted.unacked.hand_out();
    let mut private_data = std::mem::take(&mut event.private_data);
    if event.kind == EventKind::User {
        c.param.arg = event.arg;
        private_data = Vec::new();
    } else if let Some(ud) = &event.ud {
        c.param.ud = datagram(ud, &mut private_data);
    } else {
        c.param.conn = connection(&event, &mut private_data);
    }
    Box::into_raw(Box::new(Event { c, private_data, counted })).cast()
}

/// Ends the identifier of a request that the program has not seen: the peer is refused.
fn refuse(id: &CmId) {
    if CmId::retire(id.c()).is_ok() {
        id.instance.node().destroy(&id.node);
        id.node.cookie.store(0, Ordering::Release);
        if id.is_synchronous() {
            // SAFETY: the C structure lives as long as the identifier; its own channel.
            free(unsafe { (*id.c()).channel });
        }
    }
}

/// The peer has accepted, and the program has given the identifier a queue pair since it connected:
/// that is moved now, and the event is Established, or ConnectError where it can not be moved.
///
/// # Safety
///
/// No other thread changes what C sees.
unsafe fn join(id: &CmId, event: &mut stack::Event) {
    // SAFETY: as the caller says.
    if event.kind != EventKind::ConnectResponse || unsafe { (*id.c()).qp.is_null() } {
        return;
    }
    // SAFETY: as above.
    let taken_in = unsafe { id.take_in_qp() };
    let joined = taken_in.and_then(|()| Ok(id.instance.node().finish_connect(&id.node)?));
    (event.kind, event.status) = match joined {
        Ok(()) => (EventKind::Established, 0),
        Err(why) => (EventKind::ConnectError, -why.0),
    };
}

/// Parameters of a connection, and what the peer gave with them.
fn connection(event: &stack::Event, private_data: &mut [u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: if private_data.is_empty() {
            std::ptr::null()
        } else {
            private_data.as_mut_ptr().cast_const().cast()
        },
        private_data_len: private_data.len().min(u8::MAX.into()) as u8,
        responder_resources: event.param.responder_resources,
        initiator_depth: event.param.initiator_depth,
        flow_control: event.param.flow_control.into(),
        retry_count: event.param.retry_count,
        rnr_retry_count: event.param.rnr_retry_count,
        srq: event.param.srq.into(),
        qp_num: event.param.qp_num,
    }
}

/// Parameters of a datagram service or a group; the private data of a group's event is what the
/// program gave at its join.
fn datagram(ud: &UdParam, private_data: &mut [u8]) -> rdma_ud_param {
    rdma_ud_param {
        private_data: if private_data.is_empty() {
            std::ptr::with_exposed_provenance(ud.context as usize)
        } else {
            private_data.as_mut_ptr().cast_const().cast()
        },
        private_data_len: private_data.len().min(u8::MAX.into()) as u8,
        ah_attr: ah::to_c(&ud.av),
        qp_num: ud.qpn.get(),
        qkey: ud.qkey.0,
    }
}

/// rdma_ack_cm_event(3): frees the event; `rdma_destroy_id` waits for it. errno: EINVAL for NULL.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    ffi_guard::or_minus_one(|| {
        if event.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        checked::objects::refuse_gone(event)?;
        // SAFETY: made by `Box::into_raw` in `next`, by the man page's contract.
        let event = unsafe { checked::take(event.cast::<Event>(), "event of rdma_cm") };
        event.counted.unacked.ack(1);
        Ok(0)
    })
}
