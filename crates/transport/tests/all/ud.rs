//! The unreliable datagram: where packets go, what stands before the payload, what is dropped.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::support::*;
use transport::op::{Data, NetworkHeader, QpEvent, RecvWr, SendOp, SendWr, Status};
use transport::ud::{Destination, Taken, Ud, UnreliableState};
use transport::{Sge, TxBatch};
use wire::grh::{GRH_LEN, Grh};
use wire::roce::{Op, Packet, SendAt, SendTail, Service};
use wire::{Pkey, Psn, Qkey, Qpn, Rkey};

const QKEY: Qkey = Qkey(0x1111_1111);
const GRH: Grh = Grh::V4 {
    tos: 0,
    payload_len: 60,
    identification: 0,
    ttl: 64,
    source: Ipv4Addr::new(10, 0, 0, 1),
    dest: Ipv4Addr::new(10, 0, 0, 2),
};

struct End {
    ud: Ud<u8>,
    cx: TestContext,
}

impl End {
    fn new() -> Self {
        let mut ud = Ud::new(Qpn::new(0x11), Pkey::default(), Arc::default());
        ud.set_qkey(QKEY);
        ud.ready_to_receive(1024);
        ud.ready_to_send(Psn::new(PSN));
        let mut cx = TestContext::default();
        for bytes in [(0..4096).map(pattern).collect(), vec![0; 4096]] {
            cx.memory.regions.push(Region { bytes: bytes.into(), remote: true });
        }
        Self { ud, cx }
    }
    fn post(&mut self, wr: SendWr, to: Destination<u8>) {
        self.ud.post(wr, to, &mut self.cx);
    }
    fn post_receive(&mut self, wr_id: u64, sge: Sge) {
        self.cx.receives.push_back(RecvWr { wr_id, sges: [sge].into_iter().collect() });
    }
    /// What wants to leave now: address, packets.
    fn fill(&mut self) -> Vec<(u8, Vec<Vec<u8>>)> {
        let mut sent = Vec::new();
        let mut batch = TxBatch::new();
        loop {
            batch.clear();
            let Some(address) = self.ud.fill(some_instant(), &mut batch, &mut self.cx) else { return sent };
            sent.push((address, batch.iter().map(|p| p[..p.len() - 4].to_vec()).collect()));
        }
    }
    fn hear(&mut self, bytes: &[u8]) -> Taken {
        self.ud.receive(None, Some(&GRH), &Packet::parse(bytes).expect("a legal packet"), &mut self.cx)
    }
    fn completed(&mut self) -> Vec<(u64, Status)> {
        self.cx.completions.drain(..).map(|(_, c)| (c.wr_id, c.status)).collect()
    }
}

fn to(address: u8) -> Destination<u8> {
    Destination { address, grh: None, qpn: Qpn::new(0x22), qkey: QKEY }
}

/// The one packet of a SEND.
fn packet(wr: SendWr, to: Destination<u8>) -> Vec<u8> {
    let mut end = End::new();
    end.post(wr, to);
    end.fill().remove(0).1.remove(0)
}

#[test]
fn a_datagram_lies_behind_forty_bytes_and_names_its_sender() {
    let mut b = End::new();
    b.post_receive(7, sge(1, 0, 200));
    let wr = send(1, sge(0, 0, 30));
    let tail = SendTail::Immediate(*b"imm!");
    let bytes = packet(SendWr { op: SendOp::Send(tail), solicited: true, ..wr }, to(0));
    assert_eq!(b.hear(&bytes), Taken::Yes);
    let (_, c) = b.cx.completions[0];
    assert_eq!(
        (c.status, c.byte_len, c.source_qp, c.header),
        (Status::Success, 70, Qpn::new(0x11), NetworkHeader::V4)
    );
    assert_eq!((c.tail, c.solicited), (tail, true));
    let got = b.cx.memory.bytes(1);
    assert_eq!(got[..GRH_LEN], GRH.emit());
    assert_eq!(got[GRH_LEN..70], (0..30).map(pattern).collect::<Vec<_>>());
    assert_eq!(got[70..], [0; 4096 - 70]);
}

#[test]
fn each_batch_goes_to_one_address_and_order_is_kept() {
    let mut a = End::new();
    for (id, address) in [(1, 5), (2, 5), (3, 6), (4, 5)] {
        a.post(send(id, sge(0, 0, 100)), to(address));
    }
    let sent = a.fill();
    assert_eq!(sent.iter().map(|(a, p)| (*a, p.len())).collect::<Vec<_>>(), [(5, 2), (6, 1), (5, 1)]);
    let psns: Vec<_> = sent
        .iter()
        .flat_map(|(_, packets)| packets)
        .map(|p| Packet::parse(p).expect("legal").header.bth.psn)
        .collect();
    assert_eq!(psns, [0, 1, 2, 3].map(|i| Psn::new(PSN).add(i)));
    assert_eq!(a.completed(), [1, 2, 3, 4].map(|id| (id, Status::Success)));
}

