//! Tag matching as the header's inline functions call it, on the loopback device.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;

use capi::verbs::{cq, qp, srq};
use rdma_core_abi::verbs::*;

use support::{HALF, Loop, connect_to, errno, init, send};

/// The second table of a context.
fn table(context: *mut ibv_context) -> &'static verbs_context {
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast() }
}

fn queue_init(l: &Loop, cq: *mut ibv_cq) -> ibv_srq_init_attr_ex {
    let mut attr: ibv_srq_init_attr_ex = unsafe { zeroed() };
    attr.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    attr.comp_mask =
        IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TM | IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_TM;
    (attr.pd, attr.cq) = (l.pd, cq);
    attr.tm_cap = ibv_tm_cap { max_num_tags: 2, max_ops: 10 };
    attr
}

fn queue(l: &Loop, mut attr: ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, c_int> {
    let srq = unsafe { table(l.context).create_srq_ex.expect("built")(l.context, &raw mut attr) };
    if srq.is_null() { Err(errno()) } else { Ok(srq) }
}

fn op(wr_id: u64, opcode: ibv_ops_wr_opcode) -> ibv_ops_wr {
    let mut wr: ibv_ops_wr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode, wr.flags) = (wr_id, opcode, IBV_OPS_SIGNALED as c_int);
    wr
}

fn add(wr_id: u64, tag: u64, sge: &mut ibv_sge) -> ibv_ops_wr {
    let mut wr = op(wr_id, IBV_WR_TAG_ADD);
    wr.tm.add = ibv_ops_wr_tm_add { recv_wr_id: wr_id + 100, sg_list: sge, num_sge: 1, tag, mask: u64::MAX };
    wr
}

/// Posts a list; its errno and, if that is not 0, the mark of the operation that was refused.
fn post(l: &Loop, srq: *mut ibv_srq, wr: &mut ibv_ops_wr) -> (c_int, Option<u64>) {
    let mut bad = null_mut();
    let code = unsafe { table(l.context).post_srq_ops.expect("built")(srq, wr, &raw mut bad) };
    (code, if code == 0 { None } else { Some(unsafe { (*bad).wr_id }) })
}

/// An eager message of this tag in the first half of the memory.
fn write_message(l: &mut Loop, tag: u64, text: &[u8]) -> u32 {
    l.memory[..4].copy_from_slice(&[3, 0, 0, 0]);
    l.memory[4..8].copy_from_slice(&9_u32.to_be_bytes());
    l.memory[8..16].copy_from_slice(&tag.to_be_bytes());
    l.memory[16..16 + text.len()].copy_from_slice(text);
    16 + text.len() as u32
}

#[test]
fn a_matched_message_says_its_tag_through_the_extended_queue() {
    let mut l = Loop::open();
    unsafe {
        let mut attr: ibv_cq_init_attr_ex = zeroed();
        (attr.cqe, attr.wc_flags) = (8, (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO).into());
        let cqx = table(l.context).create_cq_ex.expect("built")(l.context, &raw mut attr);
        assert!(!cqx.is_null(), "errno {}", errno());
        let srq = queue(&l, queue_init(&l, cqx.cast())).expect("created");
        assert_eq!(cq::ibv_destroy_cq(cqx.cast()), libc::EBUSY);
        let cap = ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let (mut tagged, mut plain) = (ibv_qp_init_attr { srq, cap, ..init(l.cq) }, init(l.cq));
        let receiver = qp::ibv_create_qp(l.pd, &raw mut tagged);
        let sender = qp::ibv_create_qp(l.pd, &raw mut plain);
        assert!(!receiver.is_null() && !sender.is_null(), "errno {}", errno());
        connect_to(receiver, (*sender).qp_num);
        connect_to(sender, (*receiver).qp_num);

        let mut sge = l.sge(HALF, 64);
        assert_eq!(post(&l, srq, &mut add(1, 0xabcd, &mut sge)), (0, None));
        let len = write_message(&mut l, 0xabcd, b"tagged");
        let mut from = [l.sge(0, len)];
        let mut wr = send(2, IBV_WR_SEND, &mut from);
        assert_eq!((*l.context).ops.post_send.expect("built")(sender, &raw mut wr, &mut null_mut()), 0);

        let (c, start) = (&*cqx, std::time::Instant::now());
        let mut seen = Vec::new();
        while seen.len() < 2 {
            assert!(start.elapsed().as_secs() < 5, "only {seen:?}");
            if c.start_poll.expect("built")(cqx, &mut ibv_poll_cq_attr { comp_mask: 0 }) != 0 {
                continue;
            }
            let mut info = ibv_wc_tm_info { tag: 5, priv_: 5 };
            c.read_tm_info.expect("built")(cqx, &raw mut info);
            let opcode = c.read_opcode.expect("built")(cqx);
            let flags = c.read_wc_flags.expect("built")(cqx);
            seen.push(((*cqx).wr_id, opcode, flags, info.tag, info.priv_));
            c.end_poll.expect("built")(cqx);
        }
        let both = IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID;
        assert_eq!(seen, [(1, IBV_WC_TM_ADD, 0, 0, 0), (101, IBV_WC_TM_RECV, both, 0xabcd, 9)]);
        assert_eq!(&l.memory[HALF..HALF + 6], b"tagged");
        assert_eq!(l.completions(1)[0].wr_id, 2);
        assert_eq!((qp::ibv_destroy_qp(sender), qp::ibv_destroy_qp(receiver)), (0, 0));
        assert_eq!((srq::ibv_destroy_srq(srq), cq::ibv_destroy_cq(cqx.cast())), (0, 0));
    }
    l.close();
}

