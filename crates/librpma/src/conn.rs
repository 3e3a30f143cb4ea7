//! Connections: their events, queues and end (rpma_conn_next_event(3)).

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rdma_core_abi::cma::{
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_UNREACHABLE, rdma_event_channel,
};
use rdma_core_abi::verbs::{IBV_ACCESS_LOCAL_WRITE, ibv_mr, ibv_qp, ibv_qp_ex, ibv_sge};

use crate::codes::{INVAL, NOMEM, NOT_SHARED_CHNL, Result, UNKNOWN, answer, errno_of, made, number, require};
use crate::conn_req::{PrivateData, Told, Wiring};
use crate::cq::{self, Cq};
use crate::ep::next_event;
use crate::log;
use crate::object::{end, make, of, put, take};
use crate::op::WORD;
use crate::peer::Peer;
use crate::peer_cfg::PeerCfg;
use crate::utils::event_text;

/// `struct rpma_conn`.
pub struct Conn {
    wiring: Wiring,
    /// The connection's queue pair.
    pub qp: *mut ibv_qp,
    /// The queue pair, where it is an extended one; else NULL.
    pub extended: *mut ibv_qp_ex,
    channel: *mut rdma_event_channel,
    data: PrivateData,
    flushed: Flushed,
    /// What its device can do beyond what all do.
    capabilities: u64,
    /// What the other side has said of itself.
    direct_write: AtomicBool,
    native: AtomicU8,
}

/// A page of the library's own, where a READ in place of a flush reads to. No page of the heap:
/// registered memory may be missing in a child of fork(2).
#[derive(Clone, Copy)]
struct Flushed {
    page: *mut libc::c_void,
    mr: *mut ibv_mr,
}

const PAGE: usize = 4096;

impl Flushed {
    /// # Safety
    ///
    /// The peer lives.
    unsafe fn new(function: &'static CStr, peer: &Peer) -> Result<Self> {
        // SAFETY: a mapping at a place of the kernel's choice.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(NOMEM);
        }
        // SAFETY: just mapped, and only ended with the region.
        let mr =
            unsafe { (peer.calls.ibv_reg_mr)(peer.pd, page, WORD as usize, IBV_ACCESS_LOCAL_WRITE as c_int) };
        let registered = made(function, "ibv_reg_mr", mr).inspect_err(|_| {
            // SAFETY: just mapped, and no other thread has it.
            unsafe { libc::munmap(page, PAGE) };
        });
        Ok(Self { page, mr: registered? })
    }

    /// # Safety
    ///
    /// The queue pair that read to it has ended.
    unsafe fn end(self, function: &'static CStr, wiring: &Wiring) -> Result<()> {
        // SAFETY: as the caller says.
        unsafe {
            let result = errno_of(function, "ibv_dereg_mr", (wiring.calls.ibv_dereg_mr)(self.mr));
            let unmapped = libc::munmap(self.page, PAGE);
            result.and(if unmapped == 0 { Ok(()) } else { Err(INVAL) })
        }
    }
}

/// A connection of what a request has, whose events come to a channel of its own from now on. On
/// failure the request has it as before.
///
/// # Safety
///
/// All of it lives, and is no other object's.
pub unsafe fn new(
    function: &'static CStr,
    peer: &Peer,
    wiring: Wiring,
    data: PrivateData,
) -> Result<*mut Conn> {
    let calls = wiring.calls;
    // SAFETY: as the caller says.
    let flushed = unsafe { Flushed::new(function, peer) }?;
    let conn = make(Conn {
        wiring,
        qp: wiring.qp,
        extended: wiring.extended,
        channel: null_mut(),
        data,
        flushed,
        capabilities: peer.capabilities,
        direct_write: AtomicBool::new(false),
        native: AtomicU8::new(0),
    })
    .inspect_err(|_| {
        // SAFETY: just made, and nothing reads to it. What failed is told of already.
        let _ = unsafe { flushed.end(function, &wiring) };
    })?;
    // SAFETY: just made, and no other thread has it; the rest as the caller says.
    unsafe {
        let channel = (calls.rdma_create_event_channel)();
        let moved = made(function, "rdma_create_event_channel", channel).and_then(|channel| {
            (*conn).channel = channel;
            number(function, "rdma_migrate_id", (calls.rdma_migrate_id)(wiring.id, channel))
        });
        if let Err(code) = moved {
            if !channel.is_null() {
                (calls.rdma_destroy_event_channel)(channel);
            }
            let _ = flushed.end(function, &wiring);
            end(conn);
            return Err(code);
        }
    }
    Ok(conn)
}

