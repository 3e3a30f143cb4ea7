//! Static rates as multiples of 2.5 Gbit/s and as Mbit/s: ibv_rate_to_mult(3), ibv_rate_to_mbps(3).

use std::ffi::c_int;

use rdma_core_abi::verbs::*;

/// Every rate: its value, its multiple of 2.5 Gbit/s or -1 where rdma-core answers none, and its
/// Mbit/s.
const RATES: &[(ibv_rate, c_int, c_int)] = &[
    (IBV_RATE_2_5_GBPS, 1, 2_500),
    (IBV_RATE_5_GBPS, 2, 5_000),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, -1, 14_062),
    (IBV_RATE_56_GBPS, -1, 56_250),
    (IBV_RATE_112_GBPS, -1, 112_500),
    (IBV_RATE_168_GBPS, -1, 168_750),
    (IBV_RATE_25_GBPS, -1, 25_781),
    (IBV_RATE_100_GBPS, -1, 103_125),
    (IBV_RATE_200_GBPS, -1, 206_250),
    (IBV_RATE_300_GBPS, -1, 309_375),
    (IBV_RATE_28_GBPS, 11, 28_125),
    (IBV_RATE_50_GBPS, 20, 53_125),
    (IBV_RATE_400_GBPS, 160, 425_000),
    (IBV_RATE_600_GBPS, 240, 637_500),
    (IBV_RATE_800_GBPS, 320, 850_000),
    (IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// ibv_rate_to_mult(3): the multiple of 2.5 Gbit/s, or -1.
pub unsafe extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
}

/// `mult_to_ibv_rate`, ibv_rate_to_mult(3): the rate of a multiple, or `IBV_RATE_MAX`.
pub unsafe extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|r| r.1 == mult && mult > 0).map_or(IBV_RATE_MAX, |r| r.0)
}

/// ibv_rate_to_mbps(3): the rate in Mbit/s, or -1.
pub unsafe extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate`, ibv_rate_to_mbps(3): the rate of so many Mbit/s, or `IBV_RATE_MAX`.
pub unsafe extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|r| r.2 == mbps).map_or(IBV_RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_comes_back_from_mbps_and_from_its_multiple() {
        for &(rate, mult, mbps) in RATES {
            // SAFETY: the functions take integers only.
            unsafe {
                assert_eq!(ibv_rate_to_mbps(rate), mbps);
                assert_eq!(mbps_to_ibv_rate(mbps), rate);
                assert_eq!(ibv_rate_to_mult(rate), mult);
                assert_eq!(mult_to_ibv_rate(mult), if mult > 0 { rate } else { IBV_RATE_MAX });
            }
        }
    }

    #[test]
    fn what_is_no_rate_is_minus_one_or_the_maximum() {
        // SAFETY: the functions take integers only.
        unsafe {
            assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), -1);
            assert_eq!(ibv_rate_to_mbps(99), -1);
            assert_eq!(mult_to_ibv_rate(-1), IBV_RATE_MAX);
            assert_eq!(mbps_to_ibv_rate(1), IBV_RATE_MAX);
        }
    }
}
