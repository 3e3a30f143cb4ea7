//! The kernel's own iWARP, captured between two siw adapters: each frame and FPDU of every TCP
//! stream must parse, and come back as the same bytes but for padding.
//!
//! `golden/` holds captures of Linux 6.12's siw and rdma-core's programs; a file is named after the
//! program.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use pcap_file::pcap::PcapReader;
use wire::Rkey;
use wire::iwarp::Parsed;
use wire::iwarp::crc::CRC_LEN;
use wire::iwarp::ddp::{Header, Segment, TaggedOp, UntaggedOp};
use wire::iwarp::fpdu::Fpdu;
use wire::iwarp::mpa::{self, Enhanced, Frame, Kind};
use wire::iwarp::rdmap::ReadRequest;

/// What one side of a TCP connection sent.
struct Stream {
    name: String,
    from_client: bool,
    /// Sequence number of the first byte.
    begins: u32,
    bytes: Vec<u8>,
}

/// Both directions of a connection, the client's first.
type Connection = [Stream; 2];

/// Source, destination, and the segment without its IP header.
fn segment(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let (source, dest, tcp): (IpAddr, IpAddr, _) = match (&frame[12..14], &frame[14..]) {
        ([0x08, 0x00], ip) if ip[0] == 0x45 && ip[9] == 6 => (
            Ipv4Addr::from(<[u8; 4]>::try_from(&ip[12..16]).unwrap()).into(),
            Ipv4Addr::from(<[u8; 4]>::try_from(&ip[16..20]).unwrap()).into(),
            // The length of IP ends the segment: Ethernet pads short frames.
            &ip[20..u16::from_be_bytes([ip[2], ip[3]]).into()],
        ),
        ([0x86, 0xdd], ip) if ip[6] == 6 => (
            Ipv6Addr::from(<[u8; 16]>::try_from(&ip[8..24]).unwrap()).into(),
            Ipv6Addr::from(<[u8; 16]>::try_from(&ip[24..40]).unwrap()).into(),
            &ip[40..40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]))],
        ),
        _ => return None,
    };
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    Some((SocketAddr::new(source, port(0)), SocketAddr::new(dest, port(2)), tcp))
}

/// The connections of a capture, in the order of their SYNs.
fn connections_of(path: &Path) -> Vec<Connection> {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let mut streams: BTreeMap<(SocketAddr, SocketAddr), Stream> = BTreeMap::new();
    let mut order = Vec::new();
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    while let Some(frame) = reader.next_packet() {
        let frame = frame.unwrap().data;
        let Some((source, dest, tcp)) = segment(&frame) else { continue };
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let (syn, ack) = (tcp[13] & 0x02 != 0, tcp[13] & 0x10 != 0);
        if syn {
            let name = format!("{name} {source} to {dest}");
            let (from_client, begins) = (!ack, seq.wrapping_add(1));
            streams.insert((source, dest), Stream { name, from_client, begins, bytes: Vec::new() });
            if from_client {
                order.push((source, dest));
            }
            continue;
        }
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let stream = streams.get_mut(&(source, dest)).unwrap();
        if !payload.is_empty() {
            let at = seq.wrapping_sub(stream.begins) as usize;
            assert_eq!(at, stream.bytes.len(), "{}: nothing is lost or sent again", stream.name);
            stream.bytes.extend_from_slice(payload);
        }
    }
    let mut both = |(client, server)| {
        [(client, server), (server, client)].map(|direction| streams.remove(&direction).unwrap())
    };
    order.into_iter().map(&mut both).collect()
}

/// All connections of every capture whose file name starts with `prefix`.
fn connections(prefix: &str) -> Vec<Connection> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    paths.sort();
    assert!(!paths.is_empty(), "no capture named {prefix}");
    paths.iter().flat_map(|path| connections_of(path)).collect()
}

