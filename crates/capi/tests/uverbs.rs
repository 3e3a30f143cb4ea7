//! What the layers above a device's own checks do with attributes (uverbs, libibverbs, the man
//! pages): which they ignore, and which they refuse with which errno.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::verbs::{ah, cq, memory, qp, srq};
use rdma_core_abi::verbs::*;

use support::{Loop, errno, init};

/// The second table of a context.
fn table(context: *mut ibv_context) -> &'static verbs_context {
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

fn new_srq(l: &Loop, max_sge: u32) -> (*mut ibv_srq, ibv_srq_init_attr) {
    let attr = ibv_srq_attr { max_wr: 4, max_sge, srq_limit: 3 };
    let mut attr = ibv_srq_init_attr { srq_context: null_mut(), attr };
    let made = unsafe { srq::ibv_create_srq(l.pd, &raw mut attr) };
    assert!(!made.is_null(), "errno {}", errno());
    (made, attr)
}

fn new_qp_ex(l: &Loop, attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    let qp = unsafe { table(l.context).create_qp_ex.expect("built")(l.context, attr) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

/// What an extended queue pair of a service is made from, with no more than it needs.
fn init_ex(l: &Loop, qp_type: u32) -> ibv_qp_init_attr_ex {
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.qp_type, attr.comp_mask, attr.pd) = (qp_type, IBV_QP_INIT_ATTR_PD, l.pd);
    (attr.send_cq, attr.recv_cq) = (l.cq, l.cq);
    (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
    (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
    attr
}

fn destroy(qp: *mut ibv_qp) {
    assert_eq!(unsafe { qp::ibv_destroy_qp(qp) }, 0);
}

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) -> c_int {
    unsafe { qp::ibv_modify_qp(qp, attr, mask.cast_signed()) }
}

fn state(qp_state: u32) -> ibv_qp_attr {
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    (a.qp_state, a.port_num) = (qp_state, 1);
    a
}

fn query(qp: *mut ibv_qp) -> (ibv_qp_attr, ibv_qp_init_attr) {
    unsafe {
        let (mut a, mut i): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(qp::ibv_query_qp(qp, &raw mut a, IBV_QP_STATE.cast_signed(), &raw mut i), 0);
        (a, i)
    }
}

const INIT: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
const RTR: u32 = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const RTS: u32 = IBV_QP_STATE
    | IBV_QP_SQ_PSN
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// All attributes of a connection of the loopback device to itself, for any of the three steps.
fn connected(qp_state: u32) -> ibv_qp_attr {
    let mut a = state(qp_state);
    (a.path_mtu, a.dest_qp_num, a.timeout, a.retry_cnt, a.rnr_retry) = (IBV_MTU_1024, 7, 14, 7, 7);
    (a.max_dest_rd_atomic, a.max_rd_atomic, a.min_rnr_timer) = (3, 5, 12);
    (a.ah_attr.is_global, a.ah_attr.port_num, a.ah_attr.grh.sgid_index) = (1, 1, 1);
    a.ah_attr.grh.dgid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1] };
    a
}

#[test]
fn sizes_of_a_receive_queue_are_ignored_beside_a_shared_one() {
    let l = Loop::open();
    let (shared, _) = new_srq(&l, 1);
    for kind in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
        for (wr, sge) in [(10, 1), (1 << 20, 1), (10, 100), (u32::MAX, u32::MAX), (0, 0)] {
            let mut i = ibv_qp_init_attr { srq: shared, qp_type: kind, ..init(l.cq) };
            (i.cap.max_recv_wr, i.cap.max_recv_sge) = (wr, sge);
            let made = unsafe { qp::ibv_create_qp(l.pd, &raw mut i) };
            assert!(!made.is_null(), "{kind} {wr} {sge}: errno {}", errno());
            assert_eq!((i.cap.max_recv_wr, i.cap.max_recv_sge), (wr, sge), "as rdma_rxe answers");
            let (now, at_first) = query(made);
            assert_eq!((now.cap.max_recv_wr, now.cap.max_recv_sge), (0, 0));
            assert_eq!((at_first.cap.max_recv_wr, at_first.srq), (0, shared));
            destroy(made);
        }
        let mut i = ibv_qp_init_attr { srq: shared, qp_type: kind, ..init(l.cq) };
        i.cap.max_send_wr = 1 << 20;
        assert!(unsafe { qp::ibv_create_qp(l.pd, &raw mut i) }.is_null(), "its send queue is its own");
        assert_eq!(errno(), libc::EINVAL);
    }
    assert_eq!(unsafe { srq::ibv_destroy_srq(shared) }, 0);
    l.close();
}

