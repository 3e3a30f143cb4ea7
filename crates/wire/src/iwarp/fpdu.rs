//! FPDU: what MPA frames a DDP segment in (RFC 5044 §4.1), whole or by its parts.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | ULPDU length: bytes of the DDP segment, header and payload |
//! | 2.. | DDP segment: the rest of its [`Header`], and payload |
//! | 0 to 3 | padding, sent as zeros: the FPDU fills whole words |
//! | 4 | CRC-32C over all before it, least significant byte first; 0 where it is not in use |

use super::Parsed;
use super::crc::{CRC_LEN, Crc32c};
use super::ddp::Header;
use super::rdmap::Cause;
use crate::bytes::Writer;

/// The ULPDU length field in bytes.
pub const LENGTH_LEN: usize = 2;
/// Bytes of padding and CRC at most.
pub const MAX_TRAILER_LEN: usize = 3 + CRC_LEN;
/// Bytes of a ULPDU at most: what its length field can say.
pub const MAX_ULPDU: u16 = u16::MAX;

/// Why bytes are no FPDU. The stream is lost: [`BadFpdu::cause`] is what the receiver says in its
/// TERMINATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadFpdu {
    /// The ULPDU length is less than the segment's header takes.
    #[error("ULPDU of {0} bytes is shorter than its header")]
    Length(u16),
    /// The CRC does not match.
    #[error("CRC of the FPDU does not match")]
    Crc,
    /// DDP version other than 1.
    #[error("DDP version {version} is not 1")]
    DdpVersion {
        /// T, which decides on the error's type.
        tagged: bool,
        /// The version, 2 bits.
        version: u8,
    },
    /// RDMAP version other than 1.
    #[error("RDMAP version {0} is not 1")]
    RdmapVersion(u8),
    /// An opcode that is unknown, or not one of segments with this T.
    #[error("unexpected RDMAP opcode {0}")]
    Opcode(u8),
    /// A queue number other than that of the operation.
    #[error("RDMAP opcode does not go to queue {0}")]
    Queue(u32),
}

/// A whole FPDU: header and payload, without padding and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// Header.
    pub header: Header,
    /// Payload, as long as the header says.
    pub payload: &'a [u8],
}

/// Zero bytes behind a ULPDU of `ulpdu_len` bytes, so that the FPDU fills whole words; 0 to 3 (RFC
/// 5044 §4.1).
#[inline]
pub const fn pad(ulpdu_len: u16) -> usize {
    (LENGTH_LEN + ulpdu_len as usize).wrapping_neg() & 3
}

/// Bytes of an FPDU whose ULPDU has `ulpdu_len` bytes: length field, ULPDU, padding, CRC.
#[inline]
pub const fn fpdu_len(ulpdu_len: u16) -> usize {
    LENGTH_LEN + ulpdu_len as usize + pad(ulpdu_len) + CRC_LEN
}

/// MULPDU: bytes of the longest ULPDU whose FPDU fits a TCP segment with `emss` bytes of payload,
/// without markers (RFC 5044 §4.5). 0 where none fits.
#[inline]
pub const fn mulpdu(emss: usize) -> u16 {
    let ulpdu = (emss & !3).saturating_sub(LENGTH_LEN + CRC_LEN);
    if ulpdu > MAX_ULPDU as usize { MAX_ULPDU } else { ulpdu as u16 }
}

/// The length of the FPDU at the front of a stream, of which 2 bytes at least are there.
#[inline]
pub fn peek_fpdu_len(front: &[u8]) -> Option<usize> {
    peek_ulpdu_len(front).map(fpdu_len)
}

/// The ULPDU length at the front of a stream, of which 2 bytes at least are there.
#[inline]
pub fn peek_ulpdu_len(front: &[u8]) -> Option<u16> {
    front.first_chunk().copied().map(u16::from_be_bytes)
}

/// Whether a whole FPDU, from its ULPDU length to its CRC, has the CRC that it should have.
#[inline]
pub fn crc_matches(fpdu: &[u8]) -> bool {
    let covered_and_sent = fpdu.split_last_chunk();
    covered_and_sent.is_some_and(|(covered, sent)| Crc32c::new().update(covered).finish() == *sent)
}

