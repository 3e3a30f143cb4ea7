//! Links between hosts: what becomes of a packet.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::nanos;
use crate::env::HostId;
use crate::{Dice, Faults};

/// Time a packet takes inside a host.
const LOCAL: Duration = Duration::from_micros(5);

/// One direction between two hosts.
#[derive(Debug, Default)]
struct Link {
    /// When the last packet in order arrives.
    last: u64,
    /// No packet arrives before this time.
    clogged_until: u64,
    /// Everything sent before is lost.
    cut_until: u64,
}

/// Times at which copies of a packet arrive, and whether the first has a byte changed.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    pub arrivals: Vec<u64>,
    /// What to exclusive-or to which byte, counted modulo the length.
    pub corrupt: Option<(u64, u8)>,
}

#[derive(Debug)]
pub(crate) struct Network {
    pub faults: Faults,
    dice: Dice,
    links: BTreeMap<(HostId, HostId), Link>,
}

impl Network {
    pub(crate) fn new(faults: Faults, dice: Dice) -> Self {
        Self { faults, dice, links: BTreeMap::new() }
    }

    pub(crate) fn cut(&mut self, from: HostId, to: HostId, until: u64) {
        self.links.entry((from, to)).or_default().cut_until = until;
    }

    pub(crate) fn clog(&mut self, from: HostId, to: HostId, until: u64) {
        self.links.entry((from, to)).or_default().clogged_until = until;
    }

    pub(crate) fn heal(&mut self) {
        for link in self.links.values_mut() {
            (link.cut_until, link.clogged_until) = (0, 0);
        }
    }

    /// Whether a packet sent now would be lost whatever the dice say.
    pub(crate) fn is_cut(&self, from: HostId, to: HostId, now: u64) -> bool {
        self.links.get(&(from, to)).is_some_and(|l| now < l.cut_until)
    }

    /// When what is sent now may arrive at the earliest, as its way is clogged.
    pub(crate) fn clogged_until(&self, from: HostId, to: HostId) -> u64 {
        self.links.get(&(from, to)).map_or(0, |link| link.clogged_until)
    }

    /// How long a flush takes that begins now.
    pub(crate) fn flush_time(&mut self) -> Duration {
        let most = self.faults.flush_jitter;
        self.faults.flush + if most.is_zero() { most } else { self.dice.duration(most) }
    }

    /// Whether the power of the host that a packet is sent to fails now.
    pub(crate) fn power_fails(&mut self) -> bool {
        self.faults.power_fail > 0.0 && self.dice.chance(self.faults.power_fail)
    }

    /// How long it is off.
    pub(crate) fn power_time(&mut self) -> Duration {
        self.dice.duration(self.faults.power_time)
    }

    /// When a piece of a stream that leaves now arrives. Nothing is lost: what a packet would
    /// suffer delays the piece, and what stops a link stops the stream.
    pub(crate) fn stream_arrival(&mut self, dice: &mut Dice, from: HostId, to: HostId, now: u64) -> u64 {
        let Self { faults: f, links, .. } = self;
        let link = links.entry((from, to)).or_default();
        if from == to {
            return (now + nanos(LOCAL)).max(link.clogged_until);
        }
        if dice.chance(f.partition) {
            link.cut_until = link.cut_until.max(now + nanos(dice.duration(f.partition_time)));
        }
        if dice.chance(f.clog) {
            link.clogged_until = link.clogged_until.max(now + nanos(dice.duration(f.clog_time)));
        }
        let again = dice.chance(f.loss + f.reorder + f.corrupt);
        let late = if again { dice.duration(f.reorder_delay) + 2 * f.delay } else { Duration::ZERO };
        (now + nanos(f.delay + dice.duration(f.jitter) + late)).max(link.clogged_until)
    }

    /// Sends a packet.
    pub(crate) fn launch(&mut self, from: HostId, to: HostId, now: u64) -> Fate {
        let Self { faults: f, dice, links } = self;
        let link = links.entry((from, to)).or_default();
        if from == to {
            link.last = link.last.max(now + nanos(LOCAL)).max(link.clogged_until);
            return Fate { arrivals: vec![link.last], corrupt: None };
        }
        if dice.chance(f.partition) {
            link.cut_until = link.cut_until.max(now + nanos(dice.duration(f.partition_time)));
        }
        if dice.chance(f.clog) {
            link.clogged_until = link.clogged_until.max(now + nanos(dice.duration(f.clog_time)));
        }
        if now < link.cut_until || dice.chance(f.loss) {
            return Fate::default();
        }
        let mut fate = Fate::default();
        let direct = now + nanos(f.delay + dice.duration(f.jitter));
        if dice.chance(f.reorder) {
            fate.arrivals.push((direct + nanos(dice.duration(f.reorder_delay))).max(link.clogged_until));
        } else {
            link.last = direct.max(link.last).max(link.clogged_until);
            fate.arrivals.push(link.last);
        }
        if dice.chance(f.duplicate) {
            fate.arrivals.push(fate.arrivals[0]);
        }
        if dice.chance(f.replay) {
            fate.arrivals.push(fate.arrivals[0] + nanos(dice.duration(f.replay_delay)));
        }
        if dice.chance(f.corrupt) {
            fate.corrupt = Some((dice.bits(), dice.between(1, 255) as u8));
        }
        fate
    }
}