#[test]
fn a_wrong_qkey_is_dropped_and_takes_no_receive() {
    let mut b = End::new();
    b.post_receive(7, sge(1, 0, 200));
    let bytes = packet(send(1, sge(0, 0, 30)), Destination { qkey: Qkey(0x1111_1112), ..to(0) });
    assert_eq!(b.hear(&bytes), Taken::QkeyViolation);
    assert_eq!((b.completed(), b.cx.receives.len()), (vec![], 1));
}

#[test]
fn a_qkey_with_the_top_bit_set_means_the_senders_own() {
    let bytes = packet(send(1, sge(0, 0, 30)), Destination { qkey: Qkey(0x8000_0000), ..to(0) });
    let Service::Ud(deth) = Packet::parse(&bytes).expect("legal").header.service else { panic!("UD") };
    assert_eq!(deth.qkey, QKEY);
}

#[test]
fn without_room_for_header_and_message_a_datagram_is_dropped_and_the_receive_stays() {
    let mut b = End::new();
    let (long, short) = (packet(send(1, sge(0, 0, 31)), to(0)), packet(send(1, sge(0, 0, 30)), to(0)));
    assert_eq!(b.hear(&short), Taken::NoRoom);
    b.post_receive(7, sge(1, 0, 70));
    assert_eq!(b.hear(&long), Taken::NoRoom);
    assert_eq!(b.completed(), []);
    assert_eq!(b.hear(&short), Taken::Yes);
    assert_eq!(b.completed(), [(7, Status::Success)]);
    assert_eq!(b.ud.state(), UnreliableState::Rts, "a bad length is no error of the queue pair");
}

#[test]
fn a_message_longer_than_the_mtu_sends_nothing_and_is_no_error() {
    let mut a = End::new();
    a.post(send(1, sge(0, 0, 1025)), to(0));
    a.post(send(2, sge(0, 0, 1024)), to(0));
    assert_eq!(a.fill().iter().map(|(_, p)| p.len()).sum::<usize>(), 1);
    assert_eq!(a.completed(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_send_from_memory_that_is_not_ours_stops_the_send_queue_behind_what_left() {
    let mut a = End::new();
    a.post(send(1, sge(0, 0, 8)), to(0));
    a.post(send(2, Sge { lkey: Rkey(KEY + 9), ..sge(0, 0, 8) }), to(0));
    a.post(send(3, sge(0, 0, 8)), to(0));
    assert_eq!(a.fill().len(), 1);
    let expected = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WrFlush)];
    assert_eq!(a.completed(), expected);
    assert_eq!(a.ud.state(), UnreliableState::Sqe);
    a.ud.resume();
    a.post(send(4, sge(0, 0, 8)), to(0));
    assert_eq!(a.fill().len(), 1);
}

#[test]
fn a_receive_in_memory_that_is_not_ours_fails_the_queue_pair() {
    let mut b = End::new();
    b.post_receive(7, Sge { lkey: Rkey(KEY + 9), ..sge(1, 0, 200) });
    b.hear(&packet(send(1, sge(0, 0, 30)), to(0)));
    assert_eq!(b.completed(), [(7, Status::LocalProtection)]);
    assert_eq!((b.ud.state(), &b.cx.events[..]), (UnreliableState::Error, &[QpEvent::Fatal][..]));
}

#[test]
fn a_packet_of_a_connection_is_not_for_a_datagram_queue_pair() {
    let mut b = End::new();
    b.post_receive(7, sge(1, 0, 200));
    let bytes = packet(send(1, sge(0, 0, 30)), to(0));
    let mut packet = Packet::parse(&bytes).expect("legal");
    for service in [Service::Rc, Service::Uc] {
        packet.header.service = service;
        assert_eq!(b.ud.receive(None, Some(&GRH), &packet, &mut b.cx), Taken::NotForUs);
    }
    packet.header.op = Op::Send(SendAt::First);
    assert_eq!(b.ud.receive(None, Some(&GRH), &packet, &mut b.cx), Taken::NotForUs);
}

#[test]
fn an_empty_datagram_is_its_header_alone() {
    let mut b = End::new();
    b.post_receive(7, sge(1, 0, 40));
    assert_eq!(
        b.hear(&packet(SendWr { data: Data::inline(&[]), ..send(1, sge(0, 0, 0)) }, to(0))),
        Taken::Yes
    );
    assert_eq!(b.cx.completions[0].1.byte_len, 40);
}

#[test]
fn failing_flushes_in_order() {
    let mut b = End::new();
    b.post_receive(7, sge(1, 0, 50));
    b.hear(&packet(send(1, sge(0, 0, 30)), to(0)));
    b.ud.drain();
    b.post(send(2, sge(0, 0, 8)), to(0));
    b.post(send(3, sge(0, 0, 8)), to(1));
    assert!(b.fill().is_empty());
    b.ud.fail(&mut b.cx);
    assert_eq!(b.completed(), [2, 3, 7].map(|id| (id, Status::WrFlush)));
}
