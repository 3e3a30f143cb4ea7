//! Port spaces of connections and datagrams, and addresses of GIDs.

use super::*;

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
    // A client that asks by IP addresses is heard, header and all.
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
