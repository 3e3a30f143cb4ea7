//! Endpoints, synchronous operation, identifiers that move or end while events wait, and queue pairs that no identifier owns.
#![allow(clippy::undocumented_unsafe_blocks)] // all are calls by the contract of their man pages

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abi::cma::*;
use abi::sa::*;
use abi::verbs::*;
use capi::cma::{addrinfo, channel, connect, devices, ece, endpoint, id, qp, srq};
use capi::verbs as v;

use cm::*;
use support::errno;

/// A pointer that goes to another thread.
struct Sent<T>(*mut T);
unsafe impl<T> Send for Sent<T> {}
impl<T> Sent<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// The argument of an event that the program wrote.
fn arg(seen: &Seen) -> u64 {
    assert_eq!(seen.event, RDMA_CM_EVENT_USER);
    unsafe { seen.param.arg }
}

/// Addresses of 127.0.0.1 to make an endpoint from.
fn info(port: u16, passive: bool, ps: u32, kind: u32) -> *mut rdma_addrinfo {
    let service = std::ffi::CString::new(port.to_string()).unwrap();
    unsafe {
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        (hints.ai_port_space, hints.ai_qp_type) = (ps as c_int, kind as c_int);
        hints.ai_flags = if passive { RAI_PASSIVE } else { 0 };
        let mut found = null_mut();
        let node = c"127.0.0.1".as_ptr();
        assert_eq!(addrinfo::rdma_getaddrinfo(node, service.as_ptr(), &raw const hints, &raw mut found), 0);
        found
    }
}

fn passive(attr: *mut ibv_qp_init_attr, pd: *mut ibv_pd) -> (*mut rdma_cm_id, u16) {
    passive_in(RDMA_PS_TCP, IBV_QPT_RC, attr, pd)
}

fn passive_in(ps: u32, kind: u32, attr: *mut ibv_qp_init_attr, pd: *mut ibv_pd) -> (*mut rdma_cm_id, u16) {
    unsafe {
        let (res, mut made) = (info(0, true, ps, kind), null_mut());
        works(endpoint::rdma_create_ep(&raw mut made, res, pd, attr));
        addrinfo::rdma_freeaddrinfo(res);
        works(connect::rdma_listen(made, 4));
        (made, u16::from_be(connect::rdma_get_src_port(made)))
    }
}

fn active_in(ps: u32, kind: u32, port: u16, attr: *mut ibv_qp_init_attr, pd: *mut ibv_pd) -> *mut rdma_cm_id {
    unsafe {
        let (res, mut made) = (info(port, false, ps, kind), null_mut());
        works(endpoint::rdma_create_ep(&raw mut made, res, pd, attr));
        addrinfo::rdma_freeaddrinfo(res);
        made
    }
}

fn active(port: u16) -> *mut rdma_cm_id {
    active_in(RDMA_PS_TCP, IBV_QPT_RC, port, &mut attr(), null_mut())
}

/// Connects in a thread of its own, as a synchronous caller must; its return value and errno.
fn connecting(id: *mut rdma_cm_id) -> std::thread::JoinHandle<(c_int, c_int)> {
    let id = Sent(id);
    std::thread::spawn(move || unsafe { (connect::rdma_connect(id.get(), null_mut()), errno()) })
}

fn request(listener: *mut rdma_cm_id) -> *mut rdma_cm_id {
    let mut made = null_mut();
    works(unsafe { connect::rdma_get_request(listener, &raw mut made) });
    made
}

fn device_pd() -> *mut ibv_pd {
    unsafe {
        let list = devices::rdma_get_devices(null_mut());
        let mut at = list;
        while std::ffi::CStr::from_ptr(v::device::ibv_get_device_name((**at).device)) != c"rxe_lo" {
            at = at.add(1);
        }
        let pd = v::memory::ibv_alloc_pd(*at);
        devices::rdma_free_devices(list);
        pd
    }
}

#[test]
fn an_active_endpoint_is_resolved_and_has_a_queue_pair_in_the_domain_given() {
    let (_listener, port) = passive(null_mut(), null_mut());
    let pd = device_pd();
    let with = active_in(RDMA_PS_TCP, IBV_QPT_RC, port, &mut attr(), pd);
    unsafe {
        assert_eq!(((*with).pd, (*(*with).qp).pd, (*with).qp_type), (pd, pd, IBV_QPT_RC));
        assert_eq!((*with).route.num_paths, 1);
        endpoint::rdma_destroy_ep(with);
    }
    // The domain still stands: it is the caller's.
    assert_eq!(unsafe { v::memory::ibv_dealloc_pd(pd) }, 0);
}

