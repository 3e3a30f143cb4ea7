//! From an address to a connection and its end (rdma_resolve_addr(3), rdma_listen(3),
//! rdma_connect(3), rdma_accept(3), ...).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use rdma_core_abi::cma::{self, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param};
use rdma_core_abi::verbs::{IBV_EVENT_COMM_EST, ibv_event_type, ibv_qp_attr};

use linux::LinuxEnv;
use nic::QpState;
use nic::rdma_cm::{ConnParam, EventKind};
use stack::{Id, Node};

use crate::checked;
use crate::checked::refusals::tell;
use crate::cma::channel::rdma_get_cm_event;
use crate::cma::cm_id::CmId;
use crate::cma::id::{complete, rdma_destroy_id, release_event};
use crate::cma::qp;
use crate::cma::sockaddr::{self, Address};
use crate::ffi_guard::{self, Errno};

/// rdma_bind_addr(3). errno: EINVAL for NULL or a bound identifier, another address family, a
/// link-local address without its interface; what opening the device said (EMFILE, ENFILE, ENOMEM);
/// EADDRINUSE where the same address has the port, EADDRNOTAVAIL where a wildcard or loopback
/// address has or wants it. Of `AF_IB` addresses: ENODEV for a GID that no InfiniBand port bears,
/// EPROTONOSUPPORT for a service id of another port space. Unlike the kernel: ports below 1024 need
/// no privilege.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    ffi_guard::making(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: an address, by the man page's contract.
        let addr = unsafe { sockaddr::read(addr)? };
        match addr {
            Address::Ip(addr) => {
                ours.instance.node().bind(&ours.node, addr).inspect_err(tell("rdma_bind_addr"))?
            }
            Address::Ib(gid, service) => ours.instance.node().bind_service(&ours.node, gid, service)?,
        }
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        unsafe { ours.refresh()? };
        Ok(0)
    })
}

/// rdma_resolve_addr(3): an event follows. errno: EINVAL for NULL or a wrong state, ENETUNREACH
/// without a route, EADDRNOTAVAIL for a source that is not ours. ENODEV for an `AF_IB` address
/// where no InfiniBand port leads there, EPROTONOSUPPORT for a service id of another port space.
pub unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let started = ffi_guard::making(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: addresses, by the man page's contract.
        let dst = unsafe { sockaddr::read(dst)? };
        // SAFETY: as above.
        let src = if src.is_null() { None } else { Some(unsafe { sockaddr::read(src)? }) };
        let (src, dst) = match (src, dst) {
            (None, Address::Ip(dst)) => (None, dst),
            (Some(Address::Ip(src)), Address::Ip(dst)) => (Some(src), dst),
            (src, Address::Ib(gid, service)) => {
                let src = match src {
                    Some(Address::Ib(gid, service)) => Some((gid, service)),
                    Some(Address::Ip(_)) => return Err(Errno(libc::EINVAL)),
                    None => None,
                };
                ours.instance.node().resolve_service(&ours.node, src, (gid, service))?;
                // SAFETY: a program calls on an identifier from one thread at a time, as with
                // librdmacm.
                let _ = unsafe { ours.refresh() };
                return Ok(0);
            }
            (Some(Address::Ib(..)), Address::Ip(_)) => return Err(Errno(libc::EINVAL)),
        };
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        ours.instance
            .node()
            .resolve_addr(&ours.node, src, dst, timeout)
            .inspect_err(tell("rdma_resolve_addr"))?;
        // Where the device can not be opened, the event says so.
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        let _ = unsafe { ours.refresh() };
        Ok(0)
    });
    // SAFETY: an identifier of ours where that has succeeded; this frame has nothing to drop.
    unsafe { complete(id, started) }
}

