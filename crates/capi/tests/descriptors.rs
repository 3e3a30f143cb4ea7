//! A device that cannot be opened, as descriptors ran out: no event comes with an identifier that
//! has none, whose users would follow NULL.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

use capi::cma::{channel, connect, endpoint};
use rdma_core_abi::cma::*;

use cm::*;
use support::{errno, in_a_child};

/// Takes all descriptors that the process may have but so many.
fn leave(descriptors: usize) {
    let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let mut last = Vec::new();
    loop {
        match unsafe { libc::dup(2) } {
            -1 => break,
            fd => last.push(fd),
        }
    }
    assert_eq!(errno(), libc::EMFILE);
    last.iter().rev().take(descriptors).for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
}

/// A context takes two descriptors, and the port of an identifier one.
const ENOUGH: usize = 3;
/// Beside them names and the connection of the peer take some, before the request is taken or
/// after.
const PLENTY: usize = 16;

#[test]
fn an_address_of_a_device_that_cannot_be_opened_is_an_error_event_with_the_errno() {
    for left in 0..=ENOUGH {
        assert!(in_a_child(|| {
            let events = channel();
            // It opens the port on every device, and no device's context.
            let (_listening, _) = listener(events, RDMA_PS_TCP, 8);
            let made = id(events, RDMA_PS_TCP);
            leave(left);
            works(resolve(made, &loopback(1)));
            let seen = next(events);
            let has_device = unsafe { !(*made).verbs.is_null() && !(*made).pd.is_null() };
            let expected = match left {
                ENOUGH => (RDMA_CM_EVENT_ADDR_RESOLVED, 0, true),
                _ => (RDMA_CM_EVENT_ADDR_ERROR, -libc::EMFILE, false),
            };
            assert_eq!((seen.event, seen.status, has_device), expected, "{left} left");
        }));
    }
}

#[test]
fn an_endpoint_of_a_device_that_cannot_be_opened_is_not_made_and_errno_says_why() {
    for left in 0..=ENOUGH {
        assert!(in_a_child(|| {
            let (_listening, _) = listener(channel(), RDMA_PS_TCP, 8);
            let address = loopback(1);
            let mut wish: rdma_addrinfo = unsafe { std::mem::zeroed() };
            (wish.ai_port_space, wish.ai_qp_type) =
                (RDMA_PS_TCP as i32, rdma_core_abi::verbs::IBV_QPT_RC as i32);
            (wish.ai_dst_addr, wish.ai_dst_len) =
                ((&raw const address).cast_mut().cast(), size_of_val(&address) as u32);
            let mut made = null_mut();
            leave(left);
            fails(
                unsafe { endpoint::rdma_create_ep(&raw mut made, &raw mut wish, null_mut(), null_mut()) },
                libc::EMFILE,
            );
            assert!(made.is_null());
        }));
    }
}

/// Listens on all addresses, says the port, and takes the request that comes with so many
/// descriptors left.
fn serve(left: usize, says: &mut UnixStream) {
    let events = channel();
    let (_listening, port) = listener(events, RDMA_PS_TCP, 8);
    unsafe { libc::fcntl((*events).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    says.write_all(&port.to_ne_bytes()).expect("the parent reads");
    assert!(comes(events, 10_000), "no request");
    leave(left);
    let mut event = null_mut();
    let taken = unsafe { channel::rdma_get_cm_event(events, &raw mut event) };
    if left < ENOUGH {
        assert_eq!((taken, errno()), (-1, libc::EAGAIN), "the request is not told of");
        return;
    }
    works(taken);
    let (kind, new) = unsafe { ((*event).event, (*event).id) };
    assert_eq!(kind, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert!(unsafe { !(*new).verbs.is_null() });
    works(unsafe { connect::rdma_reject(new, null_mut(), 0) });
}

#[test]
fn a_request_for_a_device_that_cannot_be_opened_is_refused_and_not_told_of() {
    for left in [0, PLENTY] {
        let (mut here, mut there) = UnixStream::pair().expect("a pair");
        let server = unsafe { libc::fork() };
        assert!(server >= 0);
        if server == 0 {
            unsafe { libc::alarm(30) };
            drop(here);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(left, &mut there)));
            // The client has been refused.
            let _ = there.read(&mut [0]);
            unsafe { libc::_exit(i32::from(done.is_err())) };
        }
        drop(there);
        let mut port = [0; 2];
        here.read_exact(&mut port).expect("the server's port");
        assert!(in_a_child(|| {
            let events = channel();
            let active = routed(events, RDMA_PS_TCP, u16::from_ne_bytes(port));
            with_qp(active);
            let mut param = param();
            works(unsafe { connect::rdma_connect(active, &raw mut param) });
            expect(events, RDMA_CM_EVENT_REJECTED);
        }));
        drop(here);
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(server, &raw mut status, 0) }, server);
        assert_eq!(status, 0, "{left} left");
    }
}
