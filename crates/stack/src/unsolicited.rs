//! What is for no process: requests for a service that none has, messages about connections that
//! none knows, packets to queue pairs of none. Any host can send any number of them, so each kind
//! costs a bounded amount of work a second, and none of it is remembered.
//!
//! | what | bounded by |
//! |---|---|
//! | asking the other processes for the owner of a name that is not known yet, for a message | [`Allowance`] |
//! | ... for a packet to a queue pair | each block of numbers once in [`ABSENT_MS`] |
//! | answering | another [`Allowance`]; the answers leave from [`PORTS`] source ports |
//!
//! What is beyond is dropped, never answered wrongly: the sender that meant it repeats it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use nic::Fate;
use wire::Address;

use crate::dispatch::count;
use crate::env::{Datagram, Env, Name};
use crate::{Node, number_blocks};

/// Source ports of answers to no peer in particular.
pub(crate) const PORTS: u32 = 4;
/// For how long a block that no process bore is taken to be free: a process that claims it loses no
/// more than packets that are sent again.
const ABSENT_MS: u32 = 20;
/// Addresses share so many accounts, by a hash that only we know.
const ACCOUNTS: usize = 64;

/// How many are allowed a second, and how many at once.
#[derive(Clone, Copy, Debug)]
struct Rate {
    apart: Duration,
    burst: u32,
}

const EACH: Rate = Rate { apart: Duration::from_micros(1_000), burst: 512 };
const ALL: Rate = Rate { apart: Duration::from_micros(250), burst: 2_048 };

/// A token bucket, as the time at which it will be full.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Option<Instant>);

impl Bucket {
    fn has(&self, now: Instant, rate: Rate) -> bool {
        self.0.is_none_or(|full| full.saturating_duration_since(now) < rate.apart * rate.burst)
    }
    fn take(&mut self, now: Instant, rate: Rate) {
        self.0 = Some(self.0.unwrap_or(now).max(now) + rate.apart);
    }
}

/// What may be done for unsolicited traffic: so much for each address, and for all of them
/// together.
#[derive(Debug)]
pub(crate) struct Allowance {
    buckets: Mutex<([Bucket; ACCOUNTS], Bucket)>,
    key: u64,
}

impl Allowance {
    fn new(key: u64) -> Self {
        let empty = ([Bucket::default(); ACCOUNTS], Bucket::default());
        Self { buckets: Mutex::new(Rank::Unsolicited, empty), key }
    }

    /// Whether one more thing may be done for `source`.
    pub(crate) fn take(&self, now: Instant, source: Address) -> bool {
        let mut buckets = self.buckets.lock();
        let (each, all) = &mut *buckets;
        let own = &mut each[self.account(source)];
        let granted = own.has(now, EACH) && all.has(now, ALL);
        if granted {
            own.take(now, EACH);
            all.take(now, ALL);
        }
        granted
    }

    fn account(&self, source: Address) -> usize {
        // A host that has an address has its whole network.
        ((source.network() ^ self.key).wrapping_mul(self.key | 1) >> 32) as usize % ACCOUNTS
    }
}

/// Blocks of numbers that no process bore a moment ago.
#[derive(Debug)]
struct Absent {
    since: Instant,
    until_ms: Box<[AtomicU32]>,
}

impl Absent {
    fn now_ms(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.since).as_millis() as u32
    }
    fn has(&self, now: Instant, block: u16) -> bool {
        let until = self.until_ms.get(usize::from(block)).map_or(0, |until| until.load(Ordering::Relaxed));
        until != 0 && (1..=ABSENT_MS).contains(&until.wrapping_sub(self.now_ms(now)))
    }
    fn note(&self, now: Instant, block: u16) {
        if let Some(until) = self.until_ms.get(usize::from(block)) {
            until.store(self.now_ms(now).wrapping_add(ABSENT_MS).max(1), Ordering::Relaxed);
        }
    }
}

/// How much is done about what is for no process.
#[derive(Debug)]
pub(crate) struct Unsolicited {
    /// Allowance of questions to other processes.
    pub questions: Allowance,
    /// Allowance of answers.
    pub answers: Allowance,
    absent: Absent,
}

impl Unsolicited {
    pub(crate) fn new(now: Instant, key: u64) -> Self {
        let until_ms = (0..1 << 12).map(|_| AtomicU32::new(0)).collect();
        let (questions, answers) = (Allowance::new(key), Allowance::new(key));
        Self { questions, answers, absent: Absent { since: now, until_ms } }
    }
}