/// rdma_resolve_route(3): an event follows. errno: EINVAL for NULL or a wrong state, EAGAIN where
/// an InfiniBand port has no subnet manager yet. Unlike the kernel: on RoCE, which has no path to
/// ask for, the event comes at once.
pub unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    let started = ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        ours.instance.node().resolve_route(&ours.node, timeout).inspect_err(tell("rdma_resolve_route"))?;
        // Where the device can not be opened, the event says so.
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        let _ = unsafe { ours.refresh() };
        Ok(0)
    });
    // SAFETY: an identifier of ours where that has succeeded; this frame has nothing to drop.
    unsafe { complete(id, started) }
}

/// rdma_listen(3). errno: EINVAL for NULL or a wrong state, EADDRINUSE where the UDP port belongs
/// to another.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    ffi_guard::making(|| {
        let ours = CmId::checked(id)?;
        ours.instance
            .node()
            .listen(&ours.node, u32::try_from(backlog).unwrap_or(0))
            .inspect_err(tell("rdma_listen"))?;
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        unsafe { ours.refresh()? };
        Ok(0)
    })
}

/// The parameters, if there are any; EINVAL where there is no queue pair either: then no caller
/// says its number.
///
/// # Safety
///
/// An identifier of ours, and a parameter structure with its private data or NULL.
unsafe fn parameters_for<'a>(
    id: *const rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<Option<(ConnParam, &'a [u8])>, Errno> {
    match param.is_null() {
        // SAFETY: as the caller says.
        true if unsafe { (*id).qp.is_null() } => Err(Errno(libc::EINVAL)),
        true => Ok(None),
        // SAFETY: as the caller says.
        false => Ok(Some(unsafe { parameters(param) })),
    }
}

/// # Safety
///
/// A parameter structure with its private data.
unsafe fn parameters<'a>(p: *const rdma_conn_param) -> (ConnParam, &'a [u8]) {
    let most = |asked: u8, all: u8| if asked == all { nic::limits::MAX_RD_ATOMIC } else { asked };
    // SAFETY: as the caller says.
    let p = unsafe { &*p };
    let data: &[u8] = if p.private_data.is_null() || p.private_data_len == 0 {
        &[]
    } else {
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts(p.private_data.cast(), p.private_data_len.into()) }
    };
    let param = ConnParam {
        responder_resources: most(p.responder_resources, cma::RDMA_MAX_RESP_RES),
        initiator_depth: most(p.initiator_depth, cma::RDMA_MAX_INIT_DEPTH),
        flow_control: p.flow_control != 0,
        retry_count: p.retry_count,
        rnr_retry_count: p.rnr_retry_count,
        srq: p.srq != 0,
        qp_num: p.qp_num,
    };
    (param, data)
}

/// What `rdma_connect` takes without parameters, as librdmacm does: all that the device has, and
/// the longest timeouts.
const DEFAULT_PARAMETERS: ConnParam = ConnParam {
    responder_resources: nic::limits::MAX_RD_ATOMIC,
    initiator_depth: nic::limits::MAX_RD_ATOMIC,
    flow_control: false,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: false,
    qp_num: 0,
};

/// rdma_connect(3): an event follows; without parameters (rdma_client does so), with defaults.
/// errno: EINVAL for NULL, neither parameters nor a queue pair, a wrong state, more than 56 bytes
/// of private data (180 for datagrams), or depths beyond the device's. Retry counts above 7 are 7,
/// as in the kernel.
pub unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let started = ffi_guard::making(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: a program calls on an identifier from one thread at a time; parameters, by the
        // man page's contract.
        let given = unsafe {
            ours.take_in_qp()?;
            parameters_for(id, param)?
        };
        let (param, data) = given.unwrap_or((DEFAULT_PARAMETERS, &[]));
        let data = [&ours.connect_data.lock()[..], data].concat();
        ours.instance.node().connect(&ours.node, &param, &data).inspect_err(tell("rdma_connect"))?;
        Ok(0)
    });
    // SAFETY: an identifier of ours where that has succeeded; this frame has nothing to drop.
    unsafe { complete(id, started) }
}

