//! The common header of every management datagram (IBA 1.4 §13.4.2), whatever its class.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | base version: 1 |
//! | 1 | management class ([`class`]) |
//! | 2 | class version |
//! | 3 | method ([`method`]); 0x80 is set in answers |
//! | 4..6 | status ([`status`]) |
//! | 6..8 | class specific: hop pointer and hop count of directed routes |
//! | 8..16 | transaction id |
//! | 16..18, 18..20 | attribute id, reserved |
//! | 20..24 | attribute modifier |

use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// Management classes (IBA 1.4 table 103).
pub mod class {
    /// Subnet management, routed by LID.
    pub const SUBN_LID_ROUTED: u8 = 0x01;
    /// Subnet administration.
    pub const SUBN_ADM: u8 = 0x03;
    /// Performance management.
    pub const PERF_MGMT: u8 = 0x04;
    /// Subnet management on a directed route.
    pub const SUBN_DIRECTED_ROUTE: u8 = 0x81;

    /// Whether MADs of the class are subnet management packets, which QP0 takes.
    pub const fn is_smp(class: u8) -> bool {
        matches!(class, SUBN_LID_ROUTED | SUBN_DIRECTED_ROUTE)
    }

    /// Whether the class is a vendor's with an OUI in each MAD (IBA 1.4 §16.5).
    pub const fn has_oui(class: u8) -> bool {
        matches!(class, 0x30..=0x4f)
    }

    /// Whether MADs of the class have an RMPP header (IBA 1.4 §13.6.2.1).
    pub const fn has_rmpp(class: u8) -> bool {
        matches!(class, SUBN_ADM | 0x06 | 0x10 | 0x30..=0x4f)
    }
}

/// Methods (IBA 1.4 table 104).
pub mod method {
    /// Asks for an attribute.
    pub const GET: u8 = 0x01;
    /// Changes an attribute.
    pub const SET: u8 = 0x02;
    /// Tells of an event.
    pub const TRAP: u8 = 0x05;
    /// Stops the repetition of a trap.
    pub const TRAP_REPRESS: u8 = 0x07;
    /// The bit of answers.
    pub const RESPONSE: u8 = 0x80;
    /// Answers [`GET`] and [`SET`].
    pub const GET_RESP: u8 = 0x81;

    /// Whether a MAD with this method answers another one, or ends what another one began.
    pub const fn is_response(method: u8) -> bool {
        method & RESPONSE != 0 || method == TRAP_REPRESS
    }
}

/// Status bits common to all classes (IBA 1.4 table 105).
pub mod status {
    /// Success.
    pub const OK: u16 = 0;
    /// The class or its version is not supported.
    pub const BAD_VERSION: u16 = 0x04;
    /// The method is not supported.
    pub const BAD_METHOD: u16 = 0x08;
    /// The attribute is not supported with this method.
    pub const BAD_ATTRIBUTE: u16 = 0x0c;
    /// A field of the attribute or the modifier has a value that is not allowed.
    pub const BAD_FIELD: u16 = 0x1c;
    /// The bit of answers on their way back along a directed route (IBA 1.4 §14.2.1.2).
    pub const DIRECTION: u16 = 0x8000;
}

/// The fields of the common header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Base version: 1 in every MAD of 256 bytes.
    pub base_version: u8,
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// Two bytes that belong to the class.
    pub class_specific: u16,
    /// Transaction id.
    pub transaction_id: u64,
    /// Attribute id.
    pub attribute: u16,
    /// Attribute modifier.
    pub modifier: u32,
}

impl Header {
    /// Bytes of the header.
    pub const LEN: usize = 24;

    /// The header at the front of a MAD. All values are legal here.
    ///
    /// # Errors
    ///
    /// `Truncated`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let [base_version, class, class_version, method] = from.array()?;
        let (status, class_specific, transaction_id) = (from.u16()?, from.u16()?, from.u64()?);
        let attribute = from.u16()?;
        from.skip::<2>()?;
        let modifier = from.u32()?;
        Ok(Self {
            base_version,
            class,
            class_version,
            method,
            status,
            class_specific,
            transaction_id,
            attribute,
            modifier,
        })
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let out = &mut Writer::new(&mut bytes);
        out.array([self.base_version, self.class, self.class_version, self.method]);
        out.u16(self.status);
        out.u16(self.class_specific);
        out.u64(self.transaction_id);
        out.u16(self.attribute);
        out.skip::<2>();
        out.u32(self.modifier);
        bytes
    }

    /// Whether the MAD answers another one.
    pub const fn is_response(&self) -> bool {
        method::is_response(self.method)
    }
}
