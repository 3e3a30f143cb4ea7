//! A thread that waits for an event looks at rings and sockets for a moment before it sleeps: the
//! answer of a peer may be there in less time than it takes to wake a thread. Where it was not
//! there several times in a row, as where many processes want the processor, hardly any thread
//! looks. Nor where others compute without a break (`CpuContention`): the scheduler gives them some
//! milliseconds each time, while a thread that is woken goes before them.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use sys::clock::Clock;

use crate::env::{Delivery, Drained, PacketHandler};
use crate::rings::Rings;

/// How often a thread may look in vain in a row; then one in so many waits tries again.
const FEW: u32 = 2;
const SELDOM: u32 = 32;
/// A thread looks at rings so often, about a microsecond, before it lets others have the processor.
/// It looks only once where they had the processor for longer than that the last time.
const LOOKS: u32 = 32;
const OTHERS_NANOS: u64 = 5_000;
/// Others may have the processor so often: the answer is there by then, as a rule, and a turn takes
/// less than to be woken.
const TURNS: u32 = 8;
/// Others have the processor for so long, so many times in a row, before it is asked which threads
/// they are. So many waits in a row do not see that of CPU-bound threads that are gone.
const LONG_NANOS: u64 = 2_000_000;
const IN_A_ROW: u32 = 4;
/// Threads that wait for each other, as ours do, have the processor for less than this each.
const CPU_BOUND_NANOS: u64 = 500_000;
/// Where there are CPU-bound threads one in so many waits looks, to see whether they are gone, and
/// not more often than this: each time takes some 3 ms.
const HARDLY_EVER: u32 = 512;
/// A look that lost the processor costs as much as so many sleeps; and how many such looks, less
/// the sleeps that others saved, say that there are CPU-bound threads.
const SLEEPS_A_LOSS: u32 = 64;
const LOSSES: u32 = 4;
const TRY_NANOS: u64 = 100_000_000;

/// For how long a thread looks that waits for one kind of event, and whether that was of use
/// lately. Hints: that two threads change them at once does no harm.
pub struct AdaptiveSpin {
    moment: Duration,
    in_vain: AtomicU32,
    waits: AtomicU32,
    /// Others had the processor for long when they had it last.
    others_wait: AtomicBool,
    /// Sleeps that looks have cost, less those that they saved.
    lost: AtomicU32,
    cpu_contention: CpuContention,
}

/// Whether there are threads that compute without a break on our processors.
#[derive(Default)]
struct CpuContention {
    are_there: AtomicBool,
    /// How many times in a row the looks said otherwise than `are_there`.
    against: AtomicU32,
    /// There were no CPU-bound threads when it was asked: until then it is not asked again.
    none_until: AtomicU64,
    /// When a wait looked last to see whether they are gone, and the waits since.
    tried_at: AtomicU64,
    waits: AtomicU32,
}

impl CpuContention {
    fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Relaxed)
    }

    /// No CPU-bound threads are known of, and others had the processor for `took` until now.
    fn had(&self, now: u64, took: u64, threads_a_processor: impl FnOnce() -> u64) {
        // Where it was back at once no other thread wanted it, or the scheduler gave it to none.
        // Many that wait for each other take long each time: to ask takes up to 17 us of the
        // processor.
        let is_long = took > OTHERS_NANOS && self.count(took > LONG_NANOS);
        if is_long && now >= self.none_until.load(Ordering::Relaxed) {
            let there = took > threads_a_processor().max(1) * CPU_BOUND_NANOS;
            self.are_there.store(there, Ordering::Relaxed);
            self.none_until.store(if there { 0 } else { now + TRY_NANOS }, Ordering::Relaxed);
        }
    }

    /// There are CPU-bound threads: whether it is time that a wait looks.
    fn is_time(&self, now: u64) -> bool {
        let waits = self.waits.load(Ordering::Relaxed) + 1;
        let is_time =
            waits >= HARDLY_EVER && now.saturating_sub(self.tried_at.load(Ordering::Relaxed)) >= TRY_NANOS;
        if is_time {
            self.tried_at.store(now, Ordering::Relaxed);
        }
        self.waits.store(if is_time { 0 } else { waits.min(HARDLY_EVER) }, Ordering::Relaxed);
        is_time
    }

    /// There were CPU-bound threads, and a wait looked all the same.
    fn tried(&self, had_it_for_long: bool) {
        if self.count(!had_it_for_long) {
            self.are_there.store(false, Ordering::Relaxed);
        }
    }

    /// Whether this is the last time in a row that it takes.
    fn count(&self, otherwise: bool) -> bool {
        let before = self.against.load(Ordering::Relaxed);
        let now = if otherwise { (before + 1) % IN_A_ROW } else { 0 };
        if now != before {
            self.against.store(now, Ordering::Relaxed);
        }
        otherwise && now == 0
    }
}

