//! Queue pairs that may hold an ACK back for a request to leave with.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use locks::{Mutex, MutexGuard, Rank};
use transport::rc::AckDelay;

/// How long an ACK may wait where the program does nothing: far less than any peer waits for it.
const HOLD: Duration = Duration::from_micros(200);

/// The list of them, which keeps none. One that is in it stays for a while when its ACK has left
/// with a request: where messages go back and forth, none is put in and taken out for each.
#[derive(Debug)]
pub(crate) struct DelayedAcks<T> {
    /// How many ACKs are held back; readable without the lock: a polling thread asks each time.
    held: AtomicU32,
    /// Some of them may not wait for the program.
    any_brief: AtomicBool,
    list: Mutex<List<T>>,
}

#[derive(Debug)]
struct List<T> {
    qps: Vec<Weak<T>>,
    /// When the list is to be looked at because one that waits for the program may have waited for
    /// long enough.
    until: Option<Instant>,
    /// Calls of [`DelayedAcks::visit`] that have queue pairs of the list in hand.
    visits: u32,
}

/// What the list knows of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Noted {
    /// How its ACK is held back.
    held: AckDelay,
    /// Until when, where it waits for the program.
    until: Option<Instant>,
    /// The queue pair is in the list, for an ACK that was held back so.
    listed: AckDelay,
}

impl<T> Default for DelayedAcks<T> {
    fn default() -> Self {
        Self {
            held: AtomicU32::new(0),
            any_brief: AtomicBool::new(false),
            list: Mutex::new(Rank::DelayedAcks, List { qps: Vec::new(), until: None, visits: 0 }),
        }
    }
}

impl<T> DelayedAcks<T> {
    /// Whether no ACK is held back.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.load(Ordering::Acquire) == 0
    }
    /// Whether all that are held back wait for the program.
    #[inline]
    pub(crate) fn none_is_brief(&self) -> bool {
        !self.any_brief.load(Ordering::Acquire)
    }
    /// When [`DelayedAcks::visit`] wants to be called at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lock().until
    }
    /// Asks `each` queue pair in the list until when its ACK waits; those where none does leave the
    /// list. Its lock is not held while `each` runs, which may lock a queue pair.
    pub(crate) fn visit(&self, mut each: impl FnMut(Arc<T>) -> Option<Instant>) {
        let mut taken = {
            let mut list = self.lock();
            list.visits += 1;
            self.any_brief.store(false, Ordering::Release);
            std::mem::take(&mut list.qps)
        };
        let mut until = None;
        taken.retain(|qp| {
            let waits = qp.upgrade().and_then(&mut each);
            until = until.into_iter().chain(waits).min();
            waits.is_some()
        });
        let mut list = self.lock();
        list.visits -= 1;
        // A thread that came meanwhile was told the time that there was before.
        let before = list.until.filter(|_| list.visits > 0 || !list.qps.is_empty());
        list.until = until.into_iter().chain(before).min();
        // The memory serves again.
        taken.append(&mut list.qps);
        list.qps = taken;
    }
    /// Visits those in the list if no other thread has its lock.
    pub(crate) fn try_each(&self, mut each: impl FnMut(Arc<T>)) {
        if let Some(list) = self.list.try_lock() {
            list.qps.iter().filter_map(Weak::upgrade).for_each(&mut each);
        }
    }
    fn lock(&self) -> MutexGuard<'_, List<T>> {
        self.list.lock()
    }
}

impl Noted {
    /// An ACK of the queue pair is held back so from now on. When the list is to be looked at,
    /// where the environment may not know.
    #[inline(always)]
    pub(crate) fn change<T>(
        &mut self,
        held: AckDelay,
        now: Instant,
        me: &Weak<T>,
        acks: &DelayedAcks<T>,
    ) -> Option<Instant> {
        if held == self.held {
            return None;
        }
        let before = std::mem::replace(&mut self.held, held);
        if held == AckDelay::No {
            acks.held.fetch_sub(1, Ordering::Release);
            return None;
        }
        if before == AckDelay::No {
            acks.held.fetch_add(1, Ordering::Release);
        }
        let waits = held == AckDelay::ForProgram;
        self.until = waits.then(|| now + HOLD);
        if waits && self.listed == AckDelay::ForProgram {
            return None;
        }
        self.enlist(me, acks)
    }

