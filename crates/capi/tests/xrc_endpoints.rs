//! Extended reliable connections by the connection manager: endpoints of RDMA_PS_IB, as
//! rdma_xclient and rdma_xserver have them.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::cma::{addrinfo, connect, endpoint, srq};
use capi::verbs as v;
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::errno;

/// An endpoint on 127.0.0.1: with RAI_PASSIVE one that listens.
fn endpoint_of(flags: c_int, kind: u32, port: u16, attr: &mut ibv_qp_init_attr) -> *mut rdma_cm_id {
    let service = std::ffi::CString::new(port.to_string()).unwrap();
    unsafe {
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        (hints.ai_port_space, hints.ai_qp_type, hints.ai_flags) = (RDMA_PS_IB as c_int, kind as c_int, flags);
        let (mut res, mut made) = (null_mut(), null_mut());
        let node = c"127.0.0.1".as_ptr();
        assert_eq!(addrinfo::rdma_getaddrinfo(node, service.as_ptr(), &raw const hints, &raw mut res), 0);
        works(endpoint::rdma_create_ep(&raw mut made, res, null_mut(), attr));
        addrinfo::rdma_freeaddrinfo(res);
        if flags & RAI_PASSIVE != 0 {
            works(connect::rdma_listen(made, 4));
        }
        made
    }
}

fn listening(kind: u32) -> (*mut rdma_cm_id, u16) {
    let made = endpoint_of(RAI_PASSIVE, kind, 0, &mut attr());
    (made, u16::from_be(unsafe { connect::rdma_get_src_port(made) }))
}

fn initiator(port: u16) -> *mut rdma_cm_id {
    let mut sends = attr();
    (sends.cap.max_recv_wr, sends.cap.max_recv_sge) = (0, 0);
    endpoint_of(0, IBV_QPT_XRC_SEND, port, &mut sends)
}

fn connecting(id: *mut rdma_cm_id) -> std::thread::JoinHandle<(c_int, c_int)> {
    let id = id.expose_provenance();
    std::thread::spawn(move || {
        let id = std::ptr::with_exposed_provenance_mut(id);
        (unsafe { connect::rdma_connect(id, null_mut()) }, errno())
    })
}

fn request(listener: *mut rdma_cm_id) -> *mut rdma_cm_id {
    let mut made = null_mut();
    works(unsafe { connect::rdma_get_request(listener, &raw mut made) });
    made
}

#[test]
fn an_initiator_connects_to_a_target_whose_queue_completes_to_the_identifier() {
    let (listener, port) = listening(IBV_QPT_XRC_RECV);
    let client = initiator(port);
    let asking = connecting(client);
    let server = request(listener);
    unsafe {
        assert_eq!(((*client).qp_type, (*server).qp_type), (IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV));
        assert!((*client).recv_cq.is_null() && (*server).recv_cq.is_null() && (*server).send_cq.is_null());
        let mut init: ibv_srq_init_attr = std::mem::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (4, 1);
        works(srq::rdma_create_srq(server, null_mut(), &raw mut init));
        assert!(!(*server).srq.is_null() && !(*server).recv_cq_channel.is_null());
        fails(srq::rdma_create_srq(server, null_mut(), &raw mut init), libc::EINVAL);
        works(connect::rdma_accept(server, null_mut()));
        assert_eq!(asking.join().unwrap().0, 0);
        let event = &*(*client).event;
        assert_eq!(
            (event.event, event.param.conn.qp_num),
            (RDMA_CM_EVENT_ESTABLISHED, (*(*server).qp).qp_num)
        );
        assert_eq!(((*(*client).qp).state, (*(*server).qp).state), (IBV_QPS_RTS, IBV_QPS_RTS));
        works(connect::rdma_disconnect(client));
        [client, server, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
    }
}

#[test]
fn a_connection_of_one_kind_is_not_for_a_listener_of_the_other() {
    let (targets, port) = listening(IBV_QPT_XRC_RECV);
    let client = endpoint_of(0, IBV_QPT_RC, port, &mut attr());
    assert_eq!(connecting(client).join().unwrap(), (-1, libc::ECONNREFUSED));
    let (plain, port) = listening(IBV_QPT_RC);
    let other = initiator(port);
    assert_eq!(connecting(other).join().unwrap(), (-1, libc::ECONNREFUSED));
    unsafe { [client, other, targets, plain].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep)) };
}

#[test]
fn a_queue_pair_takes_as_many_bytes_inline_as_its_elements_would() {
    let (listener, port) = listening(IBV_QPT_RC);
    let mut none = attr();
    (none.cap.max_inline_data, none.cap.max_send_sge) = (0, 2);
    let client = endpoint_of(0, IBV_QPT_RC, port, &mut none);
    assert_eq!(none.cap.max_inline_data, 32);
    unsafe {
        let (mut q, mut init): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(v::qp::ibv_query_qp((*client).qp, &raw mut q, IBV_QP_CAP as c_int, &raw mut init), 0);
        assert_eq!(init.cap.max_inline_data, 32);
        [client, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
    }
}