impl Stream {
    fn frame(&self) -> Frame<'_> {
        let kind = if self.from_client { Kind::Request } else { Kind::Reply };
        match Frame::parse(kind, &self.bytes) {
            Ok(Parsed::Whole(frame)) => frame,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// All FPDUs, each with its bytes. Neither side asks for CRCs.
    fn fpdus(&self) -> Vec<(Fpdu<'_>, &[u8])> {
        let (mut found, mut rest) = (Vec::new(), &self.bytes[self.frame().len()..]);
        while !rest.is_empty() {
            let fpdu = match Fpdu::parse(rest, false) {
                Ok(Parsed::Whole(fpdu)) => fpdu,
                other => panic!("{}, {} bytes from its end: {other:?}", self.name, rest.len()),
            };
            let (bytes, behind) = rest.split_at(fpdu.len());
            found.push((fpdu, bytes));
            rest = behind;
        }
        found
    }
}

#[test]
fn every_mpa_frame_of_the_kernel_parses_and_reemits_to_the_same_bytes() {
    let all = connections("siw-");
    let mut private_data = 0;
    for stream in all.iter().flatten() {
        let frame = stream.frame();
        let mut bytes = [0xa5; mpa::MAX_LEN];
        let len = frame.emit(&mut bytes);
        assert_eq!(len, frame.len());
        assert_eq!(bytes[..len], stream.bytes[..len], "{}", stream.name);
        assert_eq!((frame.markers, frame.crc, frame.revision), (false, false, 2), "{}", stream.name);
        private_data += frame.private_data.len();
        for cut in 0..len {
            let parsed = Frame::parse(frame.kind, &stream.bytes[..cut]);
            assert!(matches!(parsed, Ok(Parsed::Needs(1..))), "{}, {cut} bytes", stream.name);
        }
    }
    assert!(all.len() > 10 && private_data >= 80, "{} connections, {private_data} bytes", all.len());
}

#[test]
fn every_fpdu_of_the_kernel_parses_and_reemits_to_the_same_bytes_but_for_padding() {
    let (mut fpdus, mut stale, mut paddings, mut opcodes) = (0, 0, BTreeSet::new(), BTreeSet::new());
    for stream in connections("siw-").iter().flatten() {
        for (fpdu, bytes) in stream.fpdus() {
            let (mut again, mut sealed) = (Vec::new(), Vec::new());
            fpdu.emit(false, &mut again);
            // siw sends what lay in its buffer as padding; no receiver looks at it.
            let padding = fpdu.header.len() + fpdu.payload.len()..bytes.len() - CRC_LEN;
            stale += usize::from(again[padding.clone()] != bytes[padding.clone()]);
            again[padding.clone()].copy_from_slice(&bytes[padding.clone()]);
            assert_eq!(again, bytes, "{}: {:?}", stream.name, fpdu.header);
            // With the CRC in use it is the same FPDU but for its end.
            fpdu.emit(true, &mut sealed);
            assert_eq!(sealed[..padding.start], bytes[..padding.start]);
            assert_eq!(Fpdu::parse(&sealed, true), Ok(Parsed::Whole(fpdu)));
            paddings.insert(padding.len());
            fpdus += 1;
            opcodes.insert(fpdu.header.opcode() as u8);
        }
    }
    // The captures must go on showing what this test is worth.
    assert!(fpdus > 150, "{fpdus} FPDUs");
    assert_eq!(opcodes, BTreeSet::from([0, 1, 2, 3]));
    assert!(paddings.len() > 1 && stale > 0, "{paddings:?}, {stale} of stale bytes");
}

#[test]
fn messages_of_a_queue_are_numbered_from_one_and_their_segments_follow_each_other() {
    let mut longer_than_a_segment = 0;
    for stream in connections("siw-").iter().flatten() {
        let mut expected = [(1, 0); 3];
        for (Fpdu { header, payload }, _) in stream.fpdus() {
            let Segment::Untagged { op, msn, mo } = header.segment else { continue };
            let next = &mut expected[op.queue() as usize];
            assert_eq!((msn, mo), *next, "{}: {header:?}", stream.name);
            longer_than_a_segment += usize::from(mo > 0);
            *next = if header.last { (msn + 1, 0) } else { (msn, mo + payload.len() as u32) };
        }
    }
    assert!(longer_than_a_segment > 0);
}

#[test]
fn the_responses_to_a_read_fill_its_sink() {
    let mut reads = 0;
    for [client, server] in connections("siw-") {
        for (requester, responder) in [(&client, &server), (&server, &client)] {
            let mut requests: VecDeque<ReadRequest> = requester
                .fpdus()
                .iter()
                .filter(|(fpdu, _)| is_read_request(&fpdu.header))
                .map(|(fpdu, _)| ReadRequest::parse(fpdu.payload).unwrap())
                .collect();
            reads += requests.len();
            for (Fpdu { header, payload }, _) in responder.fpdus() {
                let Segment::Tagged { op: TaggedOp::ReadResponse, stag, to } = header.segment else {
                    continue;
                };
                let request = requests.front_mut().unwrap();
                assert_eq!((stag, to), (request.sink_stag, request.sink_to), "{}", responder.name);
                request.sink_to += payload.len() as u64;
                request.size -= payload.len() as u32;
                assert_eq!(header.last, request.size == 0);
                if header.last {
                    requests.pop_front();
                }
            }
            assert!(requests.is_empty(), "{}: {requests:?}", requester.name);
        }
    }
    assert!(reads > 10, "{reads} READs");
}

fn is_read_request(header: &Header) -> bool {
    matches!(header.segment, Segment::Untagged { op: UntaggedOp::ReadRequest, .. })
}

#[test]
fn a_write_of_the_kernel_is_placed_by_virtual_address() {
    let [_, server] = &connections("siw-rping-large")[0];
    let writes: Vec<_> = server
        .fpdus()
        .iter()
        .filter_map(|(fpdu, _)| match fpdu.header.segment {
            Segment::Tagged { op: TaggedOp::Write, stag, to } => Some((stag, to, fpdu.payload.len())),
            _ => None,
        })
        .collect();
    let (stag, to, _) = writes[0];
    assert!(writes.len() > 4 && stag != Rkey(0) && to > 1 << 32, "{writes:x?}");
    let total: usize = writes.iter().map(|(_, _, len)| len).sum();
    assert_eq!(total, 8192);
}

#[test]
fn segments_of_the_kernel_are_those_of_the_mulpdu() {
    let all = connections("siw-");
    let of_stream = |s: &Stream| s.fpdus().iter().map(|(fpdu, _)| fpdu.len()).max().unwrap_or(0);
    let longest = all.iter().flatten().map(of_stream);
    // Ethernet's 1500 bytes less the headers of IPv4 and TCP, with time stamps.
    assert_eq!(longest.max(), Some(1448));
}

#[test]
fn a_refusal_is_a_reply_with_r() {
    let rejected: Vec<_> =
        connections("siw-ucmatose-rejected").iter().map(|[_, server]| server.frame().rejected).collect();
    assert_eq!(rejected, [false, true]);
}

#[test]
fn depths_of_reads_are_in_the_enhanced_header() {
    let [client, server] = &connections("siw-rdma_client")[0];
    let depths = Some(Enhanced { ird: 128, ord: 128, ..Enhanced::default() });
    assert_eq!((client.frame().enhanced, server.frame().enhanced), (depths, depths));
}