#[test]
fn an_xrc_queue_pair_ignores_the_attributes_of_the_other_half() {
    let l = Loop::open();
    let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut of = ibv_xrcd_init_attr { comp_mask: both, fd: -1, oflags: libc::O_CREAT };
    let xrcd = unsafe { table(l.context).open_xrcd.expect("built")(l.context, &raw mut of) };
    let mut target = ibv_qp_init_attr_ex { xrcd, ..init_ex(&l, IBV_QPT_XRC_RECV) };
    // Neither is a target's, and both are given to it by programs that fill one structure for all.
    target.comp_mask |= IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let target = new_qp_ex(&l, &mut target).expect("a domain is all it needs");
    let initiator = new_qp_ex(&l, &mut init_ex(&l, IBV_QPT_XRC_SEND)).expect("made");
    for (qp, answers, asks) in [(target, (3, 12), (0, 0, 0)), (initiator, (0, 0), (5, 7, 7))] {
        assert_eq!(modify(qp, &mut connected(IBV_QPS_INIT), INIT), 0);
        assert_eq!(modify(qp, &mut connected(IBV_QPS_RTR), RTR), 0, "with the mask of RC");
        assert_eq!(modify(qp, &mut connected(IBV_QPS_RTS), RTS), 0, "with the mask of RC");
        let (now, _) = query(qp);
        assert_eq!((now.max_dest_rd_atomic, now.min_rnr_timer), answers);
        assert_eq!((now.max_rd_atomic, now.retry_cnt, now.rnr_retry), asks);
        destroy(qp);
    }
    let uc = new_qp_ex(&l, &mut init_ex(&l, IBV_QPT_UC)).expect("made");
    assert_eq!(modify(uc, &mut connected(IBV_QPS_INIT), INIT), 0);
    assert_eq!(modify(uc, &mut connected(IBV_QPS_RTR), RTR), libc::EINVAL, "of UC nothing is ignored");
    destroy(uc);
    assert_eq!(unsafe { table(l.context).close_xrcd.expect("built")(xrcd) }, 0);
    l.close();
}

#[test]
fn an_xrc_initiator_has_no_receive_queue_whatever_was_asked_for() {
    let l = Loop::open();
    let unused = unsafe { cq::ibv_create_cq(l.context, 1, null_mut(), null_mut(), 0) };
    let mut attr = ibv_qp_init_attr_ex { recv_cq: unused, ..init_ex(&l, IBV_QPT_XRC_SEND) };
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (u32::MAX, u32::MAX);
    let made = new_qp_ex(&l, &mut attr).expect("made");
    assert_eq!((attr.cap.max_recv_wr, attr.cap.max_recv_sge), (0, 0));
    assert_eq!(unsafe { cq::ibv_destroy_cq(unused) }, 0, "it does not use it");
    destroy(made);
    let (shared, _) = new_srq(&l, 1);
    let mut attr = ibv_qp_init_attr_ex { srq: shared, ..init_ex(&l, IBV_QPT_XRC_SEND) };
    assert_eq!(new_qp_ex(&l, &mut attr), Err(libc::EINVAL), "as the ioctl of uverbs says");
    assert_eq!(unsafe { srq::ibv_destroy_srq(shared) }, 0);
    l.close();
}

#[test]
fn a_transition_takes_its_own_attributes_and_no_others() {
    let l = Loop::open();
    let qp = new_qp_ex(&l, &mut init_ex(&l, IBV_QPT_RC)).expect("made");
    let refused = |to: u32, mask: u32| modify(qp, &mut connected(to), IBV_QP_STATE | mask);
    assert_eq!(refused(IBV_QPS_ERR, 0), libc::EINVAL, "RESET to ERR");
    assert_eq!(refused(IBV_QPS_INIT, INIT | IBV_QP_CUR_STATE), libc::EINVAL);
    assert_eq!(modify(qp, &mut connected(IBV_QPS_INIT), INIT), 0);
    for more in [IBV_QP_ACCESS_FLAGS, IBV_QP_PORT, IBV_QP_CUR_STATE, IBV_QP_QKEY] {
        assert_eq!(refused(IBV_QPS_ERR, more), libc::EINVAL, "{more:#x}");
        assert_eq!(refused(IBV_QPS_RESET, more), libc::EINVAL, "{more:#x}");
    }
    assert_eq!(refused(IBV_QPS_RTR, RTR | IBV_QP_ALT_PATH), libc::EINVAL, "RoCE has none");
    assert_eq!((refused(IBV_QPS_ERR, 0), refused(IBV_QPS_RESET, 0)), (0, 0));
    destroy(qp);
    l.close();
}

