//! Messages of connection managers that concern no process, in any number: they are answered so
//! often and no more, and leave nothing behind.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nic::Link;
use sim::{Faults, Sim, SimEnv};
use stack::env::{AckDelay, Datagram};
use stack::{Env, Input, InputHandler};
use transport::TxBatch;
use transport::op::SharedBytes;
use wire::bth::{Bth, Deth};
use wire::icrc::{self, Flow};
use wire::mad::{GSI_QKEY, MAD_LEN, PortSpace};
use wire::roce::{Header, Op, SendAt, SendTail, Service};
use wire::{Endpoint, LidAddress, Qpn, ServiceId};

type Node = Arc<stack::Node<SimEnv>>;

const VICTIM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

fn victim() -> (Sim, Node) {
    let mut sim = Sim::new(1, Faults::none());
    let host = sim.add_host(&[VICTIM], 1500);
    let process = sim.start(host, &stack::Config::default());
    let node = sim.node(process).unwrap();
    node.attach(&node.devices()[0]).unwrap();
    (sim, node)
}

/// A message of the CM class, with an attribute and what follows the common header of 24 bytes, as
/// a packet without an ICRC, for which there is room.
fn message(attribute: u16, body: &[u8]) -> Vec<u8> {
    let header = Header {
        bth: Bth { dest_qp: Qpn::GSI, ..Bth::default() },
        service: Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI }),
        op: Op::Send(SendAt::Only(SendTail::None)),
    };
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[24..24 + body.len()].copy_from_slice(body);
    let mut batch = TxBatch::new();
    let fill = |to: &mut [u8]| {
        to.copy_from_slice(&mad);
        Ok(())
    };
    batch.push(&header, MAD_LEN, fill).unwrap();
    batch.iter().next().unwrap().to_vec()
}

/// A message of the other host's arrives.
fn hear(node: &Node, attribute: u16, body: &[u8]) {
    let mut bytes = message(attribute, body);
    let (source, dest) = (SocketAddr::new(OTHER, 50_000), SocketAddr::new(VICTIM, 4791));
    icrc::seal(&Flow { source, dest }, 0, &mut bytes);
    let interface = node.devices()[0].config.interface;
    let (source, dest) = (source.into(), dest.into());
    let datagram =
        Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes: &bytes };
    node.input(node.env().now(), Input::Datagram(datagram));
}

/// A REQ for some port of RDMA_PS_TCP (IBA 1.4 table 106), from queue pair and communication id
/// `n`.
fn request(node: &Node, n: u32) {
    hear(node, 0x10, &request_body(n));
}

fn request_body(n: u32) -> [u8; 232] {
    let mut body = [0; 232];
    body[..4].copy_from_slice(&n.to_be_bytes());
    let service = ServiceId::from_port(PortSpace::Tcp, 1000 + (n % 60_000) as u16);
    body[8..16].copy_from_slice(&service.0.to_be_bytes());
    body[32..36].copy_from_slice(&(n << 8).to_be_bytes());
    // P_Key, path MTU 1024.
    body[48..51].copy_from_slice(&[0xff, 0xff, 3 << 4]);
    body
}

fn datagram_request(node: &Node, n: u32) {
    let mut body = [0; 232];
    body[..4].copy_from_slice(&n.to_be_bytes());
    body[8..16].copy_from_slice(&ServiceId::from_port(PortSpace::Udp, 9).0.to_be_bytes());
    hear(node, 0x17, &body);
}

fn disconnect(node: &Node, n: u32) {
    let words = [n, n << 12, n << 8];
    hear(node, 0x15, &words.map(u32::to_be_bytes).concat());
}

fn counted(node: &Node, name: &str) -> u64 {
    node.counted().into_iter().find(|(known, _)| known == name).unwrap().1
}

#[test]
fn requests_for_a_service_that_nobody_has_are_refused_and_not_remembered() {
    let (mut sim, node) = victim();
    for n in 1..=200 {
        request(&node, n);
        datagram_request(&node, n);
    }
    sim.run_for(Duration::from_millis(1));
    assert_eq!((counted(&node, "node.mads"), node.connections()), (400, 0));
    assert_eq!(sim.counters().sent, 400, "each was answered");
}

#[test]
fn a_flood_for_nobody_is_answered_so_often_and_no_more_and_leaves_connections_alone() {
    let (mut sim, node) = victim();
    for n in 1..=20_000 {
        request(&node, n);
        disconnect(&node, n);
        if n % 20 == 0 {
            sim.run_for(Duration::from_millis(1));
        }
    }
    assert_eq!(node.connections(), 0);
    let answered = sim.counters().sent;
    assert!((1_000..2_000).contains(&answered), "{answered} answers in a second");
    assert!(counted(&node, "node.unsolicited") > 38_000);
    // Some time later the other host is heard as any host is.
    sim.run_for(Duration::from_secs(1));
    request(&node, 1);
    sim.run_for(Duration::from_millis(1));
    assert_eq!(sim.counters().sent, answered + 1);
}

