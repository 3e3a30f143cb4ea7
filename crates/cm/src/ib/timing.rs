//! Every duration of the connection manager in one table, with the kernel's beside it, and the
//! timer that repeats a message until it is answered.

use std::time::{Duration, Instant};

/// How often and how long an unanswered message is sent again: the first time after `first`, then
/// after twice as long and so on up to `ceiling`, until `total` has passed since the message was
/// first sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Wait before the first repetition.
    pub first: Duration,
    /// Longest wait between two repetitions.
    pub ceiling: Duration,
    /// When to give up, counted from the first transmission.
    pub total: Duration,
}

/// The durations and timeout codes of a [`Cm`](super::Cm). A code `c` of five bits stands for 4.096
/// us * 2^c (IBA 1.4 §12.7.26).
///
/// | | here | Linux ib_cm, rdma_cm |
/// |---|---|---|
/// | REQ: first repetition, ceiling, total | 250 ms, 1 s, 78 s | 4.6 s each, 16 times: 73.7 s; 4.86 s and 77.8 s measured, as its timers are coarse |
/// | SIDR_REQ: the same | 250 ms, 1 s, 78 s | 4.1 s each, 16 times |
/// | REP: first repetition, ceiling, total | 250 ms, 4 s, 66 s; no more often than the REQ's max CM retries say | 4.1 s each, 16 times |
/// | REQ, REP after an MRA | 1 s; the total begins anew after the service timeout, 15 times at most | after the service timeout |
/// | DREQ: first repetition, ceiling, total | 50 ms, 400 ms, 2 s | 4.6 s (4.1 s where it was asked) each, 16 times; once for a destroyed id |
/// | question about a stale connection: first repetition, ceiling, total | 250 ms, 4 s, 8 s | none: it ends at once |
/// | silence of another host's process before a probe | 700 ms | no probes: a kernel outlives its processes |
/// | time wait | the local ACK timeout, or up to an eighth more, to end with others; at most 4 s | the local ACK timeout (512 ms on rxe) |
/// | refusal remembered | 10 s | not at all |
/// | CM response timeouts in REQ | code 20 (4.3 s) | code 20, which it counts as 4096 ms |
/// | service timeout in MRA | code 24 (69 s) | code 24 |
/// | max CM retries in REQ | 15 | 15 |
///
/// The kernel's come from drivers/infiniband/core: `ib_send_cm_req` (twice the packet life time,
/// code 16, and the response timeout), `cm_req_handler`, `cma_resolve_ib_udp`, `cm_destroy_id`,
/// CMA_MAX_CM_RETRIES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Repetition of REQ and SIDR_REQ.
    pub request: Backoff,
    /// Repetition of REP, as often as the REQ allows.
    pub reply: Backoff,
    /// How long a process of our kind on another host may say nothing before it is sent a probe,
    /// see `probe`. Zero: no probes.
    pub probe_after: Duration,
    /// Repetition of DREQ. Far shorter than the kernel's: a peer that lives answers within
    /// milliseconds, and one that does not must not keep its partner for a minute.
    pub disconnect: Backoff,
    /// Repetition of the question whether a peer still knows a connection.
    pub stale_check: Backoff,
    /// Longest time wait, whatever ACK timeout the peer's REQ names (code 31 is 2.4 hours).
    pub max_timewait: Duration,
    /// How long a refused request is remembered, so that its duplicates get the same answer; longer
    /// than two of the kernel's intervals.
    pub refusal: Duration,
    /// Remote and local CM response timeout codes written into REQ.
    pub cm_response_timeout: u8,
    /// Service timeout code of the MRA that a duplicate REQ or REP gets while the consumer decides.
    pub mra_service_timeout: u8,
    /// Max CM retries written into REQ; also the most MRAs that prolong one exchange.
    pub max_cm_retries: u8,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            request: Backoff { first: ms(250), ceiling: ms(1_000), total: ms(78_000) },
            reply: Backoff { first: ms(250), ceiling: ms(4_000), total: ms(66_000) },
            probe_after: ms(700),
            disconnect: Backoff { first: ms(50), ceiling: ms(400), total: ms(2_000) },
            stale_check: Backoff { first: ms(250), ceiling: ms(4_000), total: ms(8_000) },
            max_timewait: ms(4_000),
            refusal: ms(10_000),
            cm_response_timeout: 20,
            mra_service_timeout: 24,
            max_cm_retries: 15,
        }
    }
}

/// The duration a five-bit timeout code stands for: 4.096 us * 2^code; codes above 31 count as 31.
pub fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4_096 << code.min(31))
}

