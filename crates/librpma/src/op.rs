//! The data path: reading, writing, flushing, messages. Each is one work request on the stack and
//! one call of the queue pair's own function, as verbs.h's ibv_post_send does it.
//!
//! | function | where both ends have FLUSH or ATOMIC WRITE | otherwise |
//! |---|---|---|
//! | rpma_flush to visibility | FLUSH of the range | a READ of 8 bytes of it |
//! | rpma_flush to persistence | FLUSH of the range | the same, where the other side has declared direct write; else RPMA_E_NOSUPP |
//! | rpma_atomic_write | ATOMIC WRITE | a WRITE of 8 bytes, inline, after a fence |
//!
//! Whether the other side has them, its configuration says (rpma_conn_apply_remote_peer_cfg(3),
//! `peer_cfg`). Bounds and usages are not looked at here, as they are not by upstream's:
//! completions tell.

use std::ffi::{CStr, c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use rdma_core_abi::verbs::{
    IBV_FLUSH_GLOBAL, IBV_FLUSH_MR, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE, IBV_SEND_FENCE, IBV_SEND_INLINE,
    IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_send_wr_imm, ibv_send_wr_rdma, ibv_sge,
    ibv_wr_opcode,
};

use crate::codes::{NOSUPP, PROVIDER, Result, answer, errno_of, require};
use crate::conn::Conn;
use crate::mr::{MrLocal, MrRemote, PERSISTENT, VISIBILITY};
use crate::object::of;
use crate::peer::{CAN_FLUSH_GLOBAL, CAN_FLUSH_PERSISTENT, CAN_WRITE_ATOMICALLY};
use crate::peer_cfg;

/// RPMA_F_COMPLETION_ALWAYS has this bit, and RPMA_F_COMPLETION_ON_ERROR not.
const ON_SUCCESS: c_int = 1 << 1;

/// Bytes that an atomic write writes, and that a READ in place of a flush brings.
pub const WORD: u32 = 8;

/// A part of a region; the length is what fits into 32 bits, as with upstream's.
fn part(mr: &MrLocal, offset: usize, len: usize) -> ibv_sge {
    ibv_sge { addr: mr.addr.wrapping_add(offset as u64), length: len as u32, lkey: mr.lkey }
}

fn at(mr: &MrRemote, offset: usize) -> ibv_send_wr_rdma {
    ibv_send_wr_rdma { remote_addr: mr.addr.wrapping_add(offset as u64), rkey: mr.rkey }
}

fn signaled(flags: c_int) -> u32 {
    if flags & ON_SUCCESS != 0 { IBV_SEND_SIGNALED } else { 0 }
}

/// A work request of an opcode, about nothing yet.
fn request(opcode: ibv_wr_opcode, flags: c_int, op_context: *const c_void) -> ibv_send_wr {
    // SAFETY: numbers and addresses: all zeros are a request.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (op_context.addr() as u64, opcode, signaled(flags));
    wr
}

/// Posts one request, with one element or none.
///
/// # Safety
///
/// The connection lives, and the memory that the element names stays until the completion.
#[inline]
unsafe fn post(
    function: &'static CStr,
    conn: &Conn,
    wr: &mut ibv_send_wr,
    sge: Option<&mut ibv_sge>,
) -> Result<()> {
    if let Some(sge) = sge {
        (wr.sg_list, wr.num_sge) = (sge, 1);
    }
    let mut bad = null_mut();
    // SAFETY: the queue pair, and so its context, live; verbs.h calls this function. The request is
    // read before it returns.
    let result = unsafe {
        let post = (*(*conn.qp).context).ops.post_send.ok_or(PROVIDER)?;
        post(conn.qp, wr, &raw mut bad)
    };
    errno_of(function, "ibv_post_send", result)
}

/// What rpma_read(3) and rpma_write(3) have in common: both regions, or neither and nothing.
///
/// # Safety
///
/// The crate's contract.
#[inline]
#[allow(clippy::too_many_arguments, reason = "those of the C functions")]
unsafe fn transfer(
    function: &'static CStr,
    opcode: ibv_wr_opcode,
    conn: *const Conn,
    (local, local_offset): (*const MrLocal, usize),
    (remote, remote_offset): (*const MrRemote, usize),
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> Result<()> {
    // SAFETY: as the caller says.
    let (conn, regions) = unsafe { (of(conn)?, local.as_ref().zip(remote.as_ref())) };
    let nothing = local.is_null() && remote.is_null() && local_offset == 0 && remote_offset == 0 && len == 0;
    require(flags != 0 && (regions.is_some() || nothing))?;
    let mut wr = request(opcode, flags, op_context);
    wr.imm = ibv_send_wr_imm { imm_data: imm.to_be() };
    let mut sge = regions.map(|(local, remote)| {
        wr.wr.rdma = at(remote, remote_offset);
        part(local, local_offset, len)
    });
    // SAFETY: as the caller says.
    unsafe { post(function, conn, &mut wr, sge.as_mut()) }
}

/// rpma_read(3).
pub unsafe extern "C" fn rpma_read(
    conn: *mut Conn,
    dst: *mut MrLocal,
    dst_offset: usize,
    src: *const MrRemote,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    let (local, remote) = ((dst.cast_const(), dst_offset), (src, src_offset));
    // SAFETY: the crate's contract.
    answer(unsafe {
        transfer(c"rpma_read", IBV_WR_RDMA_READ, conn, local, remote, len, flags, 0, op_context)
    })
}

/// rpma_write(3).
pub unsafe extern "C" fn rpma_write(
    conn: *mut Conn,
    dst: *mut MrRemote,
    dst_offset: usize,
    src: *const MrLocal,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    let (local, remote) = ((src, src_offset), (dst.cast_const(), dst_offset));
    // SAFETY: the crate's contract.
    answer(unsafe {
        transfer(c"rpma_write", IBV_WR_RDMA_WRITE, conn, local, remote, len, flags, 0, op_context)
    })
}

/// rpma_write_with_imm(3).
pub unsafe extern "C" fn rpma_write_with_imm(
    conn: *mut Conn,
    dst: *mut MrRemote,
    dst_offset: usize,
    src: *const MrLocal,
    src_offset: usize,
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> c_int {
    const OPCODE: ibv_wr_opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    let (local, remote) = ((src, src_offset), (dst.cast_const(), dst_offset));
    // SAFETY: the crate's contract.
    answer(unsafe {
        transfer(c"rpma_write_with_imm", OPCODE, conn, local, remote, len, flags, imm, op_context)
    })
}

/// rpma_atomic_write(3).
pub unsafe extern "C" fn rpma_atomic_write(
    conn: *mut Conn,
    dst: *mut MrRemote,
    dst_offset: usize,
    src: *const u8,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    let write = || {
        // SAFETY: the crate's contract.
        let (conn, dst) = unsafe { (of(conn)?, of(dst)?) };
        require(!src.is_null() && flags != 0 && dst_offset.is_multiple_of(WORD as usize))?;
        let to = at(dst, dst_offset);
        // A region may begin anywhere: then there is no word for it.
        if conn.does(peer_cfg::ATOMIC_WRITE, CAN_WRITE_ATOMICALLY)
            && to.remote_addr.is_multiple_of(WORD.into())
        {
            // SAFETY: the crate's contract: 8 bytes are there.
            return unsafe { write_native(conn, to, src, flags, op_context) };
        }
        let mut wr = request(IBV_WR_RDMA_WRITE, flags, op_context);
        // The fence holds it back until the READs before it are answered, so that it comes after a
        // flush.
        wr.send_flags |= IBV_SEND_INLINE | IBV_SEND_FENCE;
        wr.wr.rdma = to;
        let mut sge = ibv_sge { addr: src.addr() as u64, length: WORD, lkey: 0 };
        // SAFETY: the crate's contract; the bytes are read before it returns.
        unsafe { post(c"rpma_atomic_write", conn, &mut wr, Some(&mut sge)) }
    };
    answer(write())
}

/// # Safety
///
/// The connection lives and has the operation; 8 bytes are at `src`.
unsafe fn write_native(
    conn: &Conn,
    to: ibv_send_wr_rdma,
    src: *const u8,
    flags: c_int,
    op_context: *const c_void,
) -> Result<()> {
    let qp = conn.extended;
    // SAFETY: it lives. Between start and complete the library holds its own lock, and this thread
    // is the only one to write the fields.
    let result = unsafe {
        let (start, complete) = ((*qp).wr_start.ok_or(PROVIDER)?, (*qp).wr_complete.ok_or(PROVIDER)?);
        let write = (*qp).wr_atomic_write.ok_or(PROVIDER)?;
        start(qp);
        (*qp).wr_id = op_context.addr() as u64;
        (*qp).wr_flags = signaled(flags) | IBV_SEND_FENCE;
        write(qp, to.rkey, to.remote_addr, src.cast());
        complete(qp)
    };
    errno_of(c"rpma_atomic_write", "ibv_wr_complete", result)
}

/// rpma_flush(3). A FLUSH needs no direct write: it is complete when what it says is so. An unknown
/// type is a flush by READ, as with upstream's.
pub unsafe extern "C" fn rpma_flush(
    conn: *mut Conn,
    dst: *mut MrRemote,
    dst_offset: usize,
    len: usize,
    type_: c_int,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    let flush = || {
        // SAFETY: the crate's contract.
        let (conn, dst) = unsafe { (of(conn)?, of(dst)?) };
        require(flags != 0)?;
        // RPMA_FLUSH_TYPE_PERSISTENT and RPMA_FLUSH_TYPE_VISIBILITY.
        let (usage, capability, placement) = match type_ {
            0 => (PERSISTENT, CAN_FLUSH_PERSISTENT, IBV_FLUSH_PERSISTENT),
            1 => (VISIBILITY, CAN_FLUSH_GLOBAL, IBV_FLUSH_GLOBAL),
            _ => (0, 0, 0),
        };
        let native = usage != 0 && conn.does(peer_cfg::FLUSH, capability);
        if (usage == PERSISTENT && !native && !conn.direct_write()) || dst.usage & usage != usage {
            return Err(NOSUPP);
        }
        let to = at(dst, dst_offset);
        if native {
            // SAFETY: the crate's contract.
            return unsafe { flush_native(conn, to, len, placement, flags, op_context) };
        }
        let mut wr = request(IBV_WR_RDMA_READ, flags, op_context);
        wr.wr.rdma = to;
        let mut sge = conn.flushed();
        // SAFETY: the connection has this memory for as long as it lives.
        unsafe { post(c"rpma_flush", conn, &mut wr, Some(&mut sge)) }
    };
    answer(flush())
}

/// # Safety
///
/// The connection lives and has the operation.
unsafe fn flush_native(
    conn: &Conn,
    to: ibv_send_wr_rdma,
    len: usize,
    placement: u32,
    flags: c_int,
    op_context: *const c_void,
) -> Result<()> {
    let qp = conn.extended;
    // A range has 32 bits of length on the wire.
    let level = if u32::try_from(len).is_ok() { IBV_FLUSH_RANGE } else { IBV_FLUSH_MR };
    // SAFETY: it lives. Between start and complete the library holds its own lock, and this thread
    // is the only one to write the fields.
    let result = unsafe {
        let (start, complete) = ((*qp).wr_start.ok_or(PROVIDER)?, (*qp).wr_complete.ok_or(PROVIDER)?);
        let flush = (*qp).wr_flush.ok_or(PROVIDER)?;
        start(qp);
        (*qp).wr_id = op_context.addr() as u64;
        (*qp).wr_flags = signaled(flags);
        flush(qp, to.rkey, to.remote_addr, len, placement as u8, level as u8);
        complete(qp)
    };
    errno_of(c"rpma_flush", "ibv_wr_complete", result)
}

/// What rpma_send(3) and rpma_send_with_imm(3) have in common: no region is no bytes.
///
/// # Safety
///
/// The crate's contract.
#[inline]
#[allow(clippy::too_many_arguments, reason = "those of the C functions")]
unsafe fn send(
    function: &'static CStr,
    opcode: ibv_wr_opcode,
    conn: *const Conn,
    (src, offset): (*const MrLocal, usize),
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> Result<()> {
    // SAFETY: as the caller says.
    let (conn, src) = unsafe { (of(conn)?, src.as_ref()) };
    require(flags != 0 && (src.is_some() || (offset == 0 && len == 0)))?;
    let mut wr = request(opcode, flags, op_context);
    wr.imm = ibv_send_wr_imm { imm_data: imm.to_be() };
    let mut sge = src.map(|src| part(src, offset, len));
    // SAFETY: as the caller says.
    unsafe { post(function, conn, &mut wr, sge.as_mut()) }
}

/// rpma_send(3).
pub unsafe extern "C" fn rpma_send(
    conn: *mut Conn,
    src: *const MrLocal,
    offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { send(c"rpma_send", IBV_WR_SEND, conn, (src, offset), len, flags, 0, op_context) })
}

/// rpma_send_with_imm(3).
pub unsafe extern "C" fn rpma_send_with_imm(
    conn: *mut Conn,
    src: *const MrLocal,
    offset: usize,
    len: usize,
    flags: c_int,
    imm: u32,
    op_context: *const c_void,
) -> c_int {
    const NAME: &CStr = c"rpma_send_with_imm";
    // SAFETY: the crate's contract.
    answer(unsafe { send(NAME, IBV_WR_SEND_WITH_IMM, conn, (src, offset), len, flags, imm, op_context) })
}

/// rpma_recv(3).
pub unsafe extern "C" fn rpma_recv(
    conn: *mut Conn,
    dst: *mut MrLocal,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe {
        of(conn).and_then(|conn| receive_on(c"rpma_recv", conn.qp, dst, offset, len, op_context))
    })
}

/// A receive of a queue pair.
///
/// # Safety
///
/// The queue pair lives; the region too, or it is NULL.
pub unsafe fn receive_on(
    function: &'static CStr,
    qp: *mut ibv_qp,
    dst: *const MrLocal,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> Result<()> {
    // SAFETY: the queue pair, and so its context, live; verbs.h calls this function.
    unsafe {
        let post = (*(*qp).context).ops.post_recv;
        receive(function, "ibv_post_recv", dst, offset, len, op_context, |wr, bad| {
            post.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, bad))
        })
    }
}

/// A receive: no region is no bytes.
///
/// # Safety
///
/// The region lives, or is NULL, and `post` may be called with a request.
#[inline]
pub unsafe fn receive(
    function: &'static CStr,
    call: &str,
    dst: *const MrLocal,
    offset: usize,
    len: usize,
    op_context: *const c_void,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<()> {
    // SAFETY: as the caller says.
    let dst = unsafe { dst.as_ref() };
    require(dst.is_some() || (offset == 0 && len == 0))?;
    let mut sge = dst.map(|dst| part(dst, offset, len));
    let mut wr =
        ibv_recv_wr { wr_id: op_context.addr() as u64, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
    if let Some(sge) = &mut sge {
        (wr.sg_list, wr.num_sge) = (sge, 1);
    }
    let mut bad = null_mut();
    errno_of(function, call, post(&raw mut wr, &raw mut bad))
}
