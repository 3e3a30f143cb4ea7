//! MPA request and reply: what each side of a TCP connection says first (RFC 5044 §7.1.1, RFC 6581
//! §6 and §9).
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | key: "MPA ID Req Frame" or "MPA ID Rep Frame" |
//! | 16 | M: markers, C: CRC, R: rejected, S: enhanced, reserved (4 bits) |
//! | 17 | revision |
//! | 18..20 | length of the private data, 0 to 512; the enhanced header counts |
//! | 20.. | private data |
//!
//! Where S is set the private data begins with the enhanced header, 4 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | A: peer to peer, B: RTR by a zero-length SEND, IRD (14 bits) |
//! | 2..4 | C: RTR by a zero-length WRITE, D: RTR by a zero-length READ, ORD (14 bits) |

use super::Parsed;
use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// Bytes of private data at most, the enhanced header included (RFC 5044 §7.1.1).
pub const MAX_PRIVATE_DATA: usize = 512;
/// A program's private data at most where the frame has the enhanced header.
pub const MAX_ENHANCED_PRIVATE_DATA: usize = MAX_PRIVATE_DATA - Enhanced::LEN;

/// Bytes of a frame without private data.
pub const HEADER_LEN: usize = 20;
/// Bytes of the longest frame.
pub const MAX_LEN: usize = HEADER_LEN + MAX_PRIVATE_DATA;
/// The revision that has the S bit (RFC 6581 §6).
pub const ENHANCED_REVISION: u8 = 2;

const KEY_LEN: usize = 16;
const REQUEST_KEY: &[u8; KEY_LEN] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; KEY_LEN] = b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The initiator's, which comes first.
    Request,
    /// The responder's.
    Reply,
}

/// An MPA request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Request or reply.
    pub kind: Kind,
    /// M: the sender wants markers in the FPDUs that it receives.
    pub markers: bool,
    /// C: the sender wants CRCs; they are in use, both ways, if either side wants them.
    pub crc: bool,
    /// R, of a reply: the connection is rejected. Reserved in a request.
    pub rejected: bool,
    /// Revision of MPA: 1 (RFC 5044), or [`ENHANCED_REVISION`]. A receiver that does not
    /// know the revision closes the connection.
    pub revision: u8,
    /// S with its header. `None` of any revision but [`ENHANCED_REVISION`], where the bit is
    /// reserved.
    pub enhanced: Option<Enhanced>,
    /// The program's own data: at most [`MAX_PRIVATE_DATA`] bytes, with the enhanced header
    /// [`MAX_ENHANCED_PRIVATE_DATA`].
    pub private_data: &'a [u8],
}

/// Enhanced RDMA connection establishment data (RFC 6581 §9): how many READs, and which message of
/// the initiator lets the responder send (RTR, "ready to receive").
///
/// In a request the RTR bits are the messages that the initiator can send, in a reply the one that
/// the responder wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// A: peer to peer. Without it the initiator's program sends first, and the RTR bits say
    /// nothing.
    pub peer_to_peer: bool,
    /// B: RTR by a zero-length SEND.
    pub send_rtr: bool,
    /// C: RTR by a zero-length WRITE.
    pub write_rtr: bool,
    /// D: RTR by a zero-length READ.
    pub read_rtr: bool,
    /// READ requests that the sender can receive at a time, 14 bits.
    pub ird: u16,
    /// READ requests that the sender may have outstanding, 14 bits.
    pub ord: u16,
}

impl Kind {
    const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }
}

impl<'a> Frame<'a> {
    /// Parses the frame at the front of a stream. [`Frame::len`] bytes of `front` are the frame.
    /// Reserved bits are ignored.
    ///
    /// # Errors
    ///
    /// `Field`: a byte that differs from the key of `kind`. `Length`: more private data than a
    /// frame has, or less than its enhanced header takes. All of them are
    /// [`Cause::MpaFrame`](super::rdmap::Cause::MpaFrame).
    pub fn parse(kind: Kind, front: &'a [u8]) -> Result<Parsed<Self>, Malformed> {
        if front.iter().zip(kind.key()).any(|(byte, of_key)| byte != of_key) {
            return Err(Malformed::Field("MPA key"));
        }
        let Some((header, rest)) = front.split_first_chunk::<HEADER_LEN>() else {
            return Ok(Parsed::Needs(HEADER_LEN - front.len()));
        };
        let mut from = Reader::new(header);
        from.skip::<KEY_LEN>()?;
        let [flags, revision] = from.array()?;
        let len = usize::from(from.u16()?);
        let is_enhanced = flags & ENHANCED != 0 && revision == ENHANCED_REVISION;
        if len > MAX_PRIVATE_DATA || is_enhanced && len < Enhanced::LEN {
            return Err(Malformed::Length);
        }
        let Some(data) = rest.get(..len) else {
            return Ok(Parsed::Needs(len - rest.len()));
        };
        let mut from = Reader::new(data);
        let enhanced = if is_enhanced { Some(Enhanced::read(&mut from)?) } else { None };
        Ok(Parsed::Whole(Self {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            rejected: flags & REJECTED != 0,
            revision,
            enhanced,
            private_data: from.rest(),
        }))
    }

    /// Bytes on the wire, 20 to [`MAX_LEN`].
    #[expect(clippy::len_without_is_empty, reason = "a frame has a header")]
    pub fn len(&self) -> usize {
        HEADER_LEN + self.enhanced_len() + self.sent_data().len()
    }

