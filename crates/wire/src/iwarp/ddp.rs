//! Headers of DDP segments with the RDMAP control byte (RFC 5041 §4, RFC 5040 §4.1), behind the
//! ULPDU length of MPA.
//!
//! Header of a tagged segment, 16 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | ULPDU length: bytes from here on, without padding and CRC |
//! | 2 | T: 1, L: last segment of a message, reserved (4 bits), DDP version (2 bits): 1 |
//! | 3 | RDMAP version (2 bits): 1, reserved (2 bits), opcode (4 bits) |
//! | 4..8 | STag |
//! | 8..16 | tagged offset, TO |
//!
//! Header of an untagged segment, 20 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | as above, with T 0 |
//! | 4..8 | STag that a SEND invalidates, else reserved |
//! | 8..12 | queue number, QN: 0 SEND, 1 READ request, 2 TERMINATE |
//! | 12..16 | message sequence number, MSN |
//! | 16..20 | message offset, MO |

use super::Parsed;
use super::fpdu::{self, BadFpdu, LENGTH_LEN};
use crate::Rkey;
use crate::bytes::Writer;

const VERSION: u8 = 1;
const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;

/// What precedes the payload of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload, at most [`fpdu::MAX_ULPDU`] less the header's share of the ULPDU, which is
    /// 14 or 18.
    pub payload_len: u16,
    /// L: the last segment of its message.
    pub last: bool,
    /// Where the payload belongs, and what for.
    pub segment: Segment,
}

/// The two models of buffers (RFC 5041 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// For memory that an STag names.
    Tagged {
        /// WRITE or READ response.
        op: TaggedOp,
        /// The key.
        stag: Rkey,
        /// TO: where the payload belongs; here a virtual address.
        to: u64,
    },
    /// For the next buffer of a queue, which the operation names.
    Untagged {
        /// SEND, READ request or TERMINATE.
        op: UntaggedOp,
        /// MSN: number of the message in its queue. The first one is 1; wraps at 2^32.
        msn: u32,
        /// MO: bytes of the message before this payload.
        mo: u32,
    },
}

/// What a tagged segment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaggedOp {
    /// RDMA WRITE.
    Write,
    /// RDMA READ response.
    ReadResponse,
}

/// What an untagged segment is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UntaggedOp {
    /// SEND, queue 0.
    Send {
        /// SE: the receiver's completion asks for an event.
        solicited: bool,
        /// The receiver's STag that this SEND invalidates.
        invalidate: Option<Rkey>,
    },
    /// RDMA READ request, queue 1. The payload is a [`ReadRequest`](super::rdmap::ReadRequest).
    ReadRequest,
    /// TERMINATE, queue 2. The payload is a [`Terminate`](super::rdmap::Terminate).
    Terminate,
}

/// RDMAP opcodes (RFC 5040 §4.1). Those of RFC 7306, immediate data and atomics, are unknown here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA READ request.
    ReadRequest = 1,
    /// RDMA READ response.
    ReadResponse = 2,
    /// SEND.
    Send = 3,
    /// SEND with invalidate.
    SendInvalidate = 4,
    /// SEND with solicited event.
    SendSe = 5,
    /// SEND with solicited event and invalidate.
    SendSeInvalidate = 6,
    /// TERMINATE.
    Terminate = 7,
}

impl Header {
    /// Bytes of a tagged segment's header, with the ULPDU length.
    pub const TAGGED_LEN: usize = 16;
    /// Bytes of an untagged segment's header, with the ULPDU length.
    pub const UNTAGGED_LEN: usize = 20;
    /// Bytes of the longest header.
    pub const MAX_LEN: usize = Self::UNTAGGED_LEN;

    /// Parses the header at the front of a stream. [`Header::len`] bytes of `front` are the header.
    /// Reserved bits are ignored.
    ///
    /// With the CRC in use a header is to be trusted after it, as
    /// [`Fpdu::parse`](fpdu::Fpdu::parse) does.
    ///
    /// # Errors
    ///
    /// All of [`BadFpdu`] but `Crc`, each as soon as its byte is there.
    pub fn parse(front: &[u8]) -> Result<Parsed<Self>, BadFpdu> {
        let needs = |len: usize| Ok(Parsed::Needs(len - front.len()));
        let Some(length) = fpdu::peek_ulpdu_len(front) else { return needs(Self::TAGGED_LEN) };
        let payload_len = |header_len: usize| {
            let in_ulpdu = (header_len - LENGTH_LEN) as u16;
            length.checked_sub(in_ulpdu).ok_or(BadFpdu::Length(length))
        };
        payload_len(Self::TAGGED_LEN)?;
        let Some(&ddp) = front.get(2) else { return needs(Self::TAGGED_LEN) };
        let (tagged, version) = (ddp & TAGGED != 0, ddp & 3);
        if version != VERSION {
            return Err(BadFpdu::DdpVersion { tagged, version });
        }
        let len = if tagged { Self::TAGGED_LEN } else { Self::UNTAGGED_LEN };
        let payload_len = payload_len(len)?;
        let Some(&rdmap) = front.get(3) else { return needs(len) };
        if rdmap >> 6 != VERSION {
            return Err(BadFpdu::RdmapVersion(rdmap >> 6));
        }
        let opcode = Opcode::from_code(rdmap & 0x0f)
            .filter(|opcode| opcode.is_tagged() == tagged)
            .ok_or(BadFpdu::Opcode(rdmap & 0x0f))?;
        Ok(match Segment::read(opcode, front)? {
            Some(segment) => Parsed::Whole(Self { payload_len, last: ddp & LAST != 0, segment }),
            None => Parsed::Needs(len - front.len()),
        })
    }

