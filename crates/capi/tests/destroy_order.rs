//! Objects destroyed in any order: what rdma-core's libraries bear touches no freed memory here.
//! Freed memory is overwritten in these tests, so that code that looks at it falls over.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::cma::{channel, connect, id, qp as cm_qp, srq as cm_srq};
use capi::verbs::{ah, cq, device, memory, qp, srq};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::{HALF, Loop, errno, init, send};

/// Freed memory is filled with a pattern from now on (mallopt(3), M_PERTURB).
fn scribble_over_what_is_freed() {
    const M_PERTURB: c_int = -6;
    unsafe { libc::mallopt(M_PERTURB, 0xa5) };
}

/// Both ends of a connection.
fn connected() -> Asking {
    let asking = Asking::with(&param(), true, RDMA_PS_TCP);
    asking.accept(&param());
    asking
}

#[test]
fn a_queue_pair_destroyed_by_itself_is_not_touched_by_the_next_event() {
    scribble_over_what_is_freed();
    let a = connected();
    unsafe {
        works(connect::rdma_disconnect(a.active));
        assert_eq!(qp::ibv_destroy_qp((*a.active).qp), 0);
        expect(a.ours, RDMA_CM_EVENT_DISCONNECTED);
        expect(a.theirs, RDMA_CM_EVENT_DISCONNECTED);
        // The pointer still stands in the identifier: nothing follows it.
        works(connect::rdma_disconnect(a.active));
        cm_qp::rdma_destroy_qp(a.active);
        assert!((*a.active).qp.is_null());
        with_qp(a.active);
    }
    a.close();
}

#[test]
fn a_queue_pair_set_to_null_after_its_end_leaves_room_for_another() {
    scribble_over_what_is_freed();
    let a = connected();
    unsafe {
        assert_eq!(qp::ibv_destroy_qp((*a.active).qp), 0);
        (*a.active).qp = null_mut();
    }
    with_qp(a.active);
    a.close();
}

#[test]
fn a_queue_pair_outlives_its_identifier_and_is_destroyed_through_it() {
    scribble_over_what_is_freed();
    let a = connected();
    unsafe {
        let made = (*a.active).qp;
        works(id::rdma_destroy_id(a.active));
        assert_eq!((*made).qp_type, IBV_QPT_RC);
        fails(connect::rdma_disconnect(a.active), libc::EINVAL);
        fails(id::rdma_destroy_id(a.active), libc::EINVAL);
        cm_qp::rdma_destroy_qp(a.active);
        // Nothing is left of it: neither call finds anything.
        cm_qp::rdma_destroy_qp(a.active);
        fails(id::rdma_destroy_id(a.active), libc::EINVAL);
        for left in [a.passive, a.listener] {
            destroy(left);
        }
    }
}

#[test]
fn an_identifiers_shared_receive_queue_outlives_it_likewise() {
    scribble_over_what_is_freed();
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let active = routed(ours, RDMA_PS_TCP, port);
    unsafe {
        let mut init: ibv_srq_init_attr = std::mem::zeroed();
        init.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        works(cm_srq::rdma_create_srq(active, null_mut(), &raw mut init));
        with_qp(active);
        works(id::rdma_destroy_id(active));
        cm_qp::rdma_destroy_qp(active);
        cm_srq::rdma_destroy_srq(active);
        cm_srq::rdma_destroy_srq(active);
    }
    destroy(listener);
    for ch in [ours, theirs] {
        unsafe { channel::rdma_destroy_event_channel(ch) };
    }
}

#[test]
fn a_channel_destroyed_first_ends_the_connections_of_its_identifiers() {
    scribble_over_what_is_freed();
    let a = connected();
    unsafe {
        channel::rdma_destroy_event_channel(a.ours);
        expect(a.theirs, RDMA_CM_EVENT_DISCONNECTED);
        destroy(a.active);
        channel::rdma_destroy_event_channel(a.theirs);
        destroy(a.listener);
        destroy(a.passive);
    }
}

