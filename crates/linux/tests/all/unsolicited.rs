//! What any host can send, and any user of the host can do: it costs little, leaves nothing behind,
//! and comes after data.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{LO, V4, alone, batch, counter, path, start};
use nic::Link;
use socket2::{Domain, SockAddr, Socket, Type};
use stack::env::{AckDelay, Datagram};
use stack::{Env, Name};
use wire::Qpn;
use wire::mad::PortSpace;

/// Length of a packet with a MAD.
const MAD: usize = 280;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A packet to a queue pair, its ICRC left out.
fn packet(len: usize, qpn: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    (bytes[0], bytes[7]) = (0x64, qpn);
    bytes
}

#[test]
fn data_comes_before_the_messages_of_connection_managers_that_came_before_it() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    *host.handler().thinks.lock().unwrap() = Duration::from_millis(5);
    let other = UdpSocket::bind("127.0.0.2:0").unwrap();
    for n in 1..=100 {
        let mut message = packet(MAD, 1);
        message[MAD - 1] = n;
        other.send_to(&message, "127.0.0.1:4791").unwrap();
    }
    other.send_to(&packet(100, 9), "127.0.0.1:4791").unwrap();
    // Looks for the data, and at the numbers of the messages in front of it.
    let latest = |last: &mut u8, told: &_| {
        let packet = support::packet(told)?;
        let is_data = packet.bytes[7] == 9;
        *last = if is_data { *last } else { packet.bytes[MAD - 1].max(*last) };
        is_data.then_some(())
    };
    // On a busy machine some of them were dispatched before the data was sent.
    let (mut when_sent, mut before) = (0, 0);
    let is_there = host.handler().find_within(Duration::ZERO, |told| latest(&mut when_sent, told)).is_some();
    assert!(is_there || host.handler().find(|told| latest(&mut before, told)).is_some(), "the data is lost");
    assert!(before <= when_sent + 50, "behind {before} of 100 messages, of which {when_sent} came earlier");
    // None is lost, and one that polls serves them as well.
    let end = Instant::now() + support::TIMEOUT;
    let mut messages = 0;
    while messages < 100 && Instant::now() < end {
        host.poll();
        let message = |told: &_| support::packet(told).filter(|packet| packet.bytes[7] == 1);
        messages += usize::from(host.handler().find_within(Duration::ZERO, message).is_some());
    }
    assert_eq!(messages, 100);
    assert_eq!(counter(&host, "management_drops"), 0);
}

#[test]
fn mads_for_all_peers_leave_from_few_sockets() {
    let _alone = alone();
    let host = start();
    let before = descriptors();
    for n in 0..2_000_u32 {
        let dest = Ipv4Addr::new(127, 0, 1, n as u8).into();
        let (traffic_class, hop_limit) = ((n % 251) as u8, (n % 249) as u8);
        let other = nic::Path {
            dest,
            dest_qpn: Qpn::GSI,
            traffic_class,
            hop_limit,
            source_port_epoch: n,
            ..path(V4)
        };
        host.env().send(&other, &mut batch(n, &[64]));
    }
    assert!(descriptors() <= before + 8, "{} descriptors more", descriptors() - before);
    assert!(counter(&host, "packets_sent") > 1_900, "ICMP errors for some keep others from leaving");
}

/// TTL and ToS of the next packet.
fn hops_of(socket: &UdpSocket) -> (i32, u8) {
    let mut control = [0_u64; 16];
    let mut byte = [0_u8; 2048];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // SAFETY: all zero is a valid msghdr; buffers live across the calls and are as long as it says.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        (message.msg_control, message.msg_controllen) =
            (control.as_mut_ptr().cast(), size_of_val(&control) as _);
        assert!(libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) > 0);
        let (mut ttl, mut tos) = (0, 0);
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            match (*header).cmsg_type {
                libc::IP_TTL => ttl = libc::CMSG_DATA(header).cast::<i32>().read_unaligned(),
                libc::IP_TOS => tos = libc::CMSG_DATA(header).read(),
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        (ttl, tos)
    }
}