/// Writes what ends an FPDU, padding and CRC, to the front of `out` and returns its length. `crc`
/// covers header and payload; without the CRC in use (`None`) the field is 0.
#[inline]
pub fn trailer(ulpdu_len: u16, crc: Option<Crc32c>, out: &mut [u8; MAX_TRAILER_LEN]) -> usize {
    let padding = &[0; 3][..pad(ulpdu_len)];
    let crc = crc.map_or([0; CRC_LEN], |crc| crc.update(padding).finish());
    let mut to = Writer::new(out);
    to.slice(padding);
    to.array(crc);
    padding.len() + CRC_LEN
}

impl BadFpdu {
    /// What the receiver says in its TERMINATE. There is no code for a ULPDU shorter than its
    /// header; as lengths that do not agree it is [`Cause::MpaFpduStart`].
    pub const fn cause(self) -> Cause {
        match self {
            Self::Length(_) => Cause::MpaFpduStart,
            Self::Crc => Cause::MpaCrc,
            Self::DdpVersion { tagged: true, .. } => Cause::TaggedVersion,
            Self::DdpVersion { tagged: false, .. } => Cause::UntaggedVersion,
            Self::RdmapVersion(_) => Cause::RdmapVersion,
            Self::Opcode(_) => Cause::UnexpectedOpcode,
            Self::Queue(_) => Cause::InvalidQn,
        }
    }
}

impl<'a> Fpdu<'a> {
    /// Parses the FPDU at the front of a stream. [`Fpdu::len`] bytes of `front` are the FPDU. What
    /// padding holds is covered by the CRC and else ignored.
    ///
    /// # Errors
    ///
    /// With the CRC in use (`crc`): any of [`BadFpdu`] once the whole FPDU is there, `Crc` before
    /// all others. Without it: those of [`Header::parse`].
    pub fn parse(front: &'a [u8], crc: bool) -> Result<Parsed<Self>, BadFpdu> {
        let len = peek_fpdu_len(front).unwrap_or(fpdu_len((Header::TAGGED_LEN - LENGTH_LEN) as u16));
        let Some(fpdu) = front.get(..len) else {
            if !crc {
                Header::parse(front)?;
            }
            return Ok(Parsed::Needs(len - front.len()));
        };
        if crc && !crc_matches(fpdu) {
            return Err(BadFpdu::Crc);
        }
        Ok(match Header::parse(fpdu)? {
            Parsed::Needs(more) => Parsed::Needs(more),
            Parsed::Whole(header) => {
                let payload = fpdu.get(header.len()..).unwrap_or_default();
                let payload = payload.get(..header.payload_len.into()).unwrap_or_default();
                Parsed::Whole(Self { header, payload })
            }
        })
    }

    /// Appends the FPDU to `out`, with its CRC in use or 0. The header's `payload_len` is taken
    /// from the payload; of one that no FPDU can carry the first bytes are sent.
    pub fn emit(&self, crc: bool, out: &mut Vec<u8>) {
        let room = usize::from(MAX_ULPDU) - (self.header.len() - LENGTH_LEN);
        let payload = self.payload.get(..room).unwrap_or(self.payload);
        let header = Header { payload_len: payload.len() as u16, ..self.header };
        let mut bytes = [0; Header::MAX_LEN];
        let len = header.emit(&mut bytes);
        let head = &bytes[..len];
        let crc = crc.then(|| Crc32c::new().update(head).update(payload));
        let mut end = [0; MAX_TRAILER_LEN];
        let end_len = trailer(header.ulpdu_len(), crc, &mut end);
        for part in [head, payload, &end[..end_len]] {
            out.extend_from_slice(part);
        }
    }

