//! Messages of several MADs: between agents whose ports do RMPP, and agents that do it themselves.

use std::time::Duration;

use fabric::ClientId;
use fabric::agents::Registration;
use fabric::umad::UmadHeader;
use proptest::prelude::*;
use wire::mad::rmpp::{Kind, Rmpp};
use wire::mad::{Header, class, method};

use crate::support::{Message, World, registration};

const GET_TABLE: u8 = 0x12;
const HEAD: usize = 56;

/// Which end does RMPP itself.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Port,
    Program,
}

struct Pair {
    world: World,
    asks: (ClientId, u32),
    answers: (ClientId, u32),
    lid: u16,
}

fn pair(asks: Does, answers: Does) -> Pair {
    let mut world = World::new();
    let who = world.configure("a");
    let lid = world.port_info(who, &[1, 3, 1], 1).lid;
    let of = |methods: &[u8], does| Registration {
        version: 2,
        rmpp_version: 1,
        user_rmpp: does == Does::Program,
        ..registration(class::SUBN_ADM, methods)
    };
    let (one, two) = (world.open("a"), world.open("c"));
    let asking = world.fabric.register(one, &of(&[], asks)).unwrap();
    let answering = world.fabric.register(two, &of(&[GET_TABLE], answers)).unwrap();
    Pair { world, asks: (one, asking), answers: (two, answering), lid }
}

fn mad(method: u8, tid: u64, rmpp: Option<Rmpp>, data: &[u8]) -> Vec<u8> {
    let header = Header {
        base_version: 1,
        class: class::SUBN_ADM,
        class_version: 2,
        method,
        transaction_id: tid,
        ..Header::default()
    };
    let mut mad = header.emit().to_vec();
    mad.extend_from_slice(&rmpp.map_or([0; 12], |rmpp| rmpp.emit()));
    mad.extend_from_slice(&[0; 20]);
    mad.extend_from_slice(data);
    mad
}

fn segment(kind: Kind, number: u32, (is_first, is_last): (bool, bool), length_or_window: u32) -> Rmpp {
    Rmpp { kind, response_time: 31, is_first, is_last, status: 0, segment: number, length_or_window }
}

impl Pair {
    /// The requester asks; what the other end reads.
    fn ask(&mut self) -> Message {
        let umad = UmadHeader {
            agent: self.asks.1,
            lid: self.lid,
            qpn: 1,
            timeout_ms: 9_000,
            ..UmadHeader::default()
        };
        let mut request = mad(GET_TABLE, 7, None, &[]);
        request.resize(256, 0);
        self.world.send(self.asks.0, umad, &request);
        self.world.read(self.answers.0).unwrap()
    }

    fn answer(&mut self, to: &Message, mad: &[u8]) {
        let umad = UmadHeader { agent: self.answers.1, lid: to.umad.lid, qpn: 1, ..UmadHeader::default() };
        self.world.send(self.answers.0, umad, mad);
    }

    /// The requester acknowledges, as the specification has it: without the bit of answers.
    fn acknowledge(&mut self, tid: u64, number: u32, window: u32) {
        let ack = segment(Kind::Ack, number, (false, false), window);
        let umad = UmadHeader { agent: self.asks.1, lid: self.lid, qpn: 1, ..UmadHeader::default() };
        self.world.send(self.asks.0, umad, &{
            let mut mad = mad(GET_TABLE, tid, Some(ack), &[]);
            mad.resize(256, 0);
            mad
        });
    }
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8).collect()
}

/// The message that a port takes for its agent.
fn long(tid: u64, data: &[u8]) -> Vec<u8> {
    mad(GET_TABLE | method::RESPONSE, tid, Some(segment(Kind::Data, 0, (false, false), 0)), data)
}

#[test]
fn between_two_ports_a_message_travels_whole_with_its_exact_length() {
    for len in [0, 1, 112, 200, 201, 5_000, 1 << 20] {
        let mut pair = pair(Does::Port, Does::Port);
        let request = pair.ask();
        let tid = request.header().transaction_id;
        pair.answer(&request, &long(tid, &data(len)));
        let got = pair.world.read(pair.asks.0).unwrap().mad;
        assert_eq!((got.len(), &got[HEAD..]), (HEAD + len, &data(len)[..]), "{len} bytes");
    }
}

