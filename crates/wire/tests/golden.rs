//! The kernel's own packets, captured between two rxe adapters: every one must parse, come back as
//! the same bytes and carry the ICRC that we compute.
//!
//! `golden/` holds captures of Linux 6.12's rdma_rxe and rdma-core's programs; a file is named
//! after the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use pcap_file::pcap::PcapReader;
use wire::bth::{NakCode, Syndrome};
use wire::grh::Grh;
use wire::icrc::{self, Flow, ICRC_LEN};
use wire::mad::{IpCm, MAD_LEN, Mad, Message, PortSpace, reason};
use wire::roce::{Header, Op, Packet, Service, pad};
use wire::{Gid, Qpn, ROCE_PORT, ServiceId};

/// One UDP datagram to port 4791.
struct Datagram {
    name: String,
    flow: Flow,
    /// IPv4 identification; 0 of IPv6.
    ip_id: u16,
    /// The IP header without options.
    ip: Vec<u8>,
    /// BTH to ICRC.
    packet: Vec<u8>,
}

/// Every datagram of every capture whose file name starts with `prefix`.
fn datagrams(prefix: &str) -> Vec<Datagram> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut found = Vec::new();
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if !name.starts_with(prefix) {
            continue;
        }
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        let mut number = 0;
        while let Some(frame) = reader.next_packet() {
            number += 1;
            found.extend(datagram(format!("{name} frame {number}"), &frame.unwrap().data));
        }
    }
    assert!(!found.is_empty(), "no capture named {prefix}");
    found
}

fn datagram(name: String, frame: &[u8]) -> Option<Datagram> {
    let (ip_len, ip_id, source, dest): (usize, u16, IpAddr, IpAddr) = match (&frame[12..14], &frame[14..]) {
        ([0x08, 0x00], ip) if ip[0] == 0x45 && ip[9] == 17 => (
            20,
            u16::from_be_bytes([ip[4], ip[5]]),
            Ipv4Addr::from(<[u8; 4]>::try_from(&ip[12..16]).unwrap()).into(),
            Ipv4Addr::from(<[u8; 4]>::try_from(&ip[16..20]).unwrap()).into(),
        ),
        ([0x86, 0xdd], ip) if ip[6] == 17 => (
            40,
            0,
            Ipv6Addr::from(<[u8; 16]>::try_from(&ip[8..24]).unwrap()).into(),
            Ipv6Addr::from(<[u8; 16]>::try_from(&ip[24..40]).unwrap()).into(),
        ),
        _ => return None,
    };
    let (ip, udp) = frame[14..].split_at(ip_len);
    let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    // The length of UDP ends the datagram: Ethernet pads short frames.
    (port(2) == ROCE_PORT).then(|| Datagram {
        name,
        flow: Flow { source: SocketAddr::new(source, port(0)), dest: SocketAddr::new(dest, port(2)) },
        ip_id,
        ip: ip.to_vec(),
        packet: udp[8..port(4).into()].to_vec(),
    })
}

fn parsed(datagram: &Datagram) -> Packet<'_> {
    let covered =
        icrc::open(&datagram.flow, &datagram.packet).unwrap_or_else(|e| panic!("{}: {e}", datagram.name));
    Packet::parse(covered).unwrap_or_else(|e| panic!("{}: {e}", datagram.name))
}

fn mads(prefix: &str) -> Vec<(Datagram, Mad)> {
    let to_gsi = |d: &Datagram| parsed(d).header.bth.dest_qp == Qpn::GSI;
    let mad = |d: Datagram| {
        let mad = Mad::parse(parsed(&d).payload).unwrap_or_else(|e| panic!("{}: {e}", d.name));
        (d, mad)
    };
    datagrams(prefix).into_iter().filter(to_gsi).map(mad).collect()
}

fn headers(prefix: &str) -> Vec<Header> {
    datagrams(prefix).iter().map(|d| parsed(d).header).collect()
}

