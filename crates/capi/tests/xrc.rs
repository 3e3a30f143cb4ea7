//! XRC as the header's inline functions call it: domains, their queue pairs and shared receive
//! queues, on the loopback device.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use capi::verbs::{memory, qp, srq};
use rdma_core_abi::verbs::*;

use support::{HALF, Loop, connect_to, errno, send};

/// The second table of a context.
fn table(context: *mut ibv_context) -> &'static verbs_context {
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

fn open_with(l: &Loop, comp_mask: u32, fd: c_int, oflags: c_int) -> Result<*mut ibv_xrcd, c_int> {
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd, oflags };
    let xrcd = unsafe { table(l.context).open_xrcd.expect("built")(l.context, &raw mut attr) };
    if xrcd.is_null() { Err(errno()) } else { Ok(xrcd) }
}

fn open(l: &Loop, fd: c_int, oflags: c_int) -> Result<*mut ibv_xrcd, c_int> {
    open_with(l, IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, fd, oflags)
}

fn close(l: &Loop, xrcd: *mut ibv_xrcd) -> c_int {
    unsafe { table(l.context).close_xrcd.expect("built")(xrcd) }
}

fn queue_init(l: &Loop, xrcd: *mut ibv_xrcd) -> ibv_srq_init_attr_ex {
    let mut attr: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    attr.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    attr.comp_mask =
        IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    (attr.pd, attr.xrcd, attr.cq) = (l.pd, xrcd, l.cq);
    attr
}

fn queue(l: &Loop, mut attr: ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, c_int> {
    let srq = unsafe { table(l.context).create_srq_ex.expect("built")(l.context, &raw mut attr) };
    if srq.is_null() { Err(errno()) } else { Ok(srq) }
}

fn create_qp(l: &Loop, attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    let qp = unsafe { table(l.context).create_qp_ex.expect("built")(l.context, attr) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

fn target_init(xrcd: *mut ibv_xrcd) -> ibv_qp_init_attr_ex {
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.qp_type, attr.comp_mask, attr.xrcd) = (IBV_QPT_XRC_RECV, IBV_QP_INIT_ATTR_XRCD, xrcd);
    attr
}

fn initiator(l: &Loop) -> *mut ibv_qp {
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.qp_type, attr.pd, attr.send_cq) = (IBV_QPT_XRC_SEND, l.pd, l.cq);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = u64::from(IBV_QP_EX_WITH_SEND);
    (attr.cap.max_send_wr, attr.cap.max_send_sge) = (4, 1);
    create_qp(l, &mut attr).expect("an initiator needs no receive queue")
}

fn open_attr(xrcd: *mut ibv_xrcd, qp_num: u32) -> ibv_qp_open_attr {
    let comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context: null_mut(), qp_type: IBV_QPT_XRC_RECV }
}