/// How many threads want each processor, as the system counts them (proc_loadavg(5)); 0 where it
/// does not say.
fn threads_a_processor() -> u64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let wanting = load.split(' ').nth(3).and_then(|of| of.split('/').next()?.parse::<u64>().ok());
    wanting.unwrap_or(0) / sys::thread::processors()
}

impl AdaptiveSpin {
    /// For how long a thread looks.
    pub fn new(moment: Duration) -> Self {
        Self {
            moment,
            in_vain: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            others_wait: AtomicBool::new(false),
            lost: AtomicU32::new(0),
            cpu_contention: CpuContention::default(),
        }
    }

    /// For how long a thread looks.
    pub fn moment(&self) -> Duration {
        self.moment
    }

    /// Whether a thread may look at all.
    pub fn may(&self) -> bool {
        !self.moment.is_zero()
    }

    fn is_worth_it(&self, now: u64) -> bool {
        if self.cpu_contention.are_there() {
            return self.cpu_contention.is_time(now);
        }
        self.in_vain.load(Ordering::Relaxed) < FEW
            || self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM)
    }

    /// Whether to sleep now: CPU-bound threads have it, as is known for long or just now.
    fn ends(&self, under_cpu_contention: bool, had_it_for_long: bool) -> bool {
        if under_cpu_contention { had_it_for_long } else { self.cpu_contention.are_there() }
    }

    fn note(&self, found: bool) {
        let before = self.in_vain.load(Ordering::Relaxed);
        self.in_vain.store(if found { 0 } else { FEW.min(before + 1) }, Ordering::Relaxed);
    }

    /// For waits that are cheap where a thread sleeps at once: the thread that looked lost the
    /// processor for long, or found its event soon.
    pub fn weigh(&self, is_lost: bool) {
        let before = self.lost.load(Ordering::Relaxed);
        let lost = if is_lost { before + SLEEPS_A_LOSS } else { before.saturating_sub(1) };
        let too_many = lost >= LOSSES * SLEEPS_A_LOSS;
        if too_many {
            self.cpu_contention.are_there.store(true, Ordering::Relaxed);
        }
        if lost != before {
            self.lost.store(if too_many { 0 } else { lost }, Ordering::Relaxed);
        }
    }

    /// Looks for an event, for `moment` or until there is one, where that is likely. `look` is one
    /// turn: it is told how often it may look before other threads have the processor, and the
    /// clock's time, and says whether it took anything in.
    pub fn run(
        &self,
        moment: Duration,
        clock: &Clock,
        has_event: impl Fn() -> bool,
        mut look: impl FnMut(u32, u64) -> bool,
    ) -> Spun {
        if has_event() {
            return Spun::Found;
        }
        let mut now = clock.now();
        if !self.is_worth_it(now) {
            return Spun::NotTried;
        }
        let end = now + moment.as_nanos() as u64;
        let under_cpu_contention = self.cpu_contention.are_there();
        let (mut found, mut turns, mut long) = (false, 0, false);
        while !found && !self.ends(under_cpu_contention, long) && (now < end || turns < TURNS) {
            turns += 1;
            // Where many want the processor they get it.
            let looks = if self.others_wait.load(Ordering::Relaxed) { 1 } else { LOOKS };
            let brought = look(looks, now);
            found = has_event();
            if !found && !brought {
                thread::yield_now();
                found = has_event();
            }
            let took = clock.now().saturating_sub(now);
            now += took;
            long |= took > LONG_NANOS;
            if !found {
                self.others_wait.store(took > OTHERS_NANOS, Ordering::Relaxed);
                if !under_cpu_contention {
                    self.cpu_contention.had(now, took, threads_a_processor);
                }
            }
        }
        if under_cpu_contention {
            self.cpu_contention.tried(long);
        }
        self.note(found);
        if found { Spun::Found } else { Spun::InVain }
    }
}

