//! From an address to a connection and its end (rdma_resolve_addr(3), rdma_listen(3), rdma_connect(3), rdma_accept(3), ...).

use std::ffi::{c_int, c_void};
use std::time::Duration;

use abi::cma::{self, rdma_cm_event, rdma_cm_id, rdma_conn_param};
use abi::verbs::ibv_qp_attr;

use nic::QpState;
use node::ConnParam;

use crate::border::{self, Errno};
use crate::cma::channel::rdma_get_cm_event;
use crate::cma::id::{CmId, complete, release_event};
use crate::cma::{qp, sockaddr};

/// `rdma_bind_addr`. errno: EINVAL for NULL or a bound identifier, another address family, EADDRINUSE, EADDRNOTAVAIL.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, and an address, by the man page's contract.
        let (ours, addr) = unsafe { (CmId::checked(id)?, sockaddr::read(addr)?) };
        ours.instance.node().bind(&ours.node, addr)?;
        // SAFETY: as above.
        unsafe { ours.refresh() };
        Ok(0)
    })
}

/// `rdma_resolve_addr`: an event follows. errno: EINVAL for NULL or a wrong state, ENETUNREACH without a route.
pub unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let started = border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, and addresses, by the man page's contract.
        let (ours, dst) = unsafe { (CmId::checked(id)?, sockaddr::read(dst)?) };
        // SAFETY: as above.
        let src = if src.is_null() { None } else { Some(unsafe { sockaddr::read(src)? }) };
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        ours.instance.node().resolve_addr(&ours.node, src, dst, timeout)?;
        // SAFETY: as above.
        unsafe { ours.refresh() };
        Ok(0)
    });
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// `rdma_resolve_route`: an event follows. errno: EINVAL for NULL or a wrong state.
pub unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    let started = border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        ours.instance.node().resolve_route(&ours.node)?;
        // SAFETY: as above.
        unsafe { ours.refresh() };
        Ok(0)
    });
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// `rdma_listen`. errno: EINVAL for NULL or a wrong state, EADDRINUSE where the UDP port belongs to another.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        ours.instance.node().listen(&ours.node, u32::try_from(backlog).unwrap_or(0))?;
        // SAFETY: as above.
        unsafe { ours.refresh() };
        Ok(0)
    })
}

/// The parameters, if there are any; EINVAL where there is no queue pair either: then nobody says its number.
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

/// What `rdma_connect` takes without parameters, as librdmacm does: all that the device has, and patience.
const DEFAULT_PARAMETERS: ConnParam = ConnParam {
    responder_resources: nic::limits::MAX_RD_ATOMIC,
    initiator_depth: nic::limits::MAX_RD_ATOMIC,
    flow_control: false,
    retry_count: 7,
    rnr_retry_count: 7,
    srq: false,
    qp_num: 0,
};

/// `rdma_connect`: an event follows; without parameters (rdma_client does so), with defaults. errno: EINVAL for
/// NULL, neither parameters nor a queue pair, a wrong state, more than 56 bytes of private data (180 for datagrams), or
/// depths beyond the device's. Retry counts above 7 are 7, as in the kernel.
pub unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let started = border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        // SAFETY: as above.
        let given = unsafe { parameters_for(id, param)? };
        let (param, data) = given.unwrap_or((DEFAULT_PARAMETERS, &[]));
        ours.instance.node().connect(&ours.node, &param, data)?;
        Ok(0)
    });
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// `rdma_accept`: without parameters, those of the request; a depth beyond the request's is the request's. errno: EINVAL
/// for NULL, neither parameters nor a queue pair, a wrong state, more than 196 bytes of private data (136 for
/// datagrams), or depths beyond the device's.
pub unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let started = border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        // SAFETY: as above.
        let given = unsafe { parameters_for(id, param)? };
        let (param, data) = given.map_or((None, &[][..]), |(p, d)| (Some(p), d));
        ours.instance.node().accept(&ours.node, param.as_ref(), data)?;
        if ours.node.is_datagram() {
            // As with a rejection.
            ours.instance.host.sweep();
        }
        Ok(0)
    });
    // SAFETY: as above.
    if started == 0 && unsafe { CmId::of(id) }.node.is_datagram() {
        // Nobody answers an answer: no event follows.
        // SAFETY: as above.
        unsafe { release_event(id) };
        return 0;
    }
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// `rdma_reject`. errno: EINVAL for NULL or a wrong state.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        let data: &[u8] = if data.is_null() || len == 0 {
            &[]
        } else {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }
        };
        ours.instance.node().reject(&ours.node, data)?;
        // Many a server ends now, and nobody would repeat its answer: a REQ sent again would find no listener.
        ours.instance.host.sweep();
        Ok(0)
    })
}

