//! A packet's way through the simulated network: from the process that sends it to those that get
//! it.

use std::cmp::Reverse;

use stack::env::{AckDelay, Datagram, Input, InputHandler};
use transport::batch::MAX_RUN;
use wire::icrc::Flow;

use super::{Sim, What};
use crate::env::{HostId, INTERFACE, ProcessId};

impl Sim {
    pub(super) fn send(&mut self, from: ProcessId, flow: Flow, bytes: Vec<u8>, quiet: bool) {
        self.counters.sent += 1;
        let dests = self.shared.hosts_of(flow.dest.ip());
        let Some(source) = self.shared.host_of(flow.source.ip()).filter(|_| !dests.is_empty()) else {
            self.counters.refused += 1;
            return self.note_packet("nowhere", &flow, &bytes);
        };
        let stays_away = |dest: HostId| quiet && flow.dest.ip().is_multicast() && dest == source;
        for dest in dests.into_iter().filter(|&dest| !stays_away(dest)) {
            self.launch(from, source, dest, flow, &bytes);
        }
    }

    /// Sends a packet from host to host.
    pub(super) fn launch(&mut self, from: ProcessId, source: HostId, dest: HostId, flow: Flow, bytes: &[u8]) {
        let now = self.shared.clock.nanos();
        if source != dest {
            self.endanger(dest);
        }
        let fate = self.network.launch(source, dest, now);
        let word = match (fate.arrivals.len(), fate.corrupt) {
            (0, _) => {
                self.counters.lost += 1;
                "lost"
            }
            (_, Some(_)) => {
                self.counters.corrupted += 1;
                "corrupt"
            }
            (1, None) => "sent",
            (_, None) => {
                self.counters.repeated += 1;
                "repeated"
            }
        };
        self.note_packet(word, &flow, bytes);
        let mut corrupt = fate.corrupt;
        for at in fate.arrivals {
            let mut bytes = bytes.to_vec();
            if let Some((place, change)) = corrupt.take()
                && !bytes.is_empty()
            {
                let place = (place % bytes.len() as u64) as usize;
                bytes[place] ^= change;
            }
            self.schedule_at(at, What::Arrival { from, at: dest, flow, bytes });
        }
    }

    /// A packet reaches a host: one of the processes that have the port open gets it, always the
    /// same of a flow, as with SO_REUSEPORT. Where there is none, the sender is told as by
    /// ICMP.
    pub(super) fn arrive(&mut self, from: ProcessId, flow: Flow, bytes: Vec<u8>) {
        let (Some(source), Some(dest)) =
            (self.shared.host_of(flow.source.ip()), self.shared.host_of(flow.dest.ip()))
        else {
            return;
        };
        let member = {
            let hosts = self.shared.hosts();
            let members = &hosts[dest.0].attached;
            let hash = usize::from(flow.source.port()).wrapping_mul(0x9e37_79b1) >> 8;
            members.iter().nth(hash % members.len().max(1)).copied()
        };
        match member {
            Some(to) => {
                let size = bytes.len();
                let run = self.with_those_behind(&flow, bytes);
                self.deliver(to, &flow, &run, size, false);
            }
            None => {
                self.counters.refused += 1;
                self.note_packet("refused", &flow, &bytes);
                if !self.network.is_cut(dest, source, self.shared.clock.nanos()) {
                    self.schedule(self.network.faults.delay, What::Refused { to: from, flow, bytes });
                }
            }
        }
    }

    /// A packet that arrives, often with those of its flow that arrive right after it, as the
    /// system puts them together (UDP_GRO). They are of one size, but for the last, which may be
    /// shorter.
    fn with_those_behind(&mut self, flow: &Flow, mut bytes: Vec<u8>) -> Vec<u8> {
        let (now, size) = (self.shared.clock.nanos(), bytes.len());
        if size == 0 || !self.dice.chance(self.network.faults.together) {
            return bytes;
        }
        while bytes.len().is_multiple_of(size)
            && let Some(Reverse(due)) = self.due.peek()
            && let What::Arrival { flow: other, bytes: more, .. } = &due.what
            && (due.at, other) == (now, flow)
            && (1..=size).contains(&more.len())
            && bytes.len() + more.len() <= MAX_RUN
        {
            bytes.extend_from_slice(more);
            self.due.pop();
        }
        bytes
    }

    /// A packet to a multicast group reaches a host: every process that joined gets it.
    pub(super) fn arrive_at_group(&mut self, host: HostId, flow: &Flow, bytes: &[u8]) {
        let group = flow.dest.ip();
        let members: Vec<ProcessId> = {
            let hosts = self.shared.hosts();
            hosts[host.0].groups.iter().filter(|(g, _)| *g == group).map(|(_, member)| *member).collect()
        };
        members.into_iter().for_each(|to| self.deliver(to, flow, bytes, bytes.len(), false));
    }

    /// Packets of `size` bytes, of which the last may be shorter, reach a process together.
    pub(super) fn deliver(&mut self, to: ProcessId, flow: &Flow, run: &[u8], size: usize, forwarded: bool) {
        if self.node(to).is_none() {
            return;
        }
        for bytes in run.chunks(size.max(1)) {
            self.counters.delivered += 1;
            self.note_packet(if forwarded { "forwarded" } else { "arrived" }, flow, bytes);
        }
        // The program may read the packet itself, and never comes back soon, or the engine with
        // others.
        let ack_delay = self.dice.pick(&[AckDelay::No, AckDelay::Briefly, AckDelay::ForProgram]);
        let (source, dest, interface) = (flow.source.into(), flow.dest.into(), INTERFACE);
        let run = Datagram { source, dest, interface, forwarded, ack_delay, bytes: run };
        self.tell(to, Input::Datagrams { run, size: size.max(1) });
        if let Some(node) = self.node(to) {
            node.release(false);
        }
    }
}