fn open_qp(l: &Loop, mut attr: ibv_qp_open_attr) -> Result<*mut ibv_qp, c_int> {
    let qp = unsafe { table(l.context).open_qp.expect("built")(l.context, &raw mut attr) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

#[test]
fn a_domain_opens_as_in_uverbs() {
    let l = Loop::open();
    let file = std::fs::File::open(std::env::current_exe().expect("a file")).expect("readable");
    let same = std::fs::File::open(std::env::current_exe().expect("a file")).expect("readable");
    let fd = file.as_raw_fd();
    assert_eq!(open_with(&l, IBV_XRCD_INIT_ATTR_FD, fd, libc::O_CREAT), Err(libc::EINVAL));
    assert_eq!(open_with(&l, 7, fd, libc::O_CREAT), Err(libc::EOPNOTSUPP));
    assert_eq!(open(&l, fd, libc::O_TRUNC), Err(libc::EAGAIN));
    assert_eq!(open(&l, fd, 0), Err(libc::EAGAIN));
    assert_eq!(open(&l, 1 << 20, libc::O_CREAT), Err(libc::EBADF));
    let one = open(&l, -1, 0).expect("O_CREAT says nothing where there is no file");
    assert_eq!(close(&l, one), 0);
    let one = open(&l, fd, libc::O_CREAT | libc::O_EXCL).expect("the first");
    assert_eq!(open(&l, same.as_raw_fd(), libc::O_CREAT | libc::O_EXCL), Err(libc::EINVAL));
    assert_eq!(open(&l, same.as_raw_fd(), libc::O_EXCL), Err(libc::EINVAL));
    let two = open(&l, same.as_raw_fd(), 0).expect("the same inode");
    assert_eq!((close(&l, one), close(&l, two)), (0, 0));
    assert_eq!(open(&l, fd, 0), Err(libc::EAGAIN), "gone with its last handle");
    let nameless = open(&l, -1, libc::O_CREAT).expect("anonymous");
    assert_eq!(close(&l, nameless), 0);
    l.close();
}

#[test]
fn a_domain_in_use_is_not_closed() {
    let l = Loop::open();
    let xrcd = open(&l, -1, libc::O_CREAT).expect("anonymous");
    let no_cq = ibv_srq_init_attr_ex { cq: null_mut(), ..queue_init(&l, xrcd) };
    assert_eq!(queue(&l, no_cq), Err(libc::EINVAL));
    let no_domain = ibv_srq_init_attr_ex { xrcd: null_mut(), ..queue_init(&l, xrcd) };
    assert_eq!(queue(&l, no_domain), Err(libc::EINVAL));
    let srq = queue(&l, queue_init(&l, xrcd)).expect("created");
    assert_eq!(close(&l, xrcd), libc::EBUSY);
    unsafe {
        assert_eq!(capi::verbs::cq::ibv_destroy_cq(l.cq), libc::EBUSY);
        assert_eq!(srq::ibv_destroy_srq(srq), 0);
    }
    assert_eq!(create_qp(&l, &mut target_init(null_mut())), Err(libc::EINVAL));
    let wrong = &mut ibv_qp_init_attr_ex { qp_type: IBV_QPT_RC, ..target_init(xrcd) };
    assert_eq!(create_qp(&l, wrong), Err(libc::EINVAL));
    let qp = create_qp(&l, &mut target_init(xrcd)).expect("created");
    assert_eq!(close(&l, xrcd), libc::EBUSY);
    assert_eq!(unsafe { qp::ibv_destroy_qp(qp) }, 0);
    assert_eq!(close(&l, xrcd), 0);
    l.close();
}

#[test]
fn a_message_finds_the_queue_that_either_way_of_posting_names() {
    let mut l = Loop::open();
    l.memory[..5].copy_from_slice(b"queue");
    let xrcd = open(&l, -1, libc::O_CREAT).expect("anonymous");
    let srqs = [(); 2].map(|()| queue(&l, queue_init(&l, xrcd)).expect("created"));
    let target = create_qp(&l, &mut target_init(xrcd)).expect("created");
    let initiator = initiator(&l);
    let numbers = srqs.map(|srq| {
        let mut number = 0;
        assert_eq!(unsafe { table(l.context).get_srq_num.expect("built")(srq, &raw mut number) }, 0);
        number
    });
    unsafe {
        connect_to(initiator, (*target).qp_num);
        connect_to(target, (*initiator).qp_num);
        for (wr_id, srq) in [(10, srqs[0]), (11, srqs[1])] {
            let mut sge = l.sge(HALF, 16);
            let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
            let post = (*l.context).ops.post_srq_recv.expect("built");
            assert_eq!(post(srq, &raw mut wr, &mut null_mut()), 0);
        }
        let mut sges = [l.sge(0, 5)];
        let mut wr = send(1, IBV_WR_SEND, &mut sges);
        wr.qp_type.xrc.remote_srqn = numbers[1];
        let post = (*l.context).ops.post_send.expect("built");
        assert_eq!(post(initiator, &raw mut wr, &mut null_mut()), 0);
        let mut done = l.completions(2);
        done.sort_by_key(|wc| wc.wr_id);
        assert_eq!((done[0].wr_id, done[1].wr_id), (1, 11));
        assert_eq!((done[1].qp_num, done[1].byte_len), ((*target).qp_num, 5));
        assert_eq!(&l.memory[HALF..HALF + 5], b"queue");
        let qpx = qp::ibv_qp_to_qp_ex(initiator);
        let q = &mut *qpx;
        q.wr_start.expect("built")(qpx);
        (q.wr_id, q.wr_flags) = (2, IBV_SEND_SIGNALED);
        q.wr_send.expect("built")(qpx);
        q.wr_set_xrc_srqn.expect("built")(qpx, numbers[0]);
        q.wr_set_sge.expect("built")(qpx, sges[0].lkey, sges[0].addr, sges[0].length);
        assert_eq!(q.wr_complete.expect("built")(qpx), 0);
        let mut done: Vec<_> = l.completions(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        done.sort_unstable();
        assert_eq!(done, [(2, IBV_WC_SUCCESS), (10, IBV_WC_SUCCESS)]);
        // Neither end has the other's half.
        assert_eq!(post(target, &raw mut wr, &mut null_mut()), libc::EINVAL);
        let mut sge = l.sge(HALF, 16);
        let mut wr = ibv_recv_wr { wr_id: 9, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let post_recv = (*l.context).ops.post_recv.expect("built");
        for qp in [initiator, target] {
            assert_eq!(post_recv(qp, &raw mut wr, &mut null_mut()), libc::EINVAL);
            assert_eq!(qp::ibv_destroy_qp(qp), 0);
        }
        assert!(srqs.iter().all(|&srq| srq::ibv_destroy_srq(srq) == 0));
    }
    assert_eq!(close(&l, xrcd), 0);
    l.close();
}

#[test]
fn a_target_lives_until_its_last_handle_is_destroyed() {
    let l = Loop::open();
    let [xrcd, other] = [(); 2].map(|()| open(&l, -1, libc::O_CREAT).expect("anonymous"));
    let first = create_qp(&l, &mut target_init(xrcd)).expect("created");
    let number = unsafe { (*first).qp_num };
    assert_eq!(open_qp(&l, open_attr(other, number)), Err(libc::EINVAL));
    assert_eq!(open_qp(&l, open_attr(xrcd, number ^ 1)), Err(libc::EINVAL));
    assert_eq!(open_qp(&l, open_attr(null_mut(), number)), Err(libc::EINVAL));
    let wrong = ibv_qp_open_attr { qp_type: IBV_QPT_RC, ..open_attr(xrcd, number) };
    assert_eq!(open_qp(&l, wrong), Err(libc::EINVAL));
    let partly = ibv_qp_open_attr { comp_mask: IBV_QP_OPEN_ATTR_NUM, ..open_attr(xrcd, number) };
    assert_eq!(open_qp(&l, partly), Err(libc::EINVAL));
    let second = open_qp(&l, open_attr(xrcd, number)).expect("of this domain");
    unsafe {
        assert_eq!((*second).qp_num, number);
        assert_eq!(qp::ibv_destroy_qp(first), 0);
        connect_to(second, 7);
        assert_eq!(close(&l, xrcd), libc::EBUSY);
        assert_eq!(qp::ibv_destroy_qp(second), 0);
    }
    assert_eq!(open_qp(&l, open_attr(xrcd, number)), Err(libc::EINVAL));
    assert_eq!((close(&l, xrcd), close(&l, other)), (0, 0));
    l.close();
}

#[test]
fn a_queue_for_xrc_holds_its_protection_domain_and_answers_queries() {
    let l = Loop::open();
    let xrcd = open(&l, -1, libc::O_CREAT).expect("anonymous");
    let srq = queue(&l, queue_init(&l, xrcd)).expect("created");
    unsafe {
        assert_eq!(memory::ibv_dealloc_pd(l.pd), libc::EBUSY);
        let mut now = std::mem::zeroed();
        assert_eq!(srq::ibv_query_srq(srq, &raw mut now), 0);
        assert_eq!((now.max_wr, now.max_sge), (4, 1));
        assert_eq!(srq::ibv_destroy_srq(srq), 0);
    }
    assert_eq!(close(&l, xrcd), 0);
    l.close();
}