/// The local ACK timeout code of a path: twice the packet life time plus the far adapter's ACK
/// delay, rounded to a power of two (IBA 1.4 §12.7.34), 0 to 31. Equal to what the kernel writes
/// into REQ and gives the queue pair.
pub fn local_ack_timeout(packet_life_time: u8, ack_delay: u8) -> u8 {
    let (round_trip, delay) = (packet_life_time.saturating_add(1), ack_delay);
    // The sum of two powers of two, rounded up when the smaller is at least half the larger.
    let (large, small) = if round_trip >= delay { (round_trip, delay) } else { (delay, round_trip) };
    large.saturating_add(u8::from(small.saturating_add(1) >= large)).min(31)
}

/// A running repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    /// Times the message has been repeated.
    pub attempt: u32,
    /// Repetitions left, those while the peer has asked for more time apart.
    left: u32,
    interval: Duration,
    ceiling: Duration,
    next: Instant,
    give_up: Instant,
    /// The consumer waits no longer, whatever the peer asks for.
    latest: Option<Instant>,
    /// The peer has asked for more time until then.
    patient_until: Instant,
    mras: u8,
}

/// How often a message is repeated whose receiver has asked for more time: not for its answer, but
/// to find out if the process that was to give it still lives.
const WHILE_PATIENT: Duration = Duration::from_secs(1);

impl Retry {
    pub(super) fn new(now: Instant, backoff: Backoff) -> Self {
        let interval = backoff.first.max(Duration::from_millis(1));
        let give_up = now + backoff.total;
        Self {
            attempt: 0,
            left: u32::MAX,
            interval,
            ceiling: backoff.ceiling.max(interval),
            next: (now + interval).min(give_up),
            give_up,
            latest: None,
            patient_until: now,
            mras: 0,
        }
    }

    /// Limits the repetitions to `most`; after the last it waits out its time.
    pub(super) fn at_most(self, most: u8) -> Self {
        let next = if most == 0 { self.give_up } else { self.next };
        Self { left: most.into(), next, ..self }
    }

    /// Gives up then at the latest, however much time the peer asks for.
    pub(super) fn give_up_at(&mut self, at: Instant) {
        self.latest = Some(at);
        self.give_up = self.give_up.min(at);
        self.next = self.next.min(at);
    }

    /// When [`Retry::step`] has something to do.
    pub(super) fn due(&self) -> Instant {
        self.next
    }

    /// The message is due: counts and sets the next time. `false`: the time is up.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        if now >= self.give_up {
            return false;
        }
        self.attempt += 1;
        if now < self.patient_until {
            self.next = (now + WHILE_PATIENT).min(self.give_up);
            return true;
        }
        self.left = self.left.saturating_sub(1);
        self.interval = (self.interval * 2).min(self.ceiling);
        self.next = if self.left == 0 { self.give_up } else { (now + self.interval).min(self.give_up) };
        true
    }

    /// The peer asks for more time (MRA): the time that is left begins anew after `wait`. At most
    /// `max` times, so that no side is held for ever; what comes before `wait` is over answers a
    /// repetition and does not count. Repetitions in that time ask whether the peer lives,
    /// and are not counted either.
    pub(super) fn extend(&mut self, now: Instant, wait: Duration, max: u8) {
        if self.mras >= max || now < self.patient_until {
            return;
        }
        self.mras += 1;
        let left = self.give_up.saturating_duration_since(now);
        self.patient_until = now + wait;
        self.give_up = self.patient_until + left;
        self.next = now + WHILE_PATIENT;
        if let Some(at) = self.latest {
            self.give_up_at(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ack_timeout_is_the_one_the_kernel_writes() {
        // rxe: packet life time 16, ACK delay 15; the golden captures show 17.
        assert_eq!(local_ack_timeout(16, 15), 17);
        assert_eq!(local_ack_timeout(16, 16), 18);
        assert_eq!(local_ack_timeout(10, 15), 15);
        assert_eq!(local_ack_timeout(255, 255), 31);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    fn an_mra_does_not_move_the_consumers_own_deadline() {
        let start = Instant::now();
        let mut retry = Retry::new(start, Timing::default().request);
        let at = start + Duration::from_millis(600);
        retry.give_up_at(at);
        retry.extend(start, Duration::from_secs(69), 15);
        while retry.step(retry.due()) {}
        assert_eq!(retry.due(), at);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin of virtual time")]
    fn a_silent_host_is_given_up_after_the_total() {
        let start = Instant::now();
        let timing = Timing::default();
        let mut retry = Retry::new(start, timing.request);
        assert_eq!(retry.due(), start + Duration::from_millis(250));
        while retry.step(retry.due()) {}
        assert_eq!(retry.due(), start + timing.request.total);
        assert!((75..85).contains(&retry.attempt));
    }
}