/// Ends a connection, whether or not it stands; NULL is none. The first failure is what it returns.
///
/// # Safety
///
/// No thread uses it any more.
pub unsafe fn delete(conn: *mut Conn) -> Result<()> {
    const DELETE: &CStr = c"rpma_conn_delete";
    if conn.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller says. The queue pair goes before what it uses, and the identifier
    // before its channel.
    unsafe {
        let mut wiring = (*conn).wiring;
        let queues = wiring.end_queues(DELETE);
        let flushed = (*conn).flushed.end(DELETE, &wiring);
        let id = wiring.end_id(DELETE);
        (wiring.calls.rdma_destroy_event_channel)((*conn).channel);
        (*conn).data.end();
        end(conn);
        queues.and(flushed).and(id)
    }
}

impl Conn {
    /// Where a READ in place of a flush reads to.
    pub fn flushed(&self) -> ibv_sge {
        // SAFETY: the region lives as long as the connection.
        let lkey = unsafe { (*self.flushed.mr).lkey };
        ibv_sge { addr: self.flushed.page.addr() as u64, length: WORD, lkey }
    }
    /// Whether both ends have an operation: the other side by its configuration, this one by its
    /// device.
    pub fn does(&self, native: u8, capability: u64) -> bool {
        self.native.load(Ordering::Relaxed) & native != 0
            && self.capabilities & capability != 0
            && !self.extended.is_null()
    }
    /// Whether the other side has declared direct write to persistent memory.
    pub fn direct_write(&self) -> bool {
        self.direct_write.load(Ordering::Relaxed)
    }
}

/// rpma_conn_get_event_fd(3).
pub unsafe extern "C" fn rpma_conn_get_event_fd(conn: *const Conn, fd: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(conn).and_then(|conn| put(fd, (*conn.channel).fd)) })
}

/// rpma_conn_next_event(3).
pub unsafe extern "C-unwind" fn rpma_conn_next_event(conn: *mut Conn, event: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { event_of(conn, event) })
}

/// # Safety
///
/// That of the function above.
unsafe fn event_of(conn: *mut Conn, out: *mut c_int) -> Result<()> {
    const NEXT: &CStr = c"rpma_conn_next_event";
    require(!conn.is_null() && !out.is_null())?;
    // SAFETY: as the caller says; the event is there until it is acknowledged. Private data changes
    // with one event of a connection, which comes once, and before the program may ask for it.
    let (calls, kind) = unsafe {
        let calls = (*conn).wiring.calls;
        let event = next_event(calls, NEXT, (*conn).channel)?;
        let kind = (*event).event;
        if kind == RDMA_CM_EVENT_ESTABLISHED && (*conn).data.is_empty() {
            (*conn).data.store(event);
        }
        number(NEXT, "rdma_ack_cm_event", (calls.rdma_ack_cm_event)(event))?;
        (calls, kind)
    };
    let event = match kind {
        RDMA_CM_EVENT_ESTABLISHED => 0,
        RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_TIMEWAIT_EXIT => 1,
        RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_DEVICE_REMOVAL => 2,
        RDMA_CM_EVENT_REJECTED => 3,
        RDMA_CM_EVENT_UNREACHABLE => 4,
        _ => {
            // SAFETY: a string that stays.
            let name = unsafe { CStr::from_ptr((calls.rdma_event_str)(kind)) };
            log::error(NEXT, format_args!("{} of a connection", name.to_str().unwrap_or("an unknown event")));
            return Err(UNKNOWN);
        }
    };
    log::notice(NEXT, format_args!("{}", event_text(event).to_str().unwrap_or_default()));
    // SAFETY: as the caller says.
    unsafe { put(out, event) }
}

