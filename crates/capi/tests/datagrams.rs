//! Datagrams, address handles and multicast groups as a C program uses them, and the unreliable
//! connection, on the loopback device.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/alone.rs"]
mod alone;
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use capi::verbs::{ah, cq, device, memory, qp, steering};
use rdma_core_abi::verbs::*;

use alone::alone;
use support::{HALF, Loop, device_named, errno, init, loopback, send};

const QKEY: u32 = 0x1111_1111;
const LOOPBACK: ibv_gid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1] };
const GROUP: ibv_gid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 7, 7, 7] };
/// Bytes before the payload.
const GRH: usize = 40;

/// A loop whose queue pair is of another kind.
fn open(kind: ibv_qp_type) -> Loop {
    open_on(loopback(), kind)
}

fn open_on(device: *mut ibv_device, kind: ibv_qp_type) -> Loop {
    let mut memory = Box::new([0; 8192]);
    unsafe {
        let context = device::ibv_open_device(device);
        let pd = memory::ibv_alloc_pd(context);
        let channel = cq::ibv_create_comp_channel(context);
        let cq = cq::ibv_create_cq(context, 16, null_mut(), channel, 0);
        let rights = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as c_int;
        let mr = memory::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), rights);
        let qp = create(pd, cq, kind);
        Loop { context, pd, channel, cq, qp, mr, memory }
    }
}

fn create(pd: *mut ibv_pd, cq: *mut ibv_cq, kind: ibv_qp_type) -> *mut ibv_qp {
    let mut init = ibv_qp_init_attr { qp_type: kind, ..init(cq) };
    let qp = unsafe { qp::ibv_create_qp(pd, &raw mut init) };
    assert!(!qp.is_null(), "create_qp: errno {}", errno());
    qp
}

fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) -> c_int {
    unsafe { qp::ibv_modify_qp(qp, attr, mask as c_int) }
}

