//! Payloads that RDMAP itself has: READ request and TERMINATE (RFC 5040 §4.4, §4.8).
//!
//! READ request, 28 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4, 4..12 | sink: STag and tagged offset, where the READ response goes |
//! | 12..16 | size in bytes |
//! | 16..20, 20..28 | source: STag and tagged offset |
//!
//! TERMINATE, 4 to 52 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | layer (4 bits), error type (4 bits) |
//! | 1 | error code |
//! | 2..4 | M: segment length valid, D: DDP header there, R: READ request there; 13 bits reserved |
//! | 4..6 | with D: DDP segment length, 0 without M |
//! | 6..20 or 6..24 | with D: header of the segment that was refused, tagged or untagged |
//! | 28 bytes | with R: its READ request |

mod cause;

pub use cause::{Cause, Code};

use super::ddp::{Header, Opcode};
use super::fpdu::LENGTH_LEN;
use crate::bytes::{Reader, Writer};
use crate::{Malformed, Rkey};

/// The payload of an RDMA READ request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Key of the requester's memory, where the READ response goes.
    pub sink_stag: Rkey,
    /// TO of the requester's memory.
    pub sink_to: u64,
    /// Bytes to read.
    pub size: u32,
    /// Key of the responder's memory.
    pub source_stag: Rkey,
    /// TO of the responder's memory.
    pub source_to: u64,
}

/// The payload of a TERMINATE: why the sender ends the stream, and what it refused (RFC 5040 §4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Layer, type and code of the error.
    pub code: Code,
    /// D: the segment that was refused.
    pub refused: Option<Refused>,
    /// R: the READ request that was refused.
    pub read_request: Option<ReadRequest>,
}

/// The segment that a TERMINATE is about, as far as it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// M: the length of the DDP segment in bytes, header and payload. `None`: it is not known. siw
    /// says that of the payload.
    pub segment_len: Option<u16>,
    /// The header.
    pub header: CopiedHeader,
}

/// A DDP header as it came, legal or not, without the ULPDU length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CopiedHeader([u8; Self::MAX_LEN]);

const SEGMENT_LEN_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Parses the payload of a READ request's one segment.
    ///
    /// # Errors
    ///
    /// `Truncated`: shorter than [`ReadRequest::LEN`]. `Length`: longer.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        if payload.len() > Self::LEN {
            return Err(Malformed::Length);
        }
        Self::read(&mut Reader::new(payload))
    }

    /// The payload.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        self.write(&mut Writer::new(&mut bytes));
        bytes
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        // All of it, or nothing.
        let bytes = from.array::<{ Self::LEN }>()?;
        let mut from = Reader::new(&bytes);
        Ok(Self {
            sink_stag: Rkey(from.u32()?),
            sink_to: from.u64()?,
            size: from.u32()?,
            source_stag: Rkey(from.u32()?),
            source_to: from.u64()?,
        })
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.sink_stag.0);
        out.u64(self.sink_to);
        out.u32(self.size);
        out.u32(self.source_stag.0);
        out.u64(self.source_to);
    }
}

impl Terminate {
    /// Bytes of the longest TERMINATE.
    pub const MAX_LEN: usize = 4 + LENGTH_LEN + CopiedHeader::MAX_LEN + ReadRequest::LEN;

    /// A TERMINATE without copies of headers.
    pub const fn new(cause: Cause) -> Self {
        Self { code: cause.code(), refused: None, read_request: None }
    }

    /// A TERMINATE because of an FPDU that came, from its ULPDU length on.
    ///
    /// Errors of the LLP, catastrophic ones, and those in which the layout of the header is unknown
    /// have no copies. Errors of RDMAP have that of a READ request (RFC 5040 §4.8).
    pub fn of(cause: Cause, fpdu: &[u8]) -> Self {
        let plain = Self::new(cause);
        let Some((length, segment)) = fpdu.split_first_chunk() else { return plain };
        let (true, Some(header)) = (cause.copies_headers(), CopiedHeader::copy(segment)) else {
            return plain;
        };
        let is_request = header.opcode() == Some(Opcode::ReadRequest) && cause.code().layer == Code::RDMA;
        let payload = segment.get(header.as_bytes().len()..).unwrap_or_default();
        Self {
            refused: Some(Refused { segment_len: Some(u16::from_be_bytes(*length)), header }),
            read_request: if is_request { ReadRequest::read(&mut Reader::new(payload)).ok() } else { None },
            ..plain
        }
    }

