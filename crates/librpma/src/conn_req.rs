//! Requests for connections, one's own and others' (rpma_conn_req_new(3),
//! rpma_ep_next_conn_req(3)), and what of a connection is there before it stands.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use rdma_core_abi::cma::{
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_PS_TCP, rdma_cm_event, rdma_cm_id, rdma_conn_param,
};
use rdma_core_abi::verbs::{ibv_comp_channel, ibv_qp, ibv_qp_ex, ibv_qp_init_attr};

use crate::codes::{INVAL, Result, answer, errno_of, made, number, require};
use crate::conn::{self, Conn};
use crate::conn_cfg::{ConnCfg, Values};
use crate::cq::{self, Cq};
use crate::log;
use crate::mr::MrLocal;
use crate::object::{end, make, of, put, take};
use crate::op;
use crate::peer::{Peer, sizes};
use crate::stack::Calls;
use crate::utils::{End, address};

/// An identifier with its queue pair and queues: what a request hands on to its connection.
#[derive(Clone, Copy)]
pub struct Wiring {
    /// The libraries' functions.
    pub calls: &'static Calls,
    /// The identifier.
    pub id: *mut rdma_cm_id,
    /// The request's queue pair, or NULL.
    pub qp: *mut ibv_qp,
    /// The queue pair, where it is an extended one; else NULL.
    pub extended: *mut ibv_qp_ex,
    /// For sends, and for receives where they have none of their own.
    pub cq: *mut Cq,
    /// For receives, or NULL.
    pub rcq: *mut Cq,
    /// The channel of both, or NULL where each has one of its own.
    pub channel: *mut ibv_comp_channel,
}

/// Bytes that the other side gave, as long as what they came in is.
#[derive(Clone, Copy)]
pub struct PrivateData {
    /// Room for as many as there can be.
    bytes: *mut [u8; 255],
    len: u8,
}

/// `struct rpma_conn_private_data`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Told {
    ptr: *mut c_void,
    len: u8,
}

/// `struct rpma_conn_req`.
pub struct ConnReq {
    wiring: Wiring,
    peer: *const Peer,
    /// Whether the other side asks.
    incoming: bool,
    data: PrivateData,
}

impl PrivateData {
    /// Room for some; there are none yet.
    pub fn new() -> Result<Self> {
        Ok(Self { bytes: make([0; 255])?, len: 0 })
    }
    /// # Safety
    ///
    /// No thread uses them any more.
    pub unsafe fn end(self) {
        // SAFETY: as the caller says.
        unsafe { end(self.bytes) }
    }
    /// Stores the private data of an event.
    ///
    /// # Safety
    ///
    /// The event is not acknowledged yet, and has parameters of a connection.
    pub unsafe fn store(&mut self, event: *const rdma_cm_event) {
        // SAFETY: as the caller says: so many bytes are there. The room is for as many as a byte
        // can count, and no other thread's.
        unsafe {
            let conn = (*event).param.conn;
            if !conn.private_data.is_null() {
                self.len = conn.private_data_len;
                std::ptr::copy_nonoverlapping(
                    conn.private_data.cast(),
                    self.bytes.cast::<u8>(),
                    self.len.into(),
                );
            }
        }
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// As C has them: NULL where there are none.
    pub fn told(&self) -> Told {
        Told { ptr: if self.is_empty() { null_mut() } else { self.bytes.cast() }, len: self.len }
    }
}

/// Tells of an address of the program's.
///
/// # Safety
///
/// Strings.
pub unsafe fn tell(function: &'static CStr, what: &str, addr: *const c_char, port: *const c_char) {
    // SAFETY: as the caller says.
    let (addr, port) = unsafe { (CStr::from_ptr(addr).to_str(), CStr::from_ptr(port).to_str()) };
    log::notice(function, format_args!("{what} {}:{}", addr.unwrap_or("?"), port.unwrap_or("?")));
}

impl Wiring {
    /// Queues and queue pair of an identifier that has a device.
    ///
    /// # Safety
    ///
    /// Peer, identifier and shared receive queue live.
    unsafe fn fill(&mut self, function: &'static CStr, peer: &Peer, values: &Values) -> Result<()> {
        // SAFETY: as the caller says. What is made is named in here at once, so that it ends with
        // it.
        unsafe {
            let context = (*self.id).verbs;
            let srq = values.srq.as_ref();
            if values.shared_channel {
                let channel = (self.calls.ibv_create_comp_channel)(context);
                self.channel = made(function, "ibv_create_comp_channel", channel)?;
            }
            self.cq = cq::new(self.calls, function, context, values.cq_size, self.channel)?;
            let srq_rcq = srq.map_or(null_mut(), |srq| srq.rcq);
            if values.rcq_size > 0 && srq_rcq.is_null() {
                self.rcq = cq::new(self.calls, function, context, values.rcq_size, self.channel)?;
            }
            let send_cq = (*self.cq).cq;
            let receives = [srq_rcq, self.rcq].into_iter().find_map(|cq| cq.as_ref());
            let mut init: ibv_qp_init_attr = std::mem::zeroed();
            (init.send_cq, init.recv_cq) = (send_cq, receives.map_or(send_cq, |cq| cq.cq));
            init.srq = srq.map_or(null_mut(), |srq| srq.srq);
            init.cap = sizes(values.sq_size, values.rq_size);
            self.extended = peer.create_qp(function, self.id, &mut init)?;
            self.qp = (*self.id).qp;
        }
        Ok(())
    }

