//! Raw packet queue pairs, flow rules and work queues as a C program uses them, on the loopback
//! device. Without CAP_NET_RAW only the refusal is seen.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::verbs::{cq, device, memory, qp};
use rdma_core_abi::verbs::*;

use support::{HALF, Loop, errno, init, loopback, send};

/// The functions that the header's inline ones find before the context.
fn table(context: *mut ibv_context) -> verbs_context {
    unsafe { *context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() }
}

/// Everything but the queue pair.
fn open() -> Loop {
    let mut memory = Box::new([0; 8192]);
    unsafe {
        let context = device::ibv_open_device(loopback());
        let pd = memory::ibv_alloc_pd(context);
        let channel = cq::ibv_create_comp_channel(context);
        let cq = cq::ibv_create_cq(context, 16, null_mut(), channel, 0);
        let mr =
            memory::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), IBV_ACCESS_LOCAL_WRITE as c_int);
        Loop { context, pd, channel, cq, qp: null_mut(), mr, memory }
    }
}

fn create(l: &Loop) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr { qp_type: IBV_QPT_RAW_PACKET, ..init(l.cq) };
    unsafe { qp::ibv_create_qp(l.pd, &raw mut init) }
}

/// A loop with a raw packet queue pair in state RTS; `None` where the process may not.
fn open_raw() -> Option<Loop> {
    let mut l = open();
    l.qp = create(&l);
    if l.qp.is_null() {
        assert_eq!(errno(), libc::EPERM);
        eprintln!("skipped: needs CAP_NET_RAW");
        return None;
    }
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    a.port_num = 1;
    for (state, bits) in [(IBV_QPS_INIT, IBV_QP_PORT), (IBV_QPS_RTR, 0), (IBV_QPS_RTS, 0)] {
        a.qp_state = state;
        assert_eq!(unsafe { qp::ibv_modify_qp(l.qp, &raw mut a, (IBV_QP_STATE | bits) as c_int) }, 0);
    }
    Some(l)
}

/// A rule for frames to one hardware address.
#[repr(C)]
struct ToOne {
    attr: ibv_flow_attr,
    eth: ibv_flow_spec_eth,
}

fn to(dst_mac: [u8; 6]) -> ToOne {
    let size = size_of::<ibv_flow_spec_eth>() as u16;
    ToOne {
        attr: ibv_flow_attr {
            type_: IBV_FLOW_ATTR_NORMAL,
            size: size_of::<ToOne>() as u16,
            num_of_specs: 1,
            port: 1,
            ..ibv_flow_attr::default()
        },
        eth: ibv_flow_spec_eth {
            type_: IBV_FLOW_SPEC_ETH,
            size,
            val: ibv_flow_eth_filter { dst_mac, ..ibv_flow_eth_filter::default() },
            mask: ibv_flow_eth_filter { dst_mac: [0xff; 6], ..ibv_flow_eth_filter::default() },
        },
    }
}

fn steer(l: &Loop, qp: *mut ibv_qp, rule: &mut ToOne) -> *mut ibv_flow {
    unsafe { table(l.context).ibv_create_flow.expect("built")(qp, (&raw mut *rule).cast()) }
}

/// Writes a frame of the local experimental type into the first half; its length.
fn write_frame(l: &mut Loop, dest: [u8; 6]) -> u32 {
    let frame = [&dest[..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], b"as it is"].concat();
    l.memory[..frame.len()].copy_from_slice(&frame);
    frame.len() as u32
}

#[test]
fn a_frame_comes_back_through_a_rule_as_it_was_sent() {
    let Some(mut l) = open_raw() else { return };
    let group = [3, 0, 0, 0, 0, 1];
    let flow = steer(&l, l.qp, &mut to(group));
    assert!(!flow.is_null(), "create_flow: errno {}", errno());
    assert_eq!(unsafe { qp::ibv_destroy_qp(l.qp) }, libc::EBUSY);
    let length = write_frame(&mut l, group);
    assert_eq!(l.post_recv(1, 100), 0);
    let mut sge = [l.sge(0, length)];
    assert_eq!(l.post_send(&mut send(2, IBV_WR_SEND, &mut sge)), 0);
    let mut all = l.completions(2);
    all.sort_by_key(|wc| wc.wr_id);
    assert_eq!((all[0].wr_id, all[0].status, all[0].opcode), (1, IBV_WC_SUCCESS, IBV_WC_RECV));
    assert_eq!((all[0].byte_len, all[0].wc_flags), (length, 0));
    assert_eq!((all[1].wr_id, all[1].status), (2, IBV_WC_SUCCESS));
    let length = length as usize;
    assert_eq!(l.memory[HALF..HALF + length], l.memory[..length]);
    assert_eq!(unsafe { table(l.context).ibv_destroy_flow.expect("built")(flow) }, 0);
    l.close();
}