#[test]
fn messages_from_one_socket_have_the_traffic_class_and_the_hop_limit_of_their_paths() {
    let _alone = alone();
    let host = start();
    let peer = UdpSocket::bind("127.0.0.7:4791").unwrap();
    for option in [libc::IP_RECVTTL, libc::IP_RECVTOS] {
        let on = 1;
        // SAFETY: the kernel reads one int.
        let set = unsafe {
            libc::setsockopt(peer.as_raw_fd(), libc::IPPROTO_IP, option, (&raw const on).cast(), 4)
        };
        assert_eq!(set, 0);
    }
    let dest = [127, 0, 0, 7].into();
    for (traffic_class, hop_limit, ttl) in [(0, 0, 64), (0x68, 3, 3), (0, 255, 255)] {
        let way = nic::Path { dest, dest_qpn: Qpn::GSI, traffic_class, hop_limit, ..path(V4) };
        host.env().send(&way, &mut batch(1, &[64]));
        assert_eq!(hops_of(&peer), (ttl, traffic_class));
    }
}

#[test]
fn a_flow_has_few_sockets_however_often_it_is_suspected() {
    let _alone = alone();
    let host = start();
    let peer = UdpSocket::bind("127.0.0.7:4791").unwrap();
    let dest = [127, 0, 0, 7].into();
    let before = descriptors();
    let mut ports = std::collections::BTreeSet::new();
    let end = Instant::now() + Duration::from_millis(400);
    let mut source_port_epoch = 0;
    while Instant::now() < end {
        host.env().send(&nic::Path { dest, source_port_epoch, ..path(V4) }, &mut batch(1, &[64]));
        ports.insert(peer.recv_from(&mut [0; 2048]).unwrap().1);
        source_port_epoch += 1;
    }
    assert!(descriptors() <= before + 8, "{} descriptors more", descriptors() - before);
    // New ones are found all the same, in time.
    assert!((9..=17).contains(&ports.len()), "{} ports for {source_port_epoch} detours", ports.len());
}

#[test]
fn what_unsolicited_traffic_send_to_a_socket_that_sends_is_not_kept() {
    let _alone = alone();
    let host = start();
    let peer = UdpSocket::bind("127.0.0.7:4791").unwrap();
    let dest = [127, 0, 0, 7].into();
    host.env().send(&nic::Path { dest, ..path(V4) }, &mut batch(1, &[64]));
    let from = peer.recv_from(&mut [0; 2048]).unwrap().1;
    for _ in 0..100 {
        UdpSocket::bind("127.0.0.2:0").unwrap().send_to(&[7; 1000], from).unwrap();
    }
    let table = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let port = format!(":{:04X}", from.port());
    let queues: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(1).is_some_and(|local| local.ends_with(&port)))
        .map(|words| words[4].to_owned())
        .collect();
    assert_eq!(queues, ["00000000:00000000"], "{table}");
}

/// The processes of other users are this program again: what one does instead of the tests.
const ROLE: &str = "VERBENA_TEST_ROLE";

/// What the processes of other users run; not a test of its own.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let name = SockAddr::unix("\0verbena/1/block/123").unwrap();
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let host = start();
    let mut claim = None;
    match &*role {
        "bear" => claim = Some(host.env().claim(Name::Block(0x123)).unwrap()),
        "take all" => {
            let port = Name::Port { space: PortSpace::Tcp, addr: None, port: 7174 };
            let names = (1..=32).map(Name::Block).chain([port]);
            // Held until the process ends.
            names.for_each(|name| std::mem::forget(support::raw::bear(&linux::name_text::common_text(name))));
        }
        "squat" => {
            socket.bind(&name).unwrap();
            socket.listen(8).unwrap();
        }
        _ => {
            socket.connect(&name).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let kept = matches!((&socket).read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
            println!("\n{}", if kept { "kept" } else { "refused" });
            return;
        }
    }
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(claim);
}

/// Copies of this program for other users, and their processes.
struct Others(PathBuf, Vec<Child>);

