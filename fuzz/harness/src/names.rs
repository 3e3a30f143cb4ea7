//! Names and what their owners hand each other: any text as a name, any bytes as a message, and
//! what a node does with the packet in it.
//!
//! What parses survives being written and parsed; a packet that was handed on once is not handed on
//! again, and provokes few others.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use linux::{name_messages, name_text};
use local::record::{self, Ends, Record};
use nic::device::async_events::AsyncEventQueue;
use nic::{Cq, Qp, QpCap, QpInit, QpType};
use sim::{Faults, Mark, ProcessId, Sim, SimEnv};
use stack::env::{AckDelay, Datagram, Env};
use stack::{EventChannel, Id, Input as Told, InputHandler, Name, Node};
use transport::op::SharedBytes;
use transport::short::{MAX_SHORT, Short, What};
use wire::bth::{Bth, Deth};
use wire::icrc::{self, Flow};
use wire::mad::{GSI_QKEY, Mad, PortSpace};
use wire::roce::{Header, Op, SendAt, SendTail, Service};
use wire::{CommId, Pkey, Psn, Qpn, Rkey, ServiceId};

use crate::messages::{self, Known, MESSAGES};
use crate::{Input, packets};

/// Of which user names are.
const USER: u32 = 1000;
/// Most messages of one input.
const STEPS: u32 = 40;
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// The simulation's one interface.
const INTERFACE: u32 = 2;
const PORT: u16 = 7471;
/// Most packets that one message may provoke in a second, repetitions of an answer included.
const MAX_ANSWERS: u64 = 64;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.one_in(4) {
        return name(input.rest());
    }
    let mut scene = Scene::new();
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        scene.message(&mut input);
    }
    scene.end();
}

/// Any text.
fn name(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let number = name_text::PROTOCOL;
    for text in [
        text.to_string(),
        format!("verbena/1/{text}"),
        format!("verbena/1/port/tcp/{text}"),
        format!("verbena/{number}/{USER}/{text}"),
        format!("verbena/{number}/{USER}/port/tcp/{text}"),
    ] {
        let own = name_text::parse(&text, USER);
        let Some(name) = own.or_else(|| name_text::parse_common(&text)) else { continue };
        assert_eq!(name_text::parse(&name_text::text(name, USER), USER), Some(name));
        assert_eq!(name_text::parse_common(&name_text::common_text(name)), Some(name));
        let longest = name_text::text(name, u32::MAX).len();
        assert!(longest < 107, "longer than an address of a Unix socket");
        if let Name::Port { space, port, .. } | Name::Shared { space, port, .. } = name {
            assert!(name.is_of_port(space, port));
        }
    }
}