#[test]
fn a_rule_counts_what_it_matches_into_the_counters_it_names() {
    /// A rule with an action to count, one after the other without a gap.
    #[repr(C, packed(4))]
    struct Counted {
        rule: ToOne,
        count: ibv_flow_spec_counter_action,
    }
    let Some(mut l) = open_raw() else { return };
    let t = table(l.context);
    let group = [3, 0, 0, 0, 0, 2];
    unsafe {
        let mut none = ibv_counters_init_attr::default();
        let counters = t.create_counters.expect("built")(l.context, &raw mut none);
        let point = |counter_desc, index| {
            let mut attr = ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
            t.attach_counters_point_flow.expect("built")(counters, &raw mut attr, null_mut())
        };
        let read = |n: u32| {
            let mut values = [7; 3];
            (t.read_counters.expect("built")(counters, values.as_mut_ptr(), n, 0), values)
        };
        assert_eq!((point(IBV_COUNTER_BYTES, 0), point(IBV_COUNTER_PACKETS, 2)), (0, 0));
        assert_eq!((point(2, 0), point(IBV_COUNTER_BYTES, 16)), (libc::ENOTSUP, libc::EINVAL));
        assert_eq!((read(3), read(2).0), ((0, [0; 3]), libc::EINVAL));

        let size = size_of::<ibv_flow_spec_counter_action>() as u16;
        let mut counted = Counted {
            rule: to(group),
            count: ibv_flow_spec_counter_action { type_: IBV_FLOW_SPEC_ACTION_COUNT, size, counters },
        };
        counted.rule.attr.num_of_specs = 2;
        let create = t.ibv_create_flow.expect("built");
        let flow = create(l.qp, (&raw mut counted).cast());
        assert!(!flow.is_null(), "create_flow: errno {}", errno());
        assert_eq!(
            (point(IBV_COUNTER_BYTES, 1), t.destroy_counters.expect("built")(counters)),
            (libc::EBUSY, libc::EBUSY)
        );
        for (to, bytes, packets) in [(group, 22, 1), ([3, 0, 0, 0, 0, 9], 22, 1), (group, 44, 2)] {
            let length = write_frame(&mut l, to);
            assert_eq!(l.post_recv(1, 100), 0);
            let mut sge = [l.sge(0, length)];
            assert_eq!(l.post_send(&mut send(2, IBV_WR_SEND, &mut sge)), 0);
            l.completions(if to == group { 2 } else { 1 });
            assert_eq!(read(3), (0, [bytes, 0, packets]));
        }
        counted.count.counters = null_mut();
        assert!(create(l.qp, (&raw mut counted).cast()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(t.ibv_destroy_flow.expect("built")(flow), 0);
        assert_eq!((read(3).1, t.destroy_counters.expect("built")(counters)), ([44, 0, 2], 0));
    }
    l.close();
}

#[test]
fn without_cap_net_raw_there_is_no_raw_packet_queue_pair() {
    const CAP_NET_RAW: u32 = 13;
    let mut l = open();
    // capset(2): version 3 has two sets of 32, each effective, permitted, inheritable; of the
    // calling thread alone.
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
    }
    let before = sets;
    sets[0] &= !(1 << CAP_NET_RAW);
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) }, 0);
    assert!(create(&l).is_null());
    assert_eq!(errno(), libc::EPERM);
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), before.as_ptr()) }, 0);
    let mut init = init(l.cq);
    l.qp = unsafe { qp::ibv_create_qp(l.pd, &raw mut init) };
    assert!(!l.qp.is_null(), "others need no privilege");
    l.close();
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let Some(l) = open_raw() else { return };
    let refused = |change: &dyn Fn(&mut ToOne)| {
        let mut rule = to([3, 0, 0, 0, 0, 2]);
        change(&mut rule);
        assert!(steer(&l, l.qp, &mut rule).is_null());
        errno()
    };
    assert_eq!(refused(&|r| r.attr.port = 2), libc::EINVAL);
    assert_eq!(refused(&|r| r.attr.comp_mask = 1), libc::EINVAL);
    assert_eq!(refused(&|r| r.attr.type_ = 4), libc::EINVAL);
    assert_eq!(refused(&|r| r.attr.type_ = IBV_FLOW_ATTR_SNIFFER), libc::EINVAL);
    assert_eq!(refused(&|r| r.eth.size -= 1), libc::EINVAL);
    assert_eq!(refused(&|r| r.eth.type_ = IBV_FLOW_SPEC_GRE), libc::EOPNOTSUPP);
    assert_eq!(refused(&|r| r.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS), libc::EOPNOTSUPP);
    let mut rc = init(l.cq);
    let rc = unsafe { qp::ibv_create_qp(l.pd, &raw mut rc) };
    assert!(steer(&l, rc, &mut to([3, 0, 0, 0, 0, 2])).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(unsafe { qp::ibv_destroy_qp(rc) }, 0);
    l.close();
}