    /// Writes the header to the front of `out` and returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        let tagged = matches!(self.segment, Segment::Tagged { .. });
        let opcode = self.opcode();
        let mut to = Writer::new(out);
        to.u16(self.ulpdu_len());
        to.u8(u8::from(tagged) << 7 | u8::from(self.last) << 6 | VERSION);
        to.u8(VERSION << 6 | opcode as u8);
        match self.segment {
            Segment::Tagged { op: _, stag, to: offset } => {
                to.u32(stag.0);
                to.u64(offset);
            }
            Segment::Untagged { op, msn, mo } => {
                let invalidate = match op {
                    UntaggedOp::Send { invalidate, .. } => invalidate,
                    UntaggedOp::ReadRequest | UntaggedOp::Terminate => None,
                };
                to.u32(invalidate.map_or(0, |stag| stag.0));
                to.u32(op.queue());
                to.u32(msn);
                to.u32(mo);
            }
        }
        self.len()
    }

    /// Bytes on the wire, 16 or 20.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no header is empty")]
    pub const fn len(&self) -> usize {
        match self.segment {
            Segment::Tagged { .. } => Self::TAGGED_LEN,
            Segment::Untagged { .. } => Self::UNTAGGED_LEN,
        }
    }

    /// The ULPDU length field. A payload that does not fit gives [`fpdu::MAX_ULPDU`].
    #[inline]
    pub const fn ulpdu_len(&self) -> u16 {
        self.payload_len.saturating_add((self.len() - LENGTH_LEN) as u16)
    }

    /// The RDMAP opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        match self.segment {
            Segment::Tagged { op: TaggedOp::Write, .. } => Opcode::Write,
            Segment::Tagged { op: TaggedOp::ReadResponse, .. } => Opcode::ReadResponse,
            Segment::Untagged { op, .. } => match op {
                UntaggedOp::ReadRequest => Opcode::ReadRequest,
                UntaggedOp::Terminate => Opcode::Terminate,
                UntaggedOp::Send { solicited: false, invalidate: None } => Opcode::Send,
                UntaggedOp::Send { solicited: false, invalidate: Some(_) } => Opcode::SendInvalidate,
                UntaggedOp::Send { solicited: true, invalidate: None } => Opcode::SendSe,
                UntaggedOp::Send { solicited: true, invalidate: Some(_) } => Opcode::SendSeInvalidate,
            },
        }
    }
}

impl Segment {
    /// The fields of a segment of `opcode`, or nothing while they are not all there.
    fn read(opcode: Opcode, front: &[u8]) -> Result<Option<Self>, BadFpdu> {
        let op = match opcode {
            Opcode::Write => return Ok(Self::read_tagged(TaggedOp::Write, front)),
            Opcode::ReadResponse => return Ok(Self::read_tagged(TaggedOp::ReadResponse, front)),
            Opcode::ReadRequest => UntaggedOp::ReadRequest,
            Opcode::Terminate => UntaggedOp::Terminate,
            Opcode::Send | Opcode::SendSe => {
                UntaggedOp::Send { solicited: opcode == Opcode::SendSe, invalidate: None }
            }
            Opcode::SendInvalidate | Opcode::SendSeInvalidate => {
                let Some(stag) = word(front, 4) else { return Ok(None) };
                let solicited = opcode == Opcode::SendSeInvalidate;
                UntaggedOp::Send { solicited, invalidate: Some(Rkey(stag)) }
            }
        };
        let Some(queue) = word(front, 8) else { return Ok(None) };
        if queue != op.queue() {
            return Err(BadFpdu::Queue(queue));
        }
        let (Some(msn), Some(mo)) = (word(front, 12), word(front, 16)) else { return Ok(None) };
        Ok(Some(Self::Untagged { op, msn, mo }))
    }

