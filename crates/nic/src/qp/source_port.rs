//! How often a queue pair's packets take another source port. The peer makes a path suspect by
//! sending the same again, as often as it likes; a new port each time would be a socket each time.

use std::time::{Duration, Instant};

use transport::rc::timeout_of;

/// Longest time between two detours of a path that stays suspect: peers repeat sooner than they
/// give up.
const APART: Duration = Duration::from_millis(50);

/// The detours of one queue pair.
#[derive(Debug, Default)]
pub(crate) struct Detours {
    last: Option<Instant>,
}

impl Detours {
    /// Whether a path that is suspect `now` may be left: once in a local ACK timeout (`timeout`, a
    /// code of five bits).
    pub(crate) fn take(&mut self, now: Instant, timeout: u8) -> bool {
        let apart = timeout_of(timeout).map_or(APART, |timeout| timeout.min(APART));
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= apart);
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "any instant will do to count from")]

    use super::*;

    #[test]
    fn a_peer_that_repeats_itself_makes_one_detour_a_timeout_and_no_more() {
        let begin = Instant::now();
        // Code 12: 16.8 ms; 0 is no timeout at all; 31 is 2.4 hours.
        for (code, most) in [(12, 60), (0, 20), (31, 20)] {
            let mut detours = Detours::default();
            let duplicates = (0..2000).map(|n| begin + Duration::from_micros(500 * n));
            let taken = duplicates.filter(|&now| detours.take(now, code)).count();
            assert!((1..=most).contains(&taken), "code {code}: {taken} detours in a second");
        }
    }

    #[test]
    fn a_requester_whose_timeouts_run_out_one_after_the_other_leaves_its_path_each_time() {
        let (mut detours, mut now) = (Detours::default(), Instant::now());
        for _ in 0..7 {
            now += timeout_of(14).unwrap_or_default();
            assert!(detours.take(now, 14));
        }
    }
}