#[test]
fn a_queue_pair_over_a_table_receives_into_its_work_queues() {
    let Some(mut l) = open_raw() else { return };
    let group = [3, 0, 0, 0, 0, 3];
    let t = table(l.context);
    unsafe {
        let mut init = ibv_wq_init_attr {
            wq_context: null_mut(),
            wq_type: IBV_WQT_RQ,
            max_wr: 4,
            max_sge: 1,
            pd: l.pd,
            cq: l.cq,
            comp_mask: 0,
            create_flags: 0,
        };
        let mut wqs = [(); 2].map(|()| t.create_wq.expect("built")(l.context, &raw mut init));
        let ready =
            ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state: IBV_WQS_RDY, ..ibv_wq_attr::default() };
        for &wq in &wqs {
            assert!(!wq.is_null());
            assert_eq!(t.modify_wq.expect("built")(wq, &mut { ready }), 0);
            assert_eq!((*wq).state, IBV_WQS_RDY);
            let mut sge = l.sge(HALF, 100);
            let mut wr = ibv_recv_wr { wr_id: 9, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
            assert_eq!((*wq).post_recv.expect("built")(wq, &raw mut wr, &mut null_mut()), 0);
        }
        let mut of =
            ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 1, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
        let spread = t.create_rwq_ind_table.expect("built")(l.context, &raw mut of);
        assert!(!spread.is_null());
        assert_eq!(t.destroy_wq.expect("built")(wqs[0]), libc::EBUSY);

        let mut key = [7_u8; 40];
        let mut init: ibv_qp_init_attr_ex = std::mem::zeroed();
        init.qp_type = IBV_QPT_RAW_PACKET;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
        (init.pd, init.rwq_ind_tbl) = (l.pd, spread);
        init.rx_hash_conf = ibv_rx_hash_conf {
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            rx_hash_key_len: 39,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: IBV_RX_HASH_SRC_IPV4.into(),
        };
        assert!(t.create_qp_ex.expect("built")(l.context, &raw mut init).is_null());
        assert_eq!(errno(), libc::EINVAL, "a key of another length");
        init.rx_hash_conf.rx_hash_key_len = 40;
        let qp = t.create_qp_ex.expect("built")(l.context, &raw mut init);
        assert!(!qp.is_null(), "create_qp_ex: errno {}", errno());
        assert_eq!(t.destroy_rwq_ind_table.expect("built")(spread), libc::EBUSY);

        let flow = steer(&l, qp, &mut to(group));
        let length = write_frame(&mut l, group);
        let mut sge = [l.sge(0, length)];
        assert_eq!(l.post_send(&mut send(2, IBV_WR_SEND, &mut sge)), 0);
        let all = l.completions(2);
        let got = all.iter().find(|wc| wc.wr_id == 9).expect("received");
        assert_eq!((got.status, got.byte_len, got.qp_num), (IBV_WC_SUCCESS, length, (*wqs[0]).wq_num));

        assert_eq!(t.ibv_destroy_flow.expect("built")(flow), 0);
        assert_eq!(qp::ibv_destroy_qp(qp), 0);
        assert_eq!(t.destroy_rwq_ind_table.expect("built")(spread), 0);
        wqs.iter().for_each(|&wq| assert_eq!(t.destroy_wq.expect("built")(wq), 0));
    }
    l.close();
}

#[test]
fn the_device_says_what_raw_packet_queue_pairs_can() {
    let l = open();
    unsafe {
        let mut attr: ibv_device_attr_ex = std::mem::zeroed();
        let query = table(l.context).query_device_ex.expect("built");
        assert_eq!(query(l.context, std::ptr::null(), &raw mut attr, size_of::<ibv_device_attr_ex>()), 0);
        assert_eq!(attr.rss_caps.supported_qpts, 1 << IBV_QPT_RAW_PACKET);
        assert_eq!(u32::from(attr.rss_caps.rx_hash_function), IBV_RX_HASH_FUNC_TOEPLITZ);
        assert!(attr.max_wq_type_rq > 0 && attr.rss_caps.max_rwq_indirection_table_size >= 128);
        assert_ne!(attr.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING, 0);
    }
    unsafe {
        assert_eq!(cq::ibv_destroy_cq(l.cq), 0);
        assert_eq!(cq::ibv_destroy_comp_channel(l.channel), 0);
        assert_eq!(memory::ibv_dereg_mr(l.mr), 0);
        assert_eq!(memory::ibv_dealloc_pd(l.pd), 0);
        assert_eq!(device::ibv_close_device(l.context), 0);
    }
}