#[test]
fn a_device_closed_first_ends_what_was_made_on_it_and_leaves_the_objects_to_their_own_calls() {
    scribble_over_what_is_freed();
    let (mut l, other) = (Loop::open(), Loop::open());
    let (ours, theirs) = unsafe { ((*l.qp).qp_num, (*other.qp).qp_num) };
    connect_impatiently(&l, theirs);
    connect_impatiently(&other, ours);
    unsafe {
        let mut sge = [other.sge(0, 8)];
        let mut wr = send(1, IBV_WR_RDMA_WRITE, &mut sge);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: l.sge(HALF, 8).addr, rkey: (*l.mr).rkey };
        assert_eq!(other.post_send(&mut wr), 0);
        assert_eq!(other.completions(1)[0].status, IBV_WC_SUCCESS);
        assert_eq!(device::ibv_close_device(l.context), 0);
        // The region is no more: its memory may be freed.
        l.memory[HALF] = 7;
        assert_eq!(other.post_send(&mut wr), 0);
        assert_ne!(other.completions(1)[0].status, IBV_WC_SUCCESS);
        assert_eq!(l.memory[HALF], 7);
        let none = memory::ibv_alloc_pd((*l.pd).context);
        assert!(none.is_null() && errno() == libc::ENODEV);
        assert_eq!(memory::ibv_dealloc_pd(l.pd), libc::EBUSY);
        assert_eq!(cq::ibv_destroy_cq(l.cq), libc::EBUSY);
        assert_eq!(memory::ibv_dereg_mr(l.mr), 0);
        assert_eq!(qp::ibv_destroy_qp(l.qp), 0);
        assert_eq!(cq::ibv_destroy_cq(l.cq), 0);
        assert_eq!(memory::ibv_dealloc_pd(l.pd), 0);
        assert_eq!(cq::ibv_destroy_comp_channel(l.channel), 0);
    }
    other.close();
}

/// Connects a loop's queue pair to another of the loopback device, with few retries.
fn connect_impatiently(l: &Loop, peer: u32) {
    unsafe {
        let mut a: ibv_qp_attr = std::mem::zeroed();
        a.qp_state = IBV_QPS_RESET;
        assert_eq!(qp::ibv_modify_qp(l.qp, &raw mut a, IBV_QP_STATE as c_int), 0);
    }
    support::connect_to(l.qp, peer);
    unsafe {
        // Soon enough for a test: the peer will be gone.
        let mut a: ibv_qp_attr = std::mem::zeroed();
        a.qp_state = IBV_QPS_SQD;
        assert_eq!(qp::ibv_modify_qp(l.qp, &raw mut a, IBV_QP_STATE as c_int), 0);
        (a.qp_state, a.timeout, a.retry_cnt) = (IBV_QPS_SQD, 14, 2);
        let mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT;
        assert_eq!(qp::ibv_modify_qp(l.qp, &raw mut a, mask as c_int), 0);
        a.qp_state = IBV_QPS_RTS;
        assert_eq!(qp::ibv_modify_qp(l.qp, &raw mut a, IBV_QP_STATE as c_int), 0);
    }
}

