//! A thread that waits for an event looks at the rings for a moment before it sleeps: the answer of a process of this host may be there in less time than it takes
//! to wake a thread. Where it was not there several times in a row, as where many processes want the processor, hardly any thread looks. Nor where others
//! compute without a break ([`Hogs`]): the scheduler gives them some milliseconds each time, while a thread that is woken goes before them.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use node::Guest;

use crate::clock::Clock;
use crate::eventfd::Counter;
use crate::rings::Rings;
use crate::rx_socket::{Delivery, Drained};
use crate::sys;

/// How often it may look in vain in a row; then one in so many waits tries again.
const FEW: u32 = 2;
const SELDOM: u32 = 32;
/// It looks so often, about a microsecond, before it lets others have the processor, and only once where they had it for longer than that the last time.
const LOOKS: u32 = 32;
const OTHERS_NANOS: u64 = 5_000;
/// They may have it so often: the answer is there by then, as a rule, and a turn takes less than to be woken.
const TURNS: u32 = 8;
/// Others may have had it for so long, so many times in a row, before it is asked who they are.
const LONG_NANOS: u64 = 2_000_000;
const IN_A_ROW: u32 = 4;
/// Threads that wait for each other, as ours do, have it for less than this each.
const HOG_NANOS: u64 = 500_000;
/// Where there are hogs one in so many waits gives them the processor, once, to see whether they are gone.
const HARDLY_EVER: u32 = 256;

/// For how long a thread looks that waits for one kind of event, and whether that was of use lately. Hints: that two threads change them at once does no harm.
pub(crate) struct Linger {
    moment: Duration,
    in_vain: AtomicU32,
    waits: AtomicU32,
    /// Others had the processor for long when they had it last.
    others_wait: AtomicBool,
    hogs: Hogs,
}

/// Whether there are threads that compute without a break on our processors.
#[derive(Default)]
struct Hogs {
    /// So many times in a row others had the processor for long, without a time between in which they gave it back soon.
    in_a_row: AtomicU32,
    are_there: AtomicBool,
}

impl Hogs {
    /// Others had the processor for `took`.
    fn note(&self, took: u64, threads_a_processor: impl FnOnce() -> u64) {
        let before = self.in_a_row.load(Ordering::Relaxed);
        match before + 1 {
            // The scheduler has not given it to others.
            _ if took <= OTHERS_NANOS => {}
            _ if took <= LONG_NANOS => {
                if before > 0 {
                    self.in_a_row.store(0, Ordering::Relaxed);
                }
                self.are(false);
            }
            IN_A_ROW => {
                self.in_a_row.store(0, Ordering::Relaxed);
                self.are(took > threads_a_processor().max(1) * HOG_NANOS);
            }
            now => self.in_a_row.store(now, Ordering::Relaxed),
        }
    }

    fn are(&self, there: bool) {
        if self.are_there() != there {
            self.are_there.store(there, Ordering::Relaxed);
        }
    }

    fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Relaxed)
    }
}

/// How many threads want each processor, as the system counts them (proc_loadavg(5)); 0 where it does not say.
fn threads_a_processor() -> u64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let wanting = load.split(' ').nth(3).and_then(|of| of.split('/').next()?.parse::<u64>().ok());
    wanting.unwrap_or(0) / sys::thread::processors()
}

impl Linger {
    pub(crate) fn new(moment: Duration) -> Linger {
        Linger {
            moment,
            in_vain: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            others_wait: AtomicBool::new(false),
            hogs: Hogs::default(),
        }
    }

    /// Whether a thread may look at all.
    pub(crate) fn may(&self) -> bool {
        !self.moment.is_zero()
    }

    fn is_worth_it(&self) -> bool {
        let seldom = match self.in_vain.load(Ordering::Relaxed) {
            _ if self.hogs.are_there() => HARDLY_EVER,
            ..FEW => return true,
            _ => SELDOM,
        };
        self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(seldom)
    }

    fn note(&self, found: bool) {
        let before = self.in_vain.load(Ordering::Relaxed);
        self.in_vain.store(if found { 0 } else { FEW.min(before + 1) }, Ordering::Relaxed);
    }
}

impl Rings {
    /// For the thread in the seat: takes what comes to the guest until `counter` has an event, or for a moment; whether it has. Nobody is woken for what is written
    /// meanwhile.
    pub(crate) fn linger<G: Guest>(&self, counter: &Counter, clock: &Clock, to: &Delivery<'_, G>) -> bool {
        let linger = counter.linger();
        if counter.has_events() {
            return true;
        }
        if !linger.is_worth_it() {
            return false;
        }
        self.stay_awake();
        let mut now = clock.now();
        let end = now + linger.moment.as_nanos() as u64;
        let (mut found, mut turns) = (false, 0);
        while !found && (now < end || turns < TURNS) {
            turns += 1;
            // Where many want the processor they get it.
            let looks = if linger.others_wait.load(Ordering::Relaxed) { 1 } else { LOOKS };
            found = self.brings_an_event(looks, counter, to) || counter.has_events();
            let took = clock.now() - now;
            now += took;
            if !found {
                linger.others_wait.store(took > OTHERS_NANOS, Ordering::Relaxed);
                linger.hogs.note(took, threads_a_processor);
            }
            if linger.hogs.are_there() {
                break;
            }
        }
        linger.note(found);
        found
    }

    /// One turn.
    fn brings_an_event<G: Guest>(&self, looks: u32, counter: &Counter, to: &Delivery<'_, G>) -> bool {
        self.pay(to.counters);
        let rings = self.rx.load();
        for _ in 0..looks {
            if !rings.iter().all(|ring| ring.seems_empty()) {
                return self.drain(to) != Drained::Empty && counter.has_events();
            }
            hint::spin_loop();
        }
        drop(rings);
        thread::yield_now();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looked_in_vain_looks_seldom_until_it_was_of_use_again() {
        let linger = Linger::new(Duration::from_micros(1));
        let tries = |count| (0..count).filter(|_| linger.is_worth_it()).count();
        assert_eq!(tries(100), 100);
        (0..FEW).for_each(|_| linger.note(false));
        assert_eq!(tries(10 * SELDOM), 10);
        linger.note(true);
        assert_eq!(tries(100), 100);
    }

    #[test]
    fn beside_hogs_hardly_any_thread_looks_until_they_are_gone() {
        let linger = Linger::new(Duration::from_micros(1));
        let tries = |count| (0..count).filter(|_| linger.is_worth_it()).count();
        let long = |times, threads| (0..times).for_each(|_| linger.hogs.note(3_000_000, || threads));
        long(IN_A_ROW - 1, 2);
        linger.hogs.note(100, || 2);
        assert_eq!(tries(100), 100, "few times, so far");
        long(1, 2);
        assert_eq!(tries(10 * HARDLY_EVER), 10);
        linger.hogs.note(LONG_NANOS / 2, || 2);
        assert_eq!(tries(100), 100, "they gave it back soon");
        long(10 * IN_A_ROW, 32);
        assert_eq!(tries(100), 100, "many threads, each for a moment");
        long(IN_A_ROW, 0);
        assert_eq!(tries(HARDLY_EVER), 1, "nobody says how many");
    }
}
