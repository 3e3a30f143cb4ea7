//! rdma_cm for datagrams as a C program uses it, on the loopback device: endpoints, synchronous
//! calls, groups.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/alone.rs"]
mod alone;
mod support;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use capi::cma::{addrinfo, channel, connect, endpoint, id, multicast};
use capi::verbs::qp;
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use alone::alone;
use support::errno;

const SIZE: u32 = 4;

fn attr() -> ibv_qp_init_attr {
    let mut a: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    (a.cap.max_send_wr, a.cap.max_recv_wr, a.cap.max_send_sge, a.cap.max_recv_sge) = (SIZE, SIZE, 1, 1);
    a
}

/// An address for datagrams.
fn info(port: &CStr, passive: bool) -> *mut rdma_addrinfo {
    unsafe {
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        hints.ai_port_space = RDMA_PS_UDP as c_int;
        hints.ai_flags = if passive { RAI_PASSIVE } else { 0 };
        let mut found = null_mut();
        let rc = addrinfo::rdma_getaddrinfo(
            c"127.0.0.1".as_ptr(),
            port.as_ptr(),
            &raw const hints,
            &raw mut found,
        );
        assert_eq!(rc, 0, "errno {}", errno());
        assert_eq!((*found).ai_qp_type, IBV_QPT_UD as c_int);
        found
    }
}

/// An endpoint with a queue pair, or with one for each of its requests.
fn ep(port: &CStr, passive: bool) -> *mut rdma_cm_id {
    unsafe {
        let (res, mut attr, mut made) = (info(port, passive), attr(), null_mut());
        assert_eq!(endpoint::rdma_create_ep(&raw mut made, res, null_mut(), &raw mut attr), 0, "{}", errno());
        assert_eq!((*made).qp_type, IBV_QPT_UD);
        addrinfo::rdma_freeaddrinfo(res);
        made
    }
}

fn group(last: u8) -> libc::sockaddr_in {
    let mut a: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    a.sin_family = libc::AF_INET as _;
    a.sin_addr.s_addr = u32::from_ne_bytes([239, 9, 9, last]);
    a
}