/// Takes a datagram queue pair to RTS.
fn start(qp: *mut ibv_qp) {
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qkey = QKEY;
    assert_eq!(modify(qp, &mut a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
    a.qp_state = IBV_QPS_RTR;
    assert_eq!(modify(qp, &mut a, IBV_QP_STATE), 0);
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = 0x12_3456;
    assert_eq!(modify(qp, &mut a, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

fn address(gid: ibv_gid) -> ibv_ah_attr {
    let mut a: ibv_ah_attr = unsafe { std::mem::zeroed() };
    (a.is_global, a.port_num, a.grh.sgid_index, a.grh.dgid) = (1, 1, 1, gid);
    a
}

fn handle(l: &Loop, gid: ibv_gid) -> *mut ibv_ah {
    let ah = unsafe { ah::ibv_create_ah(l.pd, &mut address(gid)) };
    assert!(!ah.is_null(), "create_ah: errno {}", errno());
    ah
}

/// A datagram of the first `length` bytes of the loop's memory.
fn datagram(sge: &mut [ibv_sge], wr_id: u64, ah: *mut ibv_ah, qpn: u32, qkey: u32) -> ibv_send_wr {
    let mut wr = send(wr_id, IBV_WR_SEND, sge);
    wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: qpn, remote_qkey: qkey };
    wr
}

fn post_recv(l: &Loop, qp: *mut ibv_qp, wr_id: u64, at: usize, length: u32) {
    let mut sge = l.sge(at, length);
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
    let mut bad = null_mut();
    assert_eq!(unsafe { (*l.context).ops.post_recv.expect("built")(qp, &raw mut wr, &raw mut bad) }, 0);
}

fn destroy_ah(ah: *mut ibv_ah) {
    assert_eq!(unsafe { ah::ibv_destroy_ah(ah) }, 0);
}

/// Nothing completes for a while.
fn silence(l: &Loop) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
        let n = unsafe { (*l.context).ops.poll_cq.expect("built")(l.cq, 1, &raw mut wc) };
        assert_eq!(n, 0, "a completion of {}", wc.wr_id);
    }
}

#[test]
fn a_datagram_is_answered_through_a_handle_made_from_its_completion() {
    alone!();
    let mut l = open(IBV_QPT_UD);
    start(l.qp);
    let qpn = unsafe { (*l.qp).qp_num };
    l.memory[..5].copy_from_slice(b"hello");
    let ah = handle(&l, LOOPBACK);
    assert_eq!(unsafe { memory::ibv_dealloc_pd(l.pd) }, libc::EBUSY);
    post_recv(&l, l.qp, 1, HALF, 100);
    let mut sge = [l.sge(0, 5)];
    let mut wr = datagram(&mut sge, 2, ah, qpn, QKEY);
    (wr.opcode, wr.imm.imm_data) = (IBV_WR_SEND_WITH_IMM, 0x1234_5678);
    assert_eq!(l.post_send(&mut wr), 0);
    let mut all = l.completions(2);
    all.sort_by_key(|wc| wc.wr_id);
    let mut wc = all[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, IBV_WC_SUCCESS, IBV_WC_RECV));
    assert_eq!((wc.byte_len, wc.src_qp, wc.wc_flags), (45, qpn, IBV_WC_GRH | IBV_WC_WITH_IMM));
    assert_eq!(wc.sl, 0b1010, "UDP over IPv4, as Mellanox's adapters say it");
    assert_eq!(l.memory[HALF + GRH..HALF + 45], *b"hello");

    let grh = l.memory[HALF..].as_mut_ptr().cast::<ibv_grh>();
    let back = unsafe {
        let mut attr: ibv_ah_attr = std::mem::zeroed();
        assert_eq!(ah::ibv_init_ah_from_wc(l.context, 1, &raw mut wc, grh, &raw mut attr), 0);
        assert_eq!((attr.is_global, attr.port_num, attr.grh.sgid_index), (1, 1, 1));
        assert_eq!(attr.grh.dgid.raw, LOOPBACK.raw);
        ah::ibv_create_ah_from_wc(l.pd, &raw mut wc, grh, 1)
    };
    assert!(!back.is_null());
    post_recv(&l, l.qp, 3, HALF + 100, 45);
    // The top bit asks for the queue pair's own Q_Key.
    assert_eq!(l.post_send(&mut datagram(&mut [l.sge(0, 5)], 4, back, wc.src_qp, 1 << 31)), 0);
    assert_eq!(l.completions(2).iter().filter(|wc| wc.status == IBV_WC_SUCCESS).count(), 2);
    assert_eq!(l.memory[HALF + 100 + GRH..HALF + 145], *b"hello");
    destroy_ah(back);
    destroy_ah(ah);
    l.close();
}

#[test]
fn a_datagram_with_a_wrong_qkey_vanishes() {
    alone!();
    let l = open(IBV_QPT_UD);
    start(l.qp);
    let qpn = unsafe { (*l.qp).qp_num };
    let ah = handle(&l, LOOPBACK);
    post_recv(&l, l.qp, 1, HALF, 100);
    assert_eq!(l.post_send(&mut datagram(&mut [l.sge(0, 5)], 2, ah, qpn, QKEY + 1)), 0);
    assert_eq!(l.completions(1)[0].wr_id, 2, "the sender is not told");
    silence(&l);
    destroy_ah(ah);
    l.close();
}

#[test]
fn addresses_and_requests_that_can_not_be_are_refused() {
    alone!();
    let l = open(IBV_QPT_UD);
    start(l.qp);
    let refused = |change: fn(&mut ibv_ah_attr)| {
        let mut a = address(LOOPBACK);
        change(&mut a);
        assert!(unsafe { ah::ibv_create_ah(l.pd, &raw mut a) }.is_null());
        errno()
    };
    assert_eq!(refused(|a| a.port_num = 2), libc::EINVAL);
    assert_eq!(refused(|a| a.is_global = 0), libc::EINVAL);
    assert_eq!(refused(|a| a.grh.sgid_index = 200), libc::ENODATA);
    assert_eq!(refused(|a| a.grh.dgid = ibv_gid { raw: [1; 16] }), libc::EINVAL);
    let ah = handle(&l, LOOPBACK);
    let mut sge = [l.sge(0, 5)];
    assert_eq!(l.post_send(&mut datagram(&mut sge, 1, null_mut(), 5, QKEY)), libc::EINVAL);
    let mut write = datagram(&mut sge, 1, ah, 5, QKEY);
    write.opcode = IBV_WR_RDMA_WRITE;
    assert_eq!(l.post_send(&mut write), libc::EINVAL);
    let mut grh: ibv_grh = unsafe { std::mem::zeroed() };
    let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
    wc.wc_flags = IBV_WC_GRH;
    let none = unsafe { ah::ibv_create_ah_from_wc(l.pd, &raw mut wc, &raw mut grh, 1) };
    assert_eq!((none.is_null(), errno()), (true, libc::EPROTONOSUPPORT));
    destroy_ah(ah);
    l.close();
}

#[test]
fn a_failed_send_leaves_the_queue_pair_in_sqe_until_it_is_taken_back() {
    alone!();
    let l = open(IBV_QPT_UD);
    start(l.qp);
    let qpn = unsafe { (*l.qp).qp_num };
    let ah = handle(&l, LOOPBACK);
    let mut foreign = [ibv_sge { lkey: 0, ..l.sge(0, 5) }];
    assert_eq!(l.post_send(&mut datagram(&mut foreign, 1, ah, qpn, QKEY)), 0);
    assert_eq!(l.completions(1)[0].status, IBV_WC_LOC_PROT_ERR);
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    let mut i: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { qp::ibv_query_qp(l.qp, &raw mut a, 0, &raw mut i) }, 0);
    assert_eq!((a.qp_state, a.qkey, i.qp_type), (IBV_QPS_SQE, QKEY, IBV_QPT_UD));
    assert_eq!(l.post_send(&mut datagram(&mut [l.sge(0, 5)], 2, ah, qpn, QKEY)), 0);
    assert_eq!(l.completions(1)[0].status, IBV_WC_WR_FLUSH_ERR);
    (a.cur_qp_state, a.qp_state) = (IBV_QPS_SQE, IBV_QPS_RTS);
    assert_eq!(modify(l.qp, &mut a, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
    post_recv(&l, l.qp, 3, HALF, 100);
    assert_eq!(l.post_send(&mut datagram(&mut [l.sge(0, 5)], 4, ah, qpn, QKEY)), 0);
    assert!(l.completions(2).iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    destroy_ah(ah);
    l.close();
}

#[test]
fn everyone_attached_to_a_group_gets_its_datagrams_the_sender_too() {
    alone!();
    let mut l = open(IBV_QPT_UD);
    let other = create(l.pd, l.cq, IBV_QPT_UD);
    let aside = create(l.pd, l.cq, IBV_QPT_UD);
    [l.qp, other, aside].into_iter().for_each(start);
    l.memory[..5].copy_from_slice(b"hello");
    let attach = |qp| unsafe { steering::ibv_attach_mcast(qp, &GROUP, 0) };
    let detach = |qp| unsafe { steering::ibv_detach_mcast(qp, &GROUP, 0) };
    assert_eq!((attach(l.qp), attach(other), attach(other)), (0, 0, 0));
    assert_eq!(unsafe { steering::ibv_attach_mcast(l.qp, &LOOPBACK, 0) }, libc::EINVAL);
    assert_eq!(detach(aside), libc::EINVAL);
    assert_eq!(unsafe { qp::ibv_destroy_qp(other) }, libc::EBUSY);
    let ah = handle(&l, GROUP);
    let say = |wr_id| l.post_send(&mut datagram(&mut [l.sge(0, 5)], wr_id, ah, 0xff_ffff, QKEY));

    for (wr_id, qp) in [(1, l.qp), (2, other), (3, aside)] {
        post_recv(&l, qp, wr_id, HALF + 100 * wr_id as usize, 100);
    }
    assert_eq!(say(10), 0);
    let mut ids: Vec<_> = l.completions(3).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 10].map(|id| (id, IBV_WC_SUCCESS)));
    let grh = &l.memory[HALF + 100..HALF + 140];
    assert_eq!(grh[32..40], [127, 0, 0, 1, 239, 7, 7, 7]);
    assert_eq!(l.memory[HALF + 240..HALF + 245], *b"hello");
    silence(&l);

    assert_eq!((detach(l.qp), detach(l.qp)), (0, libc::EINVAL));
    post_recv(&l, l.qp, 4, HALF, 100);
    post_recv(&l, other, 5, HALF, 100);
    assert_eq!(say(11), 0);
    let mut ids: Vec<_> = l.completions(2).iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [5, 11]);
    assert_eq!(detach(other), 0);
    post_recv(&l, other, 6, HALF, 100);
    assert_eq!(say(12), 0);
    assert_eq!(l.completions(1)[0].wr_id, 12);
    silence(&l);
    destroy_ah(ah);
    assert_eq!(unsafe { (qp::ibv_destroy_qp(other), qp::ibv_destroy_qp(aside)) }, (0, 0));
    l.close();
}

