//! FLUSH as the header's inline functions call it, from a queue pair of the loopback device to
//! itself.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use capi::verbs::{memory, qp};
use rdma_core_abi::verbs::*;

use support::{Loop, connect, errno};

const RIGHTS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
const BOTH: u32 = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;
const LEN: usize = 8192;

fn map(fd: c_int, flags: c_int) -> *mut u8 {
    let at = unsafe { libc::mmap(null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn register(l: &Loop, at: *mut u8, access: u32) -> Result<*mut ibv_mr, c_int> {
    let mr = unsafe { memory::ibv_reg_mr(l.pd, at.cast(), LEN, access as c_int) };
    if mr.is_null() { Err(errno()) } else { Ok(mr) }
}

/// A queue pair for FLUSH and ATOMIC WRITE, connected to itself, whose peer may do all that the
/// memory allows.
fn flushing(l: &Loop) -> *mut ibv_qp {
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.qp_type, attr.pd, attr.send_cq, attr.recv_cq) = (IBV_QPT_RC, l.pd, l.cq, l.cq);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = u64::from(IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE);
    attr.cap.max_send_wr = 8;
    unsafe {
        let ctx: *mut verbs_context = l.context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast();
        let qp = (*ctx).create_qp_ex.expect("built")(l.context, &raw mut attr);
        assert!(!qp.is_null(), "errno {}", errno());
        connect(qp);
        let mut attr: ibv_qp_attr = std::mem::zeroed();
        attr.qp_access_flags = RIGHTS | BOTH;
        assert_eq!(qp::ibv_modify_qp(qp, &raw mut attr, IBV_QP_ACCESS_FLAGS as c_int), 0);
        qp
    }
}

/// Posts a FLUSH of a range; errno of `wr_complete`.
fn flush(qp: *mut ibv_qp, wr_id: u64, mr: *mut ibv_mr, len: usize, kind: u32, level: u32) -> c_int {
    unsafe {
        let qpx = qp::ibv_qp_to_qp_ex(qp);
        let q = &mut *qpx;
        q.wr_start.expect("built")(qpx);
        (q.wr_id, q.wr_flags) = (wr_id, IBV_SEND_SIGNALED);
        let addr = (*mr).addr.expose_provenance() as u64;
        q.wr_flush.expect("built")(qpx, (*mr).rkey, addr, len, kind as u8, level as u8);
        q.wr_complete.expect("built")(qpx)
    }
}

/// Posts an ATOMIC WRITE to the first bytes.
fn atomic_write(qp: *mut ibv_qp, wr_id: u64, mr: *mut ibv_mr, value: &[u8; 8]) {
    unsafe {
        let qpx = qp::ibv_qp_to_qp_ex(qp);
        let q = &mut *qpx;
        q.wr_start.expect("built")(qpx);
        (q.wr_id, q.wr_flags) = (wr_id, IBV_SEND_SIGNALED);
        let addr = (*mr).addr.expose_provenance() as u64;
        q.wr_atomic_write.expect("built")(qpx, (*mr).rkey, addr, value.as_ptr().cast());
        assert_eq!(q.wr_complete.expect("built")(qpx), 0);
    }
}

#[test]
fn a_file_is_flushed_before_what_comes_after_is_written() {
    let l = Loop::open();
    let mut file = tempfile();
    let at = map(file.as_raw_fd(), libc::MAP_SHARED);
    let mr = register(&l, at, RIGHTS | BOTH).expect("of a file");
    let qp = flushing(&l);
    for round in 0..20_u64 {
        atomic_write(qp, 3 * round, mr, &round.to_be_bytes());
        assert_eq!(flush(qp, 3 * round + 1, mr, 64, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE), 0);
        atomic_write(qp, 3 * round + 2, mr, &[round as u8; 8]);
        let done: Vec<_> = l.completions(3).iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        let expected = [IBV_WC_ATOMIC_WRITE, IBV_WC_FLUSH, IBV_WC_ATOMIC_WRITE];
        let expected = expected.iter().zip(3 * round..).map(|(&op, id)| (id, IBV_WC_SUCCESS, op));
        assert_eq!(done, expected.collect::<Vec<_>>());
    }
    assert_eq!(flush(qp, 100, mr, 0, IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT, IBV_FLUSH_MR), 0);
    assert_eq!(l.completions(1)[0].status, IBV_WC_SUCCESS);
    let mut first = [0; 8];
    file.read_exact(&mut first).expect("the file has them");
    assert_eq!(first, [19; 8]);
    unsafe {
        assert_eq!(qp::ibv_destroy_qp(qp), 0);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        libc::munmap(at.cast(), LEN);
    }
    l.close();
}

/// A file that is flushed at once, where the system has a place for such: a storage that others
/// keep busy takes seconds, longer than a request is repeated.
fn tempfile() -> std::fs::File {
    let memory = std::path::PathBuf::from("/dev/shm");
    let dir = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let path = dir.join(format!("verbena-flush-{}", std::process::id()));
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).expect("made");
    std::fs::remove_file(&path).expect("removed");
    file.set_len(LEN as u64).expect("grown");
    file
}

#[test]
fn memory_without_a_file_can_not_persist() {
    let l = Loop::open();
    let file = tempfile();
    let anonymous = map(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let shared = map(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let copy = map(file.as_raw_fd(), libc::MAP_PRIVATE);
    for at in [anonymous, shared, copy] {
        assert_eq!(register(&l, at, RIGHTS | IBV_ACCESS_FLUSH_PERSISTENT), Err(libc::EINVAL));
        let mr = register(&l, at, RIGHTS | IBV_ACCESS_FLUSH_GLOBAL).expect("visible it can be");
        assert_eq!(unsafe { memory::ibv_dereg_mr(mr) }, 0);
        unsafe { libc::munmap(at.cast(), LEN) };
    }
    l.close();
}

#[test]
fn a_flush_needs_the_right_for_where_it_goes() {
    for (access, kind, len, level) in [
        (IBV_ACCESS_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, 64, IBV_FLUSH_RANGE),
        (IBV_ACCESS_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, 0, IBV_FLUSH_MR),
        (0, IBV_FLUSH_GLOBAL, 64, IBV_FLUSH_RANGE),
        (IBV_ACCESS_FLUSH_GLOBAL, IBV_FLUSH_GLOBAL, LEN + 1, IBV_FLUSH_RANGE),
    ] {
        let l = Loop::open();
        let at = map(-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let mr = register(&l, at, RIGHTS | access).expect("anonymous");
        let qp = flushing(&l);
        assert_eq!(flush(qp, 1, mr, len, kind, level), 0);
        // The responder is the same queue pair: what it refuses is flushed before the NAK comes.
        assert_ne!(l.completions(1)[0].status, IBV_WC_SUCCESS, "{access:#x} {kind} {level}");
        unsafe {
            assert_eq!(qp::ibv_destroy_qp(qp), 0);
            assert_eq!(memory::ibv_dereg_mr(mr), 0);
            libc::munmap(at.cast(), LEN);
        }
        l.close();
    }
}

#[test]
fn a_flush_that_is_not_one_is_not_posted() {
    let l = Loop::open();
    let qp = flushing(&l);
    let long = u32::MAX as usize + 1;
    for (len, kind, level) in [(8, 0, 0), (8, 4, 0), (8, IBV_FLUSH_GLOBAL, 2), (long, IBV_FLUSH_GLOBAL, 0)] {
        assert_eq!(flush(qp, 1, l.mr, len, kind, level), libc::EINVAL);
    }
    unsafe { assert_eq!(qp::ibv_destroy_qp(qp), 0) };
    l.close();
}
