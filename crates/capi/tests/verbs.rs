//! The verbs as a C program calls them, on the loopback device.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capi::verbs::{cq, device, memory, qp};
use rdma_core_abi::verbs::*;

use support::{HALF, Loop, errno, init, loopback, send};

#[test]
fn device_port_and_gids_are_what_the_man_pages_say() {
    unsafe {
        let ctx = device::ibv_open_device(loopback());
        let mut attr: ibv_device_attr = std::mem::zeroed();
        assert_eq!(device::ibv_query_device(ctx, &raw mut attr), 0);
        assert_eq!(attr.node_guid, device::ibv_get_device_guid((*ctx).device));
        assert_eq!((attr.phys_port_cnt, attr.max_pkeys, attr.atomic_cap), (1, 1, IBV_ATOMIC_HCA));
        assert_eq!(CStr::from_ptr(attr.fw_ver.as_ptr()).to_str(), Ok(env!("CARGO_PKG_VERSION")));

        let mut port: _compat_ibv_port_attr = std::mem::zeroed();
        assert_eq!(device::ibv_query_port(ctx, 1, &raw mut port), 0);
        assert_eq!((port.state, port.phys_state, port.active_mtu), (IBV_PORT_ACTIVE, 5, IBV_MTU_4096));
        assert_eq!((port.link_layer, port.active_width, port.active_speed), (IBV_LINK_LAYER_ETHERNET, 1, 1));
        assert_eq!(device::ibv_query_port(ctx, 2, &raw mut port), libc::EINVAL);

        let mut gid = ibv_gid { raw: [1; 16] };
        assert_eq!(device::ibv_query_gid(ctx, 1, 1, &raw mut gid), 0);
        assert_eq!(gid.raw[10..], [0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(device::ibv_query_gid(ctx, 1, 255, &raw mut gid), 0);
        assert_eq!(gid.raw, [0; 16]);
        assert_eq!(device::ibv_query_gid(ctx, 1, port.gid_tbl_len, &raw mut gid), -1);
        assert_eq!(errno(), libc::EINVAL);

        let mut entry: ibv_gid_entry = std::mem::zeroed();
        let size = size_of::<ibv_gid_entry>();
        assert_eq!(device::_ibv_query_gid_ex(ctx, 1, 1, &raw mut entry, 0, size), 0);
        assert_eq!((entry.gid_index, entry.gid_type, entry.ndev_ifindex), (1, IBV_GID_TYPE_ROCE_V2, 1));
        assert_eq!(device::_ibv_query_gid_ex(ctx, 1, 255, &raw mut entry, 0, size), libc::ENODATA);
        let mut entries: [ibv_gid_entry; 4] = std::mem::zeroed();
        assert!(device::_ibv_query_gid_table(ctx, entries.as_mut_ptr(), 4, 0, size) >= 2);
        assert_eq!(
            device::_ibv_query_gid_table(ctx, entries.as_mut_ptr(), 1, 0, size),
            -libc::EINVAL as isize
        );

        let mut pkey = 0;
        assert_eq!(device::ibv_query_pkey(ctx, 1, 0, &raw mut pkey), 0);
        assert_eq!((pkey, device::ibv_get_pkey_index(ctx, 1, pkey)), (0xffff, 0));
        assert_eq!(device::ibv_query_pkey(ctx, 1, 1, &raw mut pkey), -1);
        assert_eq!(device::ibv_close_device(ctx), 0);
    }
}

/// RoCE has one UDP port an address: of two devices on one interface only one could receive.
#[test]
fn a_second_device_on_one_interface_is_refused_with_an_error_that_names_both() {
    if std::env::var_os("VERBENA_DEVICES").is_some_and(|devices| devices == "a=roce:lo,b=roce:lo") {
        let mut n = -1;
        let list = unsafe { device::ibv_get_device_list(&raw mut n) };
        assert_eq!(n, 0);
        return unsafe { device::ibv_free_device_list(list) };
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_second_device_on_one_interface_is_refused_with_an_error_that_names_both"]);
    let ended = child.arg("--nocapture").env("VERBENA_DEVICES", "a=roce:lo,b=roce:lo").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(["'a'", "'b'", "'lo'"].into_iter().all(|name| said.contains(name)), "{said}");
}

/// The header's inline functions find the table before the context, and old programs pass smaller
/// structures.
#[test]
fn the_extended_table_fills_no_more_than_the_program_knows() {
    unsafe {
        let ctx = device::ibv_open_device(loopback());
        assert_eq!((*ctx).abi_compat, VERBS_ABI_IS_EXTENDED);
        let whole = ctx.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        assert_eq!((*whole).sz, size_of::<verbs_context>());
        assert!((*whole).create_cq_ex.is_some() && (*whole).create_flow_action_esp.is_none());
        let mut port: ibv_port_attr = std::mem::zeroed();
        port.active_speed_ex = 99;
        let old = std::mem::offset_of!(ibv_port_attr, active_speed_ex);
        assert_eq!((*whole).query_port.expect("built")(ctx, 1, &raw mut port, old), 0);
        assert_eq!((port.state, port.active_speed_ex), (IBV_PORT_ACTIVE, 99));
        let mut attr: ibv_device_attr_ex = std::mem::zeroed();
        attr.phys_port_cnt_ex = 99;
        let old = std::mem::offset_of!(ibv_device_attr_ex, phys_port_cnt_ex);
        let ex = (*whole).query_device_ex.expect("built");
        assert_eq!(ex(ctx, std::ptr::null(), &raw mut attr, old), 0);
        assert_eq!((attr.orig_attr.phys_port_cnt, attr.phys_port_cnt_ex), (1, 99));
        let input = ibv_query_device_ex_input { comp_mask: 1 };
        assert_eq!(ex(ctx, &raw const input, &raw mut attr, old), libc::EINVAL);
        assert_eq!(device::ibv_close_device(ctx), 0);
    }
}

#[test]
fn what_is_used_is_busy() {
    let l = Loop::open();
    unsafe {
        assert_eq!(memory::ibv_dealloc_pd(l.pd), libc::EBUSY);
        assert_eq!(cq::ibv_destroy_cq(l.cq), libc::EBUSY);
        assert_eq!(cq::ibv_destroy_comp_channel(l.channel), libc::EBUSY);
    }
    l.close();
}

#[test]
fn memory_is_registered_with_the_rights_it_has_or_not_at_all() {
    static READ_ONLY: [u8; 64] = [1; 64];
    let l = Loop::open();
    let at = l.memory.as_ptr().cast_mut().cast();
    let write = IBV_ACCESS_LOCAL_WRITE as c_int;
    let refused = |mr: *mut ibv_mr| {
        assert!(mr.is_null());
        errno()
    };
    unsafe {
        let remote_only = IBV_ACCESS_REMOTE_WRITE as c_int;
        assert_eq!(refused(memory::ibv_reg_mr(l.pd, at, 64, remote_only)), libc::EINVAL);
        assert_eq!(refused(memory::ibv_reg_mr(l.pd, null_mut(), 64, write)), libc::EFAULT);
        let fixed = READ_ONLY.as_ptr().cast_mut().cast();
        assert_eq!(refused(memory::ibv_reg_mr(l.pd, fixed, 64, write)), libc::EFAULT);
    }
    l.close();
}

#[test]
fn a_message_with_immediate_data_goes_from_inline_bytes_to_a_completion() {
    let l = Loop::open();
    assert_eq!(l.post_recv(41, 100), 0);
    let text = *b"not registered";
    let mut sge =
        [ibv_sge { addr: text.as_ptr().expose_provenance() as u64, length: text.len() as u32, lkey: 0 }];
    let mut wr = send(42, IBV_WR_SEND_WITH_IMM, &mut sge);
    wr.send_flags |= IBV_SEND_INLINE;
    wr.imm.imm_data = 0x1234_5678;
    assert_eq!(l.post_send(&mut wr), 0);
    let mut all = l.completions(2);
    all.sort_by_key(|wc| wc.wr_id);
    let [received, sent] = &all[..] else { unreachable!() };
    assert_eq!((received.wr_id, received.status, received.opcode), (41, IBV_WC_SUCCESS, IBV_WC_RECV));
    assert_eq!((received.byte_len, received.wc_flags), (14, IBV_WC_WITH_IMM | IBV_WC_GRH));
    assert_eq!(unsafe { received.imm.imm_data }, 0x1234_5678);
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (42, IBV_WC_SUCCESS, IBV_WC_SEND));
    assert_eq!(l.memory[HALF..HALF + 14], text);
    l.close();
}

/// ibv_reg_mr(3): with IBV_ACCESS_ZERO_BASED addresses are offsets, for ourselves and for the peer.
#[test]
fn a_zero_based_region_is_written_by_offset() {
    let l = Loop::open();
    let target = Box::new([0_u8; 64]);
    unsafe {
        let rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
        let mr = memory::ibv_reg_mr(l.pd, target.as_ptr().cast_mut().cast(), 64, rights as c_int);
        assert!(!mr.is_null());
        let mut wr_sge = [l.sge(0, 4)];
        std::ptr::copy_nonoverlapping(b"here".as_ptr(), l.memory.as_ptr().cast_mut(), 4);
        let mut wr = send(1, IBV_WR_RDMA_WRITE, &mut wr_sge);
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr: 16, rkey: (*mr).rkey };
        assert_eq!(l.post_send(&mut wr), 0);
        assert_eq!(l.completions(1)[0].status, IBV_WC_SUCCESS);
        assert_eq!(std::ptr::read_volatile(target.as_ptr().add(16).cast::<[u8; 4]>()), *b"here");
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
    }
    l.close();
}

#[test]
fn the_bad_request_of_a_list_is_named_and_those_before_it_are_sent() {
    let l = Loop::open();
    assert_eq!(l.post_recv(1, 100), 0);
    let (mut one, mut many) = ([l.sge(0, 3)], [l.sge(0, 1), l.sge(1, 1), l.sge(2, 1)]);
    let mut second = send(3, IBV_WR_SEND, &mut many);
    let mut first = send(2, IBV_WR_SEND, &mut one);
    first.next = &raw mut second;
    let mut bad = null_mut();
    unsafe {
        let post = (*l.context).ops.post_send.expect("built");
        assert_eq!(post(l.qp, &raw mut first, &raw mut bad), libc::EINVAL);
    }
    assert_eq!(bad, &raw mut second);
    assert!(l.completions(2).iter().all(|wc| wc.status == IBV_WC_SUCCESS && wc.wr_id < 3));
    let mut wr = send(4, IBV_WR_SEND, &mut one);
    wr.send_flags |= IBV_SEND_IP_CSUM;
    assert_eq!(l.post_send(&mut wr), libc::EINVAL);
    for _ in 0..4 {
        assert_eq!(l.post_recv(5, 1), 0);
    }
    assert_eq!(l.post_recv(5, 1), libc::ENOMEM);
    l.close();
}

#[test]
fn a_query_gives_back_what_was_set() {
    let l = Loop::open();
    unsafe {
        let (mut a, mut i): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(qp::ibv_query_qp(l.qp, &raw mut a, 0x1f_ffff, &raw mut i), 0);
        assert_eq!((a.qp_state, a.cur_qp_state, a.path_mtu), (IBV_QPS_RTS, IBV_QPS_RTS, IBV_MTU_1024));
        assert_eq!((a.sq_psn, a.rq_psn, a.dest_qp_num), (0x12_3456, 0x12_3456, (*l.qp).qp_num));
        assert_eq!((a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer), (14, 7, 0, 12));
        assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic, a.port_num), (4, 4, 1));
        assert_eq!((a.ah_attr.is_global, a.ah_attr.grh.sgid_index, a.ah_attr.grh.hop_limit), (1, 1, 9));
        assert_eq!(a.qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
        assert_eq!((i.send_cq, i.recv_cq, i.qp_type, i.sq_sig_all), (l.cq, l.cq, IBV_QPT_RC, 0));
        assert_eq!(i.qp_context.addr(), 7);
        assert_eq!((i.cap.max_send_wr, i.cap.max_send_sge, i.cap.max_inline_data), (4, 2, 64));
        assert_eq!((a.cap.max_recv_wr, a.cap.max_recv_sge), (4, 1));
    }
    l.close();
}