#[test]
fn an_interface_local_group_is_heard_by_its_members_whatever_the_family_of_the_gid() {
    alone!();
    let ip = |words: &str| {
        let done = std::process::Command::new("ip").args(words.split(' ')).status();
        assert!(done.is_ok_and(|status| status.success()), "ip {words}");
    };
    ip("link add v0 type veth peer name v1");
    ip("addr add 10.9.0.1/24 dev v0");
    ip("addr add fd99::1/64 dev v0 nodad");
    ["v1", "v0"].iter().for_each(|end| ip(&format!("link set {end} up")));
    // The kernel takes note of the carrier a moment later, and drops what is sent before.
    let is_up = || {
        let shown = std::process::Command::new("ip").args(["-o", "link", "show", "v0"]).output();
        shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("state UP"))
    };
    let begin = Instant::now();
    while !is_up() {
        assert!(begin.elapsed().as_secs() < 5, "v0 does not come up");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut l = open_on(device_named(c"rxe_v0"), IBV_QPT_UD);
    let other = create(l.pd, l.cq, IBV_QPT_UD);
    [l.qp, other].into_iter().for_each(start);
    l.memory[..5].copy_from_slice(b"hello");
    // That of perftest.
    let group = ibv_gid { raw: [255, 1, 0, 0, 0, 2, 201, 133, 0, 0, 0, 0, 0, 0, 0, 0] };
    assert_eq!(unsafe { steering::ibv_attach_mcast(other, &group, 0) }, 0);
    let gid = |index| {
        let mut gid = ibv_gid { raw: [0; 16] };
        let none = unsafe { device::ibv_query_gid(l.context, 1, index, &raw mut gid) } != 0;
        if none { [0; 16] } else { unsafe { gid.raw } }
    };
    let index = |first: [u8; 2]| (1..9).find(|&i| gid(i)[..2] == first).expect("a GID");
    for (wr_id, sgid_index) in [(1, index([0, 0])), (2, index([0xfd, 0x99]))] {
        let mut to = address(group);
        to.grh.sgid_index = sgid_index as u8;
        let ah = unsafe { ah::ibv_create_ah(l.pd, &raw mut to) };
        assert!(!ah.is_null(), "GID {sgid_index}: errno {}", errno());
        post_recv(&l, other, wr_id, HALF, 100);
        assert_eq!(l.post_send(&mut datagram(&mut [l.sge(0, 5)], 8, ah, 0xff_ffff, QKEY)), 0);
        let mut ids: Vec<_> = l.completions(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [(wr_id, IBV_WC_SUCCESS), (8, IBV_WC_SUCCESS)]);
        let header = &l.memory[HALF..HALF + GRH];
        assert_eq!((header[0] >> 4, &header[24..40]), (6, &unsafe { group.raw }[..]));
        assert_eq!(l.memory[HALF + GRH..HALF + GRH + 5], *b"hello");
        destroy_ah(ah);
    }
    assert_eq!(unsafe { steering::ibv_detach_mcast(other, &group, 0) }, 0);
    assert_eq!(unsafe { qp::ibv_destroy_qp(other) }, 0);
    l.close();
}