#[test]
fn bits_of_a_mask_that_libibverbs_does_not_pass_on_are_eopnotsupp() {
    let l = Loop::open();
    for bit in [IBV_QP_RATE_LIMIT, 1 << 21, 1 << 31] {
        let expected = if bit < IBV_QP_RATE_LIMIT { libc::EINVAL } else { libc::EOPNOTSUPP };
        assert_eq!(modify(l.qp, &mut state(IBV_QPS_RTS), IBV_QP_STATE | bit), expected, "{bit:#x}");
    }
    unsafe {
        let (mut a, mut i): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        let of = l.qp;
        let mut query = |mask: u32| qp::ibv_query_qp(of, &raw mut a, mask.cast_signed(), &raw mut i);
        assert_eq!(query(IBV_QP_RATE_LIMIT), libc::EOPNOTSUPP);
        (*l.qp).state = IBV_QPS_RESET;
        assert_eq!((query(IBV_QP_CAP), (*l.qp).state), (0, IBV_QPS_RESET), "not asked about");
        assert_eq!((query(IBV_QP_STATE), (*l.qp).state), (0, IBV_QPS_RTS));
    }
    l.close();
}

#[test]
fn an_address_vector_names_its_port_and_an_index_that_has_a_gid() {
    let l = Loop::open();
    let qp = new_qp_ex(&l, &mut init_ex(&l, IBV_QPT_RC)).expect("made");
    assert_eq!(modify(qp, &mut connected(IBV_QPS_INIT), INIT), 0);
    let with = |change: &dyn Fn(&mut ibv_ah_attr)| {
        let mut a = connected(IBV_QPS_RTR);
        change(&mut a.ah_attr);
        let handle = unsafe { ah::ibv_create_ah(l.pd, &raw mut a.ah_attr) };
        assert!(handle.is_null());
        assert_eq!(errno(), modify(qp, &mut a, RTR), "of a handle and of a connection");
        errno()
    };
    for port in [0, 2] {
        assert_eq!(with(&|ah| ah.port_num = port), libc::EINVAL);
    }
    assert_eq!(with(&|ah| ah.is_global = 0), libc::EINVAL);
    assert_eq!(with(&|ah| ah.grh.sgid_index = 200), libc::ENODATA);
    destroy(qp);
    l.close();
}

#[test]
fn memory_is_named_at_its_place_in_a_page() {
    let l = Loop::open();
    let addr = l.memory.as_ptr().cast_mut().cast::<std::ffi::c_void>();
    let at = addr.expose_provenance() as u64;
    for (iova, works) in [(at, true), (at ^ 0x7000_0000, true), (at + 8, false), (at ^ 8, false)] {
        for flags in [0, IBV_ACCESS_RELAXED_ORDERING] {
            let mr = match flags {
                0 => unsafe { memory::ibv_reg_mr_iova(l.pd, addr, 64, iova, 0) },
                _ => unsafe { memory::ibv_reg_mr_iova2(l.pd, addr, 64, iova, flags) },
            };
            assert_eq!(!mr.is_null(), works, "{iova:#x}");
            if works {
                assert_eq!(unsafe { memory::ibv_dereg_mr(mr) }, 0);
            } else {
                assert_eq!(errno(), libc::EINVAL);
            }
        }
    }
    l.close();
}