/// `rdma_establish`: for queue pairs that the identifier does not own. errno: EINVAL for NULL or a wrong state.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        ours.instance.node().establish(&ours.node)?;
        Ok(0)
    })
}

/// `rdma_disconnect`. errno: EINVAL for NULL or an identifier that was never connected.
pub unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let started = border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        ours.instance.node().disconnect(&ours.node)?;
        Ok(0)
    });
    // SAFETY: as above.
    unsafe { complete(id, started) }
}

/// `rdma_get_request`: waits for a request on a synchronous listener; a passive endpoint's queue pair is made. errno: EINVAL
/// for NULL or an identifier with a channel.
pub unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    let ready = border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(listen)? };
        if !ours.synchronous || id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as above.
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
    border::or_minus_one(|| unsafe {
        if (*event).status != 0 || (*event).event != cma::RDMA_CM_EVENT_CONNECT_REQUEST {
            let status = (*event).status.abs();
            (*listen).event = event;
            return Err(Errno(if status == 0 { libc::EINVAL } else { status }));
        }
        let new = (*event).id;
        (*new).event = event;
        if let Some(saved) = &CmId::of(listen).saved {
            let mut init = saved.init;
            qp::create(new, saved.pd, &raw mut init)?;
        }
        *id = new;
        Ok(0)
    })
}

/// `rdma_init_qp_attr`: the attributes for the move to `attr->qp_state`. errno: EINVAL for NULL or a state not reached.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        if attr.is_null() || mask.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's structures.
        unsafe {
            let to = QpState::from_code((*attr).qp_state).ok_or(Errno(libc::EINVAL))?;
            let (wants, bits) = ours.instance.node().init_qp_attr(&ours.node, to)?;
            *attr = crate::verbs::qp::to_c(&wants, &nic::QpCap::default());
            *mask = bits.cast_signed();
        }
        Ok(0)
    })
}

/// `rdma_get_src_port`: in network byte order, 0 where there is none.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    border::or(0, || {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        Ok(ours.node.lock().source.map_or(0, |a| a.port().to_be()))
    })
}

/// `rdma_get_dst_port`: in network byte order, 0 where there is none.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    border::or(0, || {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        Ok(ours.node.lock().dest.map_or(0, |a| a.port().to_be()))
    })
}

/// `rdma_set_option`: type of service, address reuse, address family only, ACK timeout. errno: EINVAL for NULL or a wrong
/// length, ENOSYS for others.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        if value.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let byte = || match len {
            // SAFETY: the caller's variable of one byte.
            1 => Ok(unsafe { *value.cast::<u8>() }),
            _ => Err(Errno(libc::EINVAL)),
        };
        let int = || match len {
            // SAFETY: the caller's variable of four bytes.
            4 => Ok(unsafe { value.cast::<c_int>().read_unaligned() }),
            _ => Err(Errno(libc::EINVAL)),
        };
        match (level, name) {
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_TOS) => ours.node.lock().tos = Some(byte()?),
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_REUSEADDR) => _ = int()?,
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_AFONLY) => ours.node.lock().v6_only = int()? != 0,
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let code = byte()?;
                if code > 31 {
                    return Err(Errno(libc::EINVAL));
                }
                ours.node.lock().ack_timeout = Some(code);
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(0)
    })
}