    /// Ends queue pair and queues; the first failure is what it returns. The identifier and the
    /// shared channel are left.
    ///
    /// # Safety
    ///
    /// No thread uses them any more.
    pub unsafe fn end_queues(&mut self, function: &'static CStr) -> Result<()> {
        // SAFETY: as the caller says; NULL is none.
        unsafe {
            if !self.qp.is_null() {
                (self.calls.rdma_destroy_qp)(self.id);
            }
            let rcq = cq::delete(function, self.rcq);
            let cq = cq::delete(function, self.cq);
            (self.qp, self.cq, self.rcq) = (null_mut(), null_mut(), null_mut());
            rcq.and(cq)
        }
    }

    /// Ends the identifier and the shared channel.
    ///
    /// # Safety
    ///
    /// No thread uses them any more, and the queues have ended.
    pub unsafe fn end_id(&mut self, function: &'static CStr) -> Result<()> {
        // SAFETY: as the caller says; NULL is none.
        unsafe {
            let id = number(function, "rdma_destroy_id", (self.calls.rdma_destroy_id)(self.id));
            if self.channel.is_null() {
                return id;
            }
            let result = (self.calls.ibv_destroy_comp_channel)(self.channel);
            id.and(errno_of(function, "ibv_destroy_comp_channel", result))
        }
    }
}

/// A request with an identifier that has a device. Where it can not be made the identifier is left
/// as it was.
///
/// # Safety
///
/// Peer and identifier live; the configuration too, or it is NULL.
unsafe fn of_id(
    function: &'static CStr,
    peer: *const Peer,
    id: *mut rdma_cm_id,
    values: &Values,
    incoming: bool,
) -> Result<*mut ConnReq> {
    // SAFETY: as the caller says.
    let with = unsafe { of(peer) }?;
    let wiring = Wiring {
        calls: with.calls,
        id,
        qp: null_mut(),
        extended: null_mut(),
        cq: null_mut(),
        rcq: null_mut(),
        channel: null_mut(),
    };
    let data = PrivateData::new()?;
    let req = make(ConnReq { wiring, peer, incoming, data }).inspect_err(|_| {
        // SAFETY: just made, and no other thread has it.
        unsafe { data.end() }
    })?;
    // SAFETY: just made, and no other thread has it; the rest as the caller says.
    unsafe {
        let wiring = &mut (*req).wiring;
        if let Err(code) = wiring.fill(function, with, values) {
            let _ = wiring.end_queues(function);
            if !wiring.channel.is_null() {
                (with.calls.ibv_destroy_comp_channel)(wiring.channel);
            }
            data.end();
            end(req);
            return Err(code);
        }
    }
    Ok(req)
}

/// The request that an event brings, which is acknowledged by the caller.
///
/// # Safety
///
/// Peer and event live; the configuration too, or it is NULL.
pub unsafe fn incoming(
    peer: *const Peer,
    event: *const rdma_cm_event,
    cfg: *const ConnCfg,
) -> Result<*mut ConnReq> {
    // SAFETY: as the caller says.
    unsafe {
        let req = of_id(c"rpma_ep_next_conn_req", peer, (*event).id, &ConnCfg::values(cfg), true)?;
        (*req).data.store(event);
        Ok(req)
    }
}

const NEW: &CStr = c"rpma_conn_req_new";

/// rpma_conn_req_new(3).
pub unsafe extern "C-unwind" fn rpma_conn_req_new(
    peer: *mut Peer,
    addr: *const c_char,
    port: *const c_char,
    cfg: *const ConnCfg,
    req: *mut *mut ConnReq,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { outgoing(peer, addr, port, cfg, req) })
}

/// # Safety
///
/// That of the function above.
unsafe fn outgoing(
    peer: *const Peer,
    addr: *const c_char,
    port: *const c_char,
    cfg: *const ConnCfg,
    out: *mut *mut ConnReq,
) -> Result<()> {
    // SAFETY: as the caller says.
    let calls = unsafe { of(peer) }?.calls;
    require(!addr.is_null() && !port.is_null() && !out.is_null())?;
    // SAFETY: strings, as the caller says; the answer is there until it is freed; room for an
    // identifier, which without a channel waits.
    unsafe {
        let values = ConnCfg::values(cfg);
        let found = address(calls, NEW, addr, port, End::Active)?;
        let mut id = null_mut();
        let created = (calls.rdma_create_id)(null_mut(), &raw mut id, null_mut(), RDMA_PS_TCP);
        if let Err(code) = number(NEW, "rdma_create_id", created) {
            (calls.rdma_freeaddrinfo)(found);
            return Err(code);
        }
        let (from, to) = ((*found).ai_src_addr, (*found).ai_dst_addr);
        let resolved = (calls.rdma_resolve_addr)(id, from, to, values.timeout_ms);
        let resolved = number(NEW, "rdma_resolve_addr", resolved);
        (calls.rdma_freeaddrinfo)(found);
        let req = match resolved {
            Ok(()) => routed(calls, peer, id, &values),
            Err(code) => Err(code),
        };
        match req {
            Ok(req) => {
                tell(NEW, "requesting a connection to", addr, port);
                put(out, req)
            }
            Err(code) => {
                (calls.rdma_destroy_id)(id);
                Err(code)
            }
        }
    }
}

