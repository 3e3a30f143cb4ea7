//! rdma_create_ep(3): active and passive endpoints, the path and the data that addresses bring,
//! shared receives.

use super::*;

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
