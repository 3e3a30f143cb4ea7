//! Whole Ethernet frames: what is sent, and what comes while a program watches.

use std::net::UdpSocket;

use crate::support;
use crate::support::{LO, Told, V4, alone, ip, start};
use nic::{Errno, Frames};

const GROUP: [u8; 6] = [0x03, 0, 0, 0, 0, 0x17];

/// A frame of the local experimental type (IEEE 802), after `tag`.
fn frame(dest: [u8; 6], tag: &[u8], says: &[u8]) -> Vec<u8> {
    [&dest[..], &[2, 0, 0, 0, 0, 1], tag, &[0x88, 0xb5], says].concat()
}

/// Whether it ends so.
fn saying(says: &'static [u8]) -> impl Fn(&Told) -> Option<(u32, bool, Vec<u8>)> {
    move |told| match told {
        Told::Frame { interface, outgoing, bytes } if bytes.ends_with(says) => {
            Some((*interface, *outgoing, bytes.clone()))
        }
        _ => None,
    }
}

#[test]
fn on_the_loopback_interface_a_frame_comes_once_and_as_it_was_sent() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let host = start();
    let env = host.env();
    assert_eq!(env.send_frame(LO, &frame(GROUP, &[], b"early")), Err(Errno::ENODEV), "not open");
    env.open_frames(LO).unwrap();
    env.watch_frames(LO, true).unwrap();
    let sent = frame(GROUP, &[], b"the only one");
    env.send_frame(LO, &sent).unwrap();
    env.send_frame(LO, &frame(GROUP, &[], b"the last one")).unwrap();
    assert_eq!(host.handler().find(saying(b"the only one")), Some((LO, false, sent)));
    host.handler().find(saying(b"the last one")).expect("it comes");
    assert_eq!(support::counter(&host, "frames_received"), 2);
    assert_eq!(env.send_frame(LO, &GROUP), Err(Errno::EINVAL));
    env.watch_frames(LO, false).unwrap();
    env.close_frames(LO);
}

#[test]
fn over_a_cable_frames_keep_their_vlan_tag_and_are_marked_where_they_leave() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    ip("link add one type veth peer name two");
    ip("link set one up");
    ip("link set two up");
    // The kernel says some time later that there is a carrier, and drops frames until then.
    let index = |name| {
        loop {
            let interfaces = linux::interfaces().unwrap();
            // A link has its carrier before it has a queue: till then what is sent is dropped.
            let link = std::process::Command::new("ip").args(["link", "show", name]).output().unwrap();
            let has_queue = String::from_utf8_lossy(&link.stdout).contains("state UP");
            if let Some(found) = interfaces.iter().find(|i| i.name == name && i.up && has_queue) {
                return found.index;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    let (one, two) = (index("one"), index("two"));
    let host = start();
    let env = host.env();
    for interface in [one, two] {
        env.open_frames(interface).unwrap();
        env.watch_frames(interface, true).unwrap();
    }
    // Not for the interface at the other end, which must not matter.
    let sent = frame([2, 0, 0, 0, 0, 0x99], &[0x81, 0x00, 0xac, 0x0c], b"tagged");
    env.send_frame(one, &sent).unwrap();
    let mut found = [host.handler().find(saying(b"tagged")), host.handler().find(saying(b"tagged"))];
    found.sort_by_key(|found| found.as_ref().map(|(interface, ..)| *interface != one));
    assert_eq!(found, [Some((one, true, sent.clone())), Some((two, false, sent))]);
    let long = frame(GROUP, &[], &[0; 1600]);
    assert_eq!(env.send_frame(one, &long), Err(Errno::EMSGSIZE));
}

#[test]
fn frames_that_one_process_watches_reach_the_others_and_the_system_all_the_same() {
    let alone = alone();
    if !alone.own_namespace {
        return eprintln!("skipped: needs a network namespace");
    }
    let [one, other] = [start(), start()];
    for host in [&one, &other] {
        host.env().open_frames(LO).unwrap();
        host.env().watch_frames(LO, true).unwrap();
    }
    let program = UdpSocket::bind((V4, 0)).unwrap();
    program.set_read_timeout(Some(support::TIMEOUT)).unwrap();
    program.send_to(b"for a plain socket", program.local_addr().unwrap()).unwrap();
    let mut bytes = [0; 64];
    let len = program.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"for a plain socket");
    for host in [&one, &other] {
        host.handler().find(saying(b"for a plain socket")).expect("the watching queue pair sees it");
    }
}
