//! What is sent arrives: intact, in order, with a valid ICRC.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{LO, TIMEOUT, V4, V6, alone, batch, counter, path, start, start_with};
use linux::Config;
use nic::Link;
use socket2::SockRef;
use stack::Env;
use transport::TxBatch;
use wire::bth::{Bth, Feth, Reth};
use wire::icrc::{self, Flow};
use wire::roce::{Header, Op, Service};
use wire::{Psn, Qpn, Rkey};

/// Sends the packets to ourselves and checks each.
fn arrives(address: IpAddr, config: Config, payloads: &[usize]) -> (u64, u64) {
    let _alone = alone();
    let host = start_with(config);
    host.env().attach(LO).unwrap();
    host.env().send(&path(address), &mut batch(7, payloads));
    for (psn, &len) in (7..).zip(payloads) {
        let packet = host.handler().packet().expect("every packet");
        assert_eq!((packet.psn(), packet.bytes.len()), (psn, 12 + len + 4));
        assert!(packet.bytes[12..12 + len].iter().all(|&byte| byte == psn as u8));
        assert_eq!((packet.source.ip(), packet.dest.ip(), packet.dest.port()), (address, address, 4791));
        assert_eq!((packet.interface, packet.forwarded), (LO, false));
    }
    (counter(&host, "sends"), counter(&host, "receives"))
}

#[test]
fn twenty_equal_packets_leave_in_one_send_and_arrive_intact_over_ipv4() {
    assert_eq!(arrives(V4, Config::default(), &[1072; 20]), (1, 1));
}

#[test]
fn twenty_equal_packets_leave_in_one_send_and_arrive_intact_over_ipv6() {
    assert_eq!(arrives(V6, Config::default(), &[1072; 20]), (1, 1));
}

#[test]
fn a_full_batch_of_the_longest_packets_arrives() {
    arrives(V4, Config::default(), &[4096; 15]);
    arrives(V6, Config::default(), &[4096; 15]);
}

#[test]
fn sixty_four_short_packets_arrive() {
    arrives(V4, Config::default(), &[4; 64]);
}

#[test]
fn packets_of_many_sizes_leave_in_runs() {
    // Runs: 1088 1024, 1024 1024 100, 0, 8 8 8: a shorter packet ends a run, a longer one begins
    // the next.
    let (sends, _) = arrives(V4, Config::default(), &[1088, 1024, 1024, 1024, 100, 0, 8, 8, 8]);
    assert_eq!(sends, 4);
}

#[test]
fn packets_arrive_one_by_one_where_segmentation_is_off() {
    let config = Config { segmentation: false, ..Config::default() };
    assert_eq!(arrives(V4, config, &[1072; 20]).0, 20);
}

/// The socket of this process that sends from a port.
fn socket_at(port: u16) -> BorrowedFd<'static> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // SAFETY: what is closed meanwhile has no name; the one that is found stays open for as long as
    // its host.
    let sockets = fds.map(|fd: i32| unsafe { BorrowedFd::borrow_raw(fd) });
    let is_it = |fd: &BorrowedFd<'_>| {
        let name = SockRef::from(fd).local_addr();
        name.is_ok_and(|name| name.as_socket().is_some_and(|name| name.port() == port))
    };
    sockets.into_iter().find(is_it).expect("the socket")
}

#[test]
fn where_the_system_refuses_segments_packets_leave_one_by_one_from_then_on() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    host.env().send(&path(V4), &mut batch(0, &[64]));
    let source = host.handler().packet().unwrap().source;
    let on = 1;
    // SAFETY: the kernel reads one int. It makes no segments where it makes no checksums
    // (net/ipv4/udp.c, udp_send_skb).
    let set = unsafe {
        let fd = socket_at(source.port()).as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const on).cast(), 4)
    };
    assert_eq!(set, 0);
    let mut sends = Vec::new();
    for first in [1, 21] {
        let before = counter(&host, "sends");
        host.env().send(&path(V4), &mut batch(first, &[1072; 20]));
        for psn in first..first + 20 {
            assert_eq!(host.handler().packet().unwrap().psn(), psn);
        }
        sends.push(counter(&host, "sends") - before);
    }
    assert!(sends[0] > 20, "some were refused: {sends:?}");
    assert_eq!(sends[1], 20);
    assert_eq!(counter(&host, "segmentation_given_up"), 1);
    assert_eq!(counter(&host, "packets_dropped_sending"), 0);
}