    /// Adds a queue pair that the list does not know to be held back so.
    #[cold]
    fn enlist<T>(&mut self, me: &Weak<T>, acks: &DelayedAcks<T>) -> Option<Instant> {
        let held = self.held;
        let is_listed = self.listed == AckDelay::ForProgram || self.listed == held;
        let mut list = acks.lock();
        if self.listed == AckDelay::No {
            list.qps.push(me.clone());
        }
        if !is_listed {
            self.listed = held;
        }
        if held != AckDelay::ForProgram {
            acks.any_brief.store(true, Ordering::Release);
            return None;
        }
        let is_new = list.until.is_none();
        list.until = list.until.or(self.until);
        list.until.filter(|_| is_new)
    }

    /// Whether [`Noted::change`] has something to do.
    #[inline]
    pub(crate) fn differs(&self, held: AckDelay) -> bool {
        self.held != held
    }

    /// Until when the ACK waits for the program, where it does.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        self.until.filter(|_| self.held == AckDelay::ForProgram)
    }

    /// None is held back any more.
    pub(crate) fn end<T>(&mut self, acks: &DelayedAcks<T>) {
        if std::mem::take(&mut self.held) != AckDelay::No {
            acks.held.fetch_sub(1, Ordering::Release);
        }
    }

    /// The queue pair leaves the list.
    pub(crate) fn leave(&mut self) {
        self.listed = AckDelay::No;
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "where time starts does not matter")]
mod tests {
    use super::*;

    #[test]
    fn who_sent_its_ack_with_a_request_stays_in_the_list_and_is_not_asked_for() {
        let (acks, one, mut noted, now) =
            (DelayedAcks::default(), Arc::new(()), Noted::default(), Instant::now());
        let me = Arc::downgrade(&one);
        assert_eq!(noted.change(AckDelay::ForProgram, now, &me, &acks), Some(now + HOLD));
        assert!(!acks.is_empty() && acks.none_is_brief());
        assert_eq!(noted.change(AckDelay::No, now, &me, &acks), None);
        assert!(acks.is_empty());
        let later = now + HOLD / 2;
        assert_eq!(noted.change(AckDelay::ForProgram, later, &me, &acks), None, "that is known already");
        assert_eq!(acks.deadline(), Some(now + HOLD));
        let mut visits = 0;
        acks.visit(|_| {
            visits += 1;
            noted.waits_until()
        });
        assert_eq!((visits, acks.deadline()), (1, Some(later + HOLD)), "it waits from then on");
        noted.change(AckDelay::No, later, &me, &acks);
        acks.visit(|_| {
            noted.leave();
            noted.waits_until()
        });
        assert_eq!(acks.deadline(), None);
        assert_eq!(noted.change(AckDelay::ForProgram, later, &me, &acks), Some(later + HOLD), "listed anew");
    }

    #[test]
    fn who_may_not_wait_any_more_is_seen() {
        let (acks, one, mut noted, now) =
            (DelayedAcks::default(), Arc::new(()), Noted::default(), Instant::now());
        let me = Arc::downgrade(&one);
        noted.change(AckDelay::ForProgram, now, &me, &acks);
        assert_eq!(noted.change(AckDelay::Briefly, now, &me, &acks), None);
        assert!(!acks.none_is_brief());
        acks.visit(|_| noted.waits_until());
        assert!(acks.none_is_brief() && acks.deadline().is_none());
        // One that was brief first has a time from when it waits on.
        let mut other = Noted::default();
        assert_eq!(other.change(AckDelay::Briefly, now, &me, &acks), None);
        assert_eq!(other.change(AckDelay::ForProgram, now, &me, &acks), Some(now + HOLD));
        other.end(&acks);
        noted.end(&acks);
        assert!(acks.is_empty());
    }
}
