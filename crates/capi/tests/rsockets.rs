//! rsockets in one process: calls, descriptors, errors.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::thread;

use capi::rsocket::{
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, riomap, riounmap,
    riowrite, rlisten, rrecv, rselect, rsetsockopt, rshutdown, rwritev,
};
use libc::{MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, POLLHUP, POLLIN, POLLOUT, SOL_SOCKET};

#[path = "support/streams.rs"]
mod streams;

use streams::{LEN, address, close, errno, events, listener, pair, receive, send, socket};

#[test]
fn bytes_go_both_ways_and_each_half_ends_alone() {
    let (client, server) = pair();
    let (mut name, mut peer, mut len) = (address(0), address(0), LEN);
    // SAFETY: addresses that live across the calls, and two pieces.
    unsafe {
        assert_eq!(rgetsockname(client, (&raw mut name).cast(), &raw mut len), 0);
        assert_eq!(rgetpeername(server, (&raw mut peer).cast(), &raw mut len), 0);
        let piece = |text: &'static [u8]| libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: text.len(),
        };
        assert_eq!(rwritev(client, [piece(b"by "), piece(b"pieces")].as_ptr(), 2), 9);
    }
    assert_eq!((name.sin_port, name.sin_addr.s_addr), (peer.sin_port, peer.sin_addr.s_addr));
    assert_eq!(receive(server, 4, MSG_PEEK).unwrap(), b"by p");
    // SAFETY: bytes are counted, and none is written.
    assert_eq!(unsafe { rrecv(server, std::ptr::null_mut(), 1 << 20, MSG_PEEK | MSG_TRUNC) }, 9);
    assert_eq!(receive(server, 100, 0).unwrap(), b"by pieces");
    assert_eq!(receive(server, 1, MSG_DONTWAIT), Err(libc::EAGAIN));
    // SAFETY: no pointers.
    assert_eq!(unsafe { rshutdown(client, libc::SHUT_WR) }, 0);
    assert_eq!(receive(server, 1, 0).unwrap(), b"");
    assert_eq!((send(client, b"x", 0), errno()), (-1, libc::EPIPE));
    assert_eq!(send(server, b"still", 0), 5);
    assert_eq!(receive(client, 100, 0).unwrap(), b"still");
    // SAFETY: no pointers.
    unsafe {
        assert_eq!((rclose(server), rclose(client)), (0, 0));
        assert_eq!((rclose(client), errno()), (-1, libc::EBADF));
    }
}

#[test]
fn small_writes_that_were_gathered_arrive_without_another_call_of_their_writer() {
    let (client, server) = pair();
    let all: Vec<u8> = (0..1000_u32 * 64).map(|at| (at / 64 + at) as u8).collect();
    for bytes in all.chunks(64) {
        assert_eq!(send(client, bytes, MSG_DONTWAIT), 64);
    }
    let mut came = Vec::new();
    while came.len() < all.len() {
        came.extend(receive(server, all.len(), 0).unwrap());
    }
    assert_eq!(came, all);
    close([client, server]);
}

#[test]
fn ten_megabytes_both_ways_at_once_arrive_whole_through_full_windows() {
    let (client, server) = pair();
    const BYTES: usize = 10 << 20;
    let byte = |at: usize, end: c_int| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ end as u8;
    thread::scope(|scope| {
        for (fd, other) in [(client, server), (server, client)] {
            scope.spawn(move || {
                let all: Vec<u8> = (0..BYTES).map(|at| byte(at, fd)).collect();
                assert_eq!(send(fd, &all, 0), BYTES as isize);
            });
            scope.spawn(move || {
                let mut at = 0;
                while at < BYTES {
                    let came = receive(fd, 100_000, 0).unwrap();
                    assert!(!came.is_empty());
                    let wrong = came.iter().enumerate().find(|(n, found)| **found != byte(at + n, other));
                    assert_eq!(wrong, None, "behind {at}");
                    at += came.len();
                }
            });
        }
    });
    close([client, server]);
}

