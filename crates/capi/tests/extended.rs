//! Extended completion queues and queue pairs, shared receive queues and memory windows, as the
//! header's inline functions call them.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use capi::verbs::{cq, device, memory, qp, srq};
use rdma_core_abi::verbs::*;

use support::{HALF, Loop, connect, errno, init, send};

/// The second table of a context.
fn table(context: *mut ibv_context) -> &'static verbs_context {
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

/// What an extended completion queue is made from, with these fields.
fn cq_init(wc_flags: u32) -> ibv_cq_init_attr_ex {
    let mut attr: ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.cqe, attr.wc_flags) = (8, wc_flags.into());
    attr
}

fn create_cq(l: &Loop, attr: &mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    unsafe { table(l.context).create_cq_ex.expect("built")(l.context, attr) }
}

/// An extended queue pair with these operations, connected to itself.
fn create_qp(l: &Loop, cq: *mut ibv_cq, operations: u32) -> *mut ibv_qp_ex {
    let plain = init(cq);
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.send_cq, attr.recv_cq, attr.cap) = (cq, cq, plain.cap);
    (attr.qp_type, attr.pd) = (plain.qp_type, l.pd);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = operations.into();
    unsafe {
        let qp = table(l.context).create_qp_ex.expect("built")(l.context, &raw mut attr);
        assert!(!qp.is_null(), "create_qp_ex: errno {}", errno());
        connect(qp);
        qp::ibv_qp_to_qp_ex(qp)
    }
}

/// Starts polling until there is a completion, up to five seconds.
fn start_poll(cq: *mut ibv_cq_ex) {
    let start = std::time::Instant::now();
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    loop {
        match unsafe { (*cq).start_poll.expect("built")(cq, &raw mut attr) } {
            0 => return,
            libc::ENOENT => assert!(start.elapsed().as_secs() < 5, "no completion"),
            e => panic!("start_poll: {e}"),
        }
    }
}

#[test]
fn an_extended_queue_gives_one_completion_at_a_time_with_its_times() {
    let l = Loop::open();
    let wall =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    unsafe {
        let stamps = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        let cq = create_cq(&l, &mut cq_init(IBV_WC_STANDARD_FLAGS | stamps));
        assert!(!cq.is_null(), "errno {}", errno());
        let c = &*cq;
        assert_eq!(c.start_poll.expect("built")(cq, &mut ibv_poll_cq_attr { comp_mask: 1 }), libc::EINVAL);
        assert_eq!(c.start_poll.expect("built")(cq, &mut ibv_poll_cq_attr { comp_mask: 0 }), libc::ENOENT);
        c.end_poll.expect("built")(cq);
        let qpx = create_qp(&l, cq.cast(), IBV_QP_EX_WITH_SEND_WITH_IMM);
        let mut sge = l.sge(HALF, 16);
        let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let post_recv = (*l.context).ops.post_recv.expect("built");
        assert_eq!(post_recv(qpx.cast(), &raw mut wr, &mut null_mut()), 0);
        let before = wall();
        let q = &mut *qpx;
        q.wr_start.expect("built")(qpx);
        (q.wr_id, q.wr_flags) = (2, IBV_SEND_SIGNALED);
        q.wr_send_imm.expect("built")(qpx, 0x0102_0304_u32.to_be());
        let data = l.sge(0, 9);
        q.wr_set_sge.expect("built")(qpx, data.lkey, data.addr, data.length);
        assert_eq!(q.wr_complete.expect("built")(qpx), 0);
        let mut raw = 0;
        let mut seen = Vec::new();
        start_poll(cq);
        loop {
            let (opcode, ts) = (c.read_opcode.expect("built")(cq), c.read_completion_ts.expect("built")(cq));
            assert_eq!(((*cq).status, c.read_qp_num.expect("built")(cq)), (IBV_WC_SUCCESS, q.qp_base.qp_num));
            assert!(ts >= raw, "time does not go back");
            raw = ts;
            let at = u128::from(c.read_completion_wallclock_ns.expect("built")(cq));
            assert!((before..=wall()).contains(&at));
            if opcode == IBV_WC_RECV {
                assert_eq!(c.read_byte_len.expect("built")(cq), 9);
                assert_eq!(c.read_imm_data.expect("built")(cq), 0x0102_0304_u32.to_be());
                assert_eq!(c.read_wc_flags.expect("built")(cq), IBV_WC_WITH_IMM | IBV_WC_GRH);
            }
            seen.push(((*cq).wr_id, opcode));
            if seen.len() == 2 {
                break;
            }
            while c.next_poll.expect("built")(cq) == libc::ENOENT {}
        }
        assert_eq!(c.next_poll.expect("built")(cq), libc::ENOENT);
        c.end_poll.expect("built")(cq);
        seen.sort_unstable();
        assert_eq!(seen, [(1, IBV_WC_RECV), (2, IBV_WC_SEND)]);
        let mut now = ibv_values_ex { comp_mask: IBV_VALUES_MASK_RAW_CLOCK, raw_clock: std::mem::zeroed() };
        assert_eq!(table(l.context).query_rt_values.expect("built")(l.context, &raw mut now), 0);
        assert!(now.raw_clock.tv_nsec as u64 >= raw, "one clock for both");
        assert_eq!(qp::ibv_destroy_qp(qpx.cast()), 0);
        assert_eq!(cq::ibv_destroy_cq(cq.cast()), 0);
    }
    l.close();
}