    /// Bytes on the wire, with padding and CRC.
    #[expect(clippy::len_without_is_empty, reason = "an FPDU has a header")]
    pub const fn len(&self) -> usize {
        fpdu_len(self.header.ulpdu_len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ddp::{Segment, TaggedOp};
    use super::*;
    use crate::Rkey;

    fn write(payload: &[u8]) -> Fpdu<'_> {
        let segment = Segment::Tagged { op: TaggedOp::Write, stag: Rkey(1), to: 2 };
        Fpdu { header: Header { payload_len: payload.len() as u16, last: true, segment }, payload }
    }

    fn emitted(fpdu: &Fpdu<'_>, crc: bool) -> Vec<u8> {
        let mut out = Vec::new();
        fpdu.emit(crc, &mut out);
        out
    }

    #[test]
    fn an_fpdu_fills_whole_words() {
        for len in 0..=u16::MAX {
            assert!(pad(len) < 4);
            assert_eq!(fpdu_len(len) % 4, 0, "{len}");
            assert_eq!(fpdu_len(len), 2 + usize::from(len) + pad(len) + 4);
        }
    }

    #[test]
    fn the_mulpdu_is_the_longest_that_fits() {
        for emss in 8..70_000 {
            let ulpdu = mulpdu(emss);
            assert!(fpdu_len(ulpdu) <= emss, "{emss}");
            assert!(ulpdu == MAX_ULPDU || fpdu_len(ulpdu + 1) > emss, "{emss}");
        }
        assert_eq!((mulpdu(0), mulpdu(7), mulpdu(1448), mulpdu(1447)), (0, 0, 1442, 1438));
    }

    #[test]
    fn a_crc_covers_length_header_payload_and_padding() {
        let bytes = emitted(&write(b"abc"), true);
        assert_eq!(bytes.len(), 24);
        let (covered, crc) = bytes.split_last_chunk::<4>().unwrap();
        assert_eq!(covered[16..], *b"abc\0");
        assert_eq!(*crc, Crc32c::new().update(covered).finish());
        for at in 2..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x20;
            assert_eq!(Fpdu::parse(&bytes, true), Err(BadFpdu::Crc), "byte {at}");
        }
    }

    /// The first SEND of rping, with the CRC that Wireshark computes for it.
    #[test]
    fn a_crc_lies_on_the_wire_as_wireshark_reads_it() {
        let mut bytes = vec![0; 36];
        bytes[1..4].copy_from_slice(&[0x22, 0x41, 0x43]);
        bytes[15] = 1;
        bytes[20..36].copy_from_slice(b"\0\0VK\xb4\x7fSpp\xeeP\0\0\0\0\x40");
        assert_eq!(Crc32c::new().update(&bytes).finish(), [0x5b, 0xa0, 0xd8, 0xe9]);
        bytes.extend([0x5b, 0xa0, 0xd8, 0xe9]);
        assert!(crc_matches(&bytes) && Fpdu::parse(&bytes, true).is_ok());
    }

    #[test]
    fn without_the_crc_in_use_its_field_is_0_and_ignored() {
        let fpdu = write(b"abc");
        let mut bytes = emitted(&fpdu, false);
        assert_eq!(bytes[20..], [0; 4]);
        bytes[19..].fill(0xff);
        assert_eq!(Fpdu::parse(&bytes, false), Ok(Parsed::Whole(fpdu)));
    }

    #[test]
    fn with_the_crc_in_use_nothing_is_judged_before_it() {
        let mut bytes = emitted(&write(b"abc"), true);
        bytes[2] |= 2;
        for len in 0..bytes.len() {
            let needs = if len < 2 { 20 } else { 24 } - len;
            assert_eq!(Fpdu::parse(&bytes[..len], true), Ok(Parsed::Needs(needs)));
        }
        assert_eq!(Fpdu::parse(&bytes, true), Err(BadFpdu::Crc));
        let (covered, crc) = bytes.split_last_chunk_mut::<4>().unwrap();
        *crc = Crc32c::new().update(covered).finish();
        let version = BadFpdu::DdpVersion { tagged: true, version: 3 };
        assert_eq!(Fpdu::parse(&bytes, true), Err(version));
    }

    #[test]
    fn a_ulpdu_shorter_than_any_header_is_malformed_behind_its_crc() {
        let mut bytes = vec![0, 1, 0xff, 0];
        bytes.extend(Crc32c::new().update(&bytes).finish());
        assert_eq!(Fpdu::parse(&bytes[..7], true), Ok(Parsed::Needs(1)));
        assert_eq!(Fpdu::parse(&bytes, true), Err(BadFpdu::Length(1)));
        assert_eq!(Fpdu::parse(&bytes[..2], false), Err(BadFpdu::Length(1)));
    }

    #[test]
    fn a_payload_that_no_fpdu_can_carry_is_cut() {
        let payload = vec![9; 70_000];
        let bytes = emitted(&write(&payload), true);
        let fpdu = Fpdu::parse(&bytes, true).unwrap().whole().unwrap();
        assert_eq!(fpdu.payload.len(), usize::from(MAX_ULPDU) - 14);
        assert_eq!((bytes.len(), fpdu.len()), (fpdu_len(MAX_ULPDU), fpdu_len(MAX_ULPDU)));
    }
}