/// A node with a listener and a queue pair, and another host.
pub(crate) struct Scene {
    sim: Sim,
    process: ProcessId,
    node: Arc<Node<SimEnv>>,
    _listener: Arc<Id>,
    channel: Arc<EventChannel>,
    qp: Arc<Qp>,
    known: Known,
    /// What the record before said of where its packets came from.
    before: Option<Ends>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let mut sim = Sim::new(7, Faults::default());
        let here = sim.add_host(&[HERE], 1500);
        sim.add_host(&[THERE], 1500);
        let process = sim.start(here, &stack::Config::default());
        let node = sim.node(process).expect("it was started just now");
        let channel = EventChannel::new(Box::new(Mark::default()));
        let listener = node.create_id(&channel, PortSpace::Tcp);
        node.bind(&listener, SocketAddr::new(HERE, PORT)).expect("the port is free");
        node.listen(&listener, 4).expect("the port is ours");
        let device = node.devices()[0].clone();
        let pd = Arc::new(device.alloc_pd().expect("the first domain"));
        let events = AsyncEventQueue::new(Box::new(Mark::default()));
        let cq = Cq::new(16, None, events.clone()).expect("a small queue");
        let (send_cq, recv_cq, cap) = (cq.clone(), cq, QpCap::default());
        let init = QpInit { kind: QpType::Ud, send_cq, recv_cq, srq: None, cap, sq_sig_all: false, events };
        let qp = Qp::create(&device, &pd, init).expect("a small queue pair");
        let mut known = Known::default();
        // Numbers of this process, so that some are its own.
        known.ids.extend((0..3).map(|n| CommId(qp.qpn().get() << 8 & 0xfff0_0000 | n)));
        Self { sim, process, node, _listener: listener, channel, qp, known, before: None }
    }

    /// A message from another process of the host.
    fn message(&mut self, input: &mut Input<'_>) {
        let bytes = match input.below(4) {
            0 => input.bytes(400).to_vec(),
            _ => self.handed_on(input),
        };
        let Some(datagram) = name_messages::read(&bytes) else { return };
        let again = [&name_messages::emit(&datagram)[..], datagram.bytes].concat();
        let same = name_messages::read(&again).expect("what is written is read");
        let numbers = |d: &Datagram<'_>| (d.source, d.dest, d.interface, d.bytes.to_vec());
        assert_eq!(numbers(&same), numbers(&datagram));
        assert!(datagram.forwarded, "it has come by way of another process");

        let (now, before) = (self.node.env().now(), self.sim.counters());
        self.node.input(now, Told::Datagram(datagram));
        self.sim.run_for(Duration::from_millis(u64::from(input.u8())));
        while self.node.next_event(&self.channel).is_some() {}
        let after = self.sim.counters();
        assert_eq!(after.forwarded, before.forwarded, "handed on twice");
        assert!(after.sent - before.sent <= MAX_ANSWERS, "one message provokes {}", after.sent - before.sent);
    }

    /// One as a process writes it: a packet that is good, as far as its ICRC goes; some bytes of it
    /// may then be others.
    fn handed_on(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let source = SocketAddr::new(if input.one_in(8) { HERE } else { THERE }, 49_152);
        let dest = SocketAddr::new(HERE, 4791);
        let mut packet = self.packet(input);
        icrc::seal(&Flow { source, dest }, 0, &mut packet);
        let interface = if input.one_in(16) { 1 } else { INTERFACE };
        let (source, dest) = (source.into(), dest.into());
        let datagram =
            Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes: &packet };
        let mut bytes = [&name_messages::emit(&datagram)[..], &packet].concat();
        if input.one_in(8) {
            let at = input.index(bytes.len());
            bytes[at] = input.u8();
        }
        bytes
    }

    /// A record of a neighbour's ring, as the host takes it out; the packets of it are the node's.
    pub(crate) fn record(&mut self, bytes: &[u8]) {
        let told = match record::read_record(bytes) {
            None => return,
            Some(Record::Packets { ends, bytes, size }) => {
                assert!(size > 0 && !bytes.is_empty());
                self.before = ends.or(self.before);
                let Some(run) = self.datagram(bytes) else { return };
                Told::Unsealed { run, size }
            }
            Some(Record::Short(short, bytes)) => {
                // One may be without a byte.
                assert!(bytes.len() <= MAX_SHORT);
                let Some(message) = self.datagram(bytes) else { return };
                Told::Short(message, short)
            }
        };
        self.tell(told);
    }

    /// Bytes from where the record before was from; `None` where it is the first one.
    fn datagram<'a>(&self, bytes: &'a [u8]) -> Option<Datagram<'a>> {
        let Ends { source, dest, interface } = self.before?;
        Some(Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes })
    }

    /// Reads a record where it lies, as the host takes a piece. `bytes`: what it was when it was
    /// copied out.
    pub(crate) fn record_in_place(&mut self, words: &[local::ring::Word], bytes: &[u8]) {
        if !record::is_fragment(words[0].load(Ordering::Relaxed)) {
            return self.record(bytes);
        }
        let Some((head, body)) = bytes.split_first_chunk() else { return };
        let Some(headers) = record::read_fragment(head) else { return };
        assert!(headers.len() <= record::FRAGMENT_HEAD - record::SIZE);
        let Some(headers) = self.datagram(headers) else { return };
        self.tell(Told::Fragment(headers, SharedBytes::new(&words[local::ring::BODY / 8..], body.len())));
    }

    fn tell(&mut self, told: Told<'_>) {
        let before = self.sim.counters();
        self.node.input(self.node.env().now(), told);
        self.sim.run_for(Duration::from_millis(1));
        while self.node.next_event(&self.channel).is_some() {}
        assert_eq!(self.sim.counters().forwarded, before.forwarded, "no other process can be meant");
    }

    /// One as a neighbour writes it.
    pub(crate) fn record_of(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let source = (if input.one_in(4) { THERE } else { HERE }, 49_152).into();
        let dest = (HERE, 4791).into();
        let packet = self.packet(input);
        let interface = if input.one_in(16) { 1 } else { INTERFACE };
        let datagram =
            Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes: &[] };
        let mut size = packet.len() as u32;
        if input.one_in(8) {
            size = input.u32();
        }
        let mut packets = packet.repeat(1 + input.index(3));
        packets.truncate(packets.len() - input.index(8).min(packets.len()));
        if input.one_in(4) {
            let dest_qp = if input.any() { self.qp.qpn() } else { Qpn::new(input.u32()) };
            let acknowledged = input.one_in(2).then(|| Psn::new(input.u32()));
            let pkey = if input.one_in(8) { Pkey(input.u32() as u16) } else { Pkey::default() };
            let psn = Psn::new(input.below(4));
            let solicited = input.any();
            let what = match input.below(8) {
                // What they say is among the bytes.
                0 => What::SendImmediate([0; 4]),
                1 => What::WriteImmediate([0; 4], Rkey(0), 0),
                _ => What::Send,
            };
            let short = Short { dest_qp, pkey, psn, solicited, what, acknowledged };
            return [&record::short_head(&short)[..], input.bytes(300)].concat();
        }
        if input.one_in(4) {
            let mut head = record::same_head(packet.len());
            head[0] ^= if input.one_in(8) { input.u8() } else { 0 };
            return [&head[..], &packets].concat();
        }
        [&size.to_le_bytes()[..], &name_messages::emit(&datagram), &packets].concat()
    }

    /// The head of a piece as a neighbour writes it, and how many bytes the piece has.
    pub(crate) fn fragment_head(&mut self, input: &mut Input<'_>) -> (Vec<u8>, usize) {
        let dest_qp = if input.any() { self.qp.qpn() } else { Qpn::new(input.u32()) };
        let bth = Bth { dest_qp, psn: Psn::new(input.below(4)), ..Bth::default() };
        let header = Header { bth, service: Service::Rc, op: packets::op(input.below(packets::OPS), input) };
        let mut headers = vec![0; header.len()];
        header.emit(0, &mut headers);
        let mut head = match record::fragment_head(&headers) {
            Some((head, len)) => head[..len].to_vec(),
            None => headers,
        };
        if input.one_in(8) {
            let at = input.index(head.len());
            head[at] = input.u8();
        }
        head.truncate(local::ring::BODY);
        (head, input.index(9000))
    }

    /// A packet with room for the ICRC: for the connection manager, the queue pair, or for none.
    fn packet(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        let qpn = match input.below(8) {
            0 => self.qp.qpn(),
            1 => Qpn::new(input.u32()),
            2 => Qpn::MULTICAST,
            _ => Qpn::GSI,
        };
        let bth = Bth { dest_qp: qpn, psn: Psn::new(input.below(4)), ..Bth::default() };
        let ud = Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI });
        let (service, op, payload) = if qpn == Qpn::GSI {
            let payload =
                self.mad(input).map_or_else(|| input.bytes(256).to_vec(), |mad| mad.emit().to_vec());
            (ud, Op::Send(SendAt::Only(SendTail::None)), payload)
        } else {
            let service = if input.any() { Service::Rc } else { ud };
            (service, packets::op(input.below(packets::OPS), input), input.bytes(64).to_vec())
        };
        let header = Header { bth, service, op };
        let mut bytes = vec![0; header.len()];
        header.emit(payload.len(), &mut bytes);
        bytes.extend(&payload);
        bytes.resize(bytes.len().next_multiple_of(4) + icrc::ICRC_LEN, 0);
        bytes
    }

    fn mad(&mut self, input: &mut Input<'_>) -> Option<Mad> {
        let mut mad = messages::message(input.below(MESSAGES), input, &self.known)?;
        let service = ServiceId(0x0106_0000 | u64::from(if input.one_in(4) { PORT + 1 } else { PORT }));
        match &mut mad.message {
            wire::mad::Message::Req(req) => req.service_id = service,
            wire::mad::Message::SidrReq(req) => req.service_id = service,
            _ => {}
        }
        Some(mad)
    }

    pub(crate) fn end(mut self) {
        self.qp.destroy();
        self.sim.kill(self.process);
    }
}
