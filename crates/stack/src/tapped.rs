//! Packets and frames as they arrive: those for this process pass the link's tap, where it has one.

use std::time::Instant;

use nic::{Arrival, Fate, FrameArrival, Tap};
use wire::Qpn;
use wire::bth::Bth;
use wire::icrc::{Flow, Icrc};
use wire::roce::Packet;

use crate::Node;
use crate::env::{Datagram, Env};
use crate::number_blocks::qpn_owner;

impl<W: Env> Node<W> {
    /// Packets of one sender, as they arrive.
    #[inline]
    pub(crate) fn arrived(&self, now: Instant, run: &Datagram<'_>, size: usize) {
        match self.link.tap() {
            None => self.datagrams(now, run, size),
            Some(tap) => self.tapped(now, run, size, tap),
        }
    }

    /// Packets of one sender, which a tap sees.
    fn tapped(&self, now: Instant, run: &Datagram<'_>, size: usize, tap: &dyn Tap) {
        let &Datagram { source, dest, interface, forwarded, .. } = run;
        if !forwarded {
            tap.arrive(&Arrival { source, dest, interface, forwarded, bytes: run.bytes }, size);
        }
        if !tap.sees_each() {
            return self.datagrams(now, run, size);
        }
        for bytes in run.bytes.chunks(size) {
            if self.is_handed_on(now, &Datagram { bytes, ..*run }) {
                continue;
            }
            // No other process has it, so none is asked again.
            let kept = Datagram { forwarded: true, ..*run };
            tap.arrived(&Arrival { source, dest, interface, forwarded, bytes }, &mut |bytes| {
                Fate::take();
                self.datagrams(now, &Datagram { bytes, ..kept }, bytes.len().max(1));
                Fate::take()
            });
        }
    }

    /// Packets between LIDs, as they arrive. A fabric gives them to the process that they are for.
    pub(crate) fn by_lid(&self, now: Instant, run: &Datagram<'_>, size: usize, has_grh: bool) {
        let Some(tap) = self.link.tap() else { return self.by_lid_untapped(now, run, size, has_grh) };
        let &Datagram { source, dest, interface, forwarded, .. } = run;
        tap.arrive(&Arrival { source, dest, interface, forwarded, bytes: run.bytes }, size);
        if !tap.sees_each() {
            return self.by_lid_untapped(now, run, size, has_grh);
        }
        for bytes in run.bytes.chunks(size) {
            tap.arrived(&Arrival { source, dest, interface, forwarded, bytes }, &mut |bytes| {
                Fate::take();
                self.by_lid_untapped(now, &Datagram { bytes, ..*run }, bytes.len().max(1), has_grh);
                Fate::take()
            });
        }
    }

    /// Packets between LIDs, which no tap sees, or which it has seen.
    pub(crate) fn by_lid_untapped(&self, now: Instant, run: &Datagram<'_>, size: usize, has_grh: bool) {
        match has_grh {
            true => run.bytes.chunks(size).for_each(|bytes| self.global(now, &Datagram { bytes, ..*run })),
            false => self.without_icrc(now, run, size),
        }
    }

    /// Whether another process of this host has a packet now. That process's tap sees the packet:
    /// a tap of this process would count for its rules what is not its own.
    fn is_handed_on(&self, now: Instant, d: &Datagram<'_>) -> bool {
        let of_another = |qpn| qpn != Qpn::MULTICAST && !self.blocks.owns(qpn_owner(qpn));
        let Some(dest_qp) = Bth::peek_dest_qp(d.bytes).filter(|qpn| !d.forwarded && of_another(*qpn)) else {
            return false;
        };
        let flow = Flow::between(&d.source, &d.dest);
        let Some(bytes) = flow.and_then(|flow| Icrc::of(flow).open(d.bytes).ok()) else { return false };
        match Packet::parse(bytes) {
            Ok(packet) if dest_qp == Qpn::GSI => self.is_message_handed_on(now, d, &packet),
            Ok(_) => self.is_forwarded(now, qpn_owner(dest_qp), d),
            Err(_) => false,
        }
    }

    /// A whole Ethernet frame. A tap sees those alone that a rule of this process takes.
    pub(crate) fn frame(&self, now: Instant, frame: &FrameArrival<'_>) {
        let &FrameArrival { interface, outgoing, bytes } = frame;
        let Some(device) = self.device_of_arrival(interface) else {
            return self.counters.unknown_device.add(1);
        };
        let tap = self.link.tap().filter(|tap| tap.sees_each());
        match tap {
            None => device.input_frame(now, outgoing, bytes),
            Some(tap) if device.steers_frame(outgoing, bytes) => tap.frame_arrived(frame, &mut |bytes| {
                Fate::take();
                device.input_frame(now, outgoing, bytes);
                Fate::take()
            }),
            Some(_) => {}
        }
    }
}
