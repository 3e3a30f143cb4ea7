//! A thread that waits for an event looks at the rings for a moment before it sleeps: the answer of a process of this host may be there in less time than it takes
//! to wake a thread. Where it was not there several times in a row, as where many processes want the processor, hardly any thread looks.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use node::Guest;

use crate::clock::Clock;
use crate::eventfd::Counter;
use crate::rings::Rings;
use crate::rx_socket::{Delivery, Drained};

/// How often it may look in vain in a row; then one in so many waits tries again.
const FEW: u32 = 2;
const SELDOM: u32 = 32;
/// It looks so often, about a microsecond, before it lets others have the processor, and only once where they had it for longer than that the last time.
const LOOKS: u32 = 32;
const OTHERS_NANOS: u64 = 5_000;
/// They may have it so often: the answer is there by then, as a rule, and a turn takes less than to be woken.
const TURNS: u32 = 4;

/// For how long a thread looks that waits for one kind of event, and whether that was of use lately. Hints: that two threads change them at once does no harm.
pub(crate) struct Linger {
    moment: Duration,
    in_vain: AtomicU32,
    waits: AtomicU32,
    /// Others had the processor for long when they had it last.
    others_wait: AtomicBool,
}

impl Linger {
    pub(crate) fn new(moment: Duration) -> Linger {
        Linger {
            moment,
            in_vain: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            others_wait: AtomicBool::new(false),
        }
    }

    /// Whether a thread may look at all.
    pub(crate) fn may(&self) -> bool {
        !self.moment.is_zero()
    }

    fn is_worth_it(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) < FEW
            || self.waits.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM)
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
            let before = std::mem::replace(&mut now, clock.now());
            if !found {
                linger.others_wait.store(now - before > OTHERS_NANOS, Ordering::Relaxed);
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
}