#[test]
fn an_active_endpoint_without_a_domain_takes_the_default_one_and_without_attributes_has_no_queue_pair() {
    let (_listener, port) = passive(null_mut(), null_mut());
    let one = active(port);
    let other = active(port);
    let none = active_in(RDMA_PS_TCP, IBV_QPT_RC, port, null_mut(), null_mut());
    unsafe {
        assert!(!(*one).pd.is_null() && (*one).pd == (*other).pd);
        assert!((*none).qp.is_null());
        assert_eq!((*none).pd, (*one).pd);
        [one, other, none].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
    }
}

#[test]
fn a_passive_endpoint_saves_domain_and_attributes_for_its_requests() {
    let pd = device_pd();
    let mut a = Box::new(attr());
    a.cap.max_send_wr = 9;
    let (listener, port) = passive(&raw mut *a, pd);
    // What was saved is a copy.
    drop(a);
    unsafe {
        assert!((*listener).qp.is_null());
        let client = active(port);
        let asking = connecting(client);
        let server = request(listener);
        assert_eq!(((*server).pd, (*(*server).qp).pd), (pd, pd));
        let (mut q, mut init): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(v::qp::ibv_query_qp((*server).qp, &raw mut q, IBV_QP_CAP as c_int, &raw mut init), 0);
        assert!(init.cap.max_send_wr >= 9);
        works(connect::rdma_accept(server, null_mut()));
        assert_eq!(asking.join().unwrap().0, 0);
        assert_eq!((*(*client).event).event, RDMA_CM_EVENT_ESTABLISHED);
        works(connect::rdma_disconnect(client));
        [client, server, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
    }
}

#[test]
fn a_passive_endpoint_without_attributes_makes_no_queue_pairs() {
    let (listener, port) = passive(null_mut(), null_mut());
    let client = active(port);
    let asking = connecting(client);
    let server = request(listener);
    unsafe {
        assert!((*server).qp.is_null());
        works(connect::rdma_reject(server, null_mut(), 0));
        assert_eq!(asking.join().unwrap(), (-1, libc::ECONNREFUSED));
        [client, server, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
    }
}

#[test]
fn a_request_whose_queue_pair_can_not_be_made_is_refused() {
    let mut a = attr();
    a.cap.max_send_wr = u32::MAX;
    let (listener, port) = passive(&raw mut a, null_mut());
    let client = active(port);
    let asking = connecting(client);
    let mut made = null_mut();
    assert_eq!(unsafe { connect::rdma_get_request(listener, &raw mut made) }, -1);
    assert!(matches!(errno(), libc::EINVAL | libc::ENOMEM), "{}", errno());
    assert!(made.is_null());
    assert_eq!(asking.join().unwrap(), (-1, libc::ECONNREFUSED));
    unsafe { [client, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep)) };
}

#[test]
fn an_endpoint_on_a_port_in_use_or_a_foreign_address_fails_as_its_calls_do() {
    let (listener, port) = passive(null_mut(), null_mut());
    unsafe {
        let (res, mut made) = (info(port, true, RDMA_PS_TCP, IBV_QPT_RC), null_mut());
        fails(endpoint::rdma_create_ep(&raw mut made, res, null_mut(), null_mut()), libc::EADDRNOTAVAIL);
        let foreign = at([203, 0, 113, 1], 0);
        std::ptr::copy_nonoverlapping(&raw const foreign, (*res).ai_src_addr.cast(), 1);
        fails(endpoint::rdma_create_ep(&raw mut made, res, null_mut(), null_mut()), libc::EADDRNOTAVAIL);
        addrinfo::rdma_freeaddrinfo(res);
        assert!(made.is_null());
        endpoint::rdma_destroy_ep(listener);
    }
}

#[test]
fn the_connect_data_of_an_address_stands_before_the_program_s_private_data() {
    let ch = channel();
    let (listener, port) = listener(ch, RDMA_PS_TCP, 4);
    unsafe {
        let (res, mut made) = (info(port, false, RDMA_PS_TCP, IBV_QPT_RC), null_mut());
        (*res).ai_connect = c"first ".as_ptr().cast_mut().cast();
        (*res).ai_connect_len = 6;
        works(endpoint::rdma_create_ep(&raw mut made, res, null_mut(), &mut attr()));
        (*res).ai_connect = null_mut();
        addrinfo::rdma_freeaddrinfo(res);
        let ours = channel();
        works(id::rdma_migrate_id(made, ours));
        works(connect::rdma_connect(made, &mut with_data(param(), b"second")));
        let asked = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(&asked.data[..12], b"first second");
        destroy(asked.id);
        endpoint::rdma_destroy_ep(made);
    }
    destroy(listener);
}

/// A path between the ends of an identifier.
fn path_of(id: *mut rdma_cm_id) -> ibv_path_data {
    unsafe {
        let mut p: ibv_path_data = std::mem::zeroed();
        p.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
        p.path.sgid = (*id).route.addr.addr.ibaddr.sgid;
        p.path.dgid = (*id).route.addr.addr.ibaddr.dgid;
        p.path.mtu = 2 << 6 | IBV_MTU_512 as u8;
        p.path.tclass = 0x28;
        p.path.packetlifetime = 2 << 6 | 18;
        p
    }
}

#[test]
fn a_path_given_by_the_program_replaces_the_resolved_route() {
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let made = id(ours, RDMA_PS_TCP);
    let set = |p| option(made, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, p);
    works(resolve(made, &loopback(port)));
    expect(ours, RDMA_CM_EVENT_ADDR_RESOLVED);
    let good = path_of(made);
    fails(set(ibv_path_data { flags: IBV_PATH_FLAG_PRIMARY, ..good }), libc::EINVAL);
    fails(option(made, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, [0u8; 7]), libc::EINVAL);
    let mut stray = good;
    stray.path.dgid = ibv_gid { raw: [9; 16] };
    fails(set(stray), libc::EINVAL);
    works(set(good));
    expect(ours, RDMA_CM_EVENT_ROUTE_RESOLVED);
    fails(set(good), libc::EINVAL);
    let record = unsafe { *(*made).route.path_rec };
    assert_eq!((record.mtu, record.traffic_class), (IBV_MTU_512 as u8, 0x28));
    with_qp(made);
    works(unsafe { connect::rdma_connect(made, null_mut()) });
    let asked = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
    with_qp(asked.id);
    works(unsafe { connect::rdma_accept(asked.id, null_mut()) });
    expect(ours, RDMA_CM_EVENT_ESTABLISHED);
    expect(theirs, RDMA_CM_EVENT_ESTABLISHED);
    for id in [made, asked.id] {
        let (mut a, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { v::qp::ibv_query_qp((*id).qp, &raw mut a, 0, &raw mut init) }, 0);
        assert_eq!((a.path_mtu, a.ah_attr.grh.traffic_class, a.timeout), (IBV_MTU_512, 0x28, 19));
    }
    [made, asked.id, listener].into_iter().for_each(destroy);
}

#[test]
fn endpoints_share_receives_through_the_queue_of_their_identifier() {
    let (listener, port) = passive(null_mut(), null_mut());
    let client = active(port);
    let asking = connecting(client);
    let server = request(listener);
    unsafe {
        let mut init: ibv_srq_init_attr = std::mem::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (8, 1);
        works(srq::rdma_create_srq(server, null_mut(), &raw mut init));
        assert!(!(*server).srq.is_null());
        fails(srq::rdma_create_srq(server, null_mut(), &raw mut init), libc::EINVAL);
        with_qp(server);
        assert_eq!((*(*server).qp).srq, (*server).srq);
        works(connect::rdma_accept(server, null_mut()));
        assert_eq!(asking.join().unwrap().0, 0);
        assert_eq!((*(*client).event).param.conn.srq, 1, "the peer is told");
        assert_eq!((*(*server).qp).state, IBV_QPS_RTS);
        [client, server, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
    }
}

#[test]
fn an_extended_queue_of_receives_needs_a_type_and_an_extended_queue_pair_takes_its_domain() {
    let (_listener, port) = passive(null_mut(), null_mut());
    let client = active_in(RDMA_PS_TCP, IBV_QPT_RC, port, null_mut(), null_mut());
    let pd = device_pd();
    unsafe {
        let mut init: ibv_srq_init_attr_ex = std::mem::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (8, 1);
        fails(srq::rdma_create_srq_ex(client, &raw mut init), libc::EINVAL);
        init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        (init.srq_type, init.pd) = (IBV_SRQT_BASIC, pd);
        works(srq::rdma_create_srq_ex(client, &raw mut init));
        let mut a: ibv_qp_init_attr_ex = std::mem::zeroed();
        (a.cap.max_send_wr, a.cap.max_send_sge, a.qp_type) = (4, 1, IBV_QPT_RC);
        (a.comp_mask, a.pd) = (IBV_QP_INIT_ATTR_PD, pd);
        works(qp::rdma_create_qp_ex(client, &raw mut a));
        assert_eq!(((*client).pd, (*(*client).qp).srq), (pd, (*client).srq));
        assert!(!(*client).send_cq.is_null() && !(*client).recv_cq_channel.is_null());
        fails(qp::rdma_create_qp_ex(client, &raw mut a), libc::EINVAL);
        endpoint::rdma_destroy_ep(client);
        assert_eq!(v::memory::ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn a_port_space_of_either_kind_of_queue_pair_serves_connections_and_datagrams() {
    for (kind, event) in [(IBV_QPT_RC, RDMA_CM_EVENT_ESTABLISHED), (IBV_QPT_UD, RDMA_CM_EVENT_ESTABLISHED)] {
        let (listener, port) = passive_in(RDMA_PS_IB, kind, &mut attr(), null_mut());
        let client = active_in(RDMA_PS_IB, kind, port, &mut attr(), null_mut());
        let asking = connecting(client);
        let server = request(listener);
        unsafe {
            assert_eq!(((*server).qp_type, (*(*server).qp).qp_type, (*server).ps), (kind, kind, RDMA_PS_IB));
            works(connect::rdma_accept(server, null_mut()));
            assert_eq!(asking.join().unwrap().0, 0);
            assert_eq!((*(*client).event).event, event);
            [client, server, listener].into_iter().for_each(|ep| endpoint::rdma_destroy_ep(ep));
        }
    }
    // A connection to a service for datagrams, and the other way round.
    let (_datagrams, port) = passive_in(RDMA_PS_IB, IBV_QPT_UD, null_mut(), null_mut());
    let client = active_in(RDMA_PS_IB, IBV_QPT_RC, port, &mut attr(), null_mut());
    assert_eq!(connecting(client).join().unwrap(), (-1, libc::ECONNREFUSED));
    let (_connections, port) = passive_in(RDMA_PS_IB, IBV_QPT_RC, null_mut(), null_mut());
    let client = active_in(RDMA_PS_IB, IBV_QPT_UD, port, &mut attr(), null_mut());
    assert_eq!(connecting(client).join().unwrap(), (-1, libc::ECONNREFUSED));
}

#[test]
fn ports_of_different_port_spaces_have_nothing_to_do_with_each_other() {
    let ch = channel();
    let (tcp, port) = listener(ch, RDMA_PS_TCP, 1);
    for ps in [RDMA_PS_UDP, RDMA_PS_IB] {
        let other = id(ch, ps);
        works(bind(other, &loopback(port)));
        destroy(other);
    }
    destroy(tcp);
}

#[test]
fn the_port_space_of_ipoib_has_no_device_here_as_with_the_kernel_on_roce() {
    let ch = channel();
    let made = id(ch, RDMA_PS_IPOIB);
    works(bind(made, &loopback(0)));
    works(resolve(made, &loopback(7)));
    assert_eq!(expect(ch, RDMA_CM_EVENT_ADDR_ERROR).status, -libc::EINVAL);
    let listener = id(ch, RDMA_PS_IPOIB);
    works(bind(listener, &at([0; 4], 0)));
    works(unsafe { connect::rdma_listen(listener, 1) });
    [made, listener].into_iter().for_each(destroy);
    let sync = id(null_mut(), RDMA_PS_IPOIB);
    fails(resolve(sync, &loopback(7)), libc::EINVAL);
    destroy(sync);
}

/// A service id of a port space, on no GID.
fn service(sid: u64, mask: u64) -> sockaddr_ib {
    let mut a: sockaddr_ib = unsafe { std::mem::zeroed() };
    (a.sib_family, a.sib_sid, a.sib_sid_mask) = (AF_IB as u16, sid.to_be(), mask.to_be());
    a
}

#[test]
fn an_address_of_gids_can_be_listened_on_without_a_gid_and_not_resolved() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    fails(bind(made, &service(RDMA_IB_IP_PS_UDP, RDMA_IB_IP_PS_MASK)), libc::EPROTONOSUPPORT);
    let mut with_gid = service(RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_MASK);
    with_gid.sib_addr = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1] };
    fails(bind(made, &with_gid), libc::ENODEV);
    fails(resolve(made, &with_gid), libc::ENODEV);
    works(bind(made, &service(RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_MASK)));
    works(unsafe { connect::rdma_listen(made, 1) });
    let shown = unsafe { (*made).route.addr.src.sib };
    let port = u16::from_be(unsafe { connect::rdma_get_src_port(made) });
    assert_eq!(i32::from(shown.sib_family), AF_IB);
    assert_eq!(u64::from_be(shown.sib_sid), RDMA_IB_IP_PS_TCP | u64::from(port));
    assert_eq!(shown.sib_sid_mask, u64::MAX);
    // Whoever asks by IP addresses is heard, header and all.
    let ours = channel();
    let client = routed(ours, RDMA_PS_TCP, port);
    with_qp(client);
    works(unsafe { connect::rdma_connect(client, &mut with_data(param(), b"hello")) });
    let asked = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((asked.data.len(), &asked.data[36..41]), (92, &b"hello"[..]));
    let peer = unsafe { (*asked.id).route.addr.dst.sib };
    assert_eq!(
        (i32::from(peer.sib_family), unsafe { peer.sib_addr.raw[12..].to_vec() }),
        (AF_IB, vec![127, 0, 0, 1])
    );
    [client, asked.id, made].into_iter().for_each(destroy);
}

#[test]
fn an_identifier_of_all_services_takes_the_port_space_its_service_id_names() {
    let ch = channel();
    let (tcp, port) = listener(ch, RDMA_PS_TCP, 1);
    let made = id(ch, RDMA_PS_IB);
    fails(bind(made, &service(RDMA_IB_IP_PS_TCP | u64::from(port), u64::MAX)), libc::EADDRNOTAVAIL);
    works(bind(made, &service(RDMA_IB_IP_PS_UDP | u64::from(port), u64::MAX)));
    [made, tcp].into_iter().for_each(destroy);
}

/// A queue pair made with verbs on an identifier's device.
fn external_qp(id: *mut rdma_cm_id) -> (*mut ibv_cq, *mut ibv_qp) {
    unsafe {
        let cq = v::cq::ibv_create_cq((*id).verbs, 8, null_mut(), null_mut(), 0);
        let mut a = attr();
        (a.send_cq, a.recv_cq, a.qp_type) = (cq, cq, IBV_QPT_RC);
        let made = v::qp::ibv_create_qp((*id).pd, &raw mut a);
        assert!(!made.is_null(), "errno {}", errno());
        (cq, made)
    }
}

/// Takes a queue pair to a state with what the identifier says.
fn modify(id: *mut rdma_cm_id, qp: *mut ibv_qp, state: ibv_qp_state) {
    unsafe {
        let mut a: ibv_qp_attr = std::mem::zeroed();
        a.qp_state = state;
        let mut mask = 0;
        works(connect::rdma_init_qp_attr(id, &raw mut a, &raw mut mask));
        assert_eq!((a.qp_state, v::qp::ibv_modify_qp(qp, &raw mut a, mask)), (state, 0));
    }
}

#[test]
fn queue_pairs_of_the_program_s_own_are_connected_by_it() {
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let active = routed(ours, RDMA_PS_TCP, port);
    unsafe {
        fails(connect::rdma_establish(active), libc::EINVAL);
        let active_qp = external_qp(active);
        let mut options = ibv_ece { vendor_id: 0x15b3, options: 0x1234_5678, comp_mask: 0 };
        works(ece::rdma_set_local_ece(active, &raw mut options));
        let mut p = rdma_conn_param { qp_num: (*active_qp.1).qp_num, ..param() };
        works(connect::rdma_connect(active, &raw mut p));
        let asked = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(asked.param.conn.qp_num, p.qp_num);
        let mut told: ibv_ece = std::mem::zeroed();
        works(ece::rdma_get_remote_ece(asked.id, &raw mut told));
        assert_eq!((told.vendor_id, told.options), (0x15b3, 0x1234_5678));
        let passive_qp = external_qp(asked.id);
        let answer = &mut ibv_ece { vendor_id: 0x99, options: 0x11, comp_mask: 0 };
        works(ece::rdma_set_local_ece(asked.id, answer));
        for s in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            modify(asked.id, passive_qp.1, s);
        }
        let mut p = rdma_conn_param { qp_num: (*passive_qp.1).qp_num, ..param() };
        works(connect::rdma_accept(asked.id, &raw mut p));
        let answered = expect(ours, RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert_eq!(answered.param.conn.qp_num, p.qp_num);
        works(ece::rdma_get_remote_ece(active, &raw mut told));
        assert_eq!(
            (told.vendor_id, told.options),
            (0x15b3, 0x11),
            "the asker's vendor, the answer's options"
        );
        for s in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            modify(active, active_qp.1, s);
        }
        fails(connect::rdma_notify(active, IBV_EVENT_COMM_EST), libc::EINVAL);
        works(connect::rdma_establish(active));
        expect(theirs, RDMA_CM_EVENT_ESTABLISHED);
        fails(connect::rdma_establish(active), libc::EINVAL);
        fails(connect::rdma_notify(asked.id, IBV_EVENT_COMM_EST), libc::EISCONN);
        works(connect::rdma_disconnect(active));
        expect(theirs, RDMA_CM_EVENT_DISCONNECTED);
        for (cq, made) in [active_qp, passive_qp] {
            assert_eq!((v::qp::ibv_destroy_qp(made), v::cq::ibv_destroy_cq(cq)), (0, 0));
        }
        [active, asked.id, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn data_establishes_a_connection_that_the_peer_has_not_called_ready() {
    let a = Asking::with(&rdma_conn_param { qp_num: 0x77, ..param() }, false, RDMA_PS_TCP);
    unsafe {
        fails(connect::rdma_notify(a.passive, IBV_EVENT_COMM_EST), libc::EINVAL);
        works(connect::rdma_accept(a.passive, &mut rdma_conn_param { qp_num: 0x78, ..param() }));
        expect(a.ours, RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert!(!comes(a.theirs, 50), "nobody has established");
        fails(connect::rdma_notify(a.passive, IBV_EVENT_PATH_MIG), libc::EINVAL);
        works(connect::rdma_notify(a.passive, IBV_EVENT_COMM_EST));
        expect(a.theirs, RDMA_CM_EVENT_ESTABLISHED);
        fails(connect::rdma_notify(a.passive, IBV_EVENT_COMM_EST), libc::EISCONN);
        fails(connect::rdma_notify(null_mut(), IBV_EVENT_COMM_EST), libc::EINVAL);
        works(connect::rdma_establish(a.active));
        assert!(!comes(a.theirs, 50), "told once");
    }
    a.close();
}

#[test]
fn a_request_refused_for_its_options_says_so() {
    let a = Asking::with(&rdma_conn_param { qp_num: 0x77, ..param() }, false, RDMA_PS_TCP);
    works(unsafe { connect::rdma_reject_ece(a.passive, c"why".as_ptr().cast(), 3) });
    let refused = expect(a.ours, RDMA_CM_EVENT_REJECTED);
    assert_eq!((refused.status, &refused.data[..3]), (35, &b"why"[..]));
    a.close();
}

#[test]
fn options_of_queue_pairs_are_for_those_that_no_identifier_owns() {
    let made = routed(channel(), RDMA_PS_TCP, 1);
    let mut good = ibv_ece { vendor_id: 1, options: 2, comp_mask: 0 };
    let mut bad = [
        ibv_ece { vendor_id: 0, ..good },
        ibv_ece { comp_mask: 1, ..good },
        ibv_ece { vendor_id: 1 << 24, ..good },
    ];
    unsafe {
        for bad in &mut bad {
            fails(ece::rdma_set_local_ece(made, bad), libc::EINVAL);
        }
        fails(ece::rdma_set_local_ece(made, null_mut()), libc::EINVAL);
        fails(ece::rdma_set_local_ece(null_mut(), &raw mut good), libc::EINVAL);
        fails(ece::rdma_get_remote_ece(null_mut(), &raw mut good), libc::EINVAL);
        works(ece::rdma_set_local_ece(made, &raw mut good));
        works(ece::rdma_get_remote_ece(made, &raw mut good));
        assert_eq!((good.vendor_id, good.options), (0, 0), "nothing was told");
        with_qp(made);
        good.vendor_id = 1;
        fails(ece::rdma_set_local_ece(made, &raw mut good), libc::EINVAL);
        fails(ece::rdma_get_remote_ece(made, &raw mut good), libc::EINVAL);
    }
    destroy(made);
}

#[test]
fn a_program_writes_events_of_its_own_into_a_channel() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    unsafe {
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, -7, 0x1122_3344_5566_7788));
        let event = fetch(ch);
        let seen = ((*event).id, (*event).event, (*event).status, (*event).param.arg);
        assert_eq!(seen, (made, RDMA_CM_EVENT_USER, -7, 0x1122_3344_5566_7788));
        works(channel::rdma_ack_cm_event(event));
        fails(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_ESTABLISHED, 0, 0), libc::EINVAL);
        fails(connect::rdma_write_cm_event(null_mut(), RDMA_CM_EVENT_USER, 0, 0), libc::EINVAL);
    }
    destroy(made);
}

#[test]
fn a_thread_that_waits_on_a_channel_is_woken_by_a_written_event() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    let waiting = Sent(ch);
    let thread = std::thread::spawn(move || next(waiting.get()).event);
    std::thread::sleep(Duration::from_millis(30));
    works(unsafe { connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 0) });
    assert_eq!(thread.join().unwrap(), RDMA_CM_EVENT_USER);
    destroy(made);
}