#[test]
fn a_queue_pair_that_blocks_its_multicast_loopback_is_not_heard_on_its_own_host() {
    alone!();
    let l = open(IBV_QPT_UD);
    start(l.qp);
    let mut init: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (init.qp_type, init.send_cq, init.recv_cq, init.pd) = (IBV_QPT_UD, l.cq, l.cq, l.pd);
    (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_send_sge, init.cap.max_recv_sge) = (4, 4, 1, 1);
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    let make = |init: &mut ibv_qp_init_attr_ex| unsafe {
        let table: &verbs_context = &*l.context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast();
        table.create_qp_ex.expect("built")(l.context, init)
    };
    init.create_flags = IBV_QP_CREATE_SOURCE_QPN;
    assert_eq!((make(&mut init).is_null(), errno()), (true, libc::EOPNOTSUPP));
    init.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
    let quiet = make(&mut init);
    start(quiet);
    assert_eq!(unsafe { steering::ibv_attach_mcast(l.qp, &GROUP, 0) }, 0);
    post_recv(&l, l.qp, 1, HALF, 100);
    let ah = handle(&l, GROUP);
    let mut sge = [l.sge(0, 5)];
    let mut wr = datagram(&mut sge, 2, ah, 0xff_ffff, QKEY);
    let mut bad = null_mut();
    assert_eq!(unsafe { (*l.context).ops.post_send.expect("built")(quiet, &raw mut wr, &raw mut bad) }, 0);
    assert_eq!(l.completions(1)[0].wr_id, 2);
    silence(&l);
    assert_eq!(unsafe { steering::ibv_detach_mcast(l.qp, &GROUP, 0) }, 0);
    destroy_ah(ah);
    assert_eq!(unsafe { qp::ibv_destroy_qp(quiet) }, 0);
    l.close();
}

