//! The header of ERF, Endace's Extensible Record Format, before a packet of InfiniBand.
//!
//! A link type for packets that begin with an LRH is registered (LINKTYPE_INFINIBAND, 247), but
//! Wireshark and tshark up to 4.0 at least decode none of it. They decode records of ERF
//! (LINKTYPE_ERF, 197) of the type for InfiniBand without a setting.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | time in seconds since 1970, times 2^32, least significant byte first |
//! | 8 | type: 21 is InfiniBand |
//! | 9 | flags: 4 is a record of any length |
//! | 10..12 | bytes of the record, this header included |
//! | 12..14 | packets lost before this one: 0 |
//! | 14..16 | bytes of the packet on the wire |

/// Bytes of the header.
pub(crate) const ERF_LEN: usize = 16;

const INFINIBAND: u8 = 21;
const VARYING_LENGTH: u8 = 4;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The header of a packet of so many bytes, of which `kept` follow. `time` is in nanoseconds since
/// 1970.
pub(crate) fn header(time: u64, kept: usize, len: u32) -> [u8; ERF_LEN] {
    let (seconds, nanos) = (time / NANOS_PER_SECOND, time % NANOS_PER_SECOND);
    // Rounded up, so that a reader that rounds down finds the same nanoseconds.
    let fraction = (nanos << 32).div_ceil(NANOS_PER_SECOND);
    let mut header = [0; ERF_LEN];
    header[..8].copy_from_slice(&(seconds << 32 | fraction).to_le_bytes());
    header[8..10].copy_from_slice(&[INFINIBAND, VARYING_LENGTH]);
    header[10..12].copy_from_slice(&((ERF_LEN + kept) as u16).to_be_bytes());
    header[14..].copy_from_slice(&(len as u16).to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_the_time_to_the_nanosecond_and_both_lengths() {
        for time in [0, 1, 999_999_999, 1_796_078_914_878_903_497] {
            let header = header(time, 64, 4_142);
            let at = u64::from_le_bytes(*header.first_chunk().unwrap());
            let nanos = ((at & 0xffff_ffff) * NANOS_PER_SECOND) >> 32;
            assert_eq!((at >> 32) * NANOS_PER_SECOND + nanos, time);
            assert_eq!(header[8..], [21, 4, 0, 80, 0, 0, 0x10, 0x2e]);
        }
    }
}
