//! What a forked child may do with the objects of its parent: nothing, but destroy them; and it may
//! start anew.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ptr::null_mut;

use capi::verbs::{cq, device, memory, qp};
use rdma_core_abi::verbs::*;

use support::{Loop, errno, in_a_child, loopback, send};

/// One test, because a child of a process with other tests under way would inherit their locks.
#[test]
fn a_child_finds_its_parents_objects_inert_and_opens_devices_of_its_own() {
    let l = Loop::open();
    let device = loopback();
    // An event that the parent was handed and has not acknowledged: no thread will do so in the
    // child.
    unsafe {
        assert_eq!((*l.context).ops.req_notify_cq.expect("built")(l.cq, 0), 0);
        assert_eq!(l.post_recv(1, 8), 0);
        assert_eq!(l.post_send(&mut send(2, IBV_WR_SEND, &mut [l.sge(0, 8)])), 0);
        let (mut cq, mut user) = (null_mut(), null_mut());
        assert_eq!(cq::ibv_get_cq_event(l.channel, &raw mut cq, &raw mut user), 0);
    }
    assert_eq!(l.completions(2).len(), 2);

    assert!(in_a_child(|| inherited_objects_are_refused(&l)), "inert objects");
    assert!(in_a_child(|| inherited_objects_are_destroyed(&l)), "destroying");
    assert!(
        in_a_child(|| {
            // The device as the parent listed it, then as the child lists it.
            for device in [device, loopback()] {
                let own = Loop::of(device);
                assert_eq!(own.post_recv(1, 8), 0);
                assert_eq!(own.post_send(&mut send(2, IBV_WR_SEND, &mut [own.sge(0, 8)])), 0);
                assert!(own.completions(2).iter().all(|wc| wc.status == IBV_WC_SUCCESS));
                own.close();
            }
        }),
        "a life of its own"
    );

    // The parent noticed nothing.
    assert_eq!(l.post_recv(3, 8), 0);
    assert_eq!(l.post_send(&mut send(4, IBV_WR_SEND, &mut [l.sge(0, 8)])), 0);
    assert!(l.completions(2).iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    unsafe { cq::ibv_ack_cq_events(l.cq, 1) };
    l.close();
}

fn inherited_objects_are_refused(l: &Loop) {
    unsafe {
        let mut wr = send(5, IBV_WR_SEND, &mut []);
        let mut bad = null_mut();
        let posted = (*l.context).ops.post_send.expect("built")(l.qp, &raw mut wr, &raw mut bad);
        assert_eq!((posted, bad), (libc::ENODEV, &raw mut wr));
        assert_eq!(l.post_recv(6, 8), libc::ENODEV);
        let mut wc: ibv_wc = std::mem::zeroed();
        assert!((*l.context).ops.poll_cq.expect("built")(l.cq, 1, &raw mut wc) < 0);
        let (mut a, mut i): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(qp::ibv_query_qp(l.qp, &raw mut a, -1, &raw mut i), libc::ENODEV);
        assert_eq!(qp::ibv_modify_qp(l.qp, &raw mut a, IBV_QP_STATE as i32), libc::ENODEV);
        assert!(memory::ibv_alloc_pd(l.context).is_null());
        assert_eq!(errno(), libc::ENODEV);
        assert!(cq::ibv_create_cq(l.context, 1, null_mut(), null_mut(), 0).is_null());
        assert_eq!(errno(), libc::ENODEV);
        // They would take the parent's events.
        let (mut cq, mut user) = (null_mut(), null_mut());
        assert_eq!(cq::ibv_get_cq_event(l.channel, &raw mut cq, &raw mut user), -1);
        let mut e: ibv_async_event = std::mem::zeroed();
        assert_eq!(device::ibv_get_async_event(l.context, &raw mut e), -1);
        assert_eq!(errno(), libc::ENODEV);
    }
}

fn inherited_objects_are_destroyed(l: &Loop) {
    unsafe {
        assert_eq!(qp::ibv_destroy_qp(l.qp), 0);
        assert_eq!(cq::ibv_destroy_cq(l.cq), 0);
        assert_eq!(cq::ibv_destroy_comp_channel(l.channel), 0);
        assert_eq!(memory::ibv_dereg_mr(l.mr), 0);
        assert_eq!(memory::ibv_dealloc_pd(l.pd), 0);
        assert_eq!(device::ibv_close_device(l.context), 0);
    }
}
