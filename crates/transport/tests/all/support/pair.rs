//! Two ends on virtual time, and a network between them that loses, repeats and delays.

use std::time::{Duration, Instant};

use transport::rc::RtsAttr;
use wire::Mtu;

use super::{End, some_instant};

/// SplitMix64: a seed is all a run needs.
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What the network does, in percent of packets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    pub loss: u64,
    pub duplication: u64,
    /// Delayed by up to 300 us, so that later ones overtake.
    pub delay: u64,
    /// Delayed by up to 200 ms: arrives when it was sent again long ago.
    pub ghosts: u64,
}

/// Two ends and the packets between them.
#[derive(Debug)]
pub(crate) struct Pair {
    pub ends: [End; 2],
    pub weather: Weather,
    pub rng: Rng,
    pub now: Instant,
    /// Packets under way: arrival, order of sending, to whom, bytes.
    air: Vec<(Instant, u64, usize, Vec<u8>)>,
    count: u64,
    /// Ends at which a FLUSH takes long.
    flushing: [bool; 2],
}

impl Pair {
    pub(crate) fn new(mtu: Mtu, len: usize, rts: RtsAttr, weather: Weather, seed: u64) -> Self {
        let now = some_instant();
        let ends = [0, 1].map(|_| End { now, ..End::new(mtu, len, rts) });
        Self { ends, weather, rng: Rng(seed), now, air: Vec::new(), count: 0, flushing: [false; 2] }
    }

    fn launch(&mut self, from: usize) {
        for bytes in self.ends[from].fill() {
            if self.rng.chance(self.weather.loss) {
                continue;
            }
            let copies = 1 + u64::from(self.rng.chance(self.weather.duplication));
            for _ in 0..copies {
                let mut at = self.now + Duration::from_micros(10);
                if self.rng.chance(self.weather.delay) {
                    at += Duration::from_micros(self.rng.below(300));
                }
                if self.rng.chance(self.weather.ghosts) {
                    at += Duration::from_micros(self.rng.below(200_000));
                }
                self.count += 1;
                self.air.push((at, self.count, 1 - from, bytes.clone()));
            }
        }
    }

    /// What takes long is done some time.
    fn end_flushes(&mut self) {
        for end in 0..2 {
            let end_of_it = self.rng.chance(30);
            self.flushing[end] |= self.ends[end].rc.take_flush().is_some();
            if self.flushing[end] && end_of_it {
                self.flushing[end] = false;
                let End { rc, cx, .. } = &mut self.ends[end];
                rc.flushed(Ok(()), cx);
            }
        }
    }

    /// One step: whatever comes next, a packet or a timer. False when nothing is left to happen.
    pub(crate) fn step(&mut self) -> bool {
        self.end_flushes();
        for end in 0..2 {
            self.launch(end);
        }
        let packet = self.air.iter().enumerate().min_by_key(|(_, p)| (p.0, p.1)).map(|(i, p)| (p.0, i));
        let timer = (0..2).filter_map(|i| self.ends[i].rc.deadline().map(|t| (t, i))).min();
        match (packet, timer) {
            (None, None) if self.flushing != [false; 2] => {}
            (None, None) => return false,
            (Some((at, i)), timer) if timer.is_none_or(|(t, _)| at <= t) => {
                self.now = self.now.max(at);
                let (.., to, bytes) = self.air.swap_remove(i);
                self.ends[to].now = self.now;
                self.ends[to].hear_bytes(&bytes);
            }
            (_, Some((t, i))) => {
                self.now = self.now.max(t);
                self.ends[i].now = self.now;
                self.ends[i].wait(Duration::ZERO);
                self.launch(i);
                assert!(self.ends[i].rc.deadline().is_none_or(|at| at > self.now), "it was served just now");
            }
            (Some(_), None) => unreachable!("a packet without a timer goes first"),
        }
        true
    }

    /// Runs until nothing is left to happen; panics if that takes too long.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the network never falls silent");
    }
}
