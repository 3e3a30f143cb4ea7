//! What the environment tells the node: packets go to their queue pairs, those for QP1 to
//! [`gsi`](crate::gsi), the rest to the part of the node it concerns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use nic::FrameArrival;
use nic::fate::DropCounter;
use transport::Short;
use transport::op::{Payload, SharedBytes, ZeroCopy};
use wire::bth::Bth;
use wire::icrc::{Flow, ICRC_LEN, Icrc};
use wire::roce::Packet;
use wire::run::Run;
use wire::{Malformed, Mtu, Qpn};

use crate::env::{AckDelay, Before, Datagram, Env, Input, InputHandler, StreamInput, StreamRead};
use crate::gsi::Offending;
use crate::number_blocks::qpn_owner;
use crate::{Errno, Node};

/// The outcome of packets that no queue pair got, one counter a reason.
#[derive(Debug)]
pub struct Counters {
    /// Packets dropped: their checksum (ICRC) is missing or wrong.
    pub icrc: DropCounter,
    /// Packets dropped: truncated, or with lengths or flags that contradict the opcode.
    pub malformed: DropCounter,
    /// Packets dropped: the standard does not define the opcode.
    pub unknown_opcode: DropCounter,
    /// Packets dropped: they arrived on an interface without a device.
    pub unknown_device: DropCounter,
    /// Packets dropped: no process owns the queue pair, or its owner refused them.
    pub unknown_owner: DropCounter,
    /// Connection manager packets dropped: the port is no member of their partition.
    pub wrong_pkey: DropCounter,
    /// Packets to queue pair 1 dropped: they carry no connection manager message.
    pub bad_mad: DropCounter,
    /// Connection requests refused because memory or numbers ran out.
    pub no_resources: AtomicU64,
    /// Messages about unknown connections dropped unanswered because there were too many.
    pub unsolicited: AtomicU64,
    /// Messages delivered to the connection manager or refused on its behalf.
    pub mads: AtomicU64,
    /// Messages whose transaction id, address or peer does not match the connection; dropped.
    pub cm_unmatched: DropCounter,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            icrc: DropCounter::new("icrc"),
            malformed: DropCounter::new("malformed"),
            unknown_opcode: DropCounter::new("unknown_opcode"),
            unknown_device: DropCounter::new("unknown_device"),
            unknown_owner: DropCounter::new("unknown_owner"),
            wrong_pkey: DropCounter::new("wrong_pkey"),
            bad_mad: DropCounter::new("bad_mad"),
            no_resources: AtomicU64::new(0),
            unsolicited: AtomicU64::new(0),
            mads: AtomicU64::new(0),
            cm_unmatched: DropCounter::new("cm_unmatched"),
        }
    }
}

