//! Several processes on one address: names, packets handed over, flows with a socket of their own.

use std::net::{IpAddr, UdpSocket};

use crate::support;
use crate::support::{LO, Told, V4, V6, alone, batch, counter, path, settled, start};
use nic::{Errno, Link};
use stack::env::{AckDelay, ClaimError, Datagram};
use stack::{Env, Name};
use wire::mad::PortSpace;

/// Hands packets of one flow to the owner as if they had landed on `wrong`, until the owner gives
/// the flow a socket.
fn forward_until_promoted(
    wrong: &support::Recording,
    owner: &support::Recording,
    flow: &support::Packet,
    name: Name,
) {
    let support::Packet { source, dest, bytes, .. } = flow;
    for _ in 0..4 {
        let datagram = Datagram {
            source: (*source).into(),
            dest: (*dest).into(),
            interface: LO,
            forwarded: false,
            ack_delay: AckDelay::No,
            bytes,
        };
        assert!(wrong.env().forward(name, &datagram));
        let packet = owner.handler().packet().unwrap();
        assert_eq!((packet.source, packet.dest, packet.interface), (*source, *dest, LO));
        assert!(packet.forwarded);
        assert_eq!(&packet.bytes, bytes);
    }
}

#[test]
fn a_packet_that_lands_on_the_wrong_process_reaches_its_owner_by_name() {
    for address in [V4, V6] {
        let _alone = alone();
        let (wrong, owner) = (start(), start());
        let block = Name::Block(0x123);
        let _claim = owner.env().claim(block).unwrap();
        *wrong.handler().forward_to.lock().unwrap() = Some(block);
        wrong.env().attach(LO).unwrap();
        wrong.env().send(&path(address), &mut batch(0, &[512; 20]));
        for psn in 0..20 {
            let packet = owner.handler().packet().unwrap();
            assert_eq!((packet.psn(), packet.forwarded, packet.interface), (psn, true, LO));
        }
        assert_eq!(settled(&wrong, "forwarded_out", 20), 20);
        assert_eq!(counter(&owner, "forwarded_in"), 20);
    }
}

#[test]
fn a_flow_that_was_forwarded_again_and_again_comes_directly() {
    for address in [V4, V6] {
        let _alone = alone();
        let (wrong, owner) = (start(), start());
        let block = Name::Block(0x123);
        let _claim = owner.env().claim(block).unwrap();
        owner.env().attach(LO).unwrap();
        wrong.env().attach(LO).unwrap();
        // A source port whose hash leads to the wrong process.
        let (source_port_epoch, flow) = (0..64)
            .find_map(|source_port_epoch| {
                wrong.env().send(
                    &nic::Path { source_port_epoch, ..path(address) },
                    &mut batch(source_port_epoch, &[512]),
                );
                wrong
                    .handler()
                    .find_within(std::time::Duration::from_millis(50), support::packet)
                    .map(|flow| (source_port_epoch, flow))
            })
            .expect("one flow in two leads to each");
        while owner.handler().find_within(std::time::Duration::ZERO, support::packet).is_some() {}
        forward_until_promoted(&wrong, &owner, &flow, block);
        assert_eq!(counter(&owner, "promotions"), 1);
        for psn in 100..120 {
            wrong.env().send(&nic::Path { source_port_epoch, ..path(address) }, &mut batch(psn, &[512]));
            let packet = owner.handler().packet().unwrap();
            assert_eq!((packet.psn(), packet.forwarded), (psn, false));
        }
        // Once is enough.
        forward_until_promoted(&wrong, &owner, &flow, block);
        assert_eq!(counter(&owner, "promotions"), 1);
    }
}

#[test]
fn a_flow_is_known_once_packets_took_it_unless_memory_of_this_host_is_another_way() {
    let _alone = alone();
    for same_host in [false, true] {
        let host = support::start_with(linux::Config { same_host, ..linux::Config::default() });
        let (path, env) = (path(V4), host.env());
        assert!(!env.has_flow(&path));
        env.send(&path, &mut batch(1, &[64]));
        assert_eq!(env.has_flow(&path), !same_host);
        // To another process, and from another port.
        assert!(!env.has_flow(&nic::Path { dest_qpn: wire::Qpn::new(0x124_456), ..path }));
        assert!(!env.has_flow(&nic::Path { source_port_epoch: 1, ..path }));
    }
}