#[test]
fn what_a_queue_can_not_report_is_refused() {
    let l = Loop::open();
    for (attr, why) in [
        (cq_init(IBV_WC_EX_WITH_CVLAN), libc::EOPNOTSUPP),
        (cq_init(IBV_WC_EX_WITH_FLOW_TAG), libc::EOPNOTSUPP),
        (cq_init(1 << 20), libc::EOPNOTSUPP),
        (ibv_cq_init_attr_ex { comp_mask: 1 << 7, ..cq_init(0) }, libc::EINVAL),
        (ibv_cq_init_attr_ex { comp_mask: IBV_CQ_INIT_ATTR_MASK_PD, ..cq_init(0) }, libc::EINVAL),
        (ibv_cq_init_attr_ex { comp_vector: 1, ..cq_init(0) }, libc::EINVAL),
        (ibv_cq_init_attr_ex { cqe: 0, ..cq_init(0) }, libc::EINVAL),
    ] {
        let mut attr = attr;
        assert!(create_cq(&l, &mut attr).is_null());
        assert_eq!(errno(), why);
    }
    unsafe {
        let mut attr = ibv_modify_cq_attr { attr_mask: 2, ..ibv_modify_cq_attr::default() };
        let modify = table(l.context).modify_cq.expect("built");
        assert_eq!(modify(l.cq, &raw mut attr), libc::EINVAL);
        attr.attr_mask = IBV_CQ_ATTR_MODERATE;
        attr.moderate = ibv_moderate_cq { cq_count: 16, cq_period: 20_000 };
        assert_eq!(modify(l.cq, &raw mut attr), 0);
    }
    l.close();
}

#[test]
fn a_moderated_event_comes_when_its_period_is_over() {
    let l = Loop::open();
    unsafe {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: IBV_CQ_ATTR_MODERATE,
            moderate: ibv_moderate_cq { cq_count: 100, cq_period: 30_000 },
        };
        assert_eq!(table(l.context).modify_cq.expect("built")(l.cq, &raw mut attr), 0);
        assert_eq!((*l.context).ops.req_notify_cq.expect("built")(l.cq, 0), 0);
        let start = std::time::Instant::now();
        assert_eq!(l.post_send(&mut send(1, IBV_WR_RDMA_WRITE, &mut [])), 0);
        let (mut of, mut context) = (null_mut(), null_mut());
        assert_eq!(cq::ibv_get_cq_event(l.channel, &raw mut of, &raw mut context), 0);
        assert!(start.elapsed().as_millis() >= 30, "{:?}", start.elapsed());
        assert_eq!(l.completions(1)[0].wr_id, 1);
        cq::ibv_ack_cq_events(l.cq, 1);
    }
    l.close();
}

