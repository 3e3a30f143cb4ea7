//! Queue pairs that no identifier owns (rdma_establish(3), rdma_init_qp_attr(3)).

use super::*;

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
