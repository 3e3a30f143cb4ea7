//! When queue pairs want to be looked at. Entries are hints: a queue pair has at most one here, at
//! or before its real deadline, and renews it when it fires, so that moving a deadline with every
//! ACK costs nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use locks::{Mutex, MutexGuard, Rank};
use wire::Qpn;

/// The shortest time that there is: what is not done now is due so much later.
pub(crate) const MOMENT: Duration = Duration::from_nanos(1);

#[derive(Debug)]
pub(crate) struct Timers {
    inner: Mutex<Entries>,
}

impl Default for Timers {
    fn default() -> Self {
        Self { inner: Mutex::new(Rank::Timers, Entries::default()) }
    }
}

#[derive(Debug, Default)]
struct Entries {
    entries: BTreeSet<(Instant, u32)>,
    /// More was due than was done: the rest waits until then.
    rest_at: Option<Instant>,
}

impl Timers {
    /// Gives a queue pair an entry in place of the one it had; whether it is now the first.
    pub(crate) fn set(&self, before: Option<Instant>, at: Instant, qpn: Qpn) -> bool {
        let mut inner = self.lock();
        if let Some(before) = before {
            inner.entries.remove(&(before, qpn.get()));
        }
        inner.entries.insert((at, qpn.get()));
        inner.entries.first() == Some(&(at, qpn.get()))
    }
    /// Takes a queue pair's entry away.
    pub(crate) fn forget(&self, at: Instant, qpn: Qpn) {
        self.lock().entries.remove(&(at, qpn.get()));
    }
    /// Takes out what is due, `most` entries at most; what is left waits a moment.
    pub(crate) fn due(&self, now: Instant, most: usize) -> Vec<(Instant, Qpn)> {
        let mut inner = self.lock();
        let mut due = Vec::new();
        inner.rest_at = None;
        while let Some(&(at, qpn)) = inner.entries.first()
            && at <= now
        {
            if due.len() == most {
                inner.rest_at = Some(now + MOMENT);
                break;
            }
            inner.entries.pop_first();
            due.push((at, Qpn::new(qpn)));
        }
        due
    }
    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }
    /// The earliest entry.
    pub(crate) fn next(&self) -> Option<Instant> {
        let inner = self.lock();
        let first = inner.entries.first().map(|&(at, _)| at);
        first.map(|first| inner.rest_at.map_or(first, |rest_at| first.max(rest_at)))
    }
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.inner.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "where time starts does not matter")]
    fn what_is_due_beyond_the_most_that_is_done_waits_a_moment() {
        let (timers, now) = (Timers::default(), Instant::now());
        for n in 0..5 {
            timers.set(None, now, Qpn::new(n));
        }
        assert_eq!(timers.due(now, 2).len(), 2);
        assert_eq!(timers.next(), Some(now + MOMENT));
        assert_eq!(timers.due(now + MOMENT, 3).len(), 3);
        assert_eq!(timers.next(), None);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "where time starts does not matter")]
    fn an_entry_takes_the_place_of_the_one_before() {
        let (timers, now, qpn) = (Timers::default(), Instant::now(), Qpn::new(7));
        let mut before = None;
        for n in (0..1000).rev() {
            let at = now + Duration::from_secs(n);
            assert!(timers.set(before, at, qpn));
            before = Some(at);
        }
        assert_eq!(timers.due(now + Duration::from_secs(1000), 9), [(now, qpn)]);
        timers.set(None, now, qpn);
        timers.forget(now, qpn);
        assert_eq!(timers.next(), None);
    }
}