#[test]
fn every_packet_of_the_kernel_parses_and_reemits_to_the_same_bytes() {
    let all = datagrams("rxe-");
    let mut opcodes = BTreeSet::new();
    for datagram in &all {
        let Packet { header, payload } = parsed(datagram);
        opcodes.insert(header.opcode());
        let mut bytes = vec![0xa5; header.len()];
        assert_eq!(header.emit(payload.len(), &mut bytes), bytes.len(), "{}", datagram.name);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + pad(payload.len()) + ICRC_LEN, 0);
        let seal = if matches!(header.op, Op::Flush(..)) { icrc::seal_rxe_flush } else { icrc::seal };
        seal(&datagram.flow, datagram.ip_id, &mut bytes);
        assert_eq!(bytes, datagram.packet, "{}", datagram.name);
    }
    // The captures must go on showing what this test is worth: packets, identifications, opcodes.
    assert!(all.len() > 700, "{} packets", all.len());
    assert!(all.iter().filter(|d| d.ip_id != 0).count() > 100);
    assert!(all.iter().any(|d| d.flow.source.is_ipv6()));
    let rc = (0x00..=0x14).chain([0x17, 0x1c, 0x1d]).filter(|opcode| ![0x03, 0x0e].contains(opcode));
    for opcode in rc.chain([0x64, 0x65]) {
        assert!(opcodes.contains(&opcode), "no packet of opcode {opcode:#04x} in {opcodes:02x?}");
    }
}

#[test]
fn every_mad_of_the_kernel_parses_and_reemits_to_the_same_bytes() {
    let mut attributes = BTreeSet::new();
    for (datagram, mad) in mads("rxe-") {
        attributes.insert(mad.message.attribute());
        let payload = parsed(&datagram).payload;
        assert_eq!(payload.len(), MAD_LEN);
        assert_eq!(mad.emit(), payload, "{}: {mad:?}", datagram.name);
    }
    assert_eq!(attributes, BTreeSet::from([0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]));
}

#[test]
fn a_packet_with_any_byte_changed_is_refused() {
    for datagram in datagrams("rxe-rping-small").iter().chain(&datagrams("rxe-rping-ipv6")) {
        for at in (0..datagram.packet.len()).filter(|&at| at != 4) {
            let mut packet = datagram.packet.clone();
            packet[at] ^= 0x10;
            assert!(icrc::open(&datagram.flow, &packet).is_err(), "{} byte {at}", datagram.name);
        }
    }
}

#[test]
fn the_byte_that_switches_mark_congestion_in_is_not_covered() {
    let datagram = &datagrams("rxe-rping-small")[0];
    let mut packet = datagram.packet.clone();
    packet[4] ^= 0xc0;
    assert!(icrc::open(&datagram.flow, &packet).is_ok());
}

#[test]
fn rping_asks_for_port_7174_of_the_tcp_port_space() {
    for (prefix, source, dest) in
        [("rxe-rping-small", "10.77.0.2", "10.77.0.3"), ("rxe-rping-ipv6", "fd77::2", "fd77::3")]
    {
        let (source, dest): (IpAddr, IpAddr) = (source.parse().unwrap(), dest.parse().unwrap());
        let (_, Mad { message: Message::Req(req), .. }) = mads(prefix).swap_remove(0) else {
            panic!("a REQ comes first")
        };
        assert_eq!(req.service_id, ServiceId(0x0106_1c06));
        assert_eq!(req.service_id.ip_port(), Some((PortSpace::Tcp, 7174)));
        assert_eq!(ServiceId::from_port(PortSpace::Tcp, 7174), req.service_id);
        assert_eq!((req.primary.local_gid, req.primary.remote_gid), (Gid::from(source), Gid::from(dest)));
        let ip_cm = IpCm::parse(&req.private_data).unwrap();
        assert_eq!((ip_cm.source, ip_cm.dest), (source, dest));
        assert_eq!(ip_cm.emit(), req.private_data[..IpCm::LEN]);
    }
}

#[test]
fn udaddy_asks_for_a_port_of_the_udp_port_space() {
    let (_, Mad { message: Message::SidrReq(sidr), .. }) = mads("rxe-udaddy").swap_remove(0) else {
        panic!("a SIDR_REQ comes first")
    };
    assert!(matches!(sidr.service_id.ip_port(), Some((PortSpace::Udp, 7174))));
    assert_eq!(IpCm::parse(&sidr.private_data).unwrap().dest, Ipv4Addr::new(10, 77, 0, 3));
}