#[test]
fn what_was_built_is_posted_as_a_whole_or_not_at_all() {
    let l = Loop::open();
    unsafe {
        let qpx = create_qp(&l, l.cq, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ);
        let q = &mut *qpx;
        let write = |id: u64, length: u32| {
            let (from, to) = (l.sge(0, length), l.sge(HALF, 0));
            (*qpx).wr_id = id;
            (*qpx).wr_flags = IBV_SEND_SIGNALED;
            q.wr_rdma_write.expect("built")(qpx, to.lkey, to.addr);
            q.wr_set_sge.expect("built")(qpx, from.lkey, from.addr, from.length);
        };
        let (start, complete, abort) =
            (q.wr_start.expect("built"), q.wr_complete.expect("built"), q.wr_abort.expect("built"));
        let none = |what: &str, errno: c_int, build: &dyn Fn()| {
            start(qpx);
            write(1, 8);
            build();
            write(2, 8);
            assert_eq!(complete(qpx), errno, "{what}");
        };
        none("an operation it was not made for", libc::EINVAL, &|| q.wr_send.expect("built")(qpx));
        none("a UD address", libc::EINVAL, &|| q.wr_set_ud_addr.expect("built")(qpx, null_mut(), 1, 1));
        none("too many elements", libc::EINVAL, &|| {
            let sges = [l.sge(0, 1); 3];
            q.wr_set_sge_list.expect("built")(qpx, 3, sges.as_ptr());
        });
        none("too many bytes inline", libc::EINVAL, &|| {
            let at = l.memory.as_ptr().cast_mut().cast();
            q.wr_set_inline_data.expect("built")(qpx, at, 65);
        });
        none("inline where there is nothing to send", libc::EINVAL, &|| {
            let to = l.sge(HALF, 0);
            q.wr_rdma_read.expect("built")(qpx, to.lkey, to.addr);
            q.wr_set_inline_data_list.expect("built")(qpx, 0, null());
        });
        none("more than the queue holds", libc::ENOMEM, &|| (3..6).for_each(|id| write(id, 1)));
        start(qpx);
        write(7, 8);
        abort(qpx);
        assert_eq!(complete(qpx), libc::EINVAL, "nothing was begun");
        start(qpx);
        q.wr_set_sge.expect("built")(qpx, 1, 1, 1);
        assert_eq!(complete(qpx), libc::EINVAL, "a setter without a request");
        start(qpx);
        for id in 10..13 {
            write(id, 8);
        }
        assert_eq!(complete(qpx), 0);
        let ids: Vec<_> = l.completions(3).iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [10, 11, 12], "and nothing of what failed");
        assert_eq!(qp::ibv_destroy_qp(qpx.cast()), 0);
        assert!(qp::ibv_qp_to_qp_ex(l.qp).is_null(), "a plain one");
    }
    l.close();
}

#[test]
fn inline_lists_are_copied_when_they_are_set() {
    let l = Loop::open();
    unsafe {
        let qpx = create_qp(&l, l.cq, IBV_QP_EX_WITH_RDMA_WRITE);
        let q = &mut *qpx;
        let (mut one, mut two) = (*b"hello ", *b"world");
        let to = l.sge(HALF, 0);
        q.wr_start.expect("built")(qpx);
        (q.wr_id, q.wr_flags) = (1, IBV_SEND_SIGNALED);
        q.wr_rdma_write.expect("built")(qpx, to.lkey, to.addr);
        let list = [
            ibv_data_buf { addr: one.as_mut_ptr().cast(), length: one.len() },
            ibv_data_buf { addr: two.as_mut_ptr().cast(), length: two.len() },
        ];
        q.wr_set_inline_data_list.expect("built")(qpx, 2, list.as_ptr());
        (one, two) = ([0; 6], [0; 5]);
        assert_eq!(q.wr_complete.expect("built")(qpx), 0);
        assert_eq!((l.completions(1)[0].status, one[0], two[0]), (IBV_WC_SUCCESS, 0, 0));
        assert_eq!(qp::ibv_destroy_qp(qpx.cast()), 0);
    }
    assert_eq!(l.memory[HALF..HALF + 11], *b"hello world");
    l.close();
}

