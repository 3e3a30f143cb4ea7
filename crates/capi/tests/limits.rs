//! The tables of errors and limits of rdma_connect(3) and rdma_accept(3), a test a row. NULL is in
//! cma.rs.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ptr::null_mut;

use capi::cma::{channel, connect, devices, id};
use capi::verbs::{device, qp};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::errno;

/// A request that waits for its answer, from a queue pair, with these parameters.
fn asking(change: impl FnOnce(&mut rdma_conn_param)) -> Asking {
    let mut p = param();
    change(&mut p);
    Asking::with(&p, true, RDMA_PS_TCP)
}

/// An identifier with a queue pair and a route to no peer.
fn ready(ps: u32) -> *mut rdma_cm_id {
    let made = routed(channel(), ps, 1);
    with_qp(made);
    made
}

fn connect_with(id: *mut rdma_cm_id, p: rdma_conn_param) -> i32 {
    let mut p = p;
    unsafe { connect::rdma_connect(id, &raw mut p) }
}

fn accept_with(id: *mut rdma_cm_id, p: rdma_conn_param) -> i32 {
    let mut p = p;
    unsafe { connect::rdma_accept(id, &raw mut p) }
}

fn attributes(qp: *mut ibv_qp) -> ibv_qp_attr {
    unsafe {
        let (mut a, mut init) = std::mem::zeroed();
        assert_eq!(qp::ibv_query_qp(qp, &raw mut a, IBV_QP_STATE as i32, &raw mut init), 0);
        a
    }
}

#[test]
fn connecting_before_the_route_is_resolved_is_einval() {
    let channel = channel();
    let made = id(channel, RDMA_PS_TCP);
    fails(connect_with(made, param()), libc::EINVAL);
    works(resolve(made, &loopback(1)));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    fails(connect_with(made, param()), libc::EINVAL);
    destroy(made);
}

#[test]
fn an_unknown_port_space_is_eprotonosupport() {
    for ps in [0, 1, 0x0107, 0x7777, u32::MAX] {
        let mut made = null_mut();
        fails(unsafe { id::rdma_create_id(channel(), &raw mut made, null_mut(), ps) }, libc::EPROTONOSUPPORT);
        assert!(made.is_null());
    }
}

#[test]
fn connecting_twice_is_einval() {
    let a = asking(|_| {});
    fails(connect_with(a.active, param()), libc::EINVAL);
    a.close();
}

#[test]
fn an_identifier_whose_channel_is_gone_can_not_be_made() {
    let ch = channel();
    unsafe { channel::rdma_destroy_event_channel(ch) };
    let mut made = null_mut();
    fails(unsafe { id::rdma_create_id(ch, &raw mut made, null_mut(), RDMA_PS_TCP) }, libc::EBADF);
}

/// The device's limits: max_qp_rd_atom, max_qp_init_rd_atom.
fn depths() -> (u8, u8) {
    unsafe {
        let context = device::ibv_open_device(support::loopback());
        let mut a: ibv_device_attr = std::mem::zeroed();
        assert_eq!(device::ibv_query_device(context, &raw mut a), 0);
        (a.max_qp_rd_atom as u8, a.max_qp_init_rd_atom as u8)
    }
}

#[test]
fn responder_resources_up_to_max_qp_rd_atom_are_taken_and_one_more_is_einval() {
    let (most, _) = depths();
    let made = ready(RDMA_PS_TCP);
    fails(connect_with(made, rdma_conn_param { responder_resources: most + 1, ..param() }), libc::EINVAL);
    works(connect_with(made, rdma_conn_param { responder_resources: most, ..param() }));
    destroy(made);
}

#[test]
fn initiator_depth_up_to_max_qp_init_rd_atom_is_taken_and_one_more_is_einval() {
    let (_, most) = depths();
    let made = ready(RDMA_PS_TCP);
    fails(connect_with(made, rdma_conn_param { initiator_depth: most + 1, ..param() }), libc::EINVAL);
    works(connect_with(made, rdma_conn_param { initiator_depth: most, ..param() }));
    destroy(made);
}

#[test]
fn depths_of_all_ones_mean_as_much_as_the_device_has() {
    let (resources, depth) = depths();
    let a = asking(|p| {
        (p.responder_resources, p.initiator_depth) = (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH);
    });
    let asked = unsafe { a.request.param.conn };
    assert_eq!((asked.responder_resources, asked.initiator_depth), (depth, resources), "seen from here");
    a.close();
}

#[test]
fn accepting_with_depths_beyond_the_device_is_einval() {
    let (resources, depth) = depths();
    let a = asking(|_| {});
    fails(
        accept_with(a.passive, rdma_conn_param { responder_resources: resources + 1, ..param() }),
        libc::EINVAL,
    );
    fails(accept_with(a.passive, rdma_conn_param { initiator_depth: depth + 1, ..param() }), libc::EINVAL);
    a.accept(&param());
    a.close();
}

