//! close(2) of an rsocket whose peer does not read.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use capi::rsocket::{rclose, rfcntl, rsetsockopt};
use libc::{MSG_DONTWAIT, POLLOUT, SOL_SOCKET, linger};

#[path = "support/streams.rs"]
mod streams;

use streams::{close, errno, events, pair, receive, send};

fn set_linger(fd: c_int, l_linger: c_int) {
    let value = linger { l_onoff: 1, l_linger };
    let (at, len): (*const c_void, _) = ((&raw const value).cast(), size_of_val(&value) as u32);
    // SAFETY: a value that lives across the call.
    assert_eq!(unsafe { rsetsockopt(fd, SOL_SOCKET, libc::SO_LINGER, at, len) }, 0, "errno {}", errno());
}

/// The byte at a place of the stream.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ at >> 8) as u8
}

/// Bytes of a ring, where the program has not set another size.
const RING: usize = 1 << 17;

/// Writes until the peer's ring is full, and as many bytes wait here as may; how many bytes.
fn fill(fd: c_int) -> usize {
    let mut written = 0;
    loop {
        let bytes: Vec<u8> = (0..1000).map(|at| byte(written + at)).collect();
        match send(fd, &bytes, MSG_DONTWAIT) {
            ..0 => {
                assert_eq!(errno(), libc::EAGAIN);
                if written > RING && events(fd, POLLOUT, 100) == 0 {
                    return written;
                }
            }
            n => written += n.cast_unsigned(),
        }
    }
}

#[test]
fn close_waits_for_a_peer_only_where_so_linger_says_so_and_all_arrives_afterwards() {
    let second = Duration::from_secs(1);
    // Whether the descriptor may wait, SO_LINGER, and whether close takes a second.
    let cases = [(true, None, false), (false, None, false), (false, Some(60), false), (true, Some(1), true)];
    for (may_wait, seconds, waits) in cases {
        let (client, server) = pair();
        if !may_wait {
            // SAFETY: no pointers.
            assert_eq!(unsafe { rfcntl(client, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) }, 0);
        }
        if let Some(seconds) = seconds {
            set_linger(client, seconds);
        }
        let written = fill(client);
        let began = Instant::now();
        close([client]);
        let took = began.elapsed();
        assert_eq!(took >= second, waits, "{took:?} with SO_LINGER {seconds:?}, may wait: {may_wait}");
        // SAFETY: no pointers.
        assert_eq!((unsafe { rclose(client) }, errno()), (-1, libc::EBADF));
        let mut came = Vec::new();
        loop {
            match receive(server, 100_000, 0).expect("all comes before the end") {
                bytes if bytes.is_empty() => break,
                bytes => came.extend(bytes),
            }
        }
        assert_eq!(came.len(), written);
        assert_eq!(came.iter().enumerate().find(|(at, found)| **found != byte(*at)), None);
        close([server]);
    }
}