#[test]
fn a_long_message_counts_as_its_segments_on_the_way() {
    let mut pair = pair(Does::Port, Does::Port);
    let request = pair.ask();
    pair.answer(&request, &long(request.header().transaction_id, &data(1_001)));
    let [there] = crate::performance::counters(&mut pair.world, "a", &[pair.lid])[..] else { panic!() };
    assert_eq!((there.transmit_packets, there.transmit_words), (6, 6 * 72));
}

#[test]
fn where_a_rule_loses_packets_segments_are_lost_one_by_one_and_come_again() {
    let mut pair = pair(Does::Port, Does::Port);
    let request = pair.ask();
    let tid = request.header().transaction_id;
    pair.world.fabric.set_drop("leaf0", 1, 50_000).unwrap();
    pair.answer(&request, &long(tid, &data(12_000)));
    pair.world.pass(Duration::from_secs(8));
    let got = pair.world.read(pair.asks.0).unwrap();
    assert_eq!((got.umad.status, &got.mad[HEAD..]), (0, &data(12_000)[..]));
    let lost = pair.world.fabric.counters().lost;
    assert!((1..12).contains(&lost), "{lost} of 60 segments, and of those that came again");
    pair.world.pass(Duration::from_secs(60));
    assert_eq!((pair.world.read(pair.asks.0), pair.world.fabric.deadline()), (None, None));
}

#[test]
fn a_long_answer_to_a_request_that_has_ended_is_not_given() {
    let mut pair = pair(Does::Port, Does::Port);
    let request = pair.ask();
    let tid = request.header().transaction_id;
    pair.world.fabric.set_drop("leaf0", 1, 1_000_000).unwrap();
    pair.answer(&request, &long(tid, &data(1_000)));
    pair.world.pass(Duration::from_millis(9_100));
    assert_eq!(pair.world.read(pair.asks.0).unwrap().umad.status, 110, "ETIMEDOUT");
    pair.world.fabric.set_drop("leaf0", 1, 0).unwrap();
    pair.answer(&request, &long(tid, &data(1_000)));
    pair.world.pass(Duration::from_secs(60));
    assert_eq!((pair.world.read(pair.asks.0), pair.world.fabric.deadline()), (None, None));
}

#[test]
fn an_agent_that_does_rmpp_itself_gets_segments_as_it_acknowledges() {
    let mut pair = pair(Does::Program, Does::Port);
    let request = pair.ask();
    let tid = request.header().transaction_id;
    pair.answer(&request, &long(tid, &data(500)));
    let first = pair.world.read(pair.asks.0).unwrap();
    let rmpp = Rmpp::parse(&first.mad).unwrap().unwrap();
    assert_eq!(rmpp, segment(Kind::Data, 1, (true, false), 500 + 3 * 20));
    assert_eq!(
        (first.mad.len(), pair.world.read(pair.asks.0)),
        (256, None),
        "the window is 1 before any ACK"
    );
    // Without an ACK it comes again.
    pair.world.pass(Duration::from_millis(1_500));
    assert_eq!(pair.world.read(pair.asks.0).unwrap(), first);
    pair.acknowledge(tid, 1, 64);
    let rest: Vec<_> = std::iter::from_fn(|| pair.world.read(pair.asks.0)).collect();
    let headers: Vec<_> = rest.iter().map(|m| Rmpp::parse(&m.mad).unwrap().unwrap()).collect();
    assert_eq!(headers[0], segment(Kind::Data, 2, (false, false), 220));
    assert_eq!(headers[1], segment(Kind::Data, 3, (false, true), 100 + 20));
    pair.acknowledge(tid, 3, 64);
    assert_eq!(pair.world.fabric.deadline(), None);
    let whole: Vec<u8> = [&first].into_iter().chain(&rest).flat_map(|m| m.mad[HEAD..].to_vec()).collect();
    assert_eq!(whole[..500], data(500));
}

#[test]
fn a_receiver_that_never_acknowledges_ends_the_transfer() {
    let mut pair = pair(Does::Program, Does::Port);
    let request = pair.ask();
    pair.answer(&request, &long(request.header().transaction_id, &data(500)));
    pair.world.pass(Duration::from_secs(60));
    assert_eq!(std::iter::from_fn(|| pair.world.read(pair.asks.0)).count(), 8, "once and seven times more");
    assert_eq!(pair.world.fabric.deadline(), None);
}