#[test]
fn a_synchronous_endpoint_asks_for_a_datagram_service_and_gets_its_queue_pair() {
    alone!();
    let listener = ep(c"18471", true);
    unsafe {
        assert_eq!(connect::rdma_listen(listener, 1), 0, "errno {}", errno());
        let at = listener.expose_provenance();
        let server = std::thread::spawn(move || {
            let listener = std::ptr::with_exposed_provenance_mut::<rdma_cm_id>(at);
            let mut request = null_mut();
            assert_eq!(connect::rdma_get_request(listener, &raw mut request), 0, "errno {}", errno());
            let asked = (*(*request).event).param.ud;
            assert_eq!(asked.private_data_len, 180);
            assert_eq!(*asked.private_data.cast::<u8>(), 0x55);
            let mut param: rdma_conn_param = std::mem::zeroed();
            let data = [0x66_u8; 137];
            (param.private_data, param.private_data_len) = (data.as_ptr().cast(), 137);
            assert_eq!(connect::rdma_accept(request, &raw mut param), -1);
            assert_eq!(errno(), libc::EINVAL);
            param.private_data_len = 136;
            assert_eq!(connect::rdma_accept(request, &raw mut param), 0, "errno {}", errno());
            assert!((*request).event.is_null(), "the request's event is acknowledged");
            let number = (*(*request).qp).qp_num;
            endpoint::rdma_destroy_ep(request);
            number
        });
        let client = ep(c"18471", false);
        let (mut now, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(qp::ibv_query_qp((*client).qp, &raw mut now, 0, &raw mut made), 0);
        assert_eq!(
            (now.qp_state, now.qkey, (*(*client).qp).state),
            (IBV_QPS_RTS, RDMA_UDP_QKEY, IBV_QPS_RTS)
        );
        let mut param: rdma_conn_param = std::mem::zeroed();
        let data = [0x55_u8];
        (param.private_data, param.private_data_len) = (data.as_ptr().cast(), 1);
        assert_eq!(connect::rdma_connect(client, &raw mut param), 0, "errno {}", errno());
        let got = (*(*client).event).param.ud;
        assert_eq!((*(*client).event).event, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!((got.private_data_len, *got.private_data.cast::<u8>()), (136, 0x66));
        assert_eq!((got.qkey, got.ah_attr.is_global, got.ah_attr.port_num), (RDMA_UDP_QKEY, 1, 1));
        assert_eq!(got.ah_attr.grh.dgid.raw[12..], [127, 0, 0, 1]);
        assert_eq!(got.qp_num, server.join().unwrap());
        endpoint::rdma_destroy_ep(client);
        endpoint::rdma_destroy_ep(listener);
    }
}

#[test]
fn a_service_nobody_offers_is_econnrefused_to_a_synchronous_caller() {
    alone!();
    unsafe {
        let client = ep(c"18472", false);
        assert_eq!(connect::rdma_connect(client, null_mut()), -1);
        assert_eq!(errno(), libc::ECONNREFUSED);
        assert_eq!((*(*client).event).event, RDMA_CM_EVENT_UNREACHABLE);
        assert_eq!((*(*client).event).status, 1);
        endpoint::rdma_destroy_ep(client);
    }
}

#[test]
fn a_synchronous_join_leaves_its_event_with_the_group_and_the_context() {
    alone!();
    unsafe {
        let member = ep(c"18473", true);
        assert_eq!(id::rdma_destroy_id(member), 0);
        let mut member = null_mut();
        assert_eq!(id::rdma_create_id(null_mut(), &raw mut member, null_mut(), RDMA_PS_UDP), 0);
        let mut here = group(0);
        (here.sin_addr.s_addr, here.sin_port) = (u32::from_ne_bytes([127, 0, 0, 1]), 1);
        // A loopback address alone names no device.
        assert_eq!(connect::rdma_resolve_addr(member, null_mut(), (&raw mut here).cast(), 1000), 0);
        let mut attr = ibv_qp_init_attr { qp_type: IBV_QPT_UD, ..attr() };
        assert_eq!(capi::cma::qp::rdma_create_qp(member, null_mut(), &raw mut attr), 0, "errno {}", errno());
        let (mut a, mut b) = (group(1), group(2));
        let mut word = 0_u64;
        let context: *mut std::ffi::c_void = (&raw mut word).cast();
        assert_eq!(multicast::rdma_join_multicast(member, (&raw mut a).cast(), context), 0, "{}", errno());
        let event = *(*member).event;
        assert_eq!((event.event, event.status), (RDMA_CM_EVENT_MULTICAST_JOIN, 0));
        let ud = event.param.ud;
        assert_eq!((ud.private_data, ud.private_data_len), (context.cast_const(), 0));
        assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, RDMA_UDP_QKEY));
        assert_eq!(ud.ah_attr.grh.dgid.raw, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 9, 9, 1]);
        assert_eq!(qp::ibv_destroy_qp((*member).qp), libc::EBUSY, "it is attached");
        let both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let sends = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        let mut ex =
            rdma_cm_join_mc_attr_ex { comp_mask: both, join_flags: sends, addr: (&raw mut b).cast() };
        assert_eq!(multicast::rdma_join_multicast_ex(member, &raw mut ex, null_mut()), 0, "{}", errno());
        for (mask, flags, why) in [
            (RDMA_CM_JOIN_MC_ATTR_ADDRESS, sends, libc::EINVAL),
            (RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, sends, libc::EINVAL),
            (both, RDMA_MC_JOIN_FLAG_RESERVED, libc::EINVAL),
            (both | RDMA_CM_JOIN_MC_ATTR_RESERVED, sends, libc::EOPNOTSUPP),
        ] {
            (ex.comp_mask, ex.join_flags) = (mask, flags);
            assert_eq!(multicast::rdma_join_multicast_ex(member, &raw mut ex, null_mut()), -1);
            assert_eq!(errno(), why);
        }
        assert_eq!(multicast::rdma_leave_multicast(member, (&raw mut a).cast()), 0);
        assert_eq!(multicast::rdma_leave_multicast(member, (&raw mut a).cast()), -1);
        assert_eq!(errno(), libc::EADDRNOTAVAIL);
        // A group by its GID, which is its address.
        let mut by_gid: sockaddr_ib = std::mem::zeroed();
        by_gid.sib_family = AF_IB as u16;
        by_gid.sib_addr.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 9, 9, 3];
        assert_eq!(
            multicast::rdma_join_multicast(member, (&raw mut by_gid).cast(), null_mut()),
            0,
            "{}",
            errno()
        );
        assert_eq!((*(*member).event).param.ud.ah_attr.grh.dgid.raw, by_gid.sib_addr.raw);
        assert_eq!(multicast::rdma_leave_multicast(member, (&raw mut by_gid).cast()), 0);
        // Its queue pair takes the other group with it.
        endpoint::rdma_destroy_ep(member);
    }
}