/// A shared queue of four receives, and a queue pair on it that is connected to itself.
fn shared(l: &Loop) -> (*mut ibv_srq, *mut ibv_qp) {
    let mut attr = ibv_srq_init_attr {
        srq_context: null_mut(),
        attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
    };
    unsafe {
        let srq = srq::ibv_create_srq(l.pd, &raw mut attr);
        assert!(!srq.is_null(), "errno {}", errno());
        let mut init = init(l.cq);
        init.srq = srq;
        let qp = qp::ibv_create_qp(l.pd, &raw mut init);
        assert!(!qp.is_null(), "errno {}", errno());
        connect(qp);
        (srq, qp)
    }
}

fn post_srq(l: &Loop, srq: *mut ibv_srq, ids: std::ops::Range<u64>) -> c_int {
    let mut result = 0;
    for wr_id in ids {
        let mut sge = l.sge(HALF, 16);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = null_mut();
        result = unsafe { (*l.context).ops.post_srq_recv.expect("built")(srq, &raw mut wr, &raw mut bad) };
        assert_eq!(bad.is_null(), result == 0);
    }
    result
}

/// The next asynchronous event, acknowledged.
fn async_event(l: &Loop) -> (ibv_event_type, *mut ibv_srq) {
    unsafe {
        let mut e: ibv_async_event = std::mem::zeroed();
        assert_eq!(device::ibv_get_async_event(l.context, &raw mut e), 0);
        device::ibv_ack_async_event(&raw mut e);
        (e.event_type, e.element.srq)
    }
}

