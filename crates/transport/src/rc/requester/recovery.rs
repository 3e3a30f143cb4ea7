//! Going back (IBA 1.4 §9.7.5 and §9.7.6): after a sequence error, an RNR NAK or a timeout, all is
//! sent again from the oldest PSN that is not acknowledged, a limited number of times.

use std::time::Instant;

use super::{Cursor, Outcome, Requester, share};
use crate::op::{Context, LocalPath, Status};
use crate::rc::rnr_timer_of;

/// `rnr_retry` of this value means for ever.
const RNR_FOR_EVER: u8 = 7;

impl Requester {
    /// An answer came that can only follow one that did not (IBA 1.4 §9.7.5). All further ones say
    /// so too: the first counts, the timer guards the rest.
    pub(super) fn implied_nak(&mut self, cx: &mut impl Context) {
        if !self.went_back() {
            self.lost(cx);
            self.go_back(cx);
        }
    }

    /// NAK, PSN sequence error; all before its PSN is retired already.
    pub(super) fn sequence_nak(&mut self, cx: &mut impl Context) -> Outcome {
        if self.next == self.una {
            // We are there already and have sent nothing since.
            return Ok(());
        }
        self.recoveries.psn_naks = self.recoveries.psn_naks.wrapping_add(1);
        if self.refused_exported() {
            // Nothing was lost.
            self.go_back(cx);
            return Ok(());
        }
        self.limits.retries_left = self.limits.retries_left.checked_sub(1).ok_or(Status::RetryExceeded)?;
        self.lost(cx);
        self.go_back(cx);
        Ok(())
    }

    /// RNR NAK; all before its PSN is retired already.
    pub(super) fn rnr_nak(&mut self, now: Instant, timer: u8, cx: &mut impl Context) -> Outcome {
        if self.rnr_until.is_some() || self.next == self.una {
            // The wait is on, or nothing was sent since it ended: the same NAK again.
            return Ok(());
        }
        self.recoveries.rnr_naks += 1;
        if self.limits.rnr_retry != RNR_FOR_EVER {
            self.limits.rnr_retries_left =
                self.limits.rnr_retries_left.checked_sub(1).ok_or(Status::RnrRetryExceeded)?;
        }
        self.go_back(cx);
        self.rnr_until = Some(now + rnr_timer_of(timer));
        // The peer has answered: nothing is to be waited for until we send again.
        self.timer = None;
        Ok(())
    }

    /// Whether all is sent again from the oldest PSN, and no answer has come since.
    pub(in crate::rc) fn went_back(&self) -> bool {
        self.went_back_at == Some(self.una)
    }

    pub(in crate::rc) fn go_back(&mut self, cx: &mut impl Context) {
        self.drop_zero_copy_reads();
        self.recoveries.retransmissions += 1;
        self.next = self.una;
        self.reads = 0;
        self.unasked = 0;
        self.went_back_at = Some(self.una);
        let packet = match self.queue.front_mut() {
            Some(front) => {
                front.go_back(share(cx));
                front.done
            }
            None => 0,
        };
        self.cursor = Cursor { request: 0, packet };
    }

    fn lost(&mut self, cx: &mut impl Context) {
        if self.recover.is_none() {
            self.recover = Some(self.high);
            cx.window().lost();
        }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.rnr_until.or(self.timer)
    }

    pub(crate) fn expire(&mut self, now: Instant, cx: &mut impl Context) -> Outcome {
        if let Some(end) = self.rnr_until {
            if end <= now {
                self.rnr_until = None;
            }
            return Ok(());
        }
        if self.timer.is_none_or(|end| now < end) {
            return Ok(());
        }
        if cx.local().has_unread() {
            // The peer's process is stopped, or waits for a processor: nothing is lost, and to say
            // it again is of no use.
            self.timer = self.limits.timeout.map(|t| now + t);
            return Ok(());
        }
        self.timer = None;
        self.recoveries.timeouts += 1;
        self.limits.retries_left = self.limits.retries_left.checked_sub(1).ok_or(Status::RetryExceeded)?;
        self.path_suspect = true;
        self.recover = None;
        self.lost(cx);
        self.go_back(cx);
        Ok(())
    }
}