#[test]
fn a_leave_does_not_wait_for_the_event_of_its_join_to_be_acknowledged() {
    alone!();
    unsafe {
        let events = channel::rdma_create_event_channel();
        let (mut member, mut event) = (null_mut(), null_mut());
        assert_eq!(id::rdma_create_id(events, &raw mut member, null_mut(), RDMA_PS_UDP), 0);
        let mut here = group(0);
        (here.sin_addr.s_addr, here.sin_port) = (u32::from_ne_bytes([127, 0, 0, 1]), 1);
        assert_eq!(connect::rdma_resolve_addr(member, null_mut(), (&raw mut here).cast(), 1000), 0);
        assert_eq!(channel::rdma_get_cm_event(events, &raw mut event), 0);
        assert_eq!(channel::rdma_ack_cm_event(event), 0);
        let mut attr = ibv_qp_init_attr { qp_type: IBV_QPT_UD, ..attr() };
        assert_eq!(capi::cma::qp::rdma_create_qp(member, null_mut(), &raw mut attr), 0, "errno {}", errno());
        let mut a = group(4);
        assert_eq!(multicast::rdma_join_multicast(member, (&raw mut a).cast(), null_mut()), 0, "{}", errno());
        assert_eq!(channel::rdma_get_cm_event(events, &raw mut event), 0);
        assert_eq!((*event).event, RDMA_CM_EVENT_MULTICAST_JOIN);
        // No other thread could acknowledge it: a leave that waited would never return.
        assert_eq!(multicast::rdma_leave_multicast(member, (&raw mut a).cast()), 0);
        let gid = (*event).param.ud.ah_attr.grh.dgid;
        assert_eq!(gid.raw[12..], [239, 9, 9, 4], "the event stays valid");
        assert_eq!(channel::rdma_ack_cm_event(event), 0);
        capi::cma::qp::rdma_destroy_qp(member);
        assert_eq!(id::rdma_destroy_id(member), 0);
        channel::rdma_destroy_event_channel(events);
    }
}

#[test]
fn null_where_a_group_or_an_identifier_belongs_is_einval() {
    alone!();
    let invalid = |rc: c_int| assert_eq!((rc, errno()), (-1, libc::EINVAL));
    let mut a = group(3);
    unsafe {
        invalid(multicast::rdma_join_multicast(null_mut(), (&raw mut a).cast(), null_mut()));
        invalid(multicast::rdma_join_multicast_ex(null_mut(), null_mut(), null_mut()));
        invalid(multicast::rdma_leave_multicast(null_mut(), (&raw mut a).cast()));
        let member = ep(c"18474", true);
        invalid(multicast::rdma_join_multicast(member, null_mut(), null_mut()));
        invalid(multicast::rdma_leave_multicast(member, null_mut()));
        endpoint::rdma_destroy_ep(member);
    }
}

#[test]
fn the_type_of_an_address_follows_from_what_the_hints_say() {
    alone!();
    unsafe {
        for (space, kind, want) in [
            (0, 0, Some((RDMA_PS_TCP, IBV_QPT_RC))),
            (0, IBV_QPT_UD, Some((RDMA_PS_UDP, IBV_QPT_UD))),
            (RDMA_PS_UDP, 0, Some((RDMA_PS_UDP, IBV_QPT_UD))),
            (RDMA_PS_IPOIB, 0, Some((RDMA_PS_IPOIB, IBV_QPT_UD))),
            (RDMA_PS_UDP, IBV_QPT_RC, None),
            (RDMA_PS_TCP, IBV_QPT_UD, None),
        ] {
            let mut hints: rdma_addrinfo = std::mem::zeroed();
            (hints.ai_port_space, hints.ai_qp_type) = (space as c_int, kind as c_int);
            let mut found = null_mut();
            let port = c"7471".as_ptr();
            let rc =
                addrinfo::rdma_getaddrinfo(c"127.0.0.1".as_ptr(), port, &raw const hints, &raw mut found);
            let Some((space, kind)) = want else {
                assert_eq!((rc, errno()), (libc::EAI_SOCKTYPE, libc::EINVAL));
                continue;
            };
            assert_eq!(rc, 0);
            let got = ((*found).ai_port_space as u32, (*found).ai_qp_type as u32);
            assert_eq!(got, (space, kind));
            addrinfo::rdma_freeaddrinfo(found);
        }
    }
}