#[test]
fn a_process_that_leaves_the_port_gets_no_more_and_hands_on_what_it_has() {
    for address in [V4, V6] {
        let _alone = alone();
        let (leaving, stays) = (start(), start());
        let block = Name::Block(0x123);
        let _claim = stays.env().claim(block).unwrap();
        *leaving.handler().forward_to.lock().unwrap() = Some(block);
        stays.env().attach(LO).unwrap();
        leaving.env().attach(LO).unwrap();
        let send = |epoch| {
            let path = nic::Path { source_port_epoch: epoch, ..path(address) };
            stays.env().send(&path, &mut batch(epoch, &[512]));
        };
        let psns = |from: u32| {
            let mut packets: Vec<_> = (0..8).map(|_| stays.handler().packet().unwrap()).collect();
            packets.sort_by_key(support::Packet::psn);
            assert!(packets.iter().map(support::Packet::psn).eq(from..from + 8));
            packets
        };
        (0..8).for_each(send);
        leaving.leave_port(support::TIMEOUT);
        psns(0);
        (8..16).for_each(send);
        assert!(psns(8).iter().all(|packet| !packet.forwarded));
        let received = counter(&leaving, "packets_received");
        assert_eq!(settled(&leaving, "forwarded_out", received), received);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn flows_beyond_the_limit_get_no_socket_while_the_others_are_busy() {
    let _alone = alone();
    let owner = start();
    let block = Name::Block(0x42);
    let _claim = owner.env().claim(block).unwrap();
    owner.env().attach(LO).unwrap();
    let before = descriptors();
    for port in 1..=200u16 {
        let source = (V4, 1000 + port).into();
        for _ in 0..4 {
            let datagram = Datagram {
                source,
                dest: (V4, 4791).into(),
                interface: LO,
                forwarded: false,
                ack_delay: AckDelay::No,
                bytes: &[0; 16],
            };
            assert!(owner.env().forward(block, &datagram));
            assert!(owner.handler().packet().unwrap().forwarded);
        }
    }
    // Some of the others are lists that are being read.
    assert!(descriptors() <= before + 64 + 8, "{} descriptors more", descriptors() - before);
}

/// Whether a socket of the RoCEv2 port takes the packets of this peer alone.
fn has_socket(peer: &UdpSocket) -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let ends = [4791, peer.local_addr().unwrap().port()].map(|port| format!(":{port:04X}"));
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.len() > 2 && words[1].ends_with(&ends[0]) && words[2].ends_with(&ends[1])
    })
}

#[test]
fn the_flow_that_has_been_silent_for_longest_loses_its_socket_to_a_new_one() {
    let _alone = alone();
    let owner = start();
    let block = Name::Block(0x42);
    let _claim = owner.env().claim(block).unwrap();
    owner.env().attach(LO).unwrap();
    let peers: Vec<_> = (0..65).map(|_| UdpSocket::bind((V4, 0)).unwrap()).collect();
    let by_another_process = |peer: &UdpSocket| {
        for _ in 0..4 {
            let (source, dest) = (peer.local_addr().unwrap().into(), (V4, 4791).into());
            let (interface, ack_delay) = (LO, AckDelay::No);
            let datagram = Datagram { source, dest, interface, forwarded: false, ack_delay, bytes: &[0; 16] };
            assert!(owner.env().forward(block, &datagram));
            owner.handler().packet().unwrap();
        }
    };
    let speaks = |peer: &UdpSocket| {
        peer.send_to(&[0; 16], (V4, 4791)).unwrap();
        owner.handler().packet().unwrap();
    };
    let ([silent, others @ ..], new) = (&peers[..64], &peers[64]) else { panic!("64 flows") };
    peers[..64].iter().for_each(by_another_process);
    assert!(peers[..64].iter().all(has_socket));
    peers[..64].iter().for_each(speaks);
    // A flow that spoke within 100 ms is not silent.
    std::thread::sleep(std::time::Duration::from_millis(150));
    others.iter().for_each(speaks);
    by_another_process(new);
    assert!(has_socket(new) && !has_socket(silent));
    assert!(others.iter().all(has_socket));
}

