//! A link that captures shows streams as segments of TCP: the bytes of each half in order, its
//! beginning and its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capture::filter::Filter;
use capture::message::flags::{ACK, FIN, RST, SYN};
use capture::{CaptureLink, Direction, Packet, Protocol, Recorder};
use nic::rdma_cm::EventKind;
use sim::Dice;
use wire::iwarp::Parsed;
use wire::iwarp::fpdu::Fpdu;
use wire::iwarp::mpa::{Frame, Kind};

use crate::support::Way;
use crate::support::connections::{MESSAGE_LEN, MESSAGES, PORT, Party, Side, connected_on, param, resolved};

const SEEDS: u64 = 200;

/// What an end has shown of one stream.
#[derive(Default)]
struct Shown {
    times: AtomicU64,
    halves: Mutex<[Half; 2]>,
}

/// What went one way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Half {
    /// The sequence number of SYN, and that of the next byte.
    began: Option<u32>,
    next: u32,
    bytes: Vec<u8>,
    /// FIN or RST.
    end: Option<u8>,
}

impl Recorder for Shown {
    fn time(&self) -> u64 {
        self.times.fetch_add(1, Ordering::Relaxed)
    }
    fn record(&self, packet: &Packet<'_>) {
        let Protocol::Tcp(segment) = packet.protocol else { panic!("{packet:?}") };
        let mut halves = self.halves.lock().unwrap();
        let is_out = packet.direction == Direction::Out;
        let acknowledged = halves[usize::from(!is_out)].next;
        let half = &mut halves[usize::from(is_out)];
        assert!(packet.bytes.len() <= 65_495);
        if segment.flags & SYN != 0 {
            assert_eq!(half.began, None);
            (half.began, half.next) = (Some(segment.seq), segment.seq);
        }
        assert_eq!((segment.seq, half.end), (half.next, None), "nothing is behind the end");
        assert!(segment.flags & ACK == 0 || segment.ack == acknowledged);
        half.next = half.next.wrapping_add(packet.bytes.len() as u32);
        half.bytes.extend(packet.bytes);
        if segment.flags & (FIN | SYN) != 0 {
            half.next = half.next.wrapping_add(1);
        }
        if segment.flags & (FIN | RST) != 0 {
            half.end = Some(segment.flags & (FIN | RST));
        }
    }
}

impl Shown {
    fn half(&self, is_out: bool) -> Half {
        self.halves.lock().unwrap()[usize::from(is_out)].clone()
    }
}

/// How many FPDUs follow the one MPA frame of a half, which all are whole.
fn fpdus(bytes: &[u8], kind: Kind) -> usize {
    let Ok(Parsed::Whole(frame)) = Frame::parse(kind, bytes) else { panic!("{kind:?}") };
    let (mut rest, mut count) = (&bytes[frame.len()..], 0);
    while !rest.is_empty() {
        let Ok(Parsed::Whole(fpdu)) = Fpdu::parse(rest, false) else { panic!("after {count}") };
        rest = &rest[fpdu.len()..];
        count += 1;
    }
    count
}

/// Both ends of a connection.
type Connected = (sim::Sim, Party, Party, Side, Side);

fn connected(seed: u64) -> ([Arc<Shown>; 2], Connected) {
    let shown: [Arc<Shown>; 2] = Default::default();
    let connected = connected_on(Way::Stream, seed, false, |n, env| {
        Arc::new(CaptureLink::new(env, shown[usize::from(n - 1)].clone(), Filter::default()))
    });
    (shown, connected)
}

#[test]
fn both_ends_show_the_same_segments_of_a_stream_and_all_of_its_bytes() {
    sim::each_seed("captured_streams", "both_ends_show", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(100);
        let ([client, server], (mut sim, a, b, ours, mut theirs)) = connected(seed);
        sim.set_faults(sim.faults().jitter(Duration::from_micros(dice.below(100))));
        ours.send_all(&a.node);
        sim.run_for(Duration::from_secs(1));
        theirs.poll();
        assert_eq!(theirs.received, MESSAGES);
        a.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
        sim.run_for(Duration::from_secs(1));
        for (is_out, kind) in [(true, Kind::Request), (false, Kind::Reply)] {
            let half = client.half(is_out);
            let theirs = server.half(!is_out);
            assert!((half.began, &half.bytes) == (theirs.began, &theirs.bytes), "{kind:?}");
            // What ended a half that no process reads any more is not seen.
            let sender = if is_out { &half } else { &theirs };
            assert_eq!(sender.end, Some(FIN));
            let count = fpdus(&half.bytes, kind);
            assert!(
                !is_out || count >= MESSAGES as usize && half.bytes.len() > MESSAGES as usize * MESSAGE_LEN
            );
        }
        assert_eq!(b.next().map(|event| event.kind), Some(EventKind::Disconnected));
    });
}

#[test]
fn a_stream_that_is_reset_ends_with_an_rst_at_both_ends() {
    let ([client, server], (mut sim, a, b, ..)) = connected(1);
    sim.reset_streams(a.process, b.process);
    sim.run_for(Duration::from_secs(1));
    for shown in [client, server] {
        assert_eq!((shown.half(false).end, shown.half(true).end), (Some(RST), None));
    }
}

#[test]
fn a_stream_that_no_listener_takes_is_a_syn_and_an_rst() {
    let shown = Arc::new(Shown::default());
    let mut sim = sim::Sim::new(1, sim::Faults::none());
    let [here, there] = [1, 2].map(|n| std::net::IpAddr::from([10, 0, 0, n]));
    let (host, _other) = (sim.add_host(&[here], 1500), sim.add_host(&[there], 1500));
    let client = Party::on(&mut sim, host, here, &Way::Stream.config(), |env| {
        Arc::new(CaptureLink::new(env, shown.clone(), Filter::default()))
    });
    let id = resolved(&mut sim, &client, there);
    let mut side = Side::new(id.clone());
    side.equip(&client.node);
    client.node.connect(&id, &param(), &[]).unwrap();
    sim.run_for(Duration::from_secs(1));
    assert_eq!(client.next().map(|event| event.kind), Some(EventKind::Rejected), "to port {PORT}");
    let (out, back) = (shown.half(true), shown.half(false));
    assert!(out.began.is_some() && out.bytes.is_empty());
    assert_eq!((back.began, back.end), (None, Some(RST)));
}