#[test]
fn the_remote_end_may_adjust_the_depths_when_it_accepts() {
    let a = asking(|p| (p.responder_resources, p.initiator_depth) = (8, 6));
    let asked = unsafe { a.request.param.conn };
    assert_eq!((asked.responder_resources, asked.initiator_depth), (6, 8));
    let answer = rdma_conn_param { responder_resources: 3, initiator_depth: 2, ..param() };
    let (ours, _) = a.accept(&answer);
    let told = unsafe { ours.param.conn };
    assert_eq!((told.responder_resources, told.initiator_depth), (2, 3));
    let (active, passive) = unsafe { (attributes((*a.active).qp), attributes((*a.passive).qp)) };
    assert_eq!((active.max_rd_atomic, passive.max_dest_rd_atomic), (3, 3));
    assert_eq!((passive.max_rd_atomic, active.max_dest_rd_atomic), (2, 2));
    a.close();
}

#[test]
fn accepting_without_parameters_takes_those_of_the_request() {
    let a = asking(|p| (p.responder_resources, p.initiator_depth) = (5, 7));
    with_qp(a.passive);
    works(unsafe { connect::rdma_accept(a.passive, null_mut()) });
    expect(a.ours, RDMA_CM_EVENT_ESTABLISHED);
    expect(a.theirs, RDMA_CM_EVENT_ESTABLISHED);
    let passive = attributes(unsafe { (*a.passive).qp });
    assert_eq!((passive.max_dest_rd_atomic, passive.max_rd_atomic), (7, 5));
    a.close();
}

#[test]
fn private_data_of_a_request_is_limited_to_56_bytes_for_connections() {
    let data: Vec<u8> = (1..=57).collect();
    let made = ready(RDMA_PS_TCP);
    fails(connect_with(made, with_data(param(), &data)), libc::EINVAL);
    destroy(made);
    let a = asking(|p| *p = with_data(*p, &data[..56]));
    assert_eq!(a.request.data, data[..56]);
    a.close();
}

#[test]
fn private_data_of_an_accept_is_limited_to_196_bytes_for_connections() {
    let data: Vec<u8> = (0..197).collect();
    let a = asking(|_| {});
    fails(accept_with(a.passive, with_data(param(), &data)), libc::EINVAL);
    let (ours, _) = a.accept(&with_data(param(), &data[..196]));
    assert_eq!(ours.data, data[..196]);
    a.close();
}

#[test]
fn private_data_of_a_reject_is_limited_to_148_bytes_for_connections() {
    let data: Vec<u8> = (0..149).collect();
    let a = asking(|_| {});
    fails(unsafe { connect::rdma_reject(a.passive, data.as_ptr().cast(), 149) }, libc::EINVAL);
    works(unsafe { connect::rdma_reject(a.passive, data.as_ptr().cast(), 148) });
    let refused = expect(a.ours, RDMA_CM_EVENT_REJECTED);
    assert_eq!((refused.status, &refused.data[..]), (28, &data[..148]));
    a.close();
}

#[test]
fn private_data_of_a_request_is_limited_to_180_bytes_for_datagrams() {
    let data: Vec<u8> = (0..181).collect();
    let made = ready(RDMA_PS_UDP);
    fails(connect_with(made, with_data(param(), &data)), libc::EINVAL);
    destroy(made);
    let a = Asking::with(&with_data(param(), &data[..180]), true, RDMA_PS_UDP);
    assert_eq!(a.request.data, data[..180]);
    a.close();
}