#[test]
fn a_shared_queue_feeds_its_queue_pairs_and_tells_of_its_limit_once() {
    let l = Loop::open();
    let (srq, qp) = shared(&l);
    unsafe {
        assert_eq!(srq::ibv_destroy_srq(srq), libc::EBUSY);
        assert_eq!(post_srq(&l, srq, 0..4), 0);
        assert_eq!(post_srq(&l, srq, 4..5), libc::ENOMEM);
        let mut attr = ibv_srq_attr { srq_limit: 3, max_wr: 6, max_sge: 9 };
        let mut beyond = ibv_srq_attr { srq_limit: 5, ..attr };
        assert_eq!(srq::ibv_modify_srq(srq, &raw mut beyond, IBV_SRQ_LIMIT as c_int), libc::EINVAL);
        assert_eq!(srq::ibv_modify_srq(srq, &raw mut attr, (IBV_SRQ_LIMIT | IBV_SRQ_MAX_WR) as c_int), 0);
        assert_eq!(srq::ibv_query_srq(srq, &raw mut attr), 0);
        assert_eq!((attr.max_wr, attr.max_sge, attr.srq_limit), (6, 1, 3));
        let post = (*l.context).ops.post_send.expect("built");
        for id in 100..102 {
            let mut sges = [l.sge(0, 16)];
            assert_eq!(post(qp, &mut send(id, IBV_WR_SEND, &mut sges), &mut null_mut()), 0);
        }
        let all = l.completions(4);
        let received: Vec<_> = all.iter().filter(|wc| wc.opcode == IBV_WC_RECV).map(|wc| wc.wr_id).collect();
        assert_eq!(received, [0, 1]);
        assert_eq!(async_event(&l), (IBV_EVENT_SRQ_LIMIT_REACHED, srq));
        assert_eq!(srq::ibv_query_srq(srq, &raw mut attr), 0);
        assert_eq!(attr.srq_limit, 0, "disarmed");
        attr.srq_limit = 7;
        assert_eq!(srq::ibv_modify_srq(srq, &raw mut attr, IBV_SRQ_LIMIT as c_int), libc::EINVAL);
        attr.max_wr = 1;
        assert_eq!(srq::ibv_modify_srq(srq, &raw mut attr, IBV_SRQ_MAX_WR as c_int), libc::EINVAL);
        let mut sge = l.sge(HALF, 16);
        let mut wr = ibv_recv_wr { wr_id: 9, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let post_recv = (*l.context).ops.post_recv.expect("built");
        assert_eq!(post_recv(qp, &raw mut wr, &mut null_mut()), libc::EINVAL);
        let mut to_error: ibv_qp_attr = std::mem::zeroed();
        to_error.qp_state = IBV_QPS_ERR;
        assert_eq!(qp::ibv_modify_qp(qp, &raw mut to_error, IBV_QP_STATE as c_int), 0);
        assert_eq!(async_event(&l), (IBV_EVENT_QP_LAST_WQE_REACHED, qp.cast()));
        assert_eq!(qp::ibv_destroy_qp(qp), 0);
        assert_eq!(srq::ibv_destroy_srq(srq), 0);
    }
    l.close();
}

#[test]
fn a_window_is_bound_used_and_taken_back_by_work_requests() {
    let l = Loop::open();
    unsafe {
        let ops = (*l.context).ops;
        let rights = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) as c_int;
        let mr = memory::ibv_reg_mr(l.pd, l.memory.as_ptr().cast_mut().cast(), 8192, rights);
        assert!(ops.alloc_mw.expect("built")(l.pd, 3).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let mw = ops.alloc_mw.expect("built")(l.pd, IBV_MW_TYPE_2);
        let key = (*mw).rkey & !0xff | ((*mw).rkey + 1) & 0xff;
        let at = l.sge(HALF, 0).addr;
        let info = ibv_mw_bind_info { mr, addr: at, length: 64, mw_access_flags: IBV_ACCESS_REMOTE_WRITE };
        let mut bind = send(1, IBV_WR_BIND_MW, &mut []);
        bind.op.bind_mw = ibv_send_wr_bind_mw { mw, rkey: key, bind_info: info };
        let mut write = send(2, IBV_WR_RDMA_WRITE, &mut []);
        let mut from = l.sge(0, 64);
        (write.sg_list, write.num_sge) = (&raw mut from, 1);
        write.wr.rdma = ibv_send_wr_rdma { remote_addr: at, rkey: key };
        let mut take_back = send(3, IBV_WR_LOCAL_INV, &mut []);
        take_back.imm.invalidate_rkey = key;
        assert_eq!((l.post_send(&mut bind), l.post_send(&mut write)), (0, 0));
        let done: Vec<_> = l.completions(2).iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        assert_eq!(done, [(1, IBV_WC_SUCCESS, IBV_WC_BIND_MW), (2, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE)]);
        assert_eq!(memory::ibv_dereg_mr(mr), libc::EBUSY);
        assert_eq!(l.post_send(&mut take_back), 0);
        assert_eq!(l.completions(1)[0].opcode, IBV_WC_LOCAL_INV);
        assert_eq!(memory::ibv_dealloc_pd(l.pd), libc::EBUSY);
        assert_eq!(l.post_send(&mut take_back), 0);
        let wc = l.completions(1)[0];
        assert_eq!((wc.wr_id, wc.status), (3, IBV_WC_MW_BIND_ERR), "there is nothing to take back");
        assert_eq!(ops.dealloc_mw.expect("built")(mw), 0);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
    }
    l.close();
}

#[test]
fn the_flags_of_rereg_fit_their_arguments() {
    let l = Loop::open();
    unsafe {
        let change = |flags: u32, pd, addr, length, access: u32| {
            memory::ibv_rereg_mr(l.mr, flags as c_int, pd, addr, length, access as c_int)
        };
        let at = l.memory.as_ptr().cast_mut().cast();
        let input = IBV_REREG_MR_ERR_INPUT;
        assert_eq!(change(8, null_mut(), null_mut(), 0, 0), input);
        assert_eq!(change(IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), at, 0, 0), input);
        assert_eq!(change(IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), null_mut(), 8, 0), input);
        assert_eq!(change(IBV_REREG_MR_CHANGE_PD, null_mut(), null_mut(), 0, 0), input);
        assert_eq!(change(0, null_mut(), null_mut(), 0, IBV_ACCESS_LOCAL_WRITE), input);
        let remote = IBV_ACCESS_REMOTE_WRITE;
        assert_eq!(
            change(IBV_REREG_MR_CHANGE_ACCESS, null_mut(), null_mut(), 0, remote),
            IBV_REREG_MR_ERR_INPUT
        );
        assert_eq!(errno(), libc::EINVAL);
        let key = (*l.mr).lkey;
        assert_eq!(change(IBV_REREG_MR_CHANGE_TRANSLATION, null_mut(), at, 64, 0), 0);
        assert_eq!(((*l.mr).length, (*l.mr).addr, (*l.mr).lkey), (64, at, key));
        let other = memory::ibv_alloc_pd(l.context);
        assert_eq!(change(IBV_REREG_MR_CHANGE_PD, other, null_mut(), 0, 0), 0);
        assert_eq!(memory::ibv_dealloc_pd(other), libc::EBUSY);
        assert_eq!(change(IBV_REREG_MR_CHANGE_PD, l.pd, null_mut(), 0, 0), 0);
        assert_eq!(memory::ibv_dealloc_pd(other), 0);
    }
    l.close();
}

