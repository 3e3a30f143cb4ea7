//! What the services without acknowledgements share: their states, the pace at which they send, how their requests and
//! receives complete.

use std::time::{Duration, Instant};

use wire::Qpn;
use wire::roce::SendTail;

use crate::Window;
use crate::op::{Completed, Completion, RecvWr, SendOp, SendWr, Status};

/// The state of a queue pair without acknowledgements (IBA 1.4 figure 124), as far as the engine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither side works; receives may be posted.
    Init,
    /// It receives.
    Rtr,
    /// It receives and sends.
    Rts,
    /// It receives, and ends the message it is sending.
    Sqd,
    /// It receives; a send request failed, and all behind it were flushed (send queue error).
    Sqe,
    /// Everything is flushed.
    Error,
}

impl State {
    /// Whether packets are taken.
    pub(crate) fn receives(self) -> bool {
        matches!(self, State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }
    /// Whether requests are flushed as they are posted.
    pub(crate) fn flushes(self) -> bool {
        matches!(self, State::Sqe | State::Error)
    }
}

/// How far a sender may be ahead of its pace: what it may send at once after a pause.
const BURST: Duration = Duration::from_nanos(1 << 16);
/// The least a packet counts for, whatever its length: a receiver's work for it, and what the kernel books for it in the
/// socket's buffer.
const LEAST_COST: u64 = 768;

/// The pace of a sender that nobody acknowledges: one byte a nanosecond, 64 KiB at once.
///
/// A receiver with a thread of its own keeps up with that, and its socket buffer (208 KiB where nobody changed the
/// system's default) holds three such bursts while that thread is being woken. Where reliable connections to the same
/// host lost packets, their window bounds the burst too. Beyond that nothing is promised: the service is unreliable.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// When all that was sent will have been paid for.
    paid_at: Option<Instant>,
    /// When to try again, where the pace held a packet back.
    wake_at: Option<Instant>,
}

impl Pacer {
    /// Whether a packet may leave; where not, [`Pacer::deadline`] says when.
    pub fn may_send(&mut self, now: Instant, mtu: usize, window: &Window) -> bool {
        let share = Duration::from_nanos(u64::from(window.share()) * mtu as u64);
        let burst = BURST.min(share);
        self.wake_at = match self.paid_at {
            // Half a burst at a time: few wake-ups, long runs.
            Some(paid_at) if paid_at > now + burst => Some(paid_at - burst / 2),
            _ => None,
        };
        self.wake_at.is_none()
    }
    /// A packet of `len` bytes leaves.
    pub fn sent(&mut self, now: Instant, len: usize) {
        let cost = Duration::from_nanos((len as u64).max(LEAST_COST));
        self.paid_at = Some(self.paid_at.map_or(now, |paid_at| paid_at.max(now)) + cost);
    }
    /// Nothing waits to be sent.
    pub fn rest(&mut self) {
        self.wake_at = None;
    }
    /// When a packet that was held back may leave.
    pub fn deadline(&self) -> Option<Instant> {
        self.wake_at
    }
}

/// The completion of a send request.
pub(crate) fn sent(wr: &SendWr, status: Status, qpn: Qpn) -> Completion {
    let opcode = match wr.op {
        SendOp::Send(_) => Completed::Send,
        SendOp::Write { .. } => Completed::Write,
        SendOp::Read { .. } => Completed::Read,
        SendOp::Atomic { .. } => Completed::FetchAdd,
    };
    Completion { solicited: status != Status::Success, ..blank(wr.wr_id, status, opcode, qpn) }
}

/// The completion of a receive, as far as its status alone says.
pub(crate) fn received(receive: &RecvWr, status: Status, qpn: Qpn) -> Completion {
    Completion {
        solicited: status != Status::Success,
        ..blank(receive.wr_id, status, Completed::Receive, qpn)
    }
}

fn blank(wr_id: u64, status: Status, opcode: Completed, qpn: Qpn) -> Completion {
    Completion {
        wr_id,
        status,
        opcode,
        byte_len: 0,
        tail: SendTail::None,
        qpn,
        source_qp: Qpn::default(),
        grh: false,
        solicited: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::disallowed_methods)] // Where the virtual clock starts does not matter.
    fn start() -> Instant {
        Instant::now()
    }

    fn send_all_that_may(pacer: &mut Pacer, now: Instant, len: usize, window: &Window) -> usize {
        let mut n = 0;
        while pacer.may_send(now, 1024, window) {
            pacer.sent(now, len);
            n += 1;
        }
        n
    }

    #[test]
    fn a_burst_is_64_kib_and_then_a_byte_a_nanosecond() {
        let (mut pacer, window, now) = (Pacer::default(), Window::default(), start());
        assert_eq!(send_all_that_may(&mut pacer, now, 1024, &window), 65);
        let next = pacer.deadline().expect("held back");
        assert!(next > now && next < now + BURST);
        assert_eq!(send_all_that_may(&mut pacer, next, 1024, &window), 33);
        let much_later = now + Duration::from_secs(1);
        assert_eq!(send_all_that_may(&mut pacer, much_later, 1024, &window), 65);
    }

    #[test]
    fn small_packets_count_for_more_than_their_bytes() {
        let (mut pacer, window) = (Pacer::default(), Window::default());
        assert_eq!(send_all_that_may(&mut pacer, start(), 64, &window), (1 << 16) / 768 + 1);
    }

    #[test]
    fn where_the_window_is_small_so_is_the_burst() {
        let (mut pacer, window) = (Pacer::default(), Window::default());
        (0..20).for_each(|_| window.lost());
        assert_eq!(send_all_that_may(&mut pacer, start(), 1024, &window), 3);
    }
}