#[test]
fn an_unreliable_connection_sends_and_writes() {
    alone!();
    let mut l = open(IBV_QPT_UC);
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    assert_eq!(modify(l.qp, &mut a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_256;
    a.dest_qp_num = unsafe { (*l.qp).qp_num };
    (a.rq_psn, a.sq_psn) = (0x12_3456, 0x12_3456);
    a.ah_attr = address(LOOPBACK);
    let rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    assert_eq!(modify(l.qp, &mut a, rtr), 0);
    a.qp_state = IBV_QPS_RTS;
    assert_eq!(modify(l.qp, &mut a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT), libc::EINVAL);
    assert_eq!(modify(l.qp, &mut a, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    let text: Vec<u8> = (0..1000).map(|i| (i * 7 % 251) as u8).collect();
    l.memory[..1000].copy_from_slice(&text);
    assert_eq!((l.post_recv(1, 2000), l.post_recv(2, 0)), (0, 0));
    assert_eq!(l.post_send(&mut send(3, IBV_WR_SEND, &mut [l.sge(0, 1000)])), 0);
    let mut sge = [l.sge(0, 1000)];
    let mut write = send(4, IBV_WR_RDMA_WRITE_WITH_IMM, &mut sge);
    write.wr.rdma =
        ibv_send_wr_rdma { remote_addr: l.sge(HALF + 2000, 0).addr, rkey: unsafe { (*l.mr).rkey } };
    assert_eq!(l.post_send(&mut write), 0);
    let mut all = l.completions(4);
    all.sort_by_key(|wc| wc.wr_id);
    assert!(all.iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    assert_eq!((all[0].byte_len, all[1].opcode), (1000, IBV_WC_RECV_RDMA_WITH_IMM));
    assert_eq!((&l.memory[HALF..HALF + 1000], &l.memory[HALF + 2000..HALF + 3000]), (&text[..], &text[..]));
    write.opcode = IBV_WR_RDMA_READ;
    assert_eq!(l.post_send(&mut write), libc::EINVAL);
    l.close();
}
