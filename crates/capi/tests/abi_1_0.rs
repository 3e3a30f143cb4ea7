//! A program of 2006, as libibverbs 1.0 laid out its objects: it runs on the names of node
//! IBVERBS_1.0.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use capi::verbs::abi_1_0 as old;
use capi::verbs::cq::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use rdma_core_abi::verbs::*;

use support::errno;

const SIZE: usize = 4096;

/// The loopback device's old context, and the list it came from.
unsafe fn open() -> (*mut *mut old::Device, *mut old::Context) {
    unsafe {
        let mut n = 0;
        let list = old::ibv_get_device_list(&raw mut n);
        assert!(!list.is_null() && n > 0 && (*list.add(n as usize)).is_null());
        let name = |i: &usize| CStr::from_ptr(old::ibv_get_device_name(*list.add(*i))) == c"rxe_lo";
        let device = *list.add((0..n as usize).find(name).expect("a device on lo"));
        assert_ne!(old::ibv_get_device_guid(device), 0);
        let context = old::ibv_open_device(device);
        assert!(!context.is_null(), "errno {}", errno());
        (list, context)
    }
}

/// Takes a queue pair to RTS with itself as its peer.
unsafe fn connect(qp: *mut old::Qp, context: *mut old::Context) {
    unsafe {
        let mut a: ibv_qp_attr = std::mem::zeroed();
        let modify = |a: &mut ibv_qp_attr, mask: u32| {
            assert_eq!(old::ibv_modify_qp(qp, a, mask as c_int), 0);
        };
        (a.qp_state, a.port_num, a.qp_access_flags) = (IBV_QPS_INIT, 1, IBV_ACCESS_REMOTE_WRITE);
        modify(&mut a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        (a.qp_state, a.path_mtu, a.dest_qp_num) = (IBV_QPS_RTR, IBV_MTU_1024, (*qp).qp_num);
        (a.max_dest_rd_atomic, a.min_rnr_timer) = (1, 12);
        (a.ah_attr.is_global, a.ah_attr.port_num, a.ah_attr.grh.sgid_index) = (1, 1, 1);
        assert_eq!(old::ibv_query_gid(context, 1, 1, &raw mut a.ah_attr.grh.dgid), 0);
        let rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        modify(&mut a, IBV_QP_STATE | rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        (a.qp_state, a.timeout, a.retry_cnt, a.max_rd_atomic) = (IBV_QPS_RTS, 14, 7, 1);
        let rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
        modify(&mut a, IBV_QP_STATE | rts | IBV_QP_MAX_QP_RD_ATOMIC);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one program")]
fn a_program_of_libibverbs_1_0_sends_to_itself_and_hears_of_it() {
    let mut memory = Box::new([0_u8; SIZE]);
    unsafe {
        let (list, context) = open();
        let mut attr: ibv_device_attr = std::mem::zeroed();
        assert_eq!((old::ibv_query_device(context, &raw mut attr), attr.phys_port_cnt), (0, 1));
        let mut port: _compat_ibv_port_attr = std::mem::zeroed();
        assert_eq!((old::ibv_query_port(context, 1, &raw mut port), port.state), (0, IBV_PORT_ACTIVE));
        let mut pkey = 0;
        assert_eq!((old::ibv_query_pkey(context, 1, 0, &raw mut pkey), pkey), (0, 0xffff));

        let channel = ibv_create_comp_channel(context.cast());
        let user = std::ptr::without_provenance_mut(77);
        let cq = old::ibv_create_cq(context, 16, user, channel, 0);
        let pd = old::ibv_alloc_pd(context);
        assert!(!channel.is_null() && !cq.is_null() && !pd.is_null());
        let mr = old::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), SIZE, IBV_ACCESS_LOCAL_WRITE as c_int);
        let mut init = old::QpInitAttr {
            qp_context: user,
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 2,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 1,
        };
        assert!(old::ibv_create_qp(null_mut(), &raw mut init).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let qp = old::ibv_create_qp(pd, &raw mut init);
        assert!(!qp.is_null(), "errno {}", errno());
        connect(qp, context);

        let mut sge =
            ibv_sge { addr: memory.as_ptr().expose_provenance() as u64, length: 8, lkey: (*mr).lkey };
        let mut into = ibv_sge { addr: sge.addr + 2048, ..sge };
        let mut receives: [old::RecvWr; 3] = std::array::from_fn(|i| old::RecvWr {
            next: null_mut(),
            wr_id: i as u64,
            sg_list: &raw mut into,
            num_sge: 1,
        });
        let third = &raw mut receives[2];
        receives[1].next = third;
        receives[0].next = &raw mut receives[1];
        let mut bad = null_mut();
        let full = ((*context).ops.post_recv)(qp, &raw mut receives[0], &raw mut bad);
        assert_eq!((full, bad), (libc::ENOMEM, third), "the queue holds two");
        assert_eq!(((*context).ops.req_notify_cq)(cq, 0), 0);
        memory[..8].copy_from_slice(b"in 2006\0");
        let mut send: old::SendWr = std::mem::zeroed();
        (send.wr_id, send.sg_list, send.num_sge) = (9, &raw mut sge, 1);
        send.opcode = IBV_WR_SEND;
        let mut bad = null_mut();
        assert_eq!(((*context).ops.post_send)(qp, &raw mut send, &raw mut bad), 0);
        let (mut told, mut its) = (null_mut(), null_mut());
        assert_eq!(old::ibv_get_cq_event(channel, &raw mut told, &raw mut its), 0);
        assert_eq!((told, its), (cq, user));
        old::ibv_ack_cq_events(cq, 1);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let mut wc: ibv_wc = std::mem::zeroed();
            if ((*context).ops.poll_cq)(cq, 1, &raw mut wc) == 1 {
                assert_eq!((wc.status, wc.qp_num), (IBV_WC_SUCCESS, (*qp).qp_num));
                seen.push(wc.wr_id);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 9]);
        assert_eq!(memory[2048..2056], *b"in 2006\0");

        let (mut now, mut from): (ibv_qp_attr, old::QpInitAttr) = (std::mem::zeroed(), std::mem::zeroed());
        // All attributes that the call knows.
        let all = (IBV_QP_DEST_QPN << 1) - 1;
        assert_eq!(old::ibv_query_qp(qp, &raw mut now, all as i32, &raw mut from), 0);
        assert_eq!((now.qp_state, from.send_cq, from.qp_context), (IBV_QPS_RTS, cq, user));
        assert_eq!(old::ibv_dealloc_pd(pd), libc::EBUSY);
        assert_eq!(old::ibv_destroy_qp(qp), 0);
        assert_eq!((old::ibv_resize_cq(cq, 32), old::ibv_destroy_cq(cq)), (0, 0));
        assert_eq!(
            (ibv_destroy_comp_channel(channel), old::ibv_dereg_mr(mr), old::ibv_dealloc_pd(pd)),
            (0, 0, 0)
        );
        assert_eq!(old::ibv_close_device(context), 0);
        old::ibv_free_device_list(list);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one program")]
fn datagrams_shared_queues_and_events_have_their_old_objects() {
    unsafe {
        let (list, context) = open();
        let pd = old::ibv_alloc_pd(context);
        let cq = old::ibv_create_cq(context, 4, null_mut(), null_mut(), 0);
        let mut attr: ibv_srq_init_attr = std::mem::zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (4, 1);
        let srq = old::ibv_create_srq(pd, &raw mut attr);
        let mut wr = old::RecvWr { next: null_mut(), wr_id: 1, sg_list: null_mut(), num_sge: 0 };
        let mut bad = null_mut();
        assert_eq!(((*context).ops.post_srq_recv)(srq, &raw mut wr, &raw mut bad), 0);
        let mut limit: ibv_srq_attr = std::mem::zeroed();
        assert_eq!((old::ibv_query_srq(srq, &raw mut limit), limit.max_wr), (0, 4));
        // One receive is below the limit of two: told at the next that is taken, so the queue pair
        // fails meanwhile.
        limit.srq_limit = 2;
        assert_eq!(old::ibv_modify_srq(srq, &raw mut limit, IBV_SRQ_LIMIT as c_int), 0);

        let mut address: ibv_ah_attr = std::mem::zeroed();
        (address.is_global, address.port_num, address.grh.sgid_index) = (1, 1, 1);
        assert_eq!(old::ibv_query_gid(context, 1, 1, &raw mut address.grh.dgid), 0);
        let ah = old::ibv_create_ah(pd, &raw mut address);
        assert!(!ah.is_null(), "errno {}", errno());

        let mut init = old::QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq,
            cap: ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data: 16,
            },
            qp_type: IBV_QPT_UD,
            sq_sig_all: 1,
        };
        let qp = old::ibv_create_qp(pd, &raw mut init);
        let mut a: ibv_qp_attr = std::mem::zeroed();
        (a.qp_state, a.port_num, a.qkey) = (IBV_QPS_INIT, 1, 5);
        let ready = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        assert_eq!(old::ibv_modify_qp(qp, &raw mut a, ready as c_int), 0);
        for (state, more) in [(IBV_QPS_RTR, 0), (IBV_QPS_RTS, IBV_QP_SQ_PSN)] {
            a.qp_state = state;
            assert_eq!(old::ibv_modify_qp(qp, &raw mut a, (IBV_QP_STATE | more) as c_int), 0);
        }
        let mut send: old::SendWr = std::mem::zeroed();
        send.opcode = IBV_WR_SEND;
        send.wr.ud = ibv_send_wr_ud { ah: ah.cast(), remote_qpn: (*qp).qp_num, remote_qkey: 5 };
        let mut bad = null_mut();
        assert_eq!(((*context).ops.post_send)(qp, &raw mut send, &raw mut bad), 0);
        let mut wc: ibv_wc = std::mem::zeroed();
        while ((*context).ops.poll_cq)(cq, 1, &raw mut wc) != 1 {}
        assert_eq!((wc.status, wc.opcode), (IBV_WC_SUCCESS, IBV_WC_SEND));

        a.qp_state = IBV_QPS_ERR;
        assert_eq!(old::ibv_modify_qp(qp, &raw mut a, IBV_QP_STATE as c_int), 0);
        loop {
            let mut event: ibv_async_event = std::mem::zeroed();
            assert_eq!(old::ibv_get_async_event(context, &raw mut event), 0);
            let last = event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
            if last {
                assert_eq!(event.element.qp.cast(), qp);
            } else {
                assert_eq!((event.event_type, event.element.srq.cast()), (IBV_EVENT_SRQ_LIMIT_REACHED, srq));
            }
            old::ibv_ack_async_event(&raw mut event);
            if last {
                break;
            }
        }
        assert_eq!((old::ibv_destroy_qp(qp), old::ibv_destroy_ah(ah), old::ibv_destroy_srq(srq)), (0, 0, 0));
        assert_eq!(
            (old::ibv_destroy_cq(cq), old::ibv_dealloc_pd(pd), old::ibv_close_device(context)),
            (0, 0, 0)
        );
        old::ibv_free_device_list(list);
    }
}