/// A call that destroys something, with its name; 0, or EBUSY where it has to come later.
type Ending = (&'static str, Box<dyn FnMut() -> c_int>);

/// The second table of a context, copied: the context may be closed before it is used.
fn table(context: *mut ibv_context) -> verbs_context {
    unsafe { *context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() }
}

/// One of each object of libibverbs, tied together, and how they are destroyed.
#[expect(clippy::too_many_lines, reason = "a line an object")]
fn objects() -> Vec<Ending> {
    let mut all: Vec<Ending> = Vec::new();
    let l = Loop::open();
    let t = table(l.context);
    let (context, pd, channel) = (l.context, l.pd, l.channel);
    unsafe {
        // Work under way: a message to itself, and one that finds no receive.
        assert_eq!(l.post_recv(1, 8), 0);
        assert_eq!((t.context.ops.req_notify_cq.expect("built"))(l.cq, 0), 0);
        for id in 2..4 {
            assert_eq!(l.post_send(&mut send(id, IBV_WR_SEND, &mut [l.sge(0, 8)])), 0);
        }

        let mut none: ibv_td_init_attr = std::mem::zeroed();
        let td = t.alloc_td.expect("built")(context, &raw mut none);
        let mut attr: ibv_parent_domain_init_attr = std::mem::zeroed();
        (attr.pd, attr.td) = (pd, td);
        let parent = t.alloc_parent_domain.expect("built")(context, &raw mut attr);
        assert!(!td.is_null() && !parent.is_null());
        all.push(("td", Box::new(move || t.dealloc_td.expect("built")(td))));
        all.push(("parent domain", Box::new(move || memory::ibv_dealloc_pd(parent))));

        let window = t.context.ops.alloc_mw.expect("built")(pd, IBV_MW_TYPE_1);
        assert!(!window.is_null());
        all.push(("window", Box::new(move || t.context.ops.dealloc_mw.expect("built")(window))));

        let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 3, comp_mask: 0 };
        let dm = t.alloc_dm.expect("built")(context, &raw mut attr);
        let on = t.reg_dm_mr.expect("built")(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
        assert!(!dm.is_null() && !on.is_null());
        all.push(("device memory", Box::new(move || t.free_dm.expect("built")(dm))));
        all.push(("region on it", Box::new(move || memory::ibv_dereg_mr(on))));

        let mut attr: ibv_srq_init_attr = std::mem::zeroed();
        attr.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        let shared = srq::ibv_create_srq(parent, &raw mut attr);
        let mut fed = init(l.cq);
        fed.srq = shared;
        let fed = qp::ibv_create_qp(parent, &raw mut fed);
        assert!(!shared.is_null() && !fed.is_null());
        all.push(("srq", Box::new(move || srq::ibv_destroy_srq(shared))));
        all.push(("qp of it", Box::new(move || qp::ibv_destroy_qp(fed))));

        let mut xrc: ibv_xrcd_init_attr = std::mem::zeroed();
        xrc.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        (xrc.fd, xrc.oflags) = (-1, libc::O_CREAT);
        let xrcd = t.open_xrcd.expect("built")(context, &raw mut xrc);
        let mut attr: ibv_srq_init_attr_ex = std::mem::zeroed();
        attr.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        attr.comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        (attr.srq_type, attr.pd, attr.xrcd, attr.cq) = (IBV_SRQT_XRC, pd, xrcd, l.cq);
        let theirs = t.create_srq_ex.expect("built")(context, &raw mut attr);
        let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
        (attr.qp_type, attr.comp_mask, attr.xrcd) = (IBV_QPT_XRC_RECV, IBV_QP_INIT_ATTR_XRCD, xrcd);
        let target = t.create_qp_ex.expect("built")(context, &raw mut attr);
        assert!(!xrcd.is_null() && !theirs.is_null() && !target.is_null());
        all.push(("xrcd", Box::new(move || t.close_xrcd.expect("built")(xrcd))));
        all.push(("xrc srq", Box::new(move || srq::ibv_destroy_srq(theirs))));
        all.push(("xrc target", Box::new(move || qp::ibv_destroy_qp(target))));

        let mut wq: ibv_wq_init_attr = std::mem::zeroed();
        (wq.wq_type, wq.max_wr, wq.max_sge, wq.pd, wq.cq) = (IBV_WQT_RQ, 4, 1, pd, l.cq);
        let wq = t.create_wq.expect("built")(context, &raw mut wq);
        let mut queues = [wq; 2];
        let mut attr: ibv_rwq_ind_table_init_attr = std::mem::zeroed();
        (attr.log_ind_tbl_size, attr.ind_tbl) = (1, queues.as_mut_ptr());
        let spread = t.create_rwq_ind_table.expect("built")(context, &raw mut attr);
        assert!(!wq.is_null() && !spread.is_null());
        all.push(("wq", Box::new(move || t.destroy_wq.expect("built")(wq))));
        all.push(("table", Box::new(move || t.destroy_rwq_ind_table.expect("built")(spread))));

        let mut attr: ibv_counters_init_attr = std::mem::zeroed();
        let counters = t.create_counters.expect("built")(context, &raw mut attr);
        let mut attr: ibv_comp_cntr_init_attr = std::mem::zeroed();
        attr.type_ = IBV_COMP_CNTR_TYPE_WRS;
        let count = cq::ibv_create_comp_cntr(context, &raw mut attr);
        let mut attr: ibv_qp_attach_comp_cntr_attr = std::mem::zeroed();
        attr.op_mask = 1;
        assert_eq!(cq::ibv_qp_attach_comp_cntr(fed, count, &raw mut attr), 0);
        assert!(!counters.is_null() && !count.is_null());
        all.push(("counters", Box::new(move || t.destroy_counters.expect("built")(counters))));
        all.push(("completion counter", Box::new(move || cq::ibv_destroy_comp_cntr(count))));

        let mut way: ibv_ah_attr = std::mem::zeroed();
        (way.is_global, way.port_num, way.grh.sgid_index, way.grh.hop_limit) = (1, 1, 1, 9);
        way.grh.dgid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1] };
        let handle = ah::ibv_create_ah(pd, &raw mut way);
        assert!(!handle.is_null());
        all.push(("address handle", Box::new(move || ah::ibv_destroy_ah(handle))));
    }
    let Loop { qp: made, cq: queue, mr, memory, .. } = l;
    let mut memory = Some(memory);
    unsafe {
        all.push(("qp", Box::new(move || qp::ibv_destroy_qp(made))));
        all.push(("cq", Box::new(move || cq::ibv_destroy_cq(queue))));
        all.push(("channel", Box::new(move || cq::ibv_destroy_comp_channel(channel))));
        let dereg = move || {
            let done = memory::ibv_dereg_mr(mr);
            // The region's memory is freed with it.
            memory = memory.take().filter(|_| done != 0);
            done
        };
        all.push(("region", Box::new(dereg)));
        all.push(("pd", Box::new(move || memory::ibv_dealloc_pd(pd))));
        all.push(("context", Box::new(move || device::ibv_close_device(context))));
    }
    all
}