#[test]
fn a_program_that_ends_in_the_midst_of_a_long_message_leaves_nothing() {
    for (does, ends) in [
        ((Does::Program, Does::Port), true),
        ((Does::Program, Does::Port), false),
        ((Does::Port, Does::Program), false),
    ] {
        let mut pair = pair(does.0, does.1);
        let request = pair.ask();
        let tid = request.header().transaction_id;
        match does.1 {
            Does::Port => pair.answer(&request, &long(tid, &data(5_000))),
            Does::Program => pair.answer(&request, &segments(tid, &data(5_000))[0]),
        }
        assert!(pair.world.fabric.deadline().is_some(), "the rest is to come");
        let (gone, stays) = if ends { (pair.asks, pair.answers) } else { (pair.answers, pair.asks) };
        pair.world.fabric.close(gone.0);
        pair.world.pass(Duration::from_secs(60));
        assert_eq!((pair.world.fabric.deadline(), pair.world.fabric.front(gone.0)), (None, None));
        // The other end goes on with the port: a program that comes has the agent's place.
        let again = pair.world.open(if ends { "a" } else { "c" });
        let methods: &[u8] = if ends { &[] } else { &[GET_TABLE] };
        let wanted = Registration { version: 2, rmpp_version: 1, ..registration(class::SUBN_ADM, methods) };
        assert!(pair.world.fabric.register(again, &wanted).is_ok());
        assert!(pair.world.fabric.unregister(stays.0, stays.1).is_ok());
    }
}

/// Segments of a message of these bytes, as a program makes them.
fn segments(tid: u64, data: &[u8]) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> = data.chunks(200).collect();
    let all = pieces.len();
    let each = pieces.into_iter().enumerate().map(|(index, piece)| {
        let ends = (index == 0, index + 1 == all);
        let length = match ends {
            (true, _) => data.len() + 20 * all,
            (_, true) => piece.len() + 20,
            _ => 220,
        };
        let rmpp = segment(Kind::Data, index as u32 + 1, ends, length as u32);
        let mut mad = mad(GET_TABLE | method::RESPONSE, tid, Some(rmpp), piece);
        mad.resize(256, 0);
        mad
    });
    each.collect()
}

#[test]
fn a_port_puts_together_and_acknowledges_what_a_program_sends_in_segments() {
    let mut pair = pair(Does::Port, Does::Program);
    let request = pair.ask();
    let parts = segments(request.header().transaction_id, &data(450));
    for part in [&parts[0], &parts[2], &parts[1], &parts[1], &parts[2], &parts[2]] {
        pair.answer(&request, part);
    }
    let got = pair.world.read(pair.asks.0).unwrap();
    assert_eq!((got.mad.len(), &got.mad[HEAD..]), (HEAD + 450, &data(450)[..]));
    assert_eq!(pair.world.read(pair.asks.0), None, "a message is given once");
    let acks: Vec<_> = std::iter::from_fn(|| pair.world.read(pair.answers.0))
        .map(|ack| (ack.header().method, Rmpp::parse(&ack.mad).unwrap().unwrap().segment))
        .collect();
    assert_eq!(acks, [1, 1, 2, 2, 3, 3].map(|segment| (GET_TABLE, segment)));
    pair.world.pass(Duration::from_secs(60));
    assert_eq!((pair.world.fabric.deadline(), pair.world.read(pair.asks.0)), (None, None));
}

#[test]
fn between_two_programs_segments_and_acknowledgements_pass() {
    let mut pair = pair(Does::Program, Does::Program);
    let request = pair.ask();
    let tid = request.header().transaction_id;
    for part in segments(tid, &data(300)) {
        pair.answer(&request, &part);
        assert_eq!(pair.world.read(pair.asks.0).unwrap().mad, part);
    }
    pair.acknowledge(tid, 2, 64);
    let ack = pair.world.read(pair.answers.0).unwrap();
    assert_eq!(Rmpp::parse(&ack.mad).unwrap().unwrap().kind, Kind::Ack);
}

proptest! {
    #[test]
    fn whatever_length_arrives_as_it_was_sent(len in 1usize..3_000) {
        let mut pair = pair(Does::Port, Does::Program);
        let request = pair.ask();
        for part in segments(request.header().transaction_id, &data(len)) {
            pair.answer(&request, &part);
        }
        let got = pair.world.read(pair.asks.0).unwrap().mad;
        prop_assert_eq!(&got[HEAD..], &data(len)[..]);
    }
}
