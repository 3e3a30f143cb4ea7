//! Completion counters as a C program uses them.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::verbs::{cq, qp};
use rdma_core_abi::verbs::*;

use support::{Loop, connect, errno, init, send};

unsafe fn make(l: &Loop) -> *mut ibv_comp_cntr {
    let mut attr = ibv_comp_cntr_init_attr::default();
    let made = unsafe { cq::ibv_create_comp_cntr(l.context, &raw mut attr) };
    assert!(!made.is_null(), "errno {}", errno());
    made
}

unsafe fn attach(qp: *mut ibv_qp, to: *mut ibv_comp_cntr, op_mask: u32) -> c_int {
    let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask };
    unsafe { cq::ibv_qp_attach_comp_cntr(qp, to, &raw mut attr) }
}

/// The two numbers of a counter: completions, and errors.
unsafe fn read(of: *mut ibv_comp_cntr) -> (u64, u64) {
    let (mut done, mut failed) = (0, 0);
    unsafe {
        assert_eq!(cq::ibv_read_comp_cntr(of, &raw mut done), 0);
        assert_eq!(cq::ibv_read_err_comp_cntr(of, &raw mut failed), 0);
    }
    (done, failed)
}

#[test]
fn a_counter_counts_what_completes_signaled_or_not() {
    let l = Loop::open();
    unsafe {
        let (sends, receives) = (make(&l), make(&l));
        let mut i = init(l.cq);
        let other = qp::ibv_create_qp(l.pd, &raw mut i);
        let (sent, written) = (IBV_QP_ATTACH_COMP_CNTR_OP_SEND, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE);
        assert_eq!(attach(other, sends, sent | written), 0);
        assert_eq!(attach(other, receives, IBV_QP_ATTACH_COMP_CNTR_OP_RECV), 0);
        connect(other);
        let first = l.qp;
        let on = Loop { qp: other, ..l };
        for round in 0..3 {
            assert_eq!(on.post_recv(round, 8), 0);
            let mut sge = [on.sge(0, 8)];
            let mut silent = send(10, IBV_WR_SEND, &mut sge);
            silent.send_flags = 0;
            assert_eq!(on.post_send(&mut silent), 0);
        }
        let mut sge = [on.sge(0, 8)];
        let mut write = send(20, IBV_WR_RDMA_WRITE, &mut sge);
        write.wr.rdma = ibv_send_wr_rdma { remote_addr: on.sge(0, 8).addr, rkey: (*on.mr).rkey };
        assert_eq!(on.post_send(&mut write), 0);
        let mut seen: Vec<u64> = on.completions(4).iter().map(|wc| wc.wr_id).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 20], "what nobody asked for does not show");
        assert_eq!((read(sends), read(receives)), ((4, 0), (3, 0)));

        // To the error state: what is outstanding fails, and shows.
        assert_eq!(on.post_recv(30, 8), 0);
        let mut a: ibv_qp_attr = std::mem::zeroed();
        a.qp_state = IBV_QPS_ERR;
        assert_eq!(qp::ibv_modify_qp(other, &raw mut a, IBV_QP_STATE as c_int), 0);
        let mut silent = send(31, IBV_WR_SEND, &mut []);
        silent.send_flags = 0;
        assert_eq!(on.post_send(&mut silent), 0);
        assert_eq!(on.post_recv(32, 8), 0);
        assert!(on.completions(3).iter().all(|wc| wc.status == IBV_WC_WR_FLUSH_ERR));
        assert_eq!((read(sends), read(receives)), ((4, 1), (3, 2)));

        assert_eq!(cq::ibv_inc_comp_cntr(sends, u64::MAX), 0);
        assert_eq!(cq::ibv_inc_err_comp_cntr(sends, 5), 0);
        assert_eq!(read(sends), (3, 6), "it wraps");
        assert_eq!((cq::ibv_set_comp_cntr(sends, 9), cq::ibv_set_err_comp_cntr(sends, 8)), (0, 0));
        assert_eq!(read(sends), (9, 8));
        assert_eq!(cq::ibv_destroy_comp_cntr(sends), libc::EBUSY);
        assert_eq!(qp::ibv_destroy_qp(first), 0);
        assert_eq!(
            (cq::ibv_destroy_comp_cntr(sends), cq::ibv_destroy_comp_cntr(receives)),
            (libc::EBUSY, libc::EBUSY)
        );
        on.close();
        assert_eq!((cq::ibv_destroy_comp_cntr(sends), cq::ibv_destroy_comp_cntr(receives)), (0, 0));
    }
}

#[test]
fn what_a_counter_can_not_be_is_refused() {
    let l = Loop::open();
    unsafe {
        let mut caps: ibv_comp_cntr_caps = std::mem::zeroed();
        let size = size_of::<ibv_comp_cntr_caps>();
        assert_eq!(cq::_ibv_query_comp_cntr_caps(l.context, &raw mut caps, size), 0);
        assert_eq!(
            (caps.max_value, caps.max_counters, caps.supported_qp_attach_ops),
            (u64::MAX, 65_536, 0x17)
        );
        for (comp_mask, type_, flags, why) in [
            (1, IBV_COMP_CNTR_TYPE_WRS, 0, libc::EINVAL),
            (0, IBV_COMP_CNTR_TYPE_WRS, 1, libc::EINVAL),
            (0, IBV_COMP_CNTR_TYPE_BYTES, 0, libc::ENOTSUP),
        ] {
            let mut attr = ibv_comp_cntr_init_attr { comp_mask, type_, flags };
            assert!(cq::ibv_create_comp_cntr(l.context, &raw mut attr).is_null());
            assert_eq!(errno(), why);
        }
        let (one, two) = (make(&l), make(&l));
        let sent = IBV_QP_ATTACH_COMP_CNTR_OP_SEND;
        assert_eq!(attach(l.qp, one, sent), libc::EINVAL, "it is in RTS");
        let mut i = init(l.cq);
        let fresh = qp::ibv_create_qp(l.pd, &raw mut i);
        assert_eq!(attach(fresh, one, 0), libc::EINVAL);
        assert_eq!(attach(fresh, null_mut(), sent), libc::EINVAL);
        assert_eq!(attach(fresh, one, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ), libc::ENOTSUP);
        assert_eq!(cq::ibv_destroy_comp_cntr(two), 0, "nothing is left of what was refused");
        assert_eq!(attach(fresh, one, sent), 0);
        assert_eq!(attach(fresh, one, sent | IBV_QP_ATTACH_COMP_CNTR_OP_RECV), libc::EBUSY);
        assert_eq!((qp::ibv_destroy_qp(fresh), cq::ibv_destroy_comp_cntr(one)), (0, 0));
        assert_eq!(cq::ibv_read_comp_cntr(null_mut(), &raw mut caps.max_value), libc::EINVAL);
    }
    l.close();
}