#[test]
fn traffic_class_and_hop_limit_change_nothing_for_the_icrc() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    for address in [V4, V6] {
        let path = nic::Path { traffic_class: 0x28, hop_limit: 3, ..path(address) };
        host.env().send(&path, &mut batch(1, &[64, 64]));
        assert_eq!([1, 2].map(|_| host.handler().packet().unwrap().psn()), [1, 2]);
    }
}

#[test]
fn each_pair_of_processes_and_each_detour_has_its_own_source_port() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let port = |dest_qpn, source_port_epoch| {
        let path = nic::Path { dest_qpn: Qpn::new(dest_qpn), source_port_epoch, ..path(V4) };
        host.env().send(&path, &mut batch(1, &[64]));
        host.handler().packet().unwrap().source.port()
    };
    let first = port(0x123_000, 0);
    assert_eq!(first, port(0x123_fff, 0));
    assert_ne!(first, port(0x124_000, 0));
    assert_ne!(first, port(0x123_000, 1));
}

#[test]
fn a_flush_is_sealed_as_rdma_rxe_does_it_and_by_every_second_source_port_as_the_standard_says() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let seals: [fn(&Flow, u16, &mut [u8]); 2] = [icrc::seal_rxe_flush, icrc::seal];
    for source_port_epoch in 0..4 {
        let bth = Bth { dest_qp: Qpn::new(0x123_456), psn: Psn::new(source_port_epoch), ..Bth::default() };
        let (feth, reth) =
            (Feth { placement: 2, selectivity: 0 }, Reth { addr: 8, rkey: Rkey(9), length: 10 });
        let header = Header { bth, service: Service::Rc, op: Op::Flush(feth, reth) };
        let mut batch = TxBatch::new();
        batch.push(&header, 0, |_| Ok(())).unwrap();
        // IPv6 has no identification: the ICRC is the one that was computed here or another.
        host.env().send(&nic::Path { source_port_epoch, ..path(V6) }, &mut batch);
        let packet = host.handler().packet().unwrap();
        assert_eq!(packet.psn(), source_port_epoch, "a Verbena takes both");
        let mut sealed = packet.bytes.clone();
        seals[source_port_epoch as usize % 2](
            &Flow { source: packet.source, dest: packet.dest },
            0,
            &mut sealed,
        );
        assert_eq!(packet.bytes, sealed, "detour {source_port_epoch}");
    }
}

#[test]
fn a_lid_is_unreachable_over_udp_and_packets_to_it_are_dropped_and_counted() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let lid = wire::Address::from(wire::LidAddress::new(5, 0, 0).unwrap());
    let (link, ours) = (host.env(), wire::Address::from(V4));
    assert_eq!((link.can_reach(lid), link.can_reach(ours)), (Err(nic::Errno::ENETUNREACH), Ok(())));
    let ends = [(lid, lid), (lid, ours), (ours, lid)];
    for (n, (source, dest)) in ends.into_iter().enumerate() {
        for dest_qpn in [path(V4).dest_qpn, Qpn::GSI] {
            let path = nic::Path { source, dest, dest_qpn, ..path(V4) };
            link.send(&path, &mut batch(1, &[64, 64]));
            assert!(!link.local().is_some_and(|local| dest == lid && local.is_local(&path)));
        }
        assert_eq!(counter(&host, "packets_dropped_sending"), 4 * (n as u64 + 1));
    }
    link.send(&path(V4), &mut batch(9, &[64]));
    assert_eq!(host.handler().packet().unwrap().psn(), 9);
}

#[test]
fn a_packet_too_long_for_the_path_is_dropped_and_counted_and_the_next_goes_through() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    support::ip("link set lo mtu 1500");
    let host = start();
    host.env().attach(LO).unwrap();
    host.env().send(&path(V4), &mut batch(1, &[4096, 4096, 4096]));
    assert_eq!(counter(&host, "packets_dropped_sending"), 3);
    host.env().send(&path(V4), &mut batch(9, &[1024, 1024]));
    assert_eq!(host.handler().packet().unwrap().psn(), 9);
    assert_eq!(counter(&host, "segmentation_given_up"), 0);
}