    /// Why the stream ends; `None` for a code that RFC 6580 does not list.
    pub fn cause(&self) -> Option<Cause> {
        Cause::from_code(self.code)
    }

    /// Parses the payload of a TERMINATE. Headers of which not all is there are left out, so that
    /// the code is known in any case; siw sets R of a SEND, which has none. Reserved bits, and what
    /// follows the headers, are ignored.
    ///
    /// # Errors
    ///
    /// `Truncated`: fewer bytes than the code has.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(payload);
        let [layer_type, code, headers, _] = from.array()?;
        let code = Code { layer: layer_type >> 4, etype: layer_type & 0x0f, code };
        let refused = if headers & DDP_HEADER != 0 { Refused::read(headers, &mut from).ok() } else { None };
        let has_request = headers & RDMAP_HEADER != 0;
        let read_request = if has_request { ReadRequest::read(&mut from).ok() } else { None };
        Ok(Self { code, refused, read_request })
    }

    /// Writes the payload to the front of `out` and returns its length, 4 to
    /// [`Terminate::MAX_LEN`].
    pub fn emit(&self, out: &mut [u8; Self::MAX_LEN]) -> usize {
        let segment_len = self.refused.and_then(|refused| refused.segment_len);
        let mut headers = 0;
        for (there, bit) in [
            (segment_len.is_some(), SEGMENT_LEN_VALID),
            (self.refused.is_some(), DDP_HEADER),
            (self.read_request.is_some(), RDMAP_HEADER),
        ] {
            headers |= if there { bit } else { 0 };
        }
        let mut to = Writer::new(out);
        to.array([self.code.layer << 4 | self.code.etype & 0x0f, self.code.code, headers, 0]);
        let mut len = 4;
        if let Some(refused) = &self.refused {
            let header = refused.header.as_bytes();
            to.u16(segment_len.unwrap_or(0));
            to.slice(header);
            len += LENGTH_LEN + header.len();
        }
        if let Some(request) = &self.read_request {
            request.write(&mut to);
            len += ReadRequest::LEN;
        }
        len
    }
}

impl Refused {
    fn read(headers: u8, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let segment_len = from.u16()?;
        let segment_len = (headers & SEGMENT_LEN_VALID != 0).then_some(segment_len);
        Ok(Self { segment_len, header: CopiedHeader::read(from)? })
    }
}

impl CopiedHeader {
    const TAGGED_LEN: usize = Header::TAGGED_LEN - LENGTH_LEN;
    /// Bytes of the longest one.
    pub const MAX_LEN: usize = Header::UNTAGGED_LEN - LENGTH_LEN;

    /// Copies the header at the front of a segment: 14 bytes where its T says tagged, else 18.
    /// `None` if they are not all there.
    pub fn copy(segment: &[u8]) -> Option<Self> {
        Self::read(&mut Reader::new(segment)).ok()
    }

    /// What was copied, 14 or 18 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        let len = if self.0[0] & 0x80 != 0 { Self::TAGGED_LEN } else { Self::MAX_LEN };
        &self.0[..len]
    }

    /// The RDMAP opcode, whatever else the header says.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_code(self.0[1] & 0x0f)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut bytes = [0; Self::MAX_LEN];
        let mut to = Writer::new(&mut bytes);
        let first = from.u8()?;
        to.u8(first);
        if first & 0x80 != 0 {
            to.array(from.array::<{ Self::TAGGED_LEN - 1 }>()?);
        } else {
            to.array(from.array::<{ Self::MAX_LEN - 1 }>()?);
        }
        Ok(Self(bytes))
    }
}