    fn read_tagged(op: TaggedOp, front: &[u8]) -> Option<Self> {
        let [stag, high, low] = [word(front, 4)?, word(front, 8)?, word(front, 12)?];
        Some(Self::Tagged { op, stag: Rkey(stag), to: u64::from(high) << 32 | u64::from(low) })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

impl UntaggedOp {
    /// The DDP queue number (RFC 5040 §4.2).
    #[inline]
    pub const fn queue(self) -> u32 {
        match self {
            Self::Send { .. } => 0,
            Self::ReadRequest => 1,
            Self::Terminate => 2,
        }
    }
}

impl Opcode {
    /// From the four bits of the RDMAP control byte; `None` for what this crate does not know.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSe,
            6 => Self::SendSeInvalidate,
            7 => Self::Terminate,
            _ => return None,
        })
    }

    /// Whether segments of this opcode are tagged (RFC 5040 §4.2).
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Header = Header {
        payload_len: 5,
        last: true,
        segment: Segment::Tagged { op: TaggedOp::Write, stag: Rkey(0x0102_0304), to: 0x1112_1314_1516_1718 },
    };

    fn send(solicited: bool, invalidate: Option<u32>) -> Header {
        let op = UntaggedOp::Send { solicited, invalidate: invalidate.map(Rkey) };
        Header { payload_len: 0, last: false, segment: Segment::Untagged { op, msn: 7, mo: 1442 } }
    }

    fn emitted(header: &Header) -> Vec<u8> {
        let mut out = [0xa5; Header::MAX_LEN];
        let len = header.emit(&mut out);
        out[..len].to_vec()
    }

    #[test]
    fn fields_lie_in_network_order() {
        let tagged = b"\0\x13\xc1\x40\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18";
        assert_eq!(emitted(&WRITE), tagged);
        let untagged = b"\0\x12\x01\x46\xa1\xa2\xa3\xa4\0\0\0\0\0\0\0\x07\0\0\x05\xa2";
        assert_eq!(emitted(&send(true, Some(0xa1a2_a3a4))), untagged);
    }

    #[test]
    fn a_prefix_needs_what_is_missing_of_the_header() {
        for header in [WRITE, send(false, None), send(false, Some(1))] {
            let bytes = emitted(&header);
            for len in 0..bytes.len() {
                let least = if len < 3 { 16 } else { bytes.len() };
                assert_eq!(Header::parse(&bytes[..len]), Ok(Parsed::Needs(least - len)), "{header:?}");
            }
            assert_eq!(Header::parse(&[&bytes[..], b"payload"].concat()), Ok(Parsed::Whole(header)));
        }
    }

    #[test]
    fn a_header_is_malformed_as_soon_as_its_byte_is_there() {
        use BadFpdu as Bad;
        let send = emitted(&send(false, None));
        let write = emitted(&WRITE);
        for (bytes, at, value, bad) in [
            (&write, 1, 13, Bad::Length(13)),
            (&write, 2, 0xc2, Bad::DdpVersion { tagged: true, version: 2 }),
            (&send, 2, 0x40, Bad::DdpVersion { tagged: false, version: 0 }),
            (&write, 3, 0x80, Bad::RdmapVersion(2)),
            (&write, 3, 0x43, Bad::Opcode(3)),
            (&send, 3, 0x42, Bad::Opcode(2)),
            (&send, 3, 0x48, Bad::Opcode(8)),
            (&send, 3, 0x4f, Bad::Opcode(15)),
            (&send, 11, 1, Bad::Queue(1)),
            (&send, 8, 0x80, Bad::Queue(0x8000_0000)),
        ] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            let known = at.max(if matches!(bad, Bad::Queue(_)) { 11 } else { 0 });
            for len in 0..bytes.len() {
                let parsed = Header::parse(&bytes[..len]);
                assert_eq!(parsed.err(), (len > known).then_some(bad), "{bad:?}, {len} bytes");
            }
        }
    }

    #[test]
    fn an_untagged_ulpdu_is_as_long_as_its_header() {
        let mut bytes = emitted(&send(false, None));
        bytes[1] = 17;
        assert_eq!(Header::parse(&bytes[..2]), Ok(Parsed::Needs(14)));
        assert_eq!(Header::parse(&bytes[..3]), Err(BadFpdu::Length(17)));
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = emitted(&send(false, None));
        bytes[2] |= 0x3c;
        bytes[3] |= 0x30;
        bytes[4..8].fill(0xff);
        assert_eq!(Header::parse(&bytes), Ok(Parsed::Whole(send(false, None))));
    }

    #[test]
    fn opcodes_are_those_of_the_rfc() {
        for code in 0..=0xff {
            let opcode = Opcode::from_code(code);
            assert_eq!(opcode.map(|opcode| opcode as u8), (code < 8).then_some(code));
            assert_eq!(opcode.is_some_and(Opcode::is_tagged), [0, 2].contains(&code));
        }
    }
}