#[test]
fn without_a_channel_every_call_waits_for_its_event_and_leaves_it_in_the_identifier() {
    let made = id(null_mut(), RDMA_PS_TCP);
    let (listener, port) = passive(&mut attr(), null_mut());
    unsafe {
        works(resolve(made, &loopback(port)));
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        works(connect::rdma_resolve_route(made, 2000));
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ROUTE_RESOLVED);
        with_qp(made);
        let asking = connecting(made);
        let server = request(listener);
        assert_eq!((*(*server).event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
        works(connect::rdma_accept(server, null_mut()));
        assert_eq!(asking.join().unwrap().0, 0);
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!((*(*server).event).event, RDMA_CM_EVENT_ESTABLISHED);
        [made, server, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn requests_are_fetched_from_synchronous_listeners_only() {
    let (listener, _) = listener(channel(), RDMA_PS_TCP, 1);
    let mut made = null_mut();
    fails(unsafe { connect::rdma_get_request(listener, &raw mut made) }, libc::EINVAL);
    destroy(listener);
}

#[test]
fn an_identifier_moves_to_another_channel_with_the_events_that_wait() {
    let (old, new) = (channel(), channel());
    let made = id(old, RDMA_PS_TCP);
    let other = id(old, RDMA_PS_TCP);
    unsafe {
        for arg in 1..4 {
            works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, arg));
            works(connect::rdma_write_cm_event(other, RDMA_CM_EVENT_USER, 0, 10 + arg));
        }
        works(id::rdma_migrate_id(made, new));
        assert_eq!((*made).channel, new);
        let args = |ch| (0..3).map(|_| next(ch).param.arg).collect::<Vec<u64>>();
        assert_eq!((args(new), args(old)), (vec![1, 2, 3], vec![11, 12, 13]));
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 4));
        assert_eq!(next(new).param.arg, 4);
        assert!(!comes(old, 0));
    }
    [made, other].into_iter().for_each(destroy);
}