#[test]
fn a_list_of_operations_stops_at_the_one_that_is_refused() {
    let l = Loop::open();
    let srq = queue(&l, queue_init(&l, l.cq)).expect("created");
    let mut sge = l.sge(HALF, 64);
    let mut last = add(3, 3, &mut sge);
    let mut second = ibv_ops_wr { next: &raw mut last, ..add(2, 2, &mut sge) };
    let mut first = ibv_ops_wr { next: &raw mut second, ..add(1, 1, &mut sge) };
    assert_eq!(post(&l, srq, &mut first), (libc::ENOMEM, Some(3)), "two tags at most");
    assert_ne!(first.tm.handle, second.tm.handle);
    assert_eq!(
        post(&l, srq, &mut ibv_ops_wr { flags: 4, ..op(4, IBV_WR_TAG_SYNC) }),
        (libc::EINVAL, Some(4))
    );
    assert_eq!(post(&l, srq, &mut op(5, 3)), (libc::EINVAL, Some(5)));
    let mut long = add(6, 6, &mut sge);
    long.tm.add.num_sge = 33;
    assert_eq!(post(&l, srq, &mut long), (libc::EINVAL, Some(6)));
    for _ in 0..2 {
        let mut delete = op(7, IBV_WR_TAG_DEL);
        delete.tm.handle = first.tm.handle;
        assert_eq!(post(&l, srq, &mut delete), (0, None));
    }
    let mut ahead = op(8, IBV_WR_TAG_SYNC);
    ahead.flags |= IBV_OPS_TM_SYNC as c_int;
    ahead.tm.unexpected_cnt = 1;
    assert_eq!(post(&l, srq, &mut ahead), (0, None));
    let seen: Vec<_> =
        l.completions(5).iter().map(|wc| (wc.wr_id, wc.opcode, wc.status, wc.wc_flags)).collect();
    let expected = [
        (1, IBV_WC_TM_ADD, IBV_WC_SUCCESS, 0),
        (2, IBV_WC_TM_ADD, IBV_WC_SUCCESS, 0),
        (7, IBV_WC_TM_DEL, IBV_WC_SUCCESS, 0),
        (7, IBV_WC_TM_DEL, IBV_WC_TM_ERR, 0),
        (8, IBV_WC_TM_SYNC, IBV_WC_SUCCESS, IBV_WC_TM_SYNC_REQ),
    ];
    assert_eq!(seen, expected);
    assert_eq!(unsafe { srq::ibv_destroy_srq(srq) }, 0);
    l.close();
}

#[test]
fn a_queue_wants_a_completion_queue_and_what_the_device_has() {
    let l = Loop::open();
    let mut device: ibv_device_attr_ex = unsafe { zeroed() };
    let query = table(l.context).query_device_ex.expect("built");
    let size = size_of::<ibv_device_attr_ex>();
    assert_eq!(unsafe { query(l.context, std::ptr::null(), &raw mut device, size) }, 0);
    let caps = device.tm_caps;
    assert_eq!((caps.flags, caps.max_rndv_hdr_size), (IBV_TM_CAP_RC, 64));
    assert!(caps.max_num_tags > 0 && caps.max_ops > 0 && caps.max_sge > 0);
    let good = queue_init(&l, l.cq);
    let tags = |max_num_tags, max_ops| ibv_tm_cap { max_num_tags, max_ops };
    for bad in [
        ibv_srq_init_attr_ex { cq: null_mut(), ..good },
        ibv_srq_init_attr_ex { comp_mask: good.comp_mask & !IBV_SRQ_INIT_ATTR_TM, ..good },
        ibv_srq_init_attr_ex { tm_cap: tags(0, 1), ..good },
        ibv_srq_init_attr_ex { tm_cap: tags(caps.max_num_tags + 1, 1), ..good },
        ibv_srq_init_attr_ex { tm_cap: tags(1, caps.max_ops + 1), ..good },
    ] {
        assert_eq!(queue(&l, bad), Err(libc::EINVAL));
    }
    let most = ibv_srq_init_attr_ex { tm_cap: tags(caps.max_num_tags, caps.max_ops), ..good };
    let srq = queue(&l, most).expect("what the device says it has");
    assert_eq!(unsafe { srq::ibv_destroy_srq(srq) }, 0);
    let mut plain = ibv_srq_init_attr { srq_context: null_mut(), attr: good.attr };
    let srq = unsafe { srq::ibv_create_srq(l.pd, &raw mut plain) };
    assert_eq!(post(&l, srq, &mut op(1, IBV_WR_TAG_SYNC)), (libc::EINVAL, Some(1)));
    assert_eq!(unsafe { srq::ibv_destroy_srq(srq) }, 0);
    l.close();
}