/// A connection on two channels, how its parts are destroyed, and what may happen in between.
fn connection(seed: u64) -> Vec<Ending> {
    let mut all: Vec<Ending> = Vec::new();
    let a = connected();
    for (n, id) in [a.active, a.passive].into_iter().enumerate() {
        let made = unsafe { (*id).qp };
        let through_id = seed >> n & 1 == 0;
        all.push((
            if through_id { "rdma_destroy_qp" } else { "ibv_destroy_qp(id->qp)" },
            Box::new(move || unsafe {
                match through_id {
                    true => cm_qp::rdma_destroy_qp(id),
                    false => assert_eq!(qp::ibv_destroy_qp(made), 0),
                }
                0
            }),
        ));
        // Fails where the identifier is gone, or its channel.
        let disconnect = move || {
            unsafe { connect::rdma_disconnect(id) };
            0
        };
        all.push(("rdma_disconnect", Box::new(disconnect)));
    }
    for id in [a.active, a.passive, a.listener] {
        all.push(("rdma_destroy_id", Box::new(move || unsafe { id::rdma_destroy_id(id) })));
    }
    for ch in [a.ours, a.theirs] {
        let fd = unsafe { (*ch).fd };
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        all.push((
            "rdma_destroy_event_channel",
            Box::new(move || unsafe {
                channel::rdma_destroy_event_channel(ch);
                0
            }),
        ));
        let fetch = move || unsafe {
            let mut event = null_mut();
            while channel::rdma_get_cm_event(ch, &raw mut event) == 0 {
                works(channel::rdma_ack_cm_event(event));
            }
            0
        };
        all.push(("rdma_get_cm_event", Box::new(fetch)));
        all.push(("rdma_get_cm_event", Box::new(fetch)));
    }
    all
}

/// Ends all in an order that the seed says; an object that is busy comes later.
fn end_all(mut seed: u64, mut all: Vec<Ending>) {
    let mut order = Vec::new();
    let mut busy = 0;
    while !all.is_empty() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 33) as usize % all.len();
        match (all[at].1)() {
            0 => {
                order.push(all.swap_remove(at).0);
                busy = 0;
            }
            libc::EBUSY => busy += 1,
            other => panic!("{}: {other}, after {order:?}", all[at].0),
        }
        assert!(busy < 2000, "nothing can be destroyed after {order:?}");
    }
}

#[test]
fn verbs_objects_can_be_destroyed_in_every_order_and_none_stays() {
    scribble_over_what_is_freed();
    for seed in 0..60 {
        end_all(seed, objects());
    }
}

#[test]
fn the_parts_of_a_connection_can_be_destroyed_in_every_order() {
    scribble_over_what_is_freed();
    for seed in 0..60 {
        end_all(seed, connection(seed));
    }
}
