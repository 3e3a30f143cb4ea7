//! Memory of a peer that never comes: it is watched by userfaultfd(2), and no thread brings it.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/alone.rs"]
mod alone;
#[path = "support/cm.rs"]
mod cm;
mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use capi::cma::{channel, connect};
use capi::verbs::memory;
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use alone::alone;
use cm::*;
use support::{errno, in_a_child};

const LEN: usize = 1 << 20;
/// Bytes of a request: copied by the initiator, or as pieces.
const REQUEST: usize = 64 << 10;

fn map() -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let at = unsafe { libc::mmap(null_mut(), LEN, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn register(id: *mut rdma_cm_id, at: *mut u8) -> *mut ibv_mr {
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    let mr = unsafe { memory::ibv_reg_mr((*id).pd, at.cast(), LEN, access as _) };
    assert!(!mr.is_null(), "errno {}", errno());
    mr
}

/// Has all of it watched; whether this process may.
fn watch(at: *mut u8) -> bool {
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFDIO_REGISTER: u64 = 0xc020_aa00;
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
        let mut api = [0xaa_u64, 0, 0];
        let mut range = [at as u64, LEN as u64, 1, 0];
        let call = |request: u64, argument: *mut u64| capi::ioctl::ioctl(fd, request, argument.cast());
        fd >= 0 && call(UFFDIO_API, api.as_mut_ptr()) == 0 && call(UFFDIO_REGISTER, range.as_mut_ptr()) == 0
    }
}

fn may_watch() -> bool {
    in_a_child(|| assert!(watch(map()), "refused"))
}

/// Accepts one connection, has the memory watched that its peer writes to, takes it away meanwhile,
/// and disconnects.
fn target(port: &mut UnixStream) {
    let ours = channel();
    let (listener, number) = listener(ours, RDMA_PS_TCP, 4);
    port.write_all(&number.to_ne_bytes()).unwrap();
    let passive = expect(ours, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    with_qp(passive);
    let at = map();
    unsafe { at.write_bytes(7, LEN) };
    let mr = register(passive, at);
    let told: [u8; 16] = unsafe { std::mem::transmute([at as u64, u64::from((*mr).rkey)]) };
    let mut param: rdma_conn_param = unsafe { std::mem::zeroed() };
    (param.private_data, param.private_data_len) = (told.as_ptr().cast(), 16);
    (param.responder_resources, param.initiator_depth) = (8, 8);
    works(unsafe { connect::rdma_accept(passive, &raw mut param) });
    expect(ours, RDMA_CM_EVENT_ESTABLISHED);
    std::thread::sleep(Duration::from_millis(100));
    assert!(watch(at));
    unsafe { libc::madvise(at.cast(), LEN, libc::MADV_DONTNEED) };
    std::thread::sleep(Duration::from_millis(300));
    works(unsafe { connect::rdma_disconnect(passive) });
    // It is there until its peer has seen the end.
    let _ = port.read(&mut [0]);
    let _ = listener;
}

/// Keeps requests under way until the peer disconnects; how many completed before one failed.
fn initiator(port: u16, opcode: u32) {
    let ours = channel();
    let active = routed(ours, RDMA_PS_TCP, port);
    with_qp(active);
    let at = map();
    let mr = register(active, at);
    let mut param: rdma_conn_param = unsafe { std::mem::zeroed() };
    (param.responder_resources, param.initiator_depth) = (8, 8);
    (param.retry_count, param.rnr_retry_count) = (7, 7);
    works(unsafe { connect::rdma_connect(active, &raw mut param) });
    let data = expect(ours, RDMA_CM_EVENT_ESTABLISHED).data;
    let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
    let (began, mut under_way, mut done) = (Instant::now(), 0, 0);
    loop {
        assert!(began.elapsed() < Duration::from_secs(10), "not told of the end, {done} done");
        if under_way == 0 {
            let mut sge = ibv_sge { addr: at as u64, length: REQUEST as u32, lkey: unsafe { (*mr).lkey } };
            let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
            (wr.opcode, wr.send_flags) = (opcode, IBV_SEND_SIGNALED);
            (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
            wr.wr.rdma.remote_addr = word(0);
            wr.wr.rdma.rkey = word(8) as u32;
            let mut bad = null_mut();
            let before = Instant::now();
            let post = unsafe { (*(*active).verbs).ops.post_send.expect("built") };
            works(unsafe { post((*active).qp, &raw mut wr, &raw mut bad) });
            assert!(before.elapsed() < Duration::from_secs(2), "the post took {:?}", before.elapsed());
            under_way = 1;
        }
        let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
        let poll = unsafe { (*(*active).verbs).ops.poll_cq.expect("built") };
        if unsafe { poll((*active).send_cq, 1, &raw mut wc) } == 1 {
            if wc.status != IBV_WC_SUCCESS {
                break;
            }
            (under_way, done) = (0, done + 1);
        }
        if comes(ours, 0) {
            assert_eq!(next(ours).event, RDMA_CM_EVENT_DISCONNECTED);
            break;
        }
    }
    assert!(done > 0, "none before it was watched");
    destroy(active);
    unsafe { channel::rdma_destroy_event_channel(ours) };
}

#[test]
fn memory_of_a_peer_that_never_comes_holds_no_other_process_up() {
    alone!();
    if !may_watch() {
        println!("left out: userfaultfd(2) is refused");
        return;
    }
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let ended = std::thread::spawn(move || in_a_child(|| target(&mut there)));
        let mut port = [0; 2];
        here.read_exact(&mut port).unwrap();
        assert!(in_a_child(|| initiator(u16::from_ne_bytes(port), opcode)), "opcode {opcode}");
        here.write_all(&[0]).unwrap();
        assert!(ended.join().unwrap(), "opcode {opcode}");
    }
}