#[test]
fn what_comes_by_lids_is_for_no_listener_and_ends_no_process() {
    let (_sim, node) = victim();
    let [source, dest] = [9, 1].map(|lid| Endpoint::from(LidAddress::new(lid, 0, 0).unwrap()));
    let interface = node.devices()[0].config.interface;
    let datagram =
        |bytes| Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes };
    let bytes = message(0x10, &request_body(1));
    let now = node.env().now();
    // An environment without UDP checks what it takes in: a packet has no ICRC that a node could
    // check.
    node.input(now, Input::Datagram(datagram(&bytes)));
    assert_eq!((counted(&node, "node.icrc"), counted(&node, "node.mads")), (1, 0));
    node.input(now, Input::Unsealed { run: datagram(&bytes), size: bytes.len() });
    assert_eq!((counted(&node, "node.mads"), node.connections()), (1, 0), "a service of no port");
    assert_eq!(node.env().can_reach(source.address()), Err(nic::Errno::ENETUNREACH));
    assert!(!node.env().forward(stack::Name::Block(1), &datagram(&bytes)));
}

#[test]
fn what_a_neighbour_writes_to_memory_is_checked_as_a_packet_is() {
    let (_sim, node) = victim();
    let packet = |dest_qp| {
        let header = Header {
            bth: Bth { dest_qp, ..Bth::default() },
            service: Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI }),
            op: Op::Send(SendAt::Only(SendTail::None)),
        };
        let mut batch = TxBatch::new();
        batch.push(&header, 0, |_| Ok(())).unwrap();
        batch.iter().next().unwrap().to_vec()
    };
    let datagram = |bytes| {
        let (source, dest) = ((VICTIM, 50_000).into(), (VICTIM, 4791).into());
        let interface = node.devices()[0].config.interface;
        Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes }
    };
    let hear = |bytes, size| node.input(node.env().now(), Input::Unsealed { run: datagram(bytes), size });
    let of_another = packet(Qpn::new(0xab_cd));
    hear(&of_another, of_another.len());
    assert_eq!(counted(&node, "node.unknown_owner"), 1);
    // Three packets, the last one too short to have room for an ICRC.
    let run = [&of_another[..], &of_another[..], &[1, 2, 3]].concat();
    hear(&run, of_another.len());
    assert_eq!((counted(&node, "node.unknown_owner"), counted(&node, "node.icrc")), (3, 1));
    hear(&[0xff; 64], 64);
    hear(&of_another[..14], 64);
    assert_eq!((counted(&node, "node.unknown_opcode"), counted(&node, "node.malformed")), (1, 1));
    // As before, for headers of several packets, after which nothing stands.
    let words = [AtomicU64::new(0)];
    // After headers stands the path MTU, by its code.
    let with_mtu = |bytes: &[u8], code| [bytes, &[code]].concat();
    let good = with_mtu(&of_another[..20], 3);
    let more = with_mtu(&[&of_another[..20], &[0; 4]].concat(), 3);
    let cut = with_mtu(&of_another[..14], 3);
    let no_mtu = [0, 6].map(|code| with_mtu(&of_another[..20], code));
    let none = Vec::new();
    let unknown = with_mtu(&[0xff; 64], 3);
    for bytes in [&no_mtu[0], &no_mtu[1], &none] {
        node.input(node.env().now(), Input::Fragment(datagram(bytes), SharedBytes::new(&words, 8)));
    }
    assert_eq!((counted(&node, "node.unknown_owner"), counted(&node, "node.malformed")), (3, 4));
    for bytes in [&good, &cut, &unknown, &more] {
        node.input(node.env().now(), Input::Fragment(datagram(bytes), SharedBytes::new(&words, 8)));
    }
    assert_eq!((counted(&node, "node.unknown_owner"), counted(&node, "node.icrc")), (4, 1));
    assert_eq!((counted(&node, "node.unknown_opcode"), counted(&node, "node.malformed")), (2, 6));
    // Or where their bytes are, which takes sixteen.
    let away = [16, 12, 20].map(|len| with_mtu(&[&of_another[..20], &vec![7; len]].concat(), 3));
    for bytes in &away {
        node.input(node.env().now(), Input::Fragment(datagram(bytes), SharedBytes::new(&[], 0)));
    }
    assert_eq!((counted(&node, "node.unknown_owner"), counted(&node, "node.malformed")), (5, 8));
}