/// rdma_accept(3): without parameters, those of the request; a depth beyond the request's is the
/// request's. errno: EINVAL for NULL, neither parameters nor a queue pair, a wrong state, more than
/// 196 bytes of private data (136 for datagrams), or depths beyond the device's.
pub unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let started = ffi_guard::making(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: as in `rdma_connect`.
        let given = unsafe {
            ours.take_in_qp()?;
            parameters_for(id, param)?
        };
        let (wish, data) = given.map_or((None, &[][..]), |(p, d)| (Some(p), d));
        let offered = ours.node.lock().offered.initiator_depth;
        ours.instance.node().accept(&ours.node, wish.as_ref(), data).inspect_err(tell("rdma_accept"))?;
        // SAFETY: as above.
        unsafe { note_depths(id, param, offered) };
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        let _ = unsafe { ours.refresh() };
        if ours.node.is_datagram() {
            // As with a rejection.
            ours.instance.host.drain_sent();
        }
        Ok(0)
    });
    if started == 0 && is_datagram(id) {
        // No peer answers an answer: no event follows.
        // SAFETY: an identifier of ours.
        unsafe { release_event(id) };
        return 0;
    }
    // SAFETY: an identifier of ours where that has succeeded; this frame has nothing to drop.
    unsafe { complete(id, started) }
}

/// Tells the checker how many READs this end wants to send at a time, and how many the request
/// allows. All that the device has (RDMA_MAX_INIT_DEPTH) is no wish beyond the request.
///
/// # Safety
///
/// An identifier of ours, and a parameter structure or NULL.
unsafe fn note_depths(id: *mut rdma_cm_id, param: *const rdma_conn_param, offered: u8) {
    // SAFETY: as the caller says.
    let (param, qp) = unsafe { (param.as_ref(), (*id).qp) };
    if let Some(param) = param.filter(|param| param.initiator_depth != cma::RDMA_MAX_INIT_DEPTH) {
        checked::objects::accepted(qp, param.initiator_depth, offered);
    }
}

fn is_datagram(id: *mut rdma_cm_id) -> bool {
    ffi_guard::or(false, || Ok(CmId::checked(id)?.node.is_datagram()))
}

/// rdma_reject(3): the peer's event is REJECTED with status 28. errno: EINVAL for NULL or a wrong
/// state, or more than 148 bytes of private data (136 for datagrams). Unlike the kernel: the same
/// refusal answers a repetition of the request for 10 s.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { reject(id, data, len, Node::reject) }
}

/// `rdma_reject_ece`, rdma_reject(3): the same with status 35, "vendor option is not supported".
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { reject(id, data, len, Node::reject_ece) }
}

/// # Safety
///
/// An identifier of ours or NULL, and as many bytes.
unsafe fn reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
    by: impl FnOnce(&Node<LinuxEnv>, &Arc<Id>, &[u8]) -> Result<(), nic::Error>,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        let data: &[u8] = if data.is_null() || len == 0 {
            &[]
        } else {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }
        };
        by(ours.instance.node(), &ours.node, data)?;
        // Many a server ends now, and no thread would repeat its answer: a REQ sent again would
        // find no listener.
        ours.instance.host.drain_sent();
        Ok(0)
    })
}

/// rdma_establish(3): for queue pairs that the identifier does not own. errno: EINVAL for NULL or a
/// wrong state.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        unsafe { ours.take_in_qp()? };
        ours.instance.node().establish(&ours.node)?;
        Ok(0)
    })
}

/// rdma_notify(3) of IBV_EVENT_COMM_EST: data came before the peer said that it is ready;
/// RDMA_CM_EVENT_ESTABLISHED follows. errno: EISCONN where that was known already; EINVAL for NULL,
/// other events, and where nothing was accepted.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno(libc::EINVAL));
        }
        ours.instance.node().communication_established(&ours.node)?;
        Ok(0)
    })
}

/// rdma_write_cm_event(3): an event of the program's own making for the identifier's channel, with
/// its status and argument. errno: EINVAL for NULL and for other events than RDMA_CM_EVENT_USER.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        if event != cma::RDMA_CM_EVENT_USER {
            return Err(Errno(libc::EINVAL));
        }
        ours.instance.node().write_event(&ours.node, EventKind::User, status, arg);
        Ok(0)
    })
}

