//! What is held until it is due: packets that are late or wait for their turn, and what follows
//! from a packet that was lost.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nic::Path;
use nic::faults::RequestFault;
use wire::grh::GRH_LEN;
use wire::lrh::{LRH_LEN, VCRC_LEN};
use wire::{Address, Endpoint};

use crate::decide::{Decider, Verdict};
use crate::requests::Way;

/// Bytes of all packets that are held.
const MAX_BYTES: usize = 64 << 20;

/// Bytes before those of a packet on the wire: Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
/// What IPv6 has more than IPv4.
const MORE_OF_V6: usize = 20;

/// Something that is held.
#[derive(Debug)]
pub(crate) enum What {
    /// A packet that leaves.
    Out { path: Path, bytes: Vec<u8> },
    /// A packet that arrives.
    In { source: Endpoint, dest: Endpoint, interface: u32, forwarded: bool, bytes: Vec<u8> },
    /// An Ethernet frame that leaves.
    FrameOut { interface: u32, bytes: Vec<u8> },
    /// An Ethernet frame that arrives.
    FrameIn { interface: u32, outgoing: bool, bytes: Vec<u8> },
    /// A request fails.
    Request { way: Way, fault: RequestFault },
    /// The stream of this token is to be looked at.
    Stream(u64),
    /// A connection request is rejected.
    Reject { is_out: bool, ours: Address, peer: Address, interface: u32, packet: Vec<u8>, reason: u16 },
}

impl What {
    /// Bytes of a packet that is held.
    fn len_bytes(&self) -> usize {
        match self {
            Self::Out { bytes, .. }
            | Self::In { bytes, .. }
            | Self::FrameOut { bytes, .. }
            | Self::FrameIn { bytes, .. } => bytes.len(),
            Self::Request { .. } | Self::Reject { .. } | Self::Stream(_) => 0,
        }
    }
}

/// What a packet takes of what rules hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub is_out: bool,
    /// The link layer drops what is damaged, by its own checksum (VCRC, IBA 1.4 §7.8.2).
    pub drops_damaged: bool,
    pub len_bytes: usize,
    /// Bytes before those of the packet on the wire.
    headers: usize,
}

impl Size {
    pub(crate) fn of_packet(is_out: bool, dest: Address, len_bytes: usize) -> Self {
        let (headers, drops_damaged) = match dest {
            Address::Ip(IpAddr::V4(_)) => (HEADERS, false),
            Address::Ip(IpAddr::V6(_)) => (HEADERS + MORE_OF_V6, false),
            Address::Lid(lid) => (LRH_LEN + VCRC_LEN + if lid.has_grh() { GRH_LEN } else { 0 }, true),
        };
        Self { is_out, drops_damaged, len_bytes, headers }
    }

    pub(crate) fn of_frame(is_out: bool, len_bytes: usize) -> Self {
        Self { is_out, drops_damaged: false, len_bytes, headers: 0 }
    }
}

/// A packet is one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// When a packet is due, and the rules that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    due: Instant,
    queues: [Option<usize>; 2],
    is_out: bool,
}

impl Ticket {
    /// Of what no rule holds.
    pub(crate) fn at(due: Instant) -> Self {
        Self { due, queues: [None; 2], is_out: true }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }
}

/// The packets of one direction that a rule holds.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    len: usize,
    /// When the last of them has left, by its rate.
    busy_until: Option<Instant>,
}

/// Something that is held, with the rules that hold it.
#[derive(Debug)]
struct Item {
    queues: [Option<usize>; 2],
    is_out: bool,
    what: What,
}

/// All that is held.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// By the time at which it is due, then in order.
    items: BTreeMap<(Instant, u64), Item>,
    number: u64,
    bytes: usize,
    /// In and out of each rule.
    queues: Vec<[Queue; 2]>,
}

impl Held {
    /// Other rules hold from now on: what is held leaves at once.
    pub(crate) fn restart(&mut self, now: Instant, rules: usize) {
        self.queues = vec![[Queue::default(); 2]; rules];
        for ((_, number), item) in std::mem::take(&mut self.items) {
            self.items.insert((now, number), Item { queues: [None; 2], ..item });
        }
    }

    /// Whether a packet of so many bytes is to be held, and until when. Then [`Held::push`]
    /// follows, and it counts as held already.
    ///
    /// # Errors
    ///
    /// A rule holds as many as it may.
    pub(crate) fn schedule(
        &mut self,
        now: Instant,
        decider: &Decider,
        verdict: &Verdict,
        Size { is_out, len_bytes, headers, .. }: Size,
        stopped_until: Option<Instant>,
    ) -> Result<Option<Ticket>, Full> {
        let late = verdict.late.filter(|(_, time)| !time.is_zero());
        let queues = [verdict.rate.map(|(rule, _)| rule), late.map(|(rule, _)| rule)];
        let direction = usize::from(is_out);
        let is_full = |rule: &usize| {
            self.queues.get(*rule).is_none_or(|queue| queue[direction].len >= decider.limit(*rule))
        };
        if queues.iter().flatten().any(is_full) || self.bytes + len_bytes > MAX_BYTES {
            return Err(Full);
        }
        let mut due = now;
        if let Some((rule, rate)) = verdict.rate {
            let bits = 8 * (len_bytes + headers) as u128;
            due = self.turn_of_bits((rule, rate), direction, bits, now);
        }
        due += late.map_or(Duration::ZERO, |(_, time)| time);
        due = stopped_until.map_or(due, |until| until.max(due));
        if due == now {
            return Ok(None);
        }
        self.bytes += len_bytes;
        queues.into_iter().flatten().for_each(|rule| self.queues[rule][direction].len += 1);
        Ok(Some(Ticket { due, queues, is_out }))
    }