impl Counters {
    /// All of them with their names.
    pub fn snapshot(&self) -> [(&'static str, u64); 11] {
        let of = |name, counter: &AtomicU64| (name, counter.load(Ordering::Relaxed));
        [
            self.icrc.snapshot(),
            self.malformed.snapshot(),
            self.unknown_opcode.snapshot(),
            self.unknown_device.snapshot(),
            self.unknown_owner.snapshot(),
            self.wrong_pkey.snapshot(),
            self.bad_mad.snapshot(),
            of("no_resources", &self.no_resources),
            of("unsolicited", &self.unsolicited),
            of("mads", &self.mads),
            self.cm_unmatched.snapshot(),
        ]
    }
}

impl Counters {
    /// Takes apart what lies between the UDP header and the ICRC, or counts why not.
    #[inline]
    pub(crate) fn parse<'a>(&self, bytes: &'a [u8]) -> Option<Packet<'a>> {
        match Packet::parse(bytes) {
            Ok(packet) => return Some(packet),
            Err(Malformed::Opcode(_)) => self.unknown_opcode.add(1),
            Err(_) => self.malformed.add(1),
        }
        None
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<W: Env> InputHandler for Node<W> {
    fn input(&self, now: Instant, input: Input<'_>) {
        match input {
            Input::Short(message, short) => self.find_short(
                now,
                &message,
                message.ack_delay,
                &short,
                message.bytes,
                &mut Before::default(),
            ),
            Input::Datagram(d) => self.arrived(now, &d, d.bytes.len().max(1)),
            Input::Datagrams { run, size } => self.arrived(now, &run, size),
            Input::Unsealed { run, size } => self.unsealed(now, &run, size),
            Input::Fragment(headers, bytes) => self.fragment(now, &headers, bytes),
            Input::Frame { interface, outgoing, bytes } => {
                self.frame(now, &FrameArrival { interface, outgoing, bytes });
            }
            Input::Resolved { ticket, result } => {
                if let Some(id) = self.cm_agent.take_resolving(ticket) {
                    self.finish_resolve(&id, result);
                }
            }
            Input::Unreachable { dest, errno: why, sent, .. } => {
                if let Some(packet) = Offending::parse(sent) {
                    let nobody = (why == Errno::ECONNREFUSED).then_some(packet.process);
                    self.peer_unreachable(now, dest, packet.ours, nobody.flatten());
                }
            }
            Input::Mad { interface, bytes } => self.subnet_administration(interface, bytes),
            Input::Interfaces(interfaces) => self.update_interfaces(now, interfaces),
            Input::Gone(name, watch) => self.peer_gone(now, name, watch),
        }
    }

    fn stream(&self, now: Instant, token: u64, input: StreamInput) {
        self.on_stream(now, token, input);
    }

    fn read_stream(&self, now: Instant, token: u64) -> StreamRead {
        self.on_readable(now, token)
    }

    #[inline(always)]
    fn short(
        &self,
        now: Instant,
        from: &Datagram<'_>,
        ack_delay: AckDelay,
        short: &Short,
        bytes: &[u8],
        before: &mut Before,
    ) {
        let ends = (from.source.address(), from.dest.address());
        match before.qp(short.dest_qp, from.interface) {
            Some(qp) if qp.input_short(now, ends, ack_delay, short, bytes) => {
                self.data_came(now, short.dest_qp);
            }
            _ => self.find_short(now, from, ack_delay, short, bytes, before),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let faults = self.link.faults();
        if let Some(until) = faults.and_then(|faults| faults.stopped_until()) {
            return Some(until);
        }
        let held = faults.and_then(|faults| faults.deadline());
        let own = self.own_deadline();
        held.into_iter().chain(own).min()
    }

    fn expire(&self, now: Instant) {
        if !self.faults_stop(now) {
            self.expire_own(now);
        }
    }

    fn release(&self, all: bool) {
        self.devices.iter().for_each(|d| d.release(|| self.env.now(), all));
    }
}

/// The packets that one read brought, one behind the other.
struct Packets<'a> {
    rest: &'a [u8],
    /// Bytes of each, but for the last, which may have fewer.
    size: usize,
    /// What judges them; between processes of this host nothing seals packets.
    icrc: Option<Icrc>,
    counters: &'a Counters,
}

impl<'a> Packets<'a> {
    /// The next run that can be opened, as far as packets are wanted.
    #[inline]
    fn next(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Run<'a>> {
        loop {
            let whole = self.rest;
            let bytes = &whole[..self.size.min(whole.len())];
            if bytes.is_empty() || !is_wanted(bytes) {
                return None;
            }
            self.rest = &whole[bytes.len()..];
            if let Some(packet) = self.open(bytes) {
                let run = Run::beginning(packet, whole, bytes.len(), |next| match &mut self.icrc {
                    Some(icrc) => icrc.open(next).is_ok(),
                    None => true,
                });
                self.rest = &whole[run.count() as usize * bytes.len()..];
                return Some(run);
            }
        }
    }

    /// The next run, where it goes to this queue pair.
    #[inline]
    fn next_to(&mut self, dest_qp: Qpn) -> Option<Run<'a>> {
        self.next(|bytes| Bth::peek_dest_qp(bytes) == Some(dest_qp))
    }

    /// Checks the ICRC of a packet and takes it apart.
    #[inline]
    fn open(&mut self, bytes: &'a [u8]) -> Option<Packet<'a>> {
        let opened = match &mut self.icrc {
            Some(icrc) => icrc.open(bytes).ok(),
            None => bytes.split_last_chunk::<ICRC_LEN>().map(|(bytes, _)| bytes),
        };
        let Some(bytes) = opened else {
            self.counters.icrc.add(1);
            return None;
        };
        self.counters.parse(bytes)
    }
}

impl<W: Env> Node<W> {
    /// When [`Node::expire_own`] wants to be called.
    fn own_deadline(&self) -> Option<Instant> {
        let connections = self.cm_agent.deadline().into_iter().chain(self.streams.deadline());
        self.devices.iter().filter_map(|d| d.deadline()).chain(connections).min()
    }

    /// Timers of devices, identifiers and connections may have run out.
    fn expire_own(&self, now: Instant) {
        for device in &self.devices {
            device.expire(now);
        }
        for id in self.cm_agent.overdue(now) {
            self.finish_resolve(&id, Err(Errno::ETIMEDOUT));
        }
        self.expire_sa_queries(now);
        self.expire_connections(now);
    }

