//! What happens in a second: the difference of two answers of a process, over the time that passed
//! between them by the clock of the process.

use std::collections::HashMap;

use inspect::{Cq, Process, Qp, Stream};

/// Counters of what a process sends: packets, and what goes through rings instead of packets.
const SENT: [&str; 5] = [
    "host.packets_sent",
    "host.frames_sent",
    "host.ring_packets_sent",
    "host.ring_messages_sent",
    "host.ring_fragments_sent",
];
/// Counters of what a process receives.
const RECEIVED: [&str; 5] = [
    "host.packets_received",
    "host.frames_received",
    "host.ring_packets_received",
    "host.ring_messages_received",
    "host.ring_fragments_received",
];

/// Two answers of one process.
#[derive(Clone, Copy)]
pub(super) struct Between<'a> {
    before: &'a Process,
    now: &'a Process,
    seconds: f64,
}

impl<'a> Between<'a> {
    /// `None` where no time has passed, or the later answer is of a process that began anew.
    pub(super) fn new(before: &'a Process, now: &'a Process) -> Option<Self> {
        let ms = now.uptime_ms.checked_sub(before.uptime_ms).filter(|ms| *ms > 0)?;
        Some(Self { before, now, seconds: ms as f64 / 1000.0 })
    }

    /// Packets and FPDUs sent in a second.
    pub(super) fn sent(self) -> Option<f64> {
        Some(self.counted(&SENT)? + self.of_streams(|stream| stream.sent_fpdus))
    }

    /// Packets and FPDUs received in a second.
    pub(super) fn received(self) -> Option<f64> {
        Some(self.counted(&RECEIVED)? + self.of_streams(|stream| stream.received_fpdus))
    }

    /// What streams carried in a second, of the queue pairs that exist now.
    fn of_streams(self, count: fn(&Stream) -> u64) -> f64 {
        let of = |qp: &Qp| qp.stream.as_ref().map_or(0, count);
        self.more(of) as f64 / self.seconds
    }

    /// By how much a count of the queue pairs that exist now has grown.
    fn more(self, count: impl Fn(&Qp) -> u64) -> u64 {
        let before: HashMap<_, _> = qps(self.before).collect();
        let more = qps(self.now).map(|(key, qp)| {
            let earlier = before.get(&key).map_or(0, |qp| count(qp));
            count(qp).saturating_sub(earlier)
        });
        more.fold(0, u64::saturating_add)
    }

    /// Retransmissions in a second, of the queue pairs that exist now.
    pub(super) fn retransmitted(self) -> f64 {
        self.more(retransmissions) as f64 / self.seconds
    }

    /// The rate of a count that a queue pair has; `None` where it is new.
    pub(super) fn of_qp(self, ifname: &str, qp: &Qp, count: fn(&Qp) -> u64) -> Option<f64> {
        let (_, before) = qps(self.before).find(|(key, _)| *key == (ifname, qp.lqpn))?;
        self.rate(count(before), count(qp))
    }

    /// The rates of a count that the queue pairs have, by device and number.
    pub(super) fn of_qps(self, count: fn(&Qp) -> u64) -> HashMap<(&'a str, u32), f64> {
        let before: HashMap<_, _> = qps(self.before).collect();
        let both = qps(self.now).filter_map(|(key, qp)| Some((key, *before.get(&key)?, qp)));
        both.filter_map(|(key, earlier, qp)| Some((key, self.rate(count(earlier), count(qp))?))).collect()
    }

    /// Completions added to a completion queue in a second.
    pub(super) fn of_cq(self, ifname: &str, cq: &Cq) -> Option<f64> {
        let device = self.before.devices.iter().find(|device| device.ifname == ifname)?;
        let before = device.cqs.iter().find(|before| before.cqn == cq.cqn)?;
        self.rate(before.added, cq.added)
    }

    fn counted(self, names: &[&str]) -> Option<f64> {
        let sum = |process: &Process| {
            let counts = names.iter().filter_map(|name| process.counters.get(*name));
            counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
        };
        self.rate(sum(self.before), sum(self.now))
    }

    /// `None` where the count went back: it is of another object.
    fn rate(self, before: u64, now: u64) -> Option<f64> {
        now.checked_sub(before).map(|more| more as f64 / self.seconds)
    }
}

/// The queue pairs of a process, by device and number.
fn qps(process: &Process) -> impl Iterator<Item = ((&str, u32), &Qp)> {
    let devices = process.devices.iter();
    devices.flat_map(|device| device.qps.iter().map(|qp| ((&*device.ifname, qp.lqpn), qp)))
}

/// Send requests of a queue pair that have completed without an error.
pub(super) fn completed(qp: &Qp) -> u64 {
    qp.reliable.as_ref().map_or(0, |reliable| reliable.completed)
}

/// Bytes that the stream of a queue pair took.
pub(super) fn sent_bytes(qp: &Qp) -> u64 {
    qp.stream.as_ref().map_or(0, |stream| stream.sent_bytes)
}

/// Bytes that came by the stream of a queue pair.
pub(super) fn received_bytes(qp: &Qp) -> u64 {
    qp.stream.as_ref().map_or(0, |stream| stream.received_bytes)
}

/// How often a queue pair sent all again.
pub(super) fn retransmissions(qp: &Qp) -> u64 {
    qp.reliable.as_ref().map_or(0, |reliable| reliable.retransmissions.into())
}
