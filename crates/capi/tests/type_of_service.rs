//! What RDMA_OPTION_ID_TOS does to packets, as they are on the network.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::time::{Duration, Instant};

use capi::cma::connect;
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::errno;

/// Packets on the loopback interface from the IP header on.
struct Tap(i32);

impl Tap {
    /// `None` without CAP_NET_RAW.
    fn open() -> Option<Self> {
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
            Some(Self(fd))
        }
    }

    /// The type of service of the next RoCE packet of which `wanted` says so, by its bytes from the
    /// BTH on.
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
    // The only test of its process, and nothing runs yet that reads the environment.
    unsafe { std::env::set_var("VERBENA_SAME_HOST", "off") };
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