/// rdma_disconnect(3). errno: EINVAL for NULL or an identifier that was never connected. Unlike the
/// kernel: the peer's connection manager answers at once, before its program calls.
pub unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let started = ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        if unsafe { ours.take_in_qp() }.is_err() {
            // The program has destroyed it: there is nothing to take to the error state.
            ours.instance.node().take_in_qp(&ours.node, None)?;
        }
        // What has arrived is executed: ACKs, whose messages were delivered and are not flushed;
        // messages, which the peer's adapter would have been told of. A queue pair that has failed
        // executes nothing.
        let qp = ours.node.lock().qp.clone();
        if qp.is_none_or(|qp| qp.state() != QpState::Error) {
            ours.instance.host.drain_all();
        }
        ours.instance.node().disconnect(&ours.node)?;
        // The last ACKs and the DREQ: its queue pair repeats neither, and the program may end now.
        ours.instance.host.drain_sent();
        // SAFETY: a program calls on an identifier from one thread at a time, as with librdmacm.
        let _ = unsafe { ours.refresh() };
        Ok(0)
    });
    // SAFETY: an identifier of ours where that has succeeded; this frame has nothing to drop.
    unsafe { complete(id, started) }
}

/// rdma_get_request(3): waits for a request on a synchronous listener; a passive endpoint's queue
/// pair is made. errno: EINVAL for NULL or an identifier with a channel.
pub unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    let ready = ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(listen)?;
        if !ours.is_synchronous() || id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: an identifier of ours.
        unsafe { release_event(listen) };
        Ok(0)
    });
    if ready != 0 {
        return -1;
    }
    let mut event: *mut rdma_cm_event = std::ptr::null_mut();
    // SAFETY: the listener's own channel; this frame has nothing to drop while it waits.
    if unsafe { rdma_get_cm_event((*listen).channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: an event just made, of a listener of ours.
    ffi_guard::or_minus_one(|| unsafe {
        if (*event).status != 0 || (*event).event != cma::RDMA_CM_EVENT_CONNECT_REQUEST {
            let status = (*event).status.abs();
            (*listen).event = event;
            let refused = (*event).event == cma::RDMA_CM_EVENT_REJECTED;
            return Err(Errno(match status {
                _ if refused => libc::ECONNREFUSED,
                0 => libc::EINVAL,
                status => status,
            }));
        }
        let new = (*event).id;
        (*new).event = event;
        let saved = *CmId::checked(listen)?.saved();
        if let Some(saved) = saved {
            let mut init = saved.init;
            if let Err(why) = qp::create(new, saved.pd, &raw mut init) {
                // No other thread knows the request: the peer is refused.
                rdma_destroy_id(new);
                return Err(why);
            }
        }
        *id = new;
        Ok(0)
    })
}

/// rdma_init_qp_attr(3): the attributes for the move to `attr->qp_state`. errno: EINVAL for NULL or
/// a state not reached.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        if attr.is_null() || mask.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's structures.
        unsafe {
            let to = QpState::from_code((*attr).qp_state).ok_or(Errno(libc::EINVAL))?;
            let (wants, bits) = ours.instance.node().init_qp_attr(&ours.node, to)?;
            *attr = crate::verbs::qp::modify::to_c(&wants, &nic::QpCap::default());
            *mask = bits.cast_signed();
        }
        Ok(0)
    })
}

/// rdma_get_src_port(3): in network byte order, 0 where there is none.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    ffi_guard::or(0, || {
        let ours = CmId::checked(id)?;
        Ok(ours.node.lock().source.map_or(0, |a| a.port().to_be()))
    })
}

/// rdma_get_dst_port(3): in network byte order, 0 where there is none.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    ffi_guard::or(0, || {
        let ours = CmId::checked(id)?;
        Ok(ours.node.lock().dest.map_or(0, |a| a.port().to_be()))
    })
}