#[test]
fn an_identifier_becomes_synchronous_and_asynchronous_again() {
    let ch = channel();
    let (listener, port) = listener(ch, RDMA_PS_TCP, 4);
    let ours = channel();
    let made = id(ours, RDMA_PS_TCP);
    works(resolve(made, &loopback(port)));
    unsafe {
        // The event of the resolution goes along.
        assert!(comes(ours, 2000));
        works(id::rdma_migrate_id(made, null_mut()));
        assert!(!comes(ours, 0) && comes((*made).channel, 0));
        expect((*made).channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        fails(id::rdma_migrate_id(made, null_mut()), libc::EINVAL);
        works(connect::rdma_resolve_route(made, 2000));
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ROUTE_RESOLVED);
        works(id::rdma_migrate_id(made, ours));
        assert!((*made).event.is_null());
        with_qp(made);
        works(connect::rdma_connect(made, null_mut()));
        let asked = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
        works(connect::rdma_reject(asked.id, null_mut(), 0));
        expect(ours, RDMA_CM_EVENT_REJECTED);
        [made, asked.id, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn an_identifier_does_not_move_to_a_channel_that_is_gone() {
    let (ch, gone) = (channel(), channel());
    let made = id(ch, RDMA_PS_TCP);
    unsafe {
        channel::rdma_destroy_event_channel(gone);
        fails(id::rdma_migrate_id(made, gone), libc::EBADF);
        fails(id::rdma_migrate_id(null_mut(), ch), libc::EINVAL);
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 5));
    }
    assert_eq!(arg(&next(ch)), 5);
    destroy(made);
}

/// Runs `f` in a thread while an event of `id` is not acknowledged; it ends only after the acknowledgement.
fn waits_for_the_acknowledgement(ch: *mut rdma_event_channel, id: *mut rdma_cm_id, f: fn(*mut rdma_cm_id)) {
    works(unsafe { connect::rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 0) });
    let event = fetch(ch);
    let sent = Sent(id);
    let thread = std::thread::spawn(move || {
        let begin = Instant::now();
        f(sent.get());
        begin.elapsed()
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!thread.is_finished());
    works(unsafe { channel::rdma_ack_cm_event(event) });
    assert!(thread.join().unwrap() >= Duration::from_millis(90));
}

#[test]
fn destroying_an_identifier_waits_until_its_events_are_acknowledged() {
    let ch = channel();
    waits_for_the_acknowledgement(ch, id(ch, RDMA_PS_TCP), destroy);
}

#[test]
fn moving_an_identifier_waits_until_its_events_are_acknowledged() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    waits_for_the_acknowledgement(ch, made, |id| works(unsafe { id::rdma_migrate_id(id, channel()) }));
    destroy(made);
}