#[test]
fn a_polling_thread_gets_packets_in_its_own_thread_and_the_engine_takes_over_when_it_stops() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let me = std::thread::current().name().unwrap_or("").to_owned();
    let end = Instant::now() + TIMEOUT;
    let (mut mine, mut psn) = (0, 0);
    while mine < 100 {
        assert!(Instant::now() < end, "only {mine} of {psn} packets came to the polling thread");
        psn += 1;
        host.env().send(&path(V4), &mut batch(psn, &[64]));
        let packet = loop {
            host.poll();
            let found = host.handler().find_within(Duration::ZERO, support::packet);
            if let Some(packet) = found {
                break packet;
            }
        };
        assert_eq!(packet.psn(), psn & 0xff_ffff);
        mine += u32::from(packet.thread == me);
    }
    // No thread polls now.
    host.env().send(&path(V4), &mut batch(0, &[64]));
    assert_eq!(host.handler().packet().unwrap().thread, "verbena");
    // Nor after saying so.
    host.poll();
    host.end_polling();
    host.env().send(&path(V4), &mut batch(1, &[64]));
    assert_eq!(host.handler().packet().unwrap().thread, "verbena");
}

#[test]
fn a_poll_that_brings_nothing_for_the_program_looks_again() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let me = std::thread::current().name().unwrap_or("").to_owned();
    let end = Instant::now() + TIMEOUT;
    let mut psn = 0;
    loop {
        assert!(Instant::now() < end, "no poll took three packets");
        // The socket is this thread's by now, unless the engine was faster.
        host.poll();
        (0..3).for_each(|n| host.env().send(&path(V4), &mut batch(psn + n, &[64])));
        psn += 3;
        host.poll_until(|| false);
        let taken = || host.handler().find_within(Duration::ZERO, support::packet);
        let mine = std::iter::from_fn(taken).filter(|packet| packet.thread == me).count();
        if mine == 3 {
            break;
        }
        while host.handler().find_within(Duration::from_millis(5), support::packet).is_some() {}
    }
    // What says something ends it: the others wait for the next poll, or for the engine.
    (0..3).for_each(|n| host.env().send(&path(V4), &mut batch(psn + n, &[64])));
    let asked = std::cell::Cell::new(0);
    host.poll_until(|| asked.replace(asked.get() + 1) == 0);
    assert!(asked.get() <= 1);
}

#[test]
fn a_poll_goes_on_behind_a_run_of_packets_and_not_behind_a_few() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let me = std::thread::current().name().unwrap_or("").to_owned();
    // What one poll takes of three sends of so many packets each.
    let polled = |packets: usize| {
        // The socket is this thread's by now, unless the engine was faster.
        host.poll();
        (0..3).for_each(|_| host.env().send(&path(V4), &mut batch(1, &vec![64; packets])));
        host.poll();
        let taken = || host.handler().find_within(Duration::ZERO, support::packet);
        let found: Vec<_> = std::iter::from_fn(taken).collect();
        // The engine brings the others, on a busy machine late: the next poll is not to find them.
        (found.len()..3 * packets).for_each(|_| drop(host.handler().packet().unwrap()));
        found.iter().filter(|packet| packet.thread == me).count()
    };
    let end = Instant::now() + TIMEOUT;
    while polled(20) != 60 {
        assert!(Instant::now() < end, "no poll took three runs");
    }
    for _ in 0..20 {
        assert!(polled(3) <= 3);
    }
}

#[test]
fn order_survives_a_polling_thread_and_the_engine_on_one_socket() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    for round in 0..200 {
        host.env().send(&path(V4), &mut batch(round * 8, &[256; 8]));
        if round % 3 != 0 {
            host.poll();
        }
        if round % 16 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    let psns: Vec<u32> =
        (0..1600).map_while(|_| host.handler().packet()).map(|packet| packet.psn()).collect();
    assert!(psns.iter().copied().eq(0..1600), "{psns:?}");
}