#[test]
fn a_name_is_held_by_one_and_free_again_when_dropped() {
    let _alone = alone();
    let (one, other) = (start(), start());
    let name = Name::Block(0xffe);
    let claim = one.env().claim(name).unwrap();
    assert_eq!(other.env().claim(name).err(), Some(ClaimError::InUse));
    assert_eq!(one.env().claim(name).err(), Some(ClaimError::InUse));
    let watch = other.env().watch(name).unwrap();
    assert_eq!(other.env().watch(name), Some(watch));
    drop(claim);
    assert_eq!(other.handler().find(|told| (*told == Told::Gone(name, watch)).then_some(())), Some(()));
    assert_eq!(other.env().watch(name), None);
    let datagram = Datagram {
        source: (V4, 1).into(),
        dest: (V4, 4791).into(),
        interface: LO,
        forwarded: false,
        ack_delay: AckDelay::No,
        bytes: &[0; 16],
    };
    assert!(!other.env().forward(name, &datagram));
    assert!(other.env().claim(name).is_ok());
}

#[test]
fn a_name_vanishes_with_its_process() {
    let _alone = alone();
    let host = start();
    let name = Name::Port { space: PortSpace::Tcp, addr: None, port: 7174 };
    // Another process, which has nothing of ours but the name's text.
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n\
                  s.bind('\\0verbena/1/port/tcp/*/7174');s.listen();print(1,flush=True);sys.stdin.read()";
    let python = std::process::Command::new("python3")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut python) = python else { return eprintln!("skipped: needs python3") };
    let mut line = [0; 2];
    std::io::Read::read_exact(python.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(host.env().claim(name).err(), Some(ClaimError::InUse));
    assert_eq!(host.env().port_names(PortSpace::Tcp, 7174), [name]);
    let watch = host.env().watch(name).unwrap();
    python.kill().unwrap();
    python.wait().unwrap();
    assert_eq!(host.handler().find(|told| (*told == Told::Gone(name, watch)).then_some(())), Some(()));
    assert!(host.env().port_names(PortSpace::Tcp, 7174).is_empty());
    assert!(host.env().claim(name).is_ok());
}

#[test]
fn the_names_of_a_port_are_listed_wildcard_and_specific_each_once() {
    let _alone = alone();
    let host = start();
    let name = |addr: Option<IpAddr>, port| Name::Port { space: PortSpace::Tcp, addr, port };
    let shared = Name::Shared { space: PortSpace::Tcp, addr: Some(V4), port: 4000, holder: 0xc0_ffee };
    let names = [name(None, 4000), name(Some(V4), 4000), name(Some(V6), 4000), shared];
    let _claims = names.map(|name| host.env().claim(name).unwrap());
    let _others = [
        host.env().claim(name(None, 4001)).unwrap(),
        host.env().claim(Name::Port { space: PortSpace::Udp, addr: None, port: 4000 }).unwrap(),
        host.env().claim(Name::Block(1)).unwrap(),
    ];
    assert!(host.env().watch(names[0]).is_some());
    assert_eq!(host.env().port_names(PortSpace::Tcp, 4000), names);
}

#[test]
fn a_port_that_another_process_owns_alone_is_reported() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let _owner = UdpSocket::bind("[::]:4791").unwrap();
    let host = start();
    assert_eq!(host.env().attach(LO), Err(Errno::EADDRINUSE));
    assert_eq!(host.env().attach(99), Err(Errno::ENODEV));
    drop(_owner);
    assert_eq!(host.env().attach(LO), Ok(()));
    assert_eq!(host.env().attach(LO), Ok(()));
}

#[test]
fn one_address_whose_port_another_process_owns_alone_is_named_and_the_others_serve() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let _owner = UdpSocket::bind("127.0.0.1:4791").unwrap();
    let host = start();
    assert_eq!(host.env().attach(LO), Ok(()));
    assert_eq!(host.env().addresses_in_use(LO), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    drop(_owner);
    assert_eq!(host.env().attach(LO), Ok(()));
    assert!(host.env().addresses_in_use(LO).is_empty());
}