#[test]
fn events_of_a_destroyed_identifier_are_never_seen() {
    let ch = channel();
    let (made, other) = (id(ch, RDMA_PS_TCP), id(ch, RDMA_PS_TCP));
    unsafe {
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 1));
        works(connect::rdma_write_cm_event(other, RDMA_CM_EVENT_USER, 0, 2));
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 3));
    }
    destroy(made);
    assert_eq!(arg(&next(ch)), 2);
    assert!(!comes(ch, 0));
    destroy(other);
}

#[test]
fn a_listener_destroyed_while_a_request_waits_refuses_it() {
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let made = routed(ours, RDMA_PS_TCP, port);
    with_qp(made);
    works(unsafe { connect::rdma_connect(made, null_mut()) });
    assert!(comes(theirs, 2000));
    destroy(listener);
    assert!(!comes(theirs, 0));
    expect(ours, RDMA_CM_EVENT_REJECTED);
    destroy(made);
}

#[test]
fn an_empty_channel_that_does_not_block_is_eagain() {
    let ch = channel();
    unsafe {
        let fd = (*ch).fd;
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK), 0);
        let mut event = null_mut();
        fails(channel::rdma_get_cm_event(ch, &raw mut event), libc::EAGAIN);
        let made = id(ch, RDMA_PS_TCP);
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 0));
        works(channel::rdma_get_cm_event(ch, &raw mut event));
        works(channel::rdma_ack_cm_event(event));
        fails(channel::rdma_get_cm_event(ch, &raw mut event), libc::EAGAIN);
        destroy(made);
    }
}