#[test]
fn other_services_and_sizes_beyond_the_limits_are_refused() {
    let l = Loop::open();
    let create = |change: &dyn Fn(&mut ibv_qp_init_attr)| unsafe {
        let mut i = init(l.cq);
        change(&mut i);
        assert!(qp::ibv_create_qp(l.pd, &raw mut i).is_null());
        errno()
    };
    assert_eq!(create(&|i| i.qp_type = IBV_QPT_DRIVER), libc::EOPNOTSUPP);
    assert_eq!(create(&|i| i.cap.max_send_wr = 1 << 20), libc::EINVAL);
    assert_eq!(create(&|i| i.cap.max_send_sge = 33), libc::EINVAL);
    assert_eq!(create(&|i| i.send_cq = null_mut()), libc::EINVAL);
    unsafe {
        assert!(cq::ibv_create_cq(l.context, 0, null_mut(), null_mut(), 0).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!(cq::ibv_create_cq(l.context, 1, null_mut(), null_mut(), 1).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    l.close();
}

/// Sends a message to itself whose completion raises an event, and takes the event without
/// acknowledging it.
fn unacknowledged_event(l: &Loop) {
    unsafe {
        assert_eq!((*l.context).ops.req_notify_cq.expect("built")(l.cq, 0), 0);
        assert_eq!(l.post_recv(1, 8), 0);
        assert_eq!(l.post_send(&mut send(2, IBV_WR_SEND, &mut [l.sge(0, 8)])), 0);
        let (mut cq, mut user) = (null_mut(), null_mut());
        assert_eq!(cq::ibv_get_cq_event(l.channel, &raw mut cq, &raw mut user), 0);
        assert_eq!(cq, l.cq);
    }
    assert_eq!(l.completions(2).len(), 2);
}

#[test]
fn a_queue_pair_without_a_domain_or_attributes_is_einval() {
    let l = Loop::open();
    unsafe {
        let mut init = init(l.cq);
        assert!(qp::ibv_create_qp(null_mut(), &raw mut init).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert!(qp::ibv_create_qp(l.pd, null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    l.close();
}

#[test]
fn destroying_a_completion_queue_waits_for_its_events() {
    let l = Loop::open();
    unacknowledged_event(&l);
    let acknowledged = AtomicBool::new(false);
    let cq = l.cq.expose_provenance();
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            acknowledged.store(true, Ordering::SeqCst);
            unsafe { cq::ibv_ack_cq_events(std::ptr::with_exposed_provenance_mut(cq), 1) };
        });
        unsafe {
            assert_eq!(qp::ibv_destroy_qp(l.qp), 0);
            assert_eq!(cq::ibv_destroy_cq(l.cq), 0);
        }
        assert!(acknowledged.load(Ordering::SeqCst));
    });
    unsafe {
        assert_eq!(cq::ibv_destroy_comp_channel(l.channel), 0);
        assert_eq!(memory::ibv_dereg_mr(l.mr), 0);
        assert_eq!(memory::ibv_dealloc_pd(l.pd), 0);
        assert_eq!(device::ibv_close_device(l.context), 0);
    }
}

/// One thread takes events while the other destroys the queues they are about: an event is either
/// handed out before, and the destruction waits, or never.
#[test]
fn queues_may_be_destroyed_while_another_thread_takes_their_events() {
    let l = Loop::open();
    let (ctx, ch) = (l.context.expose_provenance(), l.channel.expose_provenance());
    std::thread::scope(|s| {
        let taker = s.spawn(move || {
            let channel = std::ptr::with_exposed_provenance_mut(ch);
            let stop = std::ptr::without_provenance_mut(1);
            loop {
                let (mut cq, mut user) = (null_mut(), null_mut());
                assert_eq!(unsafe { cq::ibv_get_cq_event(channel, &raw mut cq, &raw mut user) }, 0);
                unsafe { cq::ibv_ack_cq_events(cq, 1) };
                if user == stop {
                    break;
                }
            }
        });
        let context = std::ptr::with_exposed_provenance_mut::<ibv_context>(ctx);
        let channel = std::ptr::with_exposed_provenance_mut(ch);
        let flush = |user: usize| unsafe {
            let user = std::ptr::without_provenance_mut(user);
            let cq = cq::ibv_create_cq(context, 4, user, channel, 0);
            let mut i = init(cq);
            let qp = qp::ibv_create_qp(l.pd, &raw mut i);
            assert_eq!((*context).ops.req_notify_cq.expect("built")(cq, 0), 0);
            let mut a: ibv_qp_attr = std::mem::zeroed();
            (a.qp_state, a.port_num) = (IBV_QPS_INIT, 1);
            let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            assert_eq!(qp::ibv_modify_qp(qp, &raw mut a, mask as c_int), 0);
            a.qp_state = IBV_QPS_ERR;
            assert_eq!(qp::ibv_modify_qp(qp, &raw mut a, IBV_QP_STATE as c_int), 0);
            let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut bad = null_mut();
            // In the error state a receive is flushed at once, which raises the event.
            assert_eq!((*context).ops.post_recv.expect("built")(qp, &raw mut wr, &raw mut bad), 0);
            (qp, cq)
        };
        for _ in 0..500 {
            let (qp, cq) = flush(0);
            unsafe {
                assert_eq!(qp::ibv_destroy_qp(qp), 0);
                assert_eq!(cq::ibv_destroy_cq(cq), 0);
            }
        }
        let (qp, cq) = flush(1);
        assert!(taker.join().is_ok());
        unsafe {
            assert_eq!(qp::ibv_destroy_qp(qp), 0);
            assert_eq!(cq::ibv_destroy_cq(cq), 0);
        }
    });
    l.close();
}

#[test]
fn a_non_blocking_channel_says_eagain() {
    let l = Loop::open();
    unsafe {
        libc::fcntl((*l.channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let (mut cq, mut user) = (null_mut(), null_mut());
        assert_eq!(cq::ibv_get_cq_event(l.channel, &raw mut cq, &raw mut user), -1);
        assert_eq!(errno(), libc::EAGAIN);
        libc::fcntl((*l.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut e: ibv_async_event = std::mem::zeroed();
        assert_eq!(device::ibv_get_async_event(l.context, &raw mut e), -1);
        assert_eq!(errno(), libc::EAGAIN);
    }
    l.close();
}

#[test]
fn an_overrun_queue_raises_an_asynchronous_event() {
    let l = Loop::open();
    unsafe {
        assert_eq!(cq::ibv_resize_cq(l.cq, 1), 0);
        assert_eq!((*l.cq).cqe, 1);
        let mut a: ibv_qp_attr = std::mem::zeroed();
        a.qp_state = IBV_QPS_ERR;
        assert_eq!(qp::ibv_modify_qp(l.qp, &raw mut a, IBV_QP_STATE as c_int), 0);
        assert_eq!((l.post_recv(1, 1), l.post_recv(2, 1)), (0, 0));
        let mut e: ibv_async_event = std::mem::zeroed();
        assert_eq!(device::ibv_get_async_event(l.context, &raw mut e), 0);
        assert_eq!((e.event_type, e.element.cq), (IBV_EVENT_CQ_ERR, l.cq));
        device::ibv_ack_async_event(&raw mut e);
        let mut wc: ibv_wc = std::mem::zeroed();
        assert!((*l.context).ops.poll_cq.expect("built")(l.cq, 1, &raw mut wc) < 0);
    }
    l.close();
}