impl Others {
    fn new() -> Self {
        let program = std::env::temp_dir().join(format!("verbena-others-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        Self(program, Vec::new())
    }

    /// Starts it in a role after `wrap`, in the calling thread's network namespace; what it says.
    fn start(&mut self, role: &str, wrap: &[&str]) -> String {
        let child = Command::new(wrap[0])
            .args(&wrap[1..])
            .arg(&self.0)
            .args(["--exact", "unsolicited::role", "--nocapture"])
            .env(ROLE, role)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        self.1.push(child);
        let out = self.1.last_mut().and_then(|child| child.stdout.as_mut()).unwrap();
        let said = BufReader::new(out).lines().map_while(Result::ok);
        let words = ["ready", "kept", "refused"];
        said.into_iter().find(|line| words.contains(&&**line)).unwrap_or_default()
    }

    fn end(&mut self) {
        for mut child in self.1.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The overflow uid of every system that has not chosen another.
const AS_NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
const AS_BIN: [&str; 4] = ["setpriv", "--reuid=2", "--regid=2", "--clear-groups"];
/// Like `AS_NOBODY`, in a user namespace of its own, as `verbena run` makes one.
const AS_NOBODY_INSIDE: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "--map-current-user"];

fn works(wrap: &[&str]) -> bool {
    let status = Command::new(wrap[0]).args(&wrap[1..]).arg("true").current_dir("/").status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn a_packet_is_not_handed_to_another_user_who_bears_the_name() {
    let alone = alone();
    if !alone.own_namespace || !works(&AS_NOBODY) {
        return eprintln!("skipped: needs root and setpriv");
    }
    let mut others = Others::new();
    assert_eq!(others.start("squat", &AS_NOBODY), "ready");
    let host = start();
    let (source, dest) = ((V4, 1).into(), (V4, 4791).into());
    let datagram =
        Datagram { source, dest, interface: LO, forwarded: false, ack_delay: AckDelay::No, bytes: &[0; 16] };
    for _ in 0..3 {
        assert!(!host.env().forward(Name::Block(0x123), &datagram));
        assert!(!host.env().is_known(Name::Block(0x123)));
    }
    assert_eq!((counter(&host, "forward_refused"), counter(&host, "forwarded_out")), (3, 0));
    assert_eq!(counter(&host, "forward_drops"), 0);
}

#[test]
fn only_the_same_user_may_hand_packets_over_whatever_its_number_looks_like() {
    let alone = alone();
    if !alone.own_namespace || !works(&AS_NOBODY_INSIDE) {
        return eprintln!("skipped: needs root, setpriv and user namespaces");
    }
    let (nobody, inside, bin) = (&AS_NOBODY[..], &AS_NOBODY_INSIDE[..], &AS_BIN[..]);
    for (owner, others) in [
        // Outside of all namespaces the number 65534 is one user's.
        (nobody, [(nobody, "kept"), (inside, "kept"), (bin, "refused")]),
        // Where it is the only number, every user outside has it.
        (inside, [(nobody, "kept"), (inside, "kept"), (bin, "refused")]),
        (bin, [(nobody, "refused"), (inside, "refused"), (bin, "kept")]),
    ] {
        let mut programs = Others::new();
        assert_eq!(programs.start("bear", owner), "ready", "{owner:?}");
        for (other, expected) in others {
            assert_eq!(programs.start("knock", other), expected, "{other:?} to {owner:?}");
        }
    }
}

#[test]
fn names_that_another_user_bears_keep_no_program_from_starting() {
    let alone = alone();
    if !alone.own_namespace || !works(&AS_BIN) {
        return eprintln!("skipped: needs root and setpriv");
    }
    let mut others = Others::new();
    assert_eq!(others.start("take all", &AS_BIN), "ready");
    let host = start();
    // Blocks are left to the other user as long as there seem to be others.
    let claims: Vec<_> = (1..=32).map(|block| host.env().claim(Name::Block(block))).collect();
    assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 16);
    let port = Name::Port { space: PortSpace::Tcp, addr: None, port: 7174 };
    assert!(host.env().port_names(PortSpace::Tcp, 7174).is_empty());
    let _port = host.env().claim(port).unwrap();
    assert_eq!(host.env().port_names(PortSpace::Tcp, 7174), [port]);
}
