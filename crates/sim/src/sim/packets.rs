//! A packet's way through the simulated network: from the process that sends it to those that get it.

use node::world::{Datagram, Guest, Hold, Input};
use wire::icrc::Flow;

use super::{Sim, What};
use crate::world::{HostId, INTERFACE, ProcessId};

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

    /// A packet reaches a host: one of the processes that have the port open gets it, always the same of a flow, as with
    /// SO_REUSEPORT. Where there is none, the sender is told as by ICMP.
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
            Some(to) => self.deliver(to, &flow, &bytes, false),
            None => {
                self.counters.refused += 1;
                self.note_packet("refused", &flow, &bytes);
                if !self.network.is_cut(dest, source, self.shared.clock.nanos()) {
                    self.schedule(self.network.faults.delay, What::Refused { to: from, flow, bytes });
                }
            }
        }
    }

    /// A packet to a multicast group reaches a host: every process that joined gets it.
    pub(super) fn arrive_at_group(&mut self, host: HostId, flow: &Flow, bytes: &[u8]) {
        let group = flow.dest.ip();
        let members: Vec<ProcessId> = {
            let hosts = self.shared.hosts();
            hosts[host.0].groups.iter().filter(|(g, _)| *g == group).map(|(_, member)| *member).collect()
        };
        members.into_iter().for_each(|to| self.deliver(to, flow, bytes, false));
    }

    pub(super) fn deliver(&mut self, to: ProcessId, flow: &Flow, bytes: &[u8], forwarded: bool) {
        if self.node(to).is_none() {
            return;
        }
        self.counters.delivered += 1;
        self.note_packet(if forwarded { "forwarded" } else { "arrived" }, flow, bytes);
        // The program may read the packet itself, and never comes back soon, or the engine with others.
        let hold = self.dice.pick(&[Hold::No, Hold::Briefly, Hold::ForProgram]);
        let (source, dest, interface) = (flow.source, flow.dest, INTERFACE);
        let datagram = Datagram { source, dest, interface, forwarded, hold, bytes };
        self.tell(to, Input::Datagram(datagram));
        if let Some(node) = self.node(to) {
            node.release(false);
        }
    }
}
