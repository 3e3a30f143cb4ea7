//! rdma_set_option(3): lengths, ranges and times of the options, and what comes of them.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use capi::cma::connect;
use capi::verbs::qp;
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

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
