//! The codes by which the standard writes down times.

use std::time::Duration;

/// A local ACK timeout or packet life time code as a duration: 4.096 us * 2^code (IBA 1.4
/// §9.7.6.1.3).
pub fn timeout_of(code: u8) -> Option<Duration> {
    (code & 31 != 0).then(|| Duration::from_nanos(4096 << (code & 31)))
}

/// The wait that an RNR NAK's timer code asks for, 10 us to 655.36 ms (IBA 1.4 table 45).
pub fn rnr_timer_of(code: u8) -> Duration {
    Duration::from_micros(10 * RNR_TIMER[usize::from(code & 31)])
}

/// IBA 1.4 table 45 in units of 10 us.
const RNR_TIMER: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timers_are_those_of_the_standard() {
        assert_eq!(rnr_timer_of(0), Duration::from_micros(655_360));
        assert_eq!(rnr_timer_of(1), Duration::from_micros(10));
        assert_eq!(rnr_timer_of(12), Duration::from_micros(640));
        assert_eq!(rnr_timer_of(31), Duration::from_micros(491_520));
        // From code 2 on, two steps double the wait, up to the rounding of the smallest.
        for code in 4..30 {
            assert_eq!(rnr_timer_of(code + 2), 2 * rnr_timer_of(code), "code {code}");
        }
    }

    #[test]
    fn a_timeout_code_of_14_is_67_ms_and_0_is_never() {
        assert_eq!(timeout_of(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(timeout_of(0), None);
    }
}