#[test]
fn the_queue_pair_of_an_identifier_takes_receives_from_its_shared_queue() {
    use capi::cma::{connect as cm, id, qp as cma_qp, srq as cma_srq};
    unsafe {
        let mut own = null_mut();
        assert_eq!(
            id::rdma_create_id(null_mut(), &raw mut own, null_mut(), rdma_core_abi::cma::RDMA_PS_TCP),
            0
        );
        let mut at: libc::sockaddr_in = std::mem::zeroed();
        at.sin_family = libc::AF_INET as _;
        (at.sin_addr.s_addr, at.sin_port) = (u32::from_ne_bytes([127, 0, 0, 1]), 1);
        // A loopback address alone names no device.
        assert_eq!(cm::rdma_resolve_addr(own, null_mut(), (&raw mut at).cast(), 1000), 0);
        let mut sizes: ibv_srq_init_attr = std::mem::zeroed();
        sizes.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        assert_eq!(cma_srq::rdma_create_srq(own, null_mut(), &raw mut sizes), 0);
        assert_eq!(cma_srq::rdma_create_srq(own, null_mut(), &raw mut sizes), -1);
        assert_eq!(errno(), libc::EINVAL);
        let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
        attr.cap = init(null_mut()).cap;
        attr.qp_type = IBV_QPT_RC;
        (attr.comp_mask, attr.send_ops_flags) = (IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_EX_WITH_SEND.into());
        assert_eq!(cma_qp::rdma_create_qp_ex(own, &raw mut attr), 0, "errno {}", errno());
        assert_eq!(((*(*own).qp).srq, (*(*own).qp).pd), ((*own).srq, (*own).pd));
        assert!(!qp::ibv_qp_to_qp_ex((*own).qp).is_null());
        cma_qp::rdma_destroy_qp(own);
        cma_srq::rdma_destroy_srq(own);
        assert!((*own).srq.is_null());
        assert_eq!(id::rdma_destroy_id(own), 0);
    }
}