    /// When bytes of a stream, which wait from some time on, have had their turn by a rule and its
    /// rate.
    pub(crate) fn turn(&mut self, rule: (usize, u64), is_out: bool, len: usize, from: Instant) -> Instant {
        self.turn_of_bits(rule, usize::from(is_out), 8 * len as u128, from)
    }

    fn turn_of_bits(
        &mut self,
        (rule, rate): (usize, u64),
        direction: usize,
        bits: u128,
        from: Instant,
    ) -> Instant {
        let takes = Duration::from_nanos((bits * 1_000_000_000 / u128::from(rate)) as u64);
        // Other rules may hold since then.
        let Some(queue) = self.queues.get_mut(rule) else { return from };
        let queue = &mut queue[direction];
        let due = queue.busy_until.map_or(from, |busy| busy.max(from)) + takes;
        queue.busy_until = Some(due);
        due
    }

    /// Holds something: a packet by the ticket that it was given.
    pub(crate) fn push(&mut self, ticket: Ticket, what: What) {
        let Ticket { due, queues, is_out } = ticket;
        self.number += 1;
        self.items.insert((due, self.number), Item { queues, is_out, what });
    }

    /// Lets go of the first that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<What> {
        let entry = self.items.first_entry().filter(|entry| entry.key().0 <= now)?;
        let Item { queues, is_out, what } = entry.remove();
        self.bytes = self.bytes.saturating_sub(what.len_bytes());
        for rule in queues.into_iter().flatten() {
            if let Some(queue) = self.queues.get_mut(rule) {
                let len = &mut queue[usize::from(is_out)].len;
                *len = len.saturating_sub(1);
            }
        }
        Some(what)
    }

    /// When the first is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.items.first_key_value().map(|((due, _), _)| *due)
    }

    /// Lets go of all, in the order in which it would be due.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = What> + use<> {
        self.bytes = 0;
        self.queues.fill([Queue::default(); 2]);
        std::mem::take(&mut self.items).into_values().map(|item| item.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Address = Address::Ip(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn packet() -> What {
        let end = (std::net::Ipv4Addr::LOCALHOST, 4791).into();
        What::In { source: end, dest: end, interface: 1, forwarded: false, bytes: vec![0; 125 - HEADERS] }
    }

    #[test]
    fn packets_leave_at_their_rate_and_those_beyond_the_limit_are_lost() {
        let decider = Decider::new(&"rate=1mbit,limit=2".parse().unwrap(), 1);
        let (mut held, now) = (Held::default(), Instant::now());
        held.restart(now, 1);
        let verdict = Verdict { rate: Some((0, 1_000_000)), ..Verdict::default() };
        // 1,000 bits each: a millisecond.
        let len = 125 - HEADERS;
        let mut dues = Vec::new();
        for _ in 0..2 {
            let ticket = held
                .schedule(now, &decider, &verdict, Size::of_packet(true, PEER, len), None)
                .unwrap()
                .unwrap();
            dues.push((ticket.due() - now).as_micros());
            held.push(ticket, packet());
        }
        assert_eq!(dues, [1_000, 2_000]);
        assert_eq!(held.schedule(now, &decider, &verdict, Size::of_packet(true, PEER, len), None), Err(Full));
        assert!(held.schedule(now, &decider, &verdict, Size::of_packet(false, PEER, len), None).is_ok());
        let later = now + Duration::from_micros(1_500);
        assert!(held.pop(later).is_some() && held.pop(later).is_none());
        assert_eq!(held.deadline(), Some(now + Duration::from_millis(2)));
        let ticket = held
            .schedule(later, &decider, &verdict, Size::of_packet(true, PEER, len), None)
            .unwrap()
            .unwrap();
        assert_eq!((ticket.due() - now).as_micros(), 3_000);
    }

    #[test]
    fn what_is_not_late_leaves_at_once_and_nothing_leaves_while_the_engine_stands_still() {
        let decider = Decider::new(&"delay=1ms".parse().unwrap(), 1);
        let (mut held, now) = (Held::default(), Instant::now());
        held.restart(now, 1);
        let none = Verdict { late: Some((0, Duration::ZERO)), ..Verdict::default() };
        assert_eq!(held.schedule(now, &decider, &none, Size::of_packet(true, PEER, 9), None), Ok(None));
        let until = now + Duration::from_millis(5);
        let ticket =
            held.schedule(now, &decider, &none, Size::of_packet(true, PEER, 9), Some(until)).unwrap();
        assert_eq!(ticket.map(|ticket| ticket.due()), Some(until));
    }
}