#[test]
fn a_port_without_a_listener_refuses_and_a_call_that_may_not_wait_says_so() {
    let (listening, port) = listener();
    // SAFETY: no pointers.
    unsafe { rclose(listening) };
    let (client, addr) = (socket(0), address(port));
    // SAFETY: an address that lives across the call.
    let refused = unsafe { rconnect(client, (&raw const addr).cast(), LEN) };
    assert_eq!((refused, errno()), (-1, libc::ECONNREFUSED));
    assert_eq!((send(client, b"x", 0), errno()), (-1, libc::ENOTCONN));

    let (listening, port) = listener();
    let (client, addr) = (socket(libc::SOCK_NONBLOCK), address(port));
    // SAFETY: an address that lives across the call; no pointers.
    unsafe {
        assert!(rfcntl(client, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0);
        let begun = rconnect(client, (&raw const addr).cast(), LEN);
        assert!(begun == 0 || errno() == libc::EINPROGRESS);
        assert_eq!(events(client, POLLOUT, 2000), POLLOUT);
        let (mut error, mut len) = (7, 4_u32);
        let at: *mut c_void = (&raw mut error).cast();
        assert_eq!((rgetsockopt(client, SOL_SOCKET, libc::SO_ERROR, at, &raw mut len), error), (0, 0));
        assert_eq!(events(listening, POLLIN, 2000), POLLIN);
        let server = raccept(listening, std::ptr::null_mut(), std::ptr::null_mut());
        let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let at: *const c_void = (&raw const time).cast();
        assert_eq!(rsetsockopt(server, SOL_SOCKET, libc::SO_RCVTIMEO, at, 16), 0);
        assert_eq!(receive(server, 1, 0), Err(libc::EAGAIN));
        rclose(server);
    }
    assert_eq!(events(client, POLLIN, 2000) & POLLIN, POLLIN);
    assert_eq!(receive(client, 1, 0).unwrap(), b"");
    close([client, listening]);
}

#[test]
fn a_listener_that_is_shut_down_frees_its_port_and_resets_connections_that_wait() {
    let (listening, port) = listener();
    let (waits, addr) = (socket(0), address(port));
    // SAFETY: an address that lives across the calls; no pointers.
    unsafe {
        assert_eq!(rconnect(waits, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        assert_eq!(rshutdown(listening, libc::SHUT_WR), 0);
        assert_eq!(events(listening, POLLIN, 2000), POLLIN, "the reading half goes on");
        assert_eq!(rshutdown(listening, libc::SHUT_RDWR), 0);
        let accepted = raccept(listening, std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!((accepted, errno()), (-1, libc::EINVAL));
        assert_eq!(receive(waits, 1, 0), Err(libc::ECONNRESET));
        let late = socket(0);
        let refused = rconnect(late, (&raw const addr).cast(), LEN);
        assert_eq!((refused, errno()), (-1, libc::ECONNREFUSED));
        let other = socket(0);
        assert_eq!(rbind(other, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        assert_eq!(rlisten(other, 8), 0, "errno {}", errno());
        assert_eq!(rconnect(late, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        close([listening, waits, late, other]);
    }
}

#[test]
fn select_finds_the_rsocket_that_is_ready_and_poll_tells_of_the_end_of_both_halves() {
    let (client, server) = pair();
    send(client, b"x", 0);
    assert_eq!(events(server, POLLIN, 2000), POLLIN);
    // SAFETY: sets that live across the call; no pointers.
    unsafe {
        let mut reads: libc::fd_set = zeroed();
        libc::FD_SET(server, &raw mut reads);
        libc::FD_SET(client, &raw mut reads);
        let (none, highest) = (std::ptr::null_mut(), server.max(client) + 1);
        assert_eq!(rselect(highest, &raw mut reads, none, none, std::ptr::null_mut()), 1);
        assert!(libc::FD_ISSET(server, &raw const reads) && !libc::FD_ISSET(client, &raw const reads));
        receive(server, 1, 0).unwrap();
        rshutdown(client, libc::SHUT_RDWR);
        rshutdown(server, libc::SHUT_RDWR);
        assert_eq!(events(server, 0, 2000), POLLHUP);
        close([client, server]);
    }
}

#[test]
fn a_peer_writes_to_memory_that_is_mapped_for_it_and_nowhere_else() {
    let (listening, port) = listener();
    let (client, addr, mappings) = (socket(0), address(port), 1_i32);
    let mut memory = vec![0_u8; 4096];
    // SAFETY: memory that lives until it is unmapped, an address and an int.
    unsafe {
        // RDMA_IOMAPSIZE of SOL_RDMA: what the peer may map for this end.
        assert_eq!(rsetsockopt(client, 0x1_0000, 3, (&raw const mappings).cast(), 4), 0);
        assert_eq!(rconnect(client, (&raw const addr).cast(), LEN), 0);
        let server = raccept(listening, std::ptr::null_mut(), std::ptr::null_mut());
        let at: *mut c_void = memory.as_mut_ptr().cast();
        assert_eq!(riomap(server, at, 4096, libc::PROT_WRITE, 0, 100), 100);
        assert_eq!((riomap(server, at, 4096, libc::PROT_WRITE, 0, 0), errno()), (-1, libc::ENOMEM));
        send(server, b"mapped", 0);
        assert_eq!(receive(client, 6, 0).unwrap(), b"mapped");
        assert_eq!(riowrite(client, b"there".as_ptr().cast(), 5, 110, 0), 5);
        assert_eq!(riowrite(client, b"nowhere".as_ptr().cast(), 7, 5000, 0), 0);
        send(client, b"written", 0);
        assert_eq!(receive(server, 7, 0).unwrap(), b"written");
        assert_eq!(riounmap(server, at, 4096), 0);
        assert_eq!((riounmap(server, at, 4096), errno()), (-1, libc::EINVAL));
        close([client, server, listening]);
    }
    assert_eq!(memory[10..15], *b"there");
}
