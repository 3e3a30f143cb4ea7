//! CRC-32C of FPDUs (RFC 5044 §4.4), with the polynomial and the order of iSCSI (RFC 3720 §12.1).
//!
//! The CRC covers the ULPDU length, the ULPDU and the padding. It is stored least significant byte
//! first.

/// Bytes of the CRC at the end of each FPDU. They are there without the CRC in use, too.
pub const CRC_LEN: usize = 4;

/// A CRC-32C over pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The CRC over nothing.
    #[inline]
    pub const fn new() -> Self {
        Self(0)
    }

    /// The CRC over what it covered before, and `bytes` after that.
    #[inline]
    #[must_use]
    pub fn update(self, bytes: &[u8]) -> Self {
        Self(crc32c::crc32c_append(self.0, bytes))
    }

    /// The four bytes on the wire.
    #[inline]
    pub const fn finish(self) -> [u8; CRC_LEN] {
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 appendix B.4: its five examples.
    #[test]
    fn the_examples_of_iscsi_have_their_crcs() {
        let read10 = [
            0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0,
            0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
        ];
        let up: [u8; 32] = std::array::from_fn(|at| at as u8);
        let down: [u8; 32] = std::array::from_fn(|at| 31 - at as u8);
        for (bytes, crc) in [
            (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&up, [0x4e, 0x79, 0xdd, 0x46]),
            (&down, [0x5c, 0xdb, 0x3f, 0x11]),
            (&read10, [0x56, 0x3a, 0x96, 0xd9]),
        ] {
            assert_eq!(Crc32c::new().update(bytes).finish(), crc);
        }
    }

    #[test]
    fn pieces_give_the_crc_of_the_whole() {
        let bytes: Vec<u8> = (0..70_000).map(|at| (at / 3) as u8 ^ at as u8).collect();
        let whole = Crc32c::new().update(&bytes);
        for cut in [0, 1, 7, 8, 255, 8_191, 24_577, 69_999, 70_000] {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(Crc32c::new().update(front).update(back), whole, "cut at {cut}");
        }
    }
}