#[test]
fn several_threads_on_one_channel_get_each_event_once() {
    const THREADS: usize = 4;
    const EVENTS: u64 = 2000;
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    static SUM: AtomicUsize = AtomicUsize::new(0);
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let ch = Sent(ch);
            std::thread::spawn(move || {
                loop {
                    let arg = unsafe { next(ch.get()).param.arg };
                    if arg == 0 {
                        return;
                    }
                    SUM.fetch_add(arg as usize, Ordering::Relaxed);
                    SEEN.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for arg in (1..=EVENTS).chain([0; THREADS]) {
        works(unsafe { connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, arg) });
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    let n = EVENTS as usize;
    assert_eq!((SEEN.load(Ordering::Relaxed), SUM.load(Ordering::Relaxed)), (n, n * (n + 1) / 2));
    destroy(made);
}

#[test]
fn a_full_backlog_refuses_and_never_hangs() {
    const BACKLOG: usize = 2;
    let theirs = channel();
    let (listener, port) = listener(theirs, RDMA_PS_TCP, BACKLOG as c_int);
    let clients: Vec<_> = (0..BACKLOG + 2)
        .map(|_| {
            let ours = channel();
            let made = routed(ours, RDMA_PS_TCP, port);
            with_qp(made);
            works(unsafe { connect::rdma_connect(made, null_mut()) });
            (ours, made)
        })
        .collect();
    // Nobody fetches: two have places, two are refused after a while.
    let begin = Instant::now();
    let refused = loop {
        let refused = clients.iter().filter(|(ours, _)| comes(*ours, 0)).count();
        if refused == 2 || begin.elapsed() > Duration::from_secs(5) {
            break refused;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(refused, 2);
    for (ours, _) in clients.iter().filter(|(ours, _)| comes(*ours, 0)) {
        assert_eq!(expect(*ours, RDMA_CM_EVENT_REJECTED).status, 3, "no resources");
    }
    // The others are served.
    for _ in 0..BACKLOG {
        let asked = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
        works(unsafe { connect::rdma_reject(asked.id, null_mut(), 0) });
        destroy(asked.id);
    }
    clients.into_iter().for_each(|(_, made)| destroy(made));
    destroy(listener);
}