    /// Packets of one sender. Those that follow each other to one queue pair go there together: it
    /// is looked up and locked once for all of them, and sends once what they call for.
    pub(crate) fn datagrams(&self, now: Instant, run: &Datagram<'_>, size: usize) {
        let Some(flow) = Flow::between(&run.source, &run.dest) else {
            // The ICRC of such a packet covers headers that the environment has taken off.
            return self.counters.icrc.add(1);
        };
        let each = |packets: &Run<'_>, act: &mut dyn FnMut(&Datagram<'_>)| {
            packets.datagrams().for_each(|bytes| act(&Datagram { bytes, ..*run }));
        };
        let icrc = Some(Icrc::of(flow));
        let mut packets = Packets { rest: run.bytes, size, icrc, counters: &self.counters };
        while let Some(first) = packets.next(|_| true) {
            let packet = first.first();
            let dest_qp = packet.header.bth.dest_qp;
            let owner = qpn_owner(dest_qp);
            if dest_qp == Qpn::GSI {
                each(&first, &mut |d| self.management(now, d, packet));
            } else if dest_qp == Qpn::MULTICAST {
                self.multicast(now, run, packet);
            } else if !self.blocks.owns(owner) {
                each(&first, &mut |d| self.pass_on(now, owner, d));
            } else if let Some(device) = self.device_of_arrival(run.interface) {
                let (source, dest) = (run.source.address(), run.dest.address());
                device.input(now, source, dest, run.ack_delay, &first, || packets.next_to(dest_qp));
                self.data_came(now, dest_qp);
            } else {
                self.counters.unknown_device.add(1);
            }
        }
    }

    /// Packets of a process of this host, for this one: no other way leads here.
    fn unsealed(&self, now: Instant, run: &Datagram<'_>, size: usize) {
        match run.dest.address().lid() {
            None => self.without_icrc(now, run, size),
            Some(lid) => self.by_lid(now, run, size, lid.has_grh()),
        }
    }

    /// Packets without a GRH, whose ICRC says nothing.
    pub(crate) fn without_icrc(&self, now: Instant, run: &Datagram<'_>, size: usize) {
        let mut packets = Packets { rest: run.bytes, size, icrc: None, counters: &self.counters };
        while let Some(first) = packets.next(|_| true) {
            let packet = first.first();
            let dest_qp = packet.header.bth.dest_qp;
            if dest_qp == Qpn::GSI {
                // The end of a connection takes the way of its data. No other process can be meant.
                let bytes = first.datagrams().next().unwrap_or_default();
                self.management(now, &Datagram { bytes, forwarded: true, ..*run }, packet);
            } else if !self.blocks.owns(qpn_owner(dest_qp)) {
                self.counters.unknown_owner.add(1);
            } else if let Some(device) = self.device_of_arrival(run.interface) {
                let (source, dest) = (run.source.address(), run.dest.address());
                device.input(now, source, dest, run.ack_delay, &first, || packets.next_to(dest_qp));
                self.data_came(now, dest_qp);
            } else {
                self.counters.unknown_device.add(1);
            }
        }
    }

    /// A short message, for a queue pair that is to be looked up.
    #[cold]
    fn find_short(
        &self,
        now: Instant,
        from: &Datagram<'_>,
        ack_delay: AckDelay,
        short: &Short,
        bytes: &[u8],
        before: &mut Before,
    ) {
        let dest_qp = short.dest_qp;
        if dest_qp == Qpn::GSI || !self.blocks.owns(qpn_owner(dest_qp)) {
            return self.counters.unknown_owner.add(1);
        }
        let ends = (from.source.address(), from.dest.address());
        match self.device_of_arrival(from.interface) {
            Some(device) => {
                if let Some(qp) = device.input_short(now, ends, ack_delay, short, bytes) {
                    before.was(&qp, from.interface);
                }
                self.data_came(now, dest_qp);
            }
            None => self.counters.unknown_device.add(1),
        }
    }

    /// Several packets of a process of this host, as one piece.
    fn fragment(&self, now: Instant, d: &Datagram<'_>, bytes: SharedBytes<'_>) {
        let ends_with = |(code, rest): (&u8, _)| Some((Mtu::from_code(*code)?, rest));
        let Some((mtu, headers)) = d.bytes.split_last().and_then(ends_with) else {
            return self.counters.malformed.add(1);
        };
        let Some(Packet { header: headers, payload }) = self.counters.parse(headers) else { return };
        // Bytes that are elsewhere are in no record.
        let payload = match (payload.is_empty(), bytes.is_empty()) {
            (true, _) => Some(Payload::Shared(bytes)),
            (false, true) => ZeroCopy::from_bytes(payload).map(Payload::ZeroCopy),
            (false, false) => None,
        };
        let Some(payload) = payload else { return self.counters.malformed.add(1) };
        let dest_qp = headers.bth.dest_qp;
        if dest_qp == Qpn::GSI || !self.blocks.owns(qpn_owner(dest_qp)) {
            return self.counters.unknown_owner.add(1);
        }
        let ends = (d.source.address(), d.dest.address());
        match self.device_of_arrival(d.interface) {
            Some(device) => {
                device.input_fragment(now, ends, d.ack_delay, (&headers, mtu), payload);
                self.data_came(now, dest_qp);
            }
            None => self.counters.unknown_device.add(1),
        }
    }

    /// A packet to a group: every process that joined gets its own copy from the environment.
    fn multicast(&self, now: Instant, d: &Datagram<'_>, packet: &Packet<'_>) {
        match self.device_of_arrival(d.interface) {
            Some(device) => device.input_group(now, d.source.address(), d.dest.address(), packet),
            None => self.counters.unknown_device.add(1),
        }
    }
}
