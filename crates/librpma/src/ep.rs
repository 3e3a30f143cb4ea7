//! Endpoints: where connections are asked for (rpma_ep_listen(3)).

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use rdma_core_abi::cma::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_PS_TCP, rdma_cm_event, rdma_cm_id, rdma_event_channel,
};

use crate::codes::{INVAL, NO_EVENT, Result, answer, errno, failed, made, number, require};
use crate::conn_cfg::ConnCfg;
use crate::conn_req::{self, ConnReq};
use crate::log;
use crate::object::{end, make, of, put};
use crate::peer::Peer;
use crate::stack::Calls;
use crate::utils::{End, address};

/// `struct rpma_ep`.
pub struct Ep {
    peer: *const Peer,
    calls: &'static Calls,
    channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
}

const LISTEN: &CStr = c"rpma_ep_listen";

/// rpma_ep_listen(3).
pub unsafe extern "C-unwind" fn rpma_ep_listen(
    peer: *mut Peer,
    addr: *const c_char,
    port: *const c_char,
    ep: *mut *mut Ep,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { listen(peer, addr, port, ep) })
}

/// # Safety
///
/// That of the function above.
unsafe fn listen(
    peer: *const Peer,
    addr: *const c_char,
    port: *const c_char,
    out: *mut *mut Ep,
) -> Result<()> {
    // SAFETY: as the caller says.
    let calls = unsafe { of(peer) }?.calls;
    require(!addr.is_null() && !port.is_null() && !out.is_null())?;
    let ep = make(Ep { peer, calls, channel: null_mut(), id: null_mut() })?;
    // SAFETY: just made.
    let done = unsafe { fill(&mut *ep, addr, port) };
    if let Err(code) = done {
        // SAFETY: just made, and no other thread has it. What failed is told of already.
        unsafe {
            if !(*ep).id.is_null() {
                (calls.rdma_destroy_id)((*ep).id);
            }
            if !(*ep).channel.is_null() {
                (calls.rdma_destroy_event_channel)((*ep).channel);
            }
            end(ep);
        }
        return Err(code);
    }
    // SAFETY: strings, as the caller says.
    unsafe { conn_req::tell(LISTEN, "waiting for connections on", addr, port) };
    // SAFETY: as the caller says.
    unsafe { put(out, ep) }
}

/// # Safety
///
/// As above.
unsafe fn fill(ep: &mut Ep, addr: *const c_char, port: *const c_char) -> Result<()> {
    let calls = ep.calls;
    // SAFETY: strings, as the caller says; room for what is made; the answer is there until it is
    // freed.
    unsafe {
        ep.channel = made(LISTEN, "rdma_create_event_channel", (calls.rdma_create_event_channel)())?;
        let created = (calls.rdma_create_id)(ep.channel, &raw mut ep.id, null_mut(), RDMA_PS_TCP);
        number(LISTEN, "rdma_create_id", created)?;
        let found = address(calls, LISTEN, addr, port, End::Passive)?;
        let bound = number(LISTEN, "rdma_bind_addr", (calls.rdma_bind_addr)(ep.id, (*found).ai_src_addr));
        (calls.rdma_freeaddrinfo)(found);
        bound?;
        number(LISTEN, "rdma_listen", (calls.rdma_listen)(ep.id, 0))
    }
}

/// rpma_ep_shutdown(3).
pub unsafe extern "C" fn rpma_ep_shutdown(ep: *mut *mut Ep) -> c_int {
    let shutdown = || {
        // SAFETY: the crate's contract.
        let variable = unsafe { ep.as_mut() }.ok_or(INVAL)?;
        let ep = *variable;
        if ep.is_null() {
            return Ok(());
        }
        // SAFETY: likewise: no thread uses it any more. After a failure it is the program's as
        // before.
        unsafe {
            let calls = (*ep).calls;
            number(c"rpma_ep_shutdown", "rdma_destroy_id", (calls.rdma_destroy_id)((*ep).id))?;
            (calls.rdma_destroy_event_channel)((*ep).channel);
            end(ep);
        }
        *variable = null_mut();
        Ok(())
    };
    answer(shutdown())
}

/// rpma_ep_get_fd(3).
pub unsafe extern "C" fn rpma_ep_get_fd(ep: *const Ep, fd: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(ep).and_then(|ep| put(fd, (*ep.channel).fd)) })
}

/// The next event of a channel. `NO_EVENT` where rdma_get_cm_event(3) says ENODATA, and `PROVIDER`,
/// as with upstream's, where the descriptor does not block and there is none: that is EAGAIN, and
/// no message.
///
/// # Safety
///
/// The channel lives.
pub unsafe fn next_event(
    calls: &Calls,
    function: &'static CStr,
    channel: *mut rdma_event_channel,
) -> Result<*mut rdma_cm_event> {
    let mut event = null_mut();
    // SAFETY: as the caller says; room for an event.
    if unsafe { (calls.rdma_get_cm_event)(channel, &raw mut event) } == 0 {
        return Ok(event);
    }
    match errno() {
        libc::ENODATA => Err(NO_EVENT),
        libc::EAGAIN => Err(crate::codes::PROVIDER),
        other => Err(failed(function, "rdma_get_cm_event", other)),
    }
}

/// rpma_ep_next_conn_req(3).
pub unsafe extern "C-unwind" fn rpma_ep_next_conn_req(
    ep: *mut Ep,
    cfg: *const ConnCfg,
    req: *mut *mut ConnReq,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { next_conn_req(ep, cfg, req) })
}

/// # Safety
///
/// That of the function above.
unsafe fn next_conn_req(ep: *const Ep, cfg: *const ConnCfg, out: *mut *mut ConnReq) -> Result<()> {
    const NEXT: &CStr = c"rpma_ep_next_conn_req";
    // SAFETY: as the caller says.
    let ep = unsafe { of(ep) }?;
    require(!out.is_null())?;
    // SAFETY: they live; the event does until it is acknowledged, and its identifier is this
    // library's from now on.
    unsafe {
        let event = next_event(ep.calls, NEXT, ep.channel)?;
        let (id, kind) = ((*event).id, (*event).event);
        if kind != RDMA_CM_EVENT_CONNECT_REQUEST {
            log::error(NEXT, format_args!("event {kind} of an endpoint is no request for a connection"));
            (ep.calls.rdma_ack_cm_event)(event);
            return Err(INVAL);
        }
        let made = conn_req::incoming(ep.peer, event, cfg);
        let acknowledged = number(NEXT, "rdma_ack_cm_event", (ep.calls.rdma_ack_cm_event)(event));
        match made {
            Ok(req) => {
                if let Err(code) = acknowledged {
                    let _ = conn_req::delete(req);
                    return Err(code);
                }
                put(out, req)
            }
            Err(code) => {
                // The peer that asked is told, and does not wait for its time to be over.
                (ep.calls.rdma_reject)(id, std::ptr::null(), 0);
                (ep.calls.rdma_destroy_id)(id);
                Err(code)
            }
        }
    }
}
