//! A process that may have few descriptors: what is kept for peers that are gone is closed, and
//! gives way to what is needed.

use std::fs::File;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{BLOCK, LO, Recording, V4, alone, batch, counter, path, start};
use nic::{Link, Path};
use stack::Env;
use stack::env::{AckDelay, Datagram};
use wire::Qpn;

/// The process may open so many descriptors more, until this is dropped.
struct Few {
    before: libc::rlimit,
    _taken: Vec<File>,
}

impl Few {
    fn more(more: usize) -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: structures that live across the calls.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before), 0);
            let few = libc::rlimit { rlim_cur: 256, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few), 0);
        }
        // Which numbers are taken is not known: others may have left this process some.
        let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(taken.len() >= more);
        taken.truncate(taken.len() - more);
        Self { before, _taken: taken }
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        // SAFETY: a structure that lives across the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.before) };
    }
}

/// Sends a packet to each of so many processes: a socket each. How many could not leave.
fn send_to(host: &Recording, processes: u32) -> u64 {
    let before = counter(host, "packets_dropped_sending");
    for n in 0..processes {
        let dest = Ipv4Addr::new(127, 0, 2, 1).into();
        let peer = Path { dest, dest_qpn: Qpn::new((n + 2) << 12), ..path(V4) };
        host.env().send(&peer, &mut batch(n, &[64]));
    }
    counter(host, "packets_dropped_sending") - before
}

#[test]
fn where_no_descriptor_is_left_the_socket_used_longest_ago_gives_way() {
    let _alone = alone();
    let _listener = std::net::UdpSocket::bind("127.0.2.1:4791").unwrap();
    let host = start();
    let few = Few::more(20);
    assert_eq!(send_to(&host, 200), 0, "not sent");
    assert!(counter(&host, "sockets_given_up") >= 170, "{}", counter(&host, "sockets_given_up"));
    // Of those there are the latest ones.
    drop(few);
    let given_up = counter(&host, "sockets_given_up");
    assert_eq!((send_to(&host, 1), counter(&host, "sockets_given_up")), (0, given_up));
}

#[test]
fn a_socket_that_sends_nothing_for_seconds_is_closed_and_opened_when_it_is_wanted_again() {
    let _alone = alone();
    let _listener = std::net::UdpSocket::bind("127.0.2.1:4791").unwrap();
    let host = start();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    assert_eq!((send_to(&host, 12), descriptors()), (0, before + 12));
    let end = Instant::now() + Duration::from_secs(20);
    while counter(&host, "idle_sockets_closed") < 12 && Instant::now() < end {
        // One that sends stays.
        send_to(&host, 1);
        assert!(descriptors() > before);
        std::thread::sleep(Duration::from_millis(100));
        if counter(&host, "idle_sockets_closed") == 11 {
            break;
        }
    }
    assert_eq!((counter(&host, "idle_sockets_closed"), descriptors()), (11, before + 1));
    assert_eq!((send_to(&host, 12), descriptors()), (0, before + 12));
}

#[test]
fn processes_of_the_host_meet_though_descriptors_ran_out() {
    let _alone = alone();
    let _listener = std::net::UdpSocket::bind("127.0.2.1:4791").unwrap();
    let (owner, other) = (start(), start());
    let claim = owner.env().claim(BLOCK).unwrap();
    let _few = Few::more(24);
    // Each has sockets that can give way, and there is room for none.
    send_to(&owner, 12);
    send_to(&other, 12);
    let bytes = batch(7, &[64]).iter().next().map(<[u8]>::to_vec).unwrap();
    let address = (V4, 4791).into();
    let datagram = Datagram {
        source: address,
        dest: address,
        interface: LO,
        forwarded: false,
        ack_delay: AckDelay::No,
        bytes: &bytes,
    };
    assert!(other.env().forward(BLOCK, &datagram));
    assert_eq!(counter(&other, "forward_drops"), 0);
    assert_eq!(owner.handler().find(support::packet).map(|packet| packet.bytes), Some(bytes));
    drop(claim);
}
