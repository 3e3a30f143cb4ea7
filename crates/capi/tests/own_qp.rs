//! Queue pairs that the program makes itself and writes into `id->qp`: librdmacm announces their
//! number and moves them, and so must we (SPDK, DAPL and wrappers in other languages count on it).
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::cma::{channel, connect};
use capi::verbs::{cq, qp};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::errno;

/// A queue pair in the identifier's default domain, in state RESET or INIT, with its completion
/// queue.
fn own(id: *mut rdma_cm_id, begun: bool) -> (*mut ibv_qp, *mut ibv_cq) {
    unsafe {
        let cq = cq::ibv_create_cq((*id).verbs, 8, null_mut(), null_mut(), 0);
        let mut init = attr();
        (init.qp_type, init.send_cq, init.recv_cq) = (IBV_QPT_RC, cq, cq);
        let made = qp::ibv_create_qp((*id).pd, &raw mut init);
        assert!(!cq.is_null() && !made.is_null(), "errno {}", errno());
        if begun {
            let mut a: ibv_qp_attr = std::mem::zeroed();
            (a.qp_state, a.port_num) = (IBV_QPS_INIT, 1);
            let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            assert_eq!(qp::ibv_modify_qp(made, &raw mut a, mask as c_int), 0);
        }
        (made, cq)
    }
}

/// The state as the adapter has it, which the C structure shows too.
fn state(made: *mut ibv_qp) -> u32 {
    unsafe {
        let (mut a, mut i): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(qp::ibv_query_qp(made, &raw mut a, IBV_QP_STATE as c_int, &raw mut i), 0);
        assert_eq!((*made).state, a.qp_state);
        a.qp_state
    }
}

fn end(id: *mut rdma_cm_id, (made, cq): (*mut ibv_qp, *mut ibv_cq)) {
    unsafe {
        (*id).qp = null_mut();
        assert_eq!(qp::ibv_destroy_qp(made), 0);
        assert_eq!(cq::ibv_destroy_cq(cq), 0);
    }
}

#[test]
fn a_queue_pair_written_into_the_identifier_is_announced_and_moved_at_both_ends() {
    let mut active = (null_mut(), null_mut());
    let asking = Asking::prepared(&param(), RDMA_PS_TCP, |id| {
        active = own(id, true);
        unsafe { (*id).qp = active.0 };
    });
    let passive = own(asking.passive, false);
    unsafe {
        assert_eq!(asking.request.param.conn.qp_num, (*active.0).qp_num);
        (*asking.passive).qp = passive.0;
        works(connect::rdma_accept(asking.passive, &mut param()));
        assert_eq!(state(passive.0), IBV_QPS_RTS);
        let established = expect(asking.ours, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(established.param.conn.qp_num, (*passive.0).qp_num);
        assert_eq!(state(active.0), IBV_QPS_RTS);
        expect(asking.theirs, RDMA_CM_EVENT_ESTABLISHED);
        works(connect::rdma_disconnect(asking.active));
        assert_eq!(state(active.0), IBV_QPS_ERR);
        expect(asking.ours, RDMA_CM_EVENT_DISCONNECTED);
    }
    end(asking.active, active);
    end(asking.passive, passive);
    asking.close();
}

#[test]
fn a_queue_pair_written_after_the_request_is_moved_when_the_answer_is_fetched() {
    let asking = Asking::with(&param(), false, RDMA_PS_TCP);
    assert_eq!(unsafe { asking.request.param.conn.qp_num }, param().qp_num);
    with_qp(asking.passive);
    let active = own(asking.active, false);
    unsafe {
        works(connect::rdma_accept(asking.passive, &mut param()));
        assert!(comes(asking.ours, 5000));
        (*asking.active).qp = active.0;
        expect(asking.ours, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(state(active.0), IBV_QPS_RTS);
        expect(asking.theirs, RDMA_CM_EVENT_ESTABLISHED);
    }
    end(asking.active, active);
    asking.close();
}

#[test]
fn without_parameters_the_programs_own_queue_pair_is_enough() {
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let id = routed(ours, RDMA_PS_TCP, port);
    unsafe {
        fails(connect::rdma_connect(id, null_mut()), libc::EINVAL);
        let made = own(id, true);
        (*id).qp = made.0;
        works(connect::rdma_connect(id, null_mut()));
        let request = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(request.param.conn.qp_num, (*made.0).qp_num);
        works(connect::rdma_reject(request.id, null_mut(), 0));
        expect(ours, RDMA_CM_EVENT_REJECTED);
        assert_eq!(state(made.0), IBV_QPS_ERR);
        end(id, made);
        for id in [request.id, id, listener] {
            destroy(id);
        }
        for ch in [ours, theirs] {
            channel::rdma_destroy_event_channel(ch);
        }
    }
}

#[test]
fn a_queue_pair_that_was_destroyed_connects_nothing() {
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let id = routed(ours, RDMA_PS_TCP, port);
    unsafe {
        with_qp(id);
        assert_eq!(qp::ibv_destroy_qp((*id).qp), 0);
        fails(connect::rdma_connect(id, &mut param()), libc::EINVAL);
        for id in [id, listener] {
            destroy(id);
        }
        for ch in [ours, theirs] {
            channel::rdma_destroy_event_channel(ch);
        }
    }
}