/// The outcome of a message that may be another process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedOn {
    /// A process that bears one of the names has it.
    Taken,
    /// No process bears any of the names, or the message came from another process already.
    NotBorne,
    /// The sender has asked for so many names that the system is not asked for this one.
    NotAllowed,
}

impl<W: Env> Node<W> {
    /// Hands a packet of a queue pair to the process it is for, or counts that there is none.
    pub(crate) fn pass_on(&self, now: Instant, owner: Name, d: &Datagram<'_>) {
        if self.is_forwarded(now, owner, d) {
            Fate::PassedOn.set();
        } else {
            self.counters.unknown_owner.add(1);
        }
    }

    /// Whether the process that a packet of a queue pair is for has the packet now. What came from
    /// another process goes no further: no loops.
    pub(crate) fn is_forwarded(&self, now: Instant, owner: Name, d: &Datagram<'_>) -> bool {
        let Name::Block(block) = owner else { return false };
        if d.forwarded || self.unsolicited.absent.has(now, block) {
            return false;
        }
        let is_taken = self.env.forward(owner, d);
        if !is_taken {
            self.unsolicited.absent.note(now, block);
        }
        is_taken
    }

    /// Hands a message to the first of `names` that a process bears.
    pub(crate) fn pass_message_on(&self, now: Instant, names: &[Name], d: &Datagram<'_>) -> PassedOn {
        if d.forwarded {
            return PassedOn::NotBorne;
        }
        let known = names.iter().find(|name| self.env.is_known(**name));
        let forward = |name: &Name| {
            let is_taken = self.env.forward(*name, d);
            if is_taken {
                Fate::PassedOn.set();
            }
            is_taken
        };
        if known.is_some_and(forward) {
            return PassedOn::Taken;
        }
        let names = || names.iter().filter(|name| number_blocks::may_be_borne(**name));
        if names().next().is_some() && !self.unsolicited.questions.take(now, d.source.address()) {
            count(&self.counters.unsolicited);
            return PassedOn::NotAllowed;
        }
        match names().any(forward) {
            true => PassedOn::Taken,
            false => PassedOn::NotBorne,
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const ONE: Address = Address::Ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));

    /// How many of `count` in one second are granted to `source`.
    fn granted(allowance: &Allowance, begin: Instant, count: u32, source: impl Fn(u32) -> Address) -> u32 {
        let at = |n| begin + Duration::from_secs(1) * n / count;
        (0..count).filter(|&n| allowance.take(at(n), source(n))).count() as u32
    }

    #[test]
    fn a_flood_from_one_address_is_granted_the_burst_and_the_rate_and_leaves_others_theirs() {
        let (allowance, begin) = (Allowance::new(0x1234_5678_9abc_def1), Instant::now());
        let flood = granted(&allowance, begin, 20_000, |_| ONE);
        assert!((1_500..=1_520).contains(&flood), "{flood}");
        let end = begin + Duration::from_secs(1);
        assert!(!allowance.take(end - Duration::from_micros(900), ONE));
        let other = (2..200).map(|n| Address::from(Ipv4Addr::new(10, 0, 0, n)));
        let other = other.into_iter().find(|ip| allowance.account(*ip) != allowance.account(ONE)).unwrap();
        assert_eq!((0..100).filter(|_| allowance.take(end, other)).count(), 100);
    }

    #[test]
    fn a_flood_from_all_addresses_is_granted_no_more_than_all_are() {
        let allowance = Allowance::new(0x1234_5678_9abc_def1);
        let flood =
            granted(&allowance, Instant::now(), 50_000, |n| Address::from(Ipv4Addr::from(n.to_be_bytes())));
        assert!((5_000..=6_060).contains(&flood), "{flood}");
    }

    #[test]
    fn a_block_is_absent_for_a_moment_and_no_longer() {
        let begin = Instant::now();
        let unsolicited = Unsolicited::new(begin, 7);
        let at = |ms| begin + Duration::from_millis(ms);
        for first in [0, 40, 5_000, u64::from(u32::MAX) - 5] {
            assert!(!unsolicited.absent.has(at(first), 0x123));
            unsolicited.absent.note(at(first), 0x123);
            assert!(unsolicited.absent.has(at(first + 15), 0x123));
            assert!(!unsolicited.absent.has(at(first + 15), 0x124));
            assert!(!unsolicited.absent.has(at(first + 21), 0x123));
        }
    }
}