impl std::fmt::Debug for CopiedHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CopiedHeader({:02x?})", self.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: ReadRequest = ReadRequest {
        sink_stag: Rkey(0x0102_0304),
        sink_to: 0x1112_1314_1516_1718,
        size: 0x2122_2324,
        source_stag: Rkey(0x3132_3334),
        source_to: 0x4142_4344_4546_4748,
    };

    fn emitted(terminate: &Terminate) -> Vec<u8> {
        let mut out = [0xa5; Terminate::MAX_LEN];
        let len = terminate.emit(&mut out);
        out[..len].to_vec()
    }

    /// A READ request's FPDU up to its padding.
    fn request_fpdu() -> Vec<u8> {
        [&b"\0\x2e\x41\x41\0\0\0\0\0\0\0\x01\0\0\0\x05\0\0\0\0"[..], &REQUEST.emit()].concat()
    }

    #[test]
    fn a_read_request_lies_in_network_order() {
        let expected = "0102030411121314151617182122232431323334".to_owned() + "4142434445464748";
        assert_eq!(REQUEST.emit().iter().map(|b| format!("{b:02x}")).collect::<String>(), expected);
        assert_eq!(ReadRequest::parse(&REQUEST.emit()), Ok(REQUEST));
        assert_eq!(ReadRequest::parse(&[0; 27]), Err(Malformed::Truncated));
        assert_eq!(ReadRequest::parse(&[0; 29]), Err(Malformed::Length));
    }

    #[test]
    fn a_refused_read_request_is_copied_with_its_headers() {
        let fpdu = request_fpdu();
        let terminate = Terminate::of(Cause::BaseOrBounds, &fpdu);
        let bytes = emitted(&terminate);
        assert_eq!(bytes, [&[0x01, 0x01, 0xe0, 0][..], &fpdu].concat());
        assert_eq!(bytes.len(), Terminate::MAX_LEN);
        assert_eq!(Terminate::parse(&bytes), Ok(terminate));
        assert_eq!(terminate.cause(), Some(Cause::BaseOrBounds));
        assert_eq!(terminate.read_request, Some(REQUEST));
    }

    #[test]
    fn an_error_of_ddp_is_about_the_segment_alone() {
        let bytes = emitted(&Terminate::of(Cause::MsnNoBuffer, &request_fpdu()));
        assert_eq!(bytes, [&[0x12, 0x02, 0xc0, 0][..], &request_fpdu()[..20]].concat());
        let write = b"\0\x0f\xc1\x40\0\0\0\x07\0\0\0\0\0\0\x10\0x";
        let bytes = emitted(&Terminate::of(Cause::TaggedInvalidStag, write));
        assert_eq!(bytes, [&[0x11, 0, 0xc0, 0][..], &write[..16]].concat());
    }

    #[test]
    fn nothing_is_copied_of_a_header_whose_layout_is_unknown() {
        for cause in [Cause::UntaggedVersion, Cause::RdmapVersion, Cause::UnexpectedOpcode, Cause::MpaCrc] {
            let bytes = emitted(&Terminate::of(cause, &request_fpdu()));
            assert_eq!(bytes.len(), 4, "{cause:?}");
            assert_eq!(Terminate::parse(&bytes), Ok(Terminate::new(cause)));
        }
    }

    #[test]
    fn an_r_without_a_read_request_says_nothing() {
        let terminate =
            Terminate { read_request: None, ..Terminate::of(Cause::InvalidStag, &request_fpdu()) };
        let mut bytes = emitted(&terminate);
        bytes[2] |= RDMAP_HEADER;
        assert_eq!(Terminate::parse(&bytes), Ok(terminate));
    }

    #[test]
    fn a_terminate_that_is_cut_short_keeps_its_code() {
        let bytes = emitted(&Terminate::of(Cause::BaseOrBounds, &request_fpdu()));
        for len in 0..bytes.len() {
            match Terminate::parse(&bytes[..len]) {
                Err(error) => assert!(len < 4 && error == Malformed::Truncated),
                Ok(terminate) => {
                    assert_eq!(terminate.cause(), Some(Cause::BaseOrBounds));
                    assert_eq!(terminate.refused.is_some(), len >= 24);
                    assert_eq!(terminate.read_request, None);
                }
            }
        }
    }
}