#[test]
fn a_rej_tells_a_missing_listener_from_a_refusal() {
    for (prefix, expected) in [
        ("rxe-rping-no-listener", reason::INVALID_SERVICE_ID),
        ("rxe-ucmatose-rejected", reason::CONSUMER_DEFINED),
    ] {
        let rejected = |(_, mad): (Datagram, Mad)| match mad.message {
            Message::Rej(rej) => Some(rej.reason),
            _ => None,
        };
        assert_eq!(mads(prefix).into_iter().find_map(rejected), Some(expected), "{prefix}");
    }
}

#[test]
fn every_answer_of_the_kernel_bears_the_transaction_id_of_what_it_answers() {
    let mut counted = BTreeMap::<u16, usize>::new();
    // By the communication id of the side that began the transaction.
    let (mut requests, mut disconnects) = (BTreeMap::new(), BTreeMap::new());
    for (datagram, mad) in mads("rxe") {
        let tid = mad.transaction_id;
        let (begun, ours) = match &mad.message {
            Message::Req(m) => {
                requests.insert(m.local_comm_id, tid);
                continue;
            }
            Message::SidrReq(m) => {
                requests.insert(m.request_id, tid);
                continue;
            }
            Message::Dreq(m) => {
                // The lower half is the sender's communication id, in the machine's order: a
                // transaction of its own.
                assert_eq!((tid as u32).swap_bytes(), m.local_comm_id.0, "{}", datagram.name);
                disconnects.insert(m.local_comm_id, tid);
                continue;
            }
            Message::Rep(m) => (&requests, m.remote_comm_id),
            Message::Rtu(m) => (&requests, m.local_comm_id),
            Message::Rej(m) => (&requests, m.remote_comm_id),
            Message::SidrRep(m) => (&requests, m.request_id),
            Message::Drep(m) => (&disconnects, m.remote_comm_id),
            _ => continue,
        };
        assert_eq!(begun.get(&ours), Some(&tid), "{}", datagram.name);
        *counted.entry(mad.message.attribute()).or_default() += 1;
    }
    assert_eq!(counted.len(), 5, "REP, RTU, REJ, SIDR_REP, DREP: {counted:?}");
}

#[test]
fn naks_of_the_kernel_have_the_codes_of_the_standard() {
    for (prefix, syndrome) in [
        ("rxe-verbs-bad-rkey", Syndrome::Nak(NakCode::RemoteAccess)),
        ("rxe-verbs-flush-refused", Syndrome::Nak(NakCode::InvalidRequest)),
        ("rxe-verbs-receive-too-short", Syndrome::Nak(NakCode::RemoteOperational)),
    ] {
        let found =
            headers(prefix).iter().any(|h| matches!(h.op, Op::Acknowledge(a) if a.syndrome == syndrome));
        assert!(found, "{prefix}");
    }
    let rnr =
        |h: &Header| matches!(h.op, Op::Acknowledge(a) if matches!(a.syndrome, Syndrome::RnrNak { .. }));
    assert!(headers("rxe-verbs-rnr").iter().any(rnr));
}

#[test]
fn flush_carries_its_placement_and_selectivity() {
    let flushes: Vec<_> = headers("rxe-verbs-flush-atomic_write")
        .iter()
        .filter_map(|h| match h.op {
            Op::Flush(feth, _) => Some((feth.placement, feth.selectivity)),
            _ => None,
        })
        .collect();
    assert_eq!(flushes, [(1, 0), (1, 1)]);
}

#[test]
fn atomic_write_keeps_its_eight_bytes() {
    let all = datagrams("rxe-verbs-flush-atomic_write");
    let written = all.iter().map(parsed).find(|p| matches!(p.header.op, Op::AtomicWrite(_))).unwrap();
    assert_eq!(written.payload.len(), 8);
}

#[test]
fn datagrams_carry_the_sender_in_their_deth() {
    for header in headers("rxe-ibv_ud_pingpong") {
        let Service::Ud(deth) = header.service else { panic!("{header:?}") };
        assert_ne!(deth.source_qp, header.bth.dest_qp);
    }
}

#[test]
fn an_ip_header_of_the_kernel_is_the_grh_in_front_of_a_datagram() {
    for datagram in datagrams("rxe-ibv_ud_pingpong").iter().chain(&datagrams("rxe-rping-ipv6")) {
        let mut grh = [0; 40];
        grh[40 - datagram.ip.len()..].copy_from_slice(&datagram.ip);
        let parsed = Grh::parse(&grh).unwrap();
        assert_eq!(parsed.emit(), grh, "{}", datagram.name);
    }
}