#[test]
fn types_and_creation_flags_fail_as_in_uverbs() {
    let l = Loop::open();
    for (kind, why) in [(0, libc::EINVAL), (7, libc::EINVAL), (IBV_QPT_DRIVER, libc::EOPNOTSUPP)] {
        let mut i = ibv_qp_init_attr { qp_type: kind, ..init(l.cq) };
        assert!(unsafe { qp::ibv_create_qp(l.pd, &raw mut i) }.is_null());
        assert_eq!(errno(), why, "{kind}");
    }
    let flags = |kind, create_flags| {
        let mut attr = ibv_qp_init_attr_ex { create_flags, ..init_ex(&l, kind) };
        attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
        new_qp_ex(&l, &mut attr).map(destroy)
    };
    let quiet = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    let (fcs, own_number) = (IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_SOURCE_QPN);
    for (kind, bits, result) in [
        (IBV_QPT_RC, 0, Ok(())),
        (IBV_QPT_UD, quiet, Ok(())),
        (IBV_QPT_RC, quiet, Err(libc::EINVAL)),
        (IBV_QPT_RC, 1 << 20, Err(libc::EINVAL)),
        (IBV_QPT_UD, 1 << 20, Err(libc::EINVAL)),
        (IBV_QPT_UD, fcs, Err(libc::EINVAL)),
        (IBV_QPT_UD, own_number, Err(libc::EOPNOTSUPP)),
        (IBV_QPT_RC, own_number, Err(libc::EOPNOTSUPP)),
        (IBV_QPT_UD, IBV_QP_CREATE_PCI_WRITE_END_PADDING, Err(libc::EOPNOTSUPP)),
    ] {
        assert_eq!(flags(kind, bits), result, "{kind} {bits:#x}");
    }
    l.close();
}

#[test]
fn a_service_offers_the_operations_that_it_has() {
    let l = Loop::open();
    let make = |kind, operations: u32| {
        let mut attr = init_ex(&l, kind);
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = operations.into();
        new_qp_ex(&l, &mut attr).map(destroy)
    };
    for (kind, has, has_not) in [
        (IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_TSO),
        (IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_TSO),
        (IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_READ),
        (IBV_QPT_UD, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE),
    ] {
        assert_eq!(make(kind, IBV_QP_EX_WITH_SEND | has), Ok(()), "{kind}");
        assert_eq!(make(kind, IBV_QP_EX_WITH_SEND | has_not), Err(libc::EOPNOTSUPP), "{kind}");
    }
    l.close();
}

#[test]
fn a_shared_receive_queue_of_no_elements_has_one() {
    let l = Loop::open();
    let (made, granted) = new_srq(&l, 0);
    assert_eq!(granted.attr.max_sge, 1, "as rdma_rxe grants");
    let mut now = ibv_srq_attr::default();
    assert_eq!(unsafe { srq::ibv_query_srq(made, &raw mut now) }, 0);
    assert_eq!((now.max_wr, now.max_sge, now.srq_limit), (4, 1, 0), "no limit before it is modified");
    let modify = |max_wr, srq_limit, mask: u32| unsafe {
        let mut attr = ibv_srq_attr { max_wr, max_sge: 99, srq_limit };
        srq::ibv_modify_srq(made, &raw mut attr, mask.cast_signed())
    };
    assert_eq!((modify(0, 99, 0), modify(0, 99, 1 << 9)), (0, 0), "other bits are ignored");
    assert_eq!(modify(8, 99, IBV_SRQ_MAX_WR | 1 << 9), 0);
    assert_eq!(modify(0, 9, IBV_SRQ_LIMIT), libc::EINVAL);
    let mut attr: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.attr.max_wr, attr.pd) = (4, l.pd);
    for (comp_mask, srq_type, why) in [
        (IBV_SRQ_INIT_ATTR_RESERVED, 0, libc::EOPNOTSUPP),
        (IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, libc::EINVAL),
        (IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, 9, libc::EINVAL),
    ] {
        (attr.comp_mask, attr.srq_type) = (comp_mask, srq_type);
        let create = table(l.context).create_srq_ex.expect("built");
        assert!(unsafe { create(l.context, &raw mut attr) }.is_null());
        assert_eq!(errno(), why, "{comp_mask:#x}");
    }
    assert_eq!(unsafe { srq::ibv_destroy_srq(made) }, 0);
    l.close();
}

#[test]
fn an_empty_mask_changes_no_completion_queue() {
    let l = Loop::open();
    let modify = table(l.context).modify_cq.expect("built");
    let result = |attr_mask| {
        let mut attr = ibv_modify_cq_attr { attr_mask, ..ibv_modify_cq_attr::default() };
        unsafe { modify(l.cq, &raw mut attr) }
    };
    assert_eq!((result(0), result(3), result(IBV_CQ_ATTR_MODERATE)), (libc::EINVAL, libc::EINVAL, 0));
    l.close();
}
