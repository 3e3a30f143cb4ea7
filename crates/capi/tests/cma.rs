//! Bad calls of rdma_cm that rdma-core itself does not survive: NULL where the man page wants an
//! object. Those that it answers with an errno are in conformance/programs/errors.c.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::cma::{addrinfo, channel, connect, endpoint, id, qp};
use rdma_core_abi::cma::*;

use support::errno;

/// The call fails with -1 and EINVAL.
#[track_caller]
fn invalid(returned: c_int) {
    assert_eq!((returned, errno()), (-1, libc::EINVAL));
}

#[test]
fn an_identifier_that_is_null_is_einval() {
    unsafe {
        let mut param: rdma_conn_param = std::mem::zeroed();
        invalid(connect::rdma_connect(null_mut(), &raw mut param));
        invalid(connect::rdma_connect(null_mut(), null_mut()));
        invalid(connect::rdma_accept(null_mut(), &raw mut param));
        invalid(connect::rdma_accept(null_mut(), null_mut()));
        invalid(connect::rdma_reject(null_mut(), null_mut(), 0));
        invalid(connect::rdma_disconnect(null_mut()));
        invalid(connect::rdma_establish(null_mut()));
        invalid(connect::rdma_listen(null_mut(), 1));
        invalid(connect::rdma_resolve_route(null_mut(), 1));
        invalid(connect::rdma_bind_addr(null_mut(), null_mut()));
        invalid(connect::rdma_resolve_addr(null_mut(), null_mut(), null_mut(), 1));
        invalid(connect::rdma_get_request(null_mut(), null_mut()));
        invalid(qp::rdma_create_qp(null_mut(), null_mut(), null_mut()));
        invalid(id::rdma_destroy_id(null_mut()));
    }
}

#[test]
fn a_place_for_the_result_that_is_null_is_einval() {
    unsafe {
        let mut made = null_mut();
        let mut info: rdma_addrinfo = std::mem::zeroed();
        invalid(id::rdma_create_id(null_mut(), null_mut(), null_mut(), RDMA_PS_TCP));
        invalid(endpoint::rdma_create_ep(null_mut(), &raw mut info, null_mut(), null_mut()));
        invalid(endpoint::rdma_create_ep(&raw mut made, null_mut(), null_mut(), null_mut()));
        invalid(addrinfo::rdma_getaddrinfo(c"127.0.0.1".as_ptr(), null_mut(), null_mut(), null_mut()));
        invalid(channel::rdma_get_cm_event(null_mut(), null_mut()));
        assert!(made.is_null());
        // Nothing to free is no error.
        endpoint::rdma_destroy_ep(null_mut());
        addrinfo::rdma_freeaddrinfo(null_mut());
    }
}

#[test]
fn an_endpoint_without_addresses_is_einval_and_leaves_nothing() {
    unsafe {
        let mut made = null_mut();
        let mut info: rdma_addrinfo = std::mem::zeroed();
        info.ai_port_space = RDMA_PS_TCP as c_int;
        invalid(endpoint::rdma_create_ep(&raw mut made, &raw mut info, null_mut(), null_mut()));
        info.ai_flags = RAI_PASSIVE;
        invalid(endpoint::rdma_create_ep(&raw mut made, &raw mut info, null_mut(), null_mut()));
        assert!(made.is_null());
        info.ai_port_space = 0x7777;
        assert_eq!(endpoint::rdma_create_ep(&raw mut made, &raw mut info, null_mut(), null_mut()), -1);
        assert_eq!(errno(), libc::EPROTONOSUPPORT);
    }
}