#[test]
fn private_data_of_an_accept_is_limited_to_136_bytes_for_datagrams() {
    let data: Vec<u8> = (0..137).collect();
    let a = Asking::with(&param(), true, RDMA_PS_UDP);
    with_qp(a.passive);
    fails(accept_with(a.passive, with_data(param(), &data)), libc::EINVAL);
    works(accept_with(a.passive, with_data(param(), &data[..136])));
    let told = expect(a.ours, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(told.data, data[..136]);
    let ud = unsafe { told.param.ud };
    assert_eq!((ud.qp_num, ud.qkey), (unsafe { (*(*a.passive).qp).qp_num }, RDMA_UDP_QKEY));
    a.close();
}

#[test]
fn more_private_data_arrives_than_was_given_and_the_rest_is_zero() {
    let a = asking(|p| *p = with_data(*p, b"hello"));
    assert_eq!((a.request.data.len(), &a.request.data[..5]), (56, &b"hello"[..]));
    assert!(a.request.data[5..].iter().all(|b| *b == 0));
    a.close();
}

#[test]
fn a_length_without_private_data_is_no_private_data() {
    let a = asking(|p| p.private_data_len = 200);
    assert!(a.request.data.iter().all(|b| *b == 0));
    a.close();
}

#[test]
fn retry_counts_are_three_bits_and_more_is_seven() {
    let a = asking(|p| (p.retry_count, p.rnr_retry_count) = (200, 8));
    let asked = unsafe { a.request.param.conn };
    assert_eq!((asked.retry_count, asked.rnr_retry_count), (7, 7));
    a.close();
    let a = asking(|p| (p.retry_count, p.rnr_retry_count) = (2, 3));
    a.accept(&rdma_conn_param { rnr_retry_count: 5, ..param() });
    // What a side asks for is how often its peer tries.
    let (active, passive) = unsafe { (attributes((*a.active).qp), attributes((*a.passive).qp)) };
    assert_eq!((active.retry_cnt, active.rnr_retry), (2, 5));
    assert_eq!((passive.retry_cnt, passive.rnr_retry), (2, 3));
    a.close();
}

#[test]
fn retry_count_is_ignored_when_accepting() {
    let a = asking(|p| p.retry_count = 4);
    a.accept(&rdma_conn_param { retry_count: 1, ..param() });
    assert_eq!(attributes(unsafe { (*a.passive).qp }).retry_cnt, 4);
    a.close();
}

#[test]
fn flow_control_is_told_to_the_peer_both_ways() {
    for wanted in [0, 1] {
        let a = asking(|p| p.flow_control = wanted);
        assert_eq!(unsafe { a.request.param.conn.flow_control }, wanted);
        let (ours, _) = a.accept(&rdma_conn_param { flow_control: wanted, ..param() });
        assert_eq!(unsafe { ours.param.conn.flow_control }, wanted);
        a.close();
    }
}

#[test]
fn qp_num_and_srq_are_ignored_with_a_queue_pair() {
    let a = asking(|p| (p.qp_num, p.srq) = (0x1234, 1));
    let asked = unsafe { a.request.param.conn };
    assert_eq!((asked.qp_num, asked.srq), (unsafe { (*(*a.active).qp).qp_num }, 0));
    let (ours, _) = a.accept(&rdma_conn_param { qp_num: 0x4321, srq: 1, ..param() });
    let told = unsafe { ours.param.conn };
    assert_eq!((told.qp_num, told.srq), (unsafe { (*(*a.passive).qp).qp_num }, 0));
    a.close();
}

#[test]
fn qp_num_and_srq_are_those_of_the_parameters_without_a_queue_pair() {
    let p = rdma_conn_param { qp_num: 0x1234, srq: 1, ..param() };
    let a = Asking::with(&p, false, RDMA_PS_TCP);
    let asked = unsafe { a.request.param.conn };
    assert_eq!((asked.qp_num, asked.srq), (0x1234, 1));
    works(accept_with(a.passive, rdma_conn_param { qp_num: 0x4321, srq: 1, ..param() }));
    let told = expect(a.ours, RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(unsafe { (told.param.conn.qp_num, told.param.conn.srq) }, (0x4321, 1));
    a.close();
}

#[test]
fn the_rnr_timer_is_the_longest_and_the_ack_timeout_follows_from_the_path() {
    let a = asking(|_| {});
    a.accept(&param());
    for id in [a.active, a.passive] {
        let attr = attributes(unsafe { (*id).qp });
        assert_eq!(attr.min_rnr_timer, 0, "655 ms");
        // Packet life time 16, twice, and the adapter's delay.
        assert_eq!(attr.timeout, 17);
    }
    a.close();
}

#[test]
fn accepting_what_is_no_request_is_einval() {
    let a = asking(|_| {});
    fails(accept_with(a.listener, param()), libc::EINVAL);
    fails(accept_with(a.active, param()), libc::EINVAL);
    a.accept(&param());
    fails(accept_with(a.passive, param()), libc::EINVAL);
    a.close();
}

#[test]
fn listening_without_an_address_takes_a_port_on_all_of_them() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    works(unsafe { connect::rdma_listen(made, 1) });
    let port = u16::from_be(unsafe { connect::rdma_get_src_port(made) });
    assert!(port >= 1024, "{port}");
    fails(unsafe { connect::rdma_listen(made, 1) }, libc::EINVAL);
    let client = routed(channel(), RDMA_PS_TCP, port);
    with_qp(client);
    works(connect_with(client, param()));
    expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
    destroy(client);
}

#[test]
fn a_service_nobody_offers_is_unreachable_for_datagrams_and_rejected_for_connections() {
    for (ps, event, status) in
        [(RDMA_PS_TCP, RDMA_CM_EVENT_REJECTED, 8), (RDMA_PS_UDP, RDMA_CM_EVENT_UNREACHABLE, 1)]
    {
        let ch = channel();
        let made = routed(ch, ps, 2);
        with_qp(made);
        works(connect_with(made, param()));
        let seen = expect(ch, event);
        assert_eq!(seen.status, status, "port space {ps:#x}");
        destroy(made);
    }
}

#[test]
fn a_device_list_can_be_had_and_freed() {
    unsafe {
        let mut n = -1;
        let list = devices::rdma_get_devices(&raw mut n);
        assert!(n > 0 && (*list.add(n as usize)).is_null(), "errno {}", errno());
        assert!(!device::ibv_get_device_name((**list).device).is_null());
        devices::rdma_free_devices(list);
    }
}