/// rpma_conn_get_private_data(3).
pub unsafe extern "C" fn rpma_conn_get_private_data(conn: *const Conn, pdata: *mut Told) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(conn).and_then(|conn| put(pdata, conn.data.told())) })
}

/// rpma_conn_apply_remote_peer_cfg(3).
pub unsafe extern "C" fn rpma_conn_apply_remote_peer_cfg(conn: *mut Conn, pcfg: *const PeerCfg) -> c_int {
    // SAFETY: the crate's contract.
    let both = unsafe { of(conn).and_then(|conn| Ok((conn, of(pcfg)?))) };
    answer(both.map(|(conn, pcfg)| {
        conn.direct_write.store(pcfg.direct_write(), Ordering::Relaxed);
        conn.native.store(pcfg.native(), Ordering::Relaxed);
    }))
}

/// rpma_conn_get_qp_num(3).
pub unsafe extern "C" fn rpma_conn_get_qp_num(conn: *const Conn, qp_num: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(conn).and_then(|conn| put(qp_num, (*conn.qp).qp_num)) })
}

/// rpma_conn_get_cq(3).
pub unsafe extern "C" fn rpma_conn_get_cq(conn: *const Conn, cq: *mut *mut Cq) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(conn).and_then(|conn| put(cq, conn.wiring.cq)) })
}

/// rpma_conn_get_rcq(3).
pub unsafe extern "C" fn rpma_conn_get_rcq(conn: *const Conn, rcq: *mut *mut Cq) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(conn).and_then(|conn| put(rcq, conn.wiring.rcq)) })
}

/// rpma_conn_get_compl_fd(3).
pub unsafe extern "C" fn rpma_conn_get_compl_fd(conn: *const Conn, fd: *mut c_int) -> c_int {
    let get = || {
        // SAFETY: the crate's contract.
        let conn = unsafe { of(conn) }?;
        require(!fd.is_null())?;
        // SAFETY: likewise; NULL where each queue has a channel of its own.
        let channel = unsafe { conn.wiring.channel.as_ref() }.ok_or(NOT_SHARED_CHNL)?;
        // SAFETY: likewise.
        unsafe { put(fd, channel.fd) }
    };
    answer(get())
}

/// rpma_conn_wait(3).
pub unsafe extern "C-unwind" fn rpma_conn_wait(
    conn: *mut Conn,
    _flags: c_int,
    cq: *mut *mut Cq,
    is_rcq: *mut bool,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { wait(conn, cq, is_rcq) })
}

/// # Safety
///
/// That of the function above.
unsafe fn wait(conn: *const Conn, out: *mut *mut Cq, is_rcq: *mut bool) -> Result<()> {
    const WAIT: &CStr = c"rpma_conn_wait";
    // SAFETY: as the caller says.
    let Wiring { calls, channel, cq, rcq, .. } = unsafe { of(conn) }?.wiring;
    require(!out.is_null())?;
    if channel.is_null() {
        return Err(NOT_SHARED_CHNL);
    }
    // SAFETY: they live.
    unsafe {
        let announced = cq::event(calls, channel)?;
        let receives = rcq.as_ref().is_some_and(|rcq| rcq.cq == announced);
        if !receives && (*cq).cq != announced {
            log::error(WAIT, format_args!("ibv_get_cq_event told of a queue that is not the connection's"));
            return Err(UNKNOWN);
        }
        put(out, if receives { rcq } else { cq })?;
        if !is_rcq.is_null() {
            is_rcq.write(receives);
        }
        cq::again(calls, WAIT, announced)
    }
}

/// rpma_conn_disconnect(3).
pub unsafe extern "C" fn rpma_conn_disconnect(conn: *mut Conn) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(conn) }.and_then(|conn| {
        let Wiring { calls, id, .. } = conn.wiring;
        // SAFETY: they live.
        number(c"rpma_conn_disconnect", "rdma_disconnect", unsafe { (calls.rdma_disconnect)(id) })
    }))
}

/// rpma_conn_delete(3).
pub unsafe extern "C" fn rpma_conn_delete(conn: *mut *mut Conn) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(conn).and_then(|conn| delete(conn)) })
}