    /// Writes the frame to the front of `out` and returns its length. Of longer private data than a
    /// frame has the first bytes are written.
    pub fn emit(&self, out: &mut [u8; MAX_LEN]) -> usize {
        let data = self.sent_data();
        let flags = [
            (self.markers, MARKERS),
            (self.crc, CRC),
            (self.rejected, REJECTED),
            (self.enhanced.is_some(), ENHANCED),
        ];
        let mut to = Writer::new(out);
        to.array(*self.kind.key());
        to.u8(flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum());
        to.u8(self.revision);
        to.u16((self.enhanced_len() + data.len()) as u16);
        if let Some(enhanced) = &self.enhanced {
            enhanced.write(&mut to);
        }
        to.slice(data);
        self.len()
    }

    fn enhanced_len(&self) -> usize {
        self.enhanced.map_or(0, |_| Enhanced::LEN)
    }

    /// What fits of the private data.
    fn sent_data(&self) -> &'a [u8] {
        let room = MAX_PRIVATE_DATA - self.enhanced_len();
        self.private_data.get(..room).unwrap_or(self.private_data)
    }
}

impl Enhanced {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// The largest IRD or ORD, which says that the sender negotiates none (RFC 6581 §9.1).
    pub const NOT_NEGOTIATED: u16 = 0x3fff;

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (first, second) = (from.u16()?, from.u16()?);
        Ok(Self {
            peer_to_peer: first & 0x8000 != 0,
            send_rtr: first & 0x4000 != 0,
            write_rtr: second & 0x8000 != 0,
            read_rtr: second & 0x4000 != 0,
            ird: first & Self::NOT_NEGOTIATED,
            ord: second & Self::NOT_NEGOTIATED,
        })
    }

    fn write(&self, out: &mut Writer<'_>) {
        let word = |first, second, number: u16| {
            u16::from(first) << 15 | u16::from(second) << 14 | number & Self::NOT_NEGOTIATED
        };
        out.u16(word(self.peer_to_peer, self.send_rtr, self.ird));
        out.u16(word(self.write_rtr, self.read_rtr, self.ord));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: Frame<'_> = Frame {
        kind: Kind::Reply,
        markers: false,
        crc: true,
        rejected: true,
        revision: 2,
        enhanced: Some(Enhanced {
            peer_to_peer: true,
            send_rtr: false,
            write_rtr: false,
            read_rtr: true,
            ird: 0x0102,
            ord: 0x0304,
        }),
        private_data: b"data",
    };

    fn emitted(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = [0; MAX_LEN];
        let len = frame.emit(&mut out);
        out[..len].to_vec()
    }

    #[test]
    fn fields_lie_in_network_order() {
        assert_eq!(emitted(&REPLY), b"MPA ID Rep Frame\x70\x02\0\x08\x81\x02\x43\x04data");
        let request = Frame { kind: Kind::Request, revision: 1, enhanced: None, ..REPLY };
        let request = Frame { markers: true, crc: false, rejected: false, ..request };
        assert_eq!(emitted(&request), b"MPA ID Req Frame\x80\x01\0\x04data");
    }

    #[test]
    fn a_prefix_needs_what_is_missing_of_the_header_and_then_of_the_private_data() {
        let bytes = emitted(&REPLY);
        for len in 0..bytes.len() {
            let needs = if len < 20 { 20 - len } else { bytes.len() - len };
            assert_eq!(Frame::parse(Kind::Reply, &bytes[..len]), Ok(Parsed::Needs(needs)));
        }
        let followed = [&bytes[..], b"an FPDU"].concat();
        assert_eq!(Frame::parse(Kind::Reply, &followed), Ok(Parsed::Whole(REPLY)));
    }

    #[test]
    fn another_key_is_malformed_at_its_first_byte_that_differs() {
        let bytes = emitted(&REPLY);
        let same = "MPA ID Re".len();
        assert!(Frame::parse(Kind::Request, &bytes[..same]).is_ok());
        for len in same + 1..=bytes.len() {
            let parsed = Frame::parse(Kind::Request, &bytes[..len]);
            assert_eq!(parsed, Err(Malformed::Field("MPA key")), "{len} bytes");
        }
    }

    #[test]
    fn private_data_that_no_frame_has_is_malformed_at_the_header() {
        let mut bytes = emitted(&REPLY);
        bytes[18..20].copy_from_slice(&513u16.to_be_bytes());
        assert_eq!(Frame::parse(Kind::Reply, &bytes[..19]), Ok(Parsed::Needs(1)));
        assert_eq!(Frame::parse(Kind::Reply, &bytes[..20]), Err(Malformed::Length));
        bytes[18..20].copy_from_slice(&3u16.to_be_bytes());
        assert_eq!(Frame::parse(Kind::Reply, &bytes), Err(Malformed::Length));
    }

    #[test]
    fn s_is_reserved_in_other_revisions() {
        let mut bytes = emitted(&REPLY);
        bytes[17] = 1;
        let Ok(Parsed::Whole(frame)) = Frame::parse(Kind::Reply, &bytes) else { panic!("a frame") };
        assert_eq!((frame.enhanced, frame.private_data.len()), (None, 8));
    }

    #[test]
    fn private_data_that_does_not_fit_is_cut() {
        let data = [7; 600];
        for (enhanced, room) in [(None, 512), (REPLY.enhanced, 508)] {
            let bytes = emitted(&Frame { enhanced, private_data: &data, ..REPLY });
            assert_eq!(bytes.len(), MAX_LEN);
            let frame = Frame::parse(Kind::Reply, &bytes).unwrap().whole().unwrap();
            assert_eq!(frame.private_data.len(), room);
        }
    }
}
