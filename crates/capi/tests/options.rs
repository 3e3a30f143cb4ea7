//! rdma_set_option(3): lengths, ranges and times of the options, and what comes of them.
#![allow(clippy::undocumented_unsafe_blocks)] // all are calls by the contract of their man pages

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::time::{Duration, Instant};

use abi::cma::*;
use abi::verbs::*;
use capi::cma::connect;
use capi::verbs::qp;

use cm::*;
use support::errno;

fn new() -> *mut rdma_cm_id {
    id(channel(), RDMA_PS_TCP)
}

#[test]
fn options_have_lengths_ranges_and_times() {
    let one = new();
    let set = |name, value: &[u8]| {
        let mut value = value.to_vec();
        unsafe {
            capi::cma::option::rdma_set_option(
                one,
                RDMA_OPTION_ID,
                name,
                value.as_mut_ptr().cast(),
                value.len(),
            )
        }
    };
    for (name, len) in [
        (RDMA_OPTION_ID_TOS, 1),
        (RDMA_OPTION_ID_REUSEADDR, 4),
        (RDMA_OPTION_ID_AFONLY, 4),
        (RDMA_OPTION_ID_ACK_TIMEOUT, 1),
    ] {
        works(set(name, &vec![0; len]));
        fails(set(name, &vec![0; len + 1]), libc::EINVAL);
        fails(set(name, &[0; 2]), libc::EINVAL);
    }
    fails(set(RDMA_OPTION_ID_ACK_TIMEOUT, &[32]), libc::EINVAL);
    works(set(RDMA_OPTION_ID_ACK_TIMEOUT, &[31]));
    fails(set(99, &[0]), libc::ENOSYS);
    fails(option(one, RDMA_OPTION_IB, 99, 0u8), libc::ENOSYS);
    fails(option(one, 99, 0, 0u8), libc::ENOSYS);
    let datagrams = id(channel(), RDMA_PS_UDP);
    fails(option(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 14u8), libc::EINVAL);
    works(unsafe { connect::rdma_listen(one, 1) });
    fails(set(RDMA_OPTION_ID_AFONLY, &[1, 0, 0, 0]), libc::EINVAL);
    [one, datagrams].into_iter().for_each(destroy);
}

#[test]
fn the_ack_timeout_of_an_identifier_is_its_queue_pair_s() {
    let a = Asking::prepared(&param(), RDMA_PS_TCP, |id| {
        works(option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 21u8));
        with_qp(id);
    });
    works(option(a.passive, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 9u8));
    a.accept(&param());
    let timeout = |id: *mut rdma_cm_id| unsafe {
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = std::mem::zeroed();
        assert_eq!(qp::ibv_query_qp((*id).qp, &raw mut attr, 0, &raw mut init), 0);
        attr.timeout
    };
    assert_eq!((timeout(a.active), timeout(a.passive)), (21, 9));
    a.close();
}

/// Packets on the loopback interface from the IP header on.
struct Tap(i32);

impl Tap {
    /// `None` without CAP_NET_RAW.
    fn open() -> Option<Tap> {
        unsafe {
            let protocol = (libc::ETH_P_IP as u16).to_be();
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, protocol.into());
            if fd < 0 {
                assert_eq!(errno(), libc::EPERM);
                return None;
            }
            let mut a: libc::sockaddr_ll = std::mem::zeroed();
            (a.sll_family, a.sll_protocol, a.sll_ifindex) = (libc::AF_PACKET as u16, protocol, 1);
            assert_eq!(libc::bind(fd, (&raw const a).cast(), size_of_val(&a) as u32), 0);
            Some(Tap(fd))
        }
    }

    /// The type of service of the next RoCE packet of which `wanted` says so, by its bytes from the BTH on.
    fn find(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<u8> {
        let end = Instant::now() + Duration::from_secs(3);
        let mut bytes = [0; 4096];
        while Instant::now() < end {
            let n = unsafe { libc::recv(self.0, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            if n < 40 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let (ip, rest) = bytes[..n as usize].split_at(20);
            if ip[9] == 17 && rest[2..4] == 4791u16.to_be_bytes() && wanted(&rest[8..]) {
                return Some(ip[1]);
            }
        }
        None
    }
}

#[test]
fn the_type_of_service_stands_in_the_ip_header_of_messages_and_data_both_ways() {
    let Some(tap) = Tap::open() else { return eprintln!("skipped: needs CAP_NET_RAW") };
    let mark = b"the request of the type of service";
    let p = with_data(param(), mark);
    let a = Asking::prepared(&p, RDMA_PS_TCP, |id| {
        works(option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 0x68u8));
        with_qp(id);
    });
    let to_qp = |id: *mut rdma_cm_id| {
        let qpn = unsafe { (*(*id).qp).qp_num }.to_be_bytes();
        move |bth: &[u8]| bth[5..8] == qpn[1..]
    };
    assert_eq!(tap.find(|bth| bth.windows(mark.len()).any(|w| w == mark)), Some(0x68), "the request");
    a.accept(&param());
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
    let mut bad = std::ptr::null_mut();
    let post = unsafe { (*(*a.active).verbs).ops.post_send.expect("built") };
    assert_eq!(unsafe { post((*a.active).qp, &raw mut wr, &raw mut bad) }, 0);
    assert_eq!(tap.find(to_qp(a.passive)), Some(0x68), "data");
    assert_eq!(tap.find(to_qp(a.active)), Some(0x68), "the answer: nobody has posted a receive");
    works(unsafe { connect::rdma_disconnect(a.active) });
    a.close();
}
