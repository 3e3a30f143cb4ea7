//! The header of the reliable multi-packet protocol (IBA 1.4 §13.6.2.1), after the common header in
//! classes that have it.
//!
//! | bytes of the MAD | field |
//! |---|---|
//! | 24 | version: 1 |
//! | 25 | type: 1 DATA, 2 ACK, 3 STOP, 4 ABORT |
//! | 26 | response time (5 bits), flags: 1 active, 2 first, 4 last |
//! | 27 | status of STOP and ABORT |
//! | 28..32 | DATA and ACK: number of the segment |
//! | 32..36 | DATA: bytes of the payload; ACK: the highest segment that may be sent |

use super::Header;
use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A segment of a message.
    Data,
    /// Segments have arrived.
    Ack,
    /// The receiver ends the transfer: it has no more resources.
    Stop,
    /// The transfer has failed.
    Abort,
}

/// The fields of the header of an active segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rmpp {
    /// What the segment is.
    pub kind: Kind,
    /// How long the receiver may take, 5 bits.
    pub response_time: u8,
    /// The first segment of a message.
    pub is_first: bool,
    /// The last segment of a message.
    pub is_last: bool,
    /// The reason of a STOP or ABORT.
    pub status: u8,
    /// The number of a segment, from 1 on.
    pub segment: u32,
    /// DATA: bytes of the payload. ACK: the highest segment that may be sent.
    pub length_or_window: u32,
}

/// The reason of an ABORT: a segment that is none of its message (IBA 1.4 table 123).
pub const STATUS_BAD_SEGMENT: u8 = 120;

/// Whether the header of a MAD, in a class that has one, says that the MAD is a segment.
pub fn is_active(mad: &[u8]) -> bool {
    mad.get(Header::LEN + 2).is_some_and(|flags| flags & Rmpp::ACTIVE != 0)
}

impl Rmpp {
    /// Bytes of the header; the payload begins after it.
    pub const LEN: usize = 12;
    const VERSION: u8 = 1;
    const ACTIVE: u8 = 1;

    /// The header of a MAD, where its class has one and the segment is active.
    ///
    /// # Errors
    ///
    /// `Truncated`; `Field` for another version or type.
    pub fn parse(mad: &[u8]) -> Result<Option<Self>, Malformed> {
        let from = &mut Reader::new(mad);
        from.skip::<{ Header::LEN }>()?;
        let [version, kind, flags, status] = from.array()?;
        if flags & Self::ACTIVE == 0 {
            return Ok(None);
        }
        if version != Self::VERSION {
            return Err(Malformed::Field("RMPP version"));
        }
        let kind = match kind {
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::Stop,
            4 => Kind::Abort,
            _ => return Err(Malformed::Field("RMPP type")),
        };
        Ok(Some(Self {
            kind,
            response_time: flags >> 3,
            is_first: flags & 2 != 0,
            is_last: flags & 4 != 0,
            status,
            segment: from.u32()?,
            length_or_window: from.u32()?,
        }))
    }

    /// The header as bytes, which stand behind the common one.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let out = &mut Writer::new(&mut bytes);
        let kind = match self.kind {
            Kind::Data => 1,
            Kind::Ack => 2,
            Kind::Stop => 3,
            Kind::Abort => 4,
        };
        let flags = Self::ACTIVE | u8::from(self.is_first) << 1 | u8::from(self.is_last) << 2;
        out.array([Self::VERSION, kind, self.response_time << 3 | flags, self.status]);
        out.u32(self.segment);
        out.u32(self.length_or_window);
        bytes
    }
}
