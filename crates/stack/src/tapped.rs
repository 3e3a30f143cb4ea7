//! Packets and frames as they arrive: those for this process pass the link's tap, where it has one.

use std::time::Instant;

use nic::{Arrival, Fate, FrameArrival, Tap};

use crate::Node;
use crate::env::{Datagram, Env};

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
            tap.arrived(&Arrival { source, dest, interface, forwarded, bytes }, &mut |bytes| {
                Fate::take();
                self.datagrams(now, &Datagram { bytes, ..*run }, bytes.len().max(1));
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