/// How a look for an event ended ([`AdaptiveSpin::run`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// There is an event.
    Found,
    /// No event came in that time.
    InVain,
    /// Nothing was looked at, because an event was not likely to come soon.
    NotTried,
}

impl<O: Send> Rings<O> {
    /// For the thread in the driver slot that looks for an event ([`AdaptiveSpin::run`]): takes in
    /// what is there, or comes in so many looks; whether anything was.
    pub fn look<H: PacketHandler<Origin = O>>(&self, looks: u32, to: &Delivery<'_, H>) -> bool {
        self.send_pending_wakes(to.counters);
        let rings = self.rx.load();
        for _ in 0..looks {
            if !rings.iter().all(|ring| ring.seems_empty()) {
                return self.drain(to) != Drained::Empty;
            }
            hint::spin_loop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_looked_in_vain_looks_seldom_until_it_was_of_use_again() {
        let spin = AdaptiveSpin::new(Duration::from_micros(1));
        let tries = |count| (0..count).filter(|_| spin.is_worth_it(0)).count();
        assert_eq!(tries(100), 100);
        (0..FEW).for_each(|_| spin.note(false));
        assert_eq!(tries(10 * SELDOM), 10);
        spin.note(true);
        assert_eq!(tries(100), 100);
    }

    #[test]
    fn who_loses_the_processor_more_often_than_it_saves_sleeps_hardly_ever_looks() {
        let spin = AdaptiveSpin::new(Duration::from_micros(1));
        for _ in 0..10 * LOSSES {
            spin.weigh(true);
            (0..SLEEPS_A_LOSS).for_each(|_| spin.weigh(false));
        }
        assert!(spin.is_worth_it(0), "each loss was made up for");
        (0..LOSSES).for_each(|_| spin.weigh(true));
        assert!(!spin.is_worth_it(0));
        (0..IN_A_ROW).for_each(|_| spin.cpu_contention.tried(false));
        assert!(spin.is_worth_it(0), "they are gone");
    }

    #[test]
    fn under_cpu_contention_hardly_any_thread_looks_until_it_ends() {
        let spin = AdaptiveSpin::new(Duration::from_micros(1));
        let (now, asked) = (Cell::new(0), Cell::new(0));
        let wait = |_: &u32| {
            now.set(now.get() + TRY_NANOS);
            spin.is_worth_it(now.get())
        };
        let tries = |count| (0..count).filter(wait).count();
        let ask = |threads| {
            asked.set(asked.get() + 1);
            threads
        };
        let long = |times, threads| {
            (0..times).for_each(|_| spin.cpu_contention.had(now.get(), 3_000_000, || ask(threads)))
        };
        long(IN_A_ROW - 1, 2);
        spin.cpu_contention.had(now.get(), 100, || 2);
        assert_eq!(tries(100), 100, "few times, so far");
        spin.cpu_contention.had(now.get(), LONG_NANOS / 2, || 2);
        long(IN_A_ROW - 1, 2);
        assert_eq!(tries(100), 100, "they gave it back soon meanwhile");
        long(1, 2);
        assert_eq!(tries(10 * HARDLY_EVER), 10);
        (0..2).for_each(|_| (1..=IN_A_ROW).for_each(|n| spin.cpu_contention.tried(n == IN_A_ROW)));
        assert_eq!(tries(10 * HARDLY_EVER), 10, "they are there now and then");
        (0..IN_A_ROW).for_each(|_| spin.cpu_contention.tried(false));
        assert_eq!(tries(100), 100, "they are gone");
        asked.set(0);
        long(10 * IN_A_ROW, 32);
        assert_eq!((tries(100), asked.get()), (100, 1), "many threads, each for a moment");
        long(IN_A_ROW, 0);
        assert_eq!(tries(HARDLY_EVER), 1, "nobody says how many");
        let at_once = (0..10 * HARDLY_EVER).filter(|_| spin.is_worth_it(now.get())).count();
        assert_eq!(at_once, 0, "not so often");
    }
}