/// # Safety
///
/// The identifier is there and has an address.
unsafe fn routed(
    calls: &Calls,
    peer: *const Peer,
    id: *mut rdma_cm_id,
    values: &Values,
) -> Result<*mut ConnReq> {
    // SAFETY: as the caller says.
    unsafe {
        number(NEW, "rdma_resolve_route", (calls.rdma_resolve_route)(id, values.timeout_ms))?;
        of_id(NEW, peer, id, values, false)
    }
}

/// rpma_conn_req_delete(3).
pub unsafe extern "C" fn rpma_conn_req_delete(req: *mut *mut ConnReq) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(req).and_then(|req| delete(req)) })
}

/// Ends a request, which is refused where the other side has made it; NULL is none.
///
/// # Safety
///
/// No thread uses it any more.
pub unsafe fn delete(req: *mut ConnReq) -> Result<()> {
    const DELETE: &CStr = c"rpma_conn_req_delete";
    if req.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe {
        let ConnReq { mut wiring, incoming, data, .. } = req.read();
        let queues = wiring.end_queues(DELETE);
        let refused = match incoming {
            true => number(DELETE, "rdma_reject", (wiring.calls.rdma_reject)(wiring.id, null(), 0)),
            false => Ok(()),
        };
        let id = wiring.end_id(DELETE);
        data.end();
        end(req);
        queues.and(refused).and(id)
    }
}

/// rpma_conn_req_recv(3). As with upstream's, it takes no receive without a region.
pub unsafe extern "C" fn rpma_conn_req_recv(
    req: *mut ConnReq,
    dst: *mut MrLocal,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    let post = || {
        // SAFETY: the crate's contract.
        let req = unsafe { of(req) }?;
        require(!dst.is_null())?;
        // SAFETY: likewise.
        unsafe { op::receive_on(c"rpma_conn_req_recv", req.wiring.qp, dst, offset, len, op_context) }
    };
    answer(post())
}

/// rpma_conn_req_get_private_data(3).
pub unsafe extern "C" fn rpma_conn_req_get_private_data(req: *const ConnReq, pdata: *mut Told) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(req).and_then(|req| put(pdata, req.data.told())) })
}

/// rpma_conn_req_connect(3).
pub unsafe extern "C" fn rpma_conn_req_connect(
    req: *mut *mut ConnReq,
    pdata: *const Told,
    conn: *mut *mut Conn,
) -> c_int {
    let connect = || {
        // SAFETY: the crate's contract.
        let req = unsafe { take(req) }?;
        require(!req.is_null())?;
        // SAFETY: likewise.
        let told = unsafe { pdata.as_ref() };
        if conn.is_null() || told.is_some_and(|told| told.len == 0) {
            // SAFETY: it is no other thread's any more.
            let _ = unsafe { delete(req) };
            return Err(INVAL);
        }
        // SAFETY: likewise; the data is there until the call returns.
        unsafe { put(conn, establish(req, told)?) }
    };
    answer(connect())
}

const CONNECT: &CStr = c"rpma_conn_req_connect";

/// The connection of a request, which is no more in any case.
///
/// # Safety
///
/// The request is no other thread's.
unsafe fn establish(req: *mut ConnReq, told: Option<&Told>) -> Result<*mut Conn> {
    let mut param = rdma_conn_param {
        private_data: told.map_or(null(), |told| told.ptr.cast_const()),
        private_data_len: told.map_or(0, |told| told.len),
        responder_resources: RDMA_MAX_RESP_RES,
        initiator_depth: RDMA_MAX_INIT_DEPTH,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    };
    // SAFETY: as the caller says. The connection takes what the request has, and the request ends
    // without it.
    unsafe {
        let ConnReq { wiring, peer, incoming, data } = req.read();
        let conn = match conn::new(CONNECT, &*peer, wiring, data) {
            Ok(conn) => conn,
            Err(code) => {
                let _ = delete(req);
                return Err(code);
            }
        };
        end(req);
        let done = match incoming {
            true => number(CONNECT, "rdma_accept", (wiring.calls.rdma_accept)(wiring.id, &raw mut param)),
            false => number(CONNECT, "rdma_connect", (wiring.calls.rdma_connect)(wiring.id, &raw mut param)),
        };
        if let Err(code) = done {
            if incoming {
                // The peer that asked is told; a failure of that has no caller to tell.
                (wiring.calls.rdma_reject)(wiring.id, null(), 0);
            }
            let _ = conn::delete(conn);
            return Err(code);
        }
        Ok(conn)
    }
}
