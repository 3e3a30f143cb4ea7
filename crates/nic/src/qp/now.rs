//! The time at which requests are posted, which is asked for only when it is needed.

use std::time::Instant;

/// The clock that a sender asks for the time.
pub trait Time {
    /// The time, as it was a moment ago at most.
    fn just_now(&self) -> Instant;
}

impl<F: Fn() -> Instant> Time for F {
    #[inline]
    fn just_now(&self) -> Instant {
        self()
    }
}

/// The time at which requests are posted.
#[derive(Clone, Copy)]
pub(super) enum Now<'a> {
    /// The time is this.
    Is(Instant),
    /// The time has not been needed yet. A message that leaves at once does before the clock is
    /// asked: a look at a clock takes as long as much of the rest.
    Ask(&'a dyn Time),
}

impl Now<'_> {
    #[inline]
    pub(super) fn get(&mut self) -> Instant {
        let now = match *self {
            Now::Is(now) => now,
            Now::Ask(time) => time.just_now(),
        };
        *self = Now::Is(now);
        now
    }
}

impl std::fmt::Debug for Now<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Now")
    }
}
