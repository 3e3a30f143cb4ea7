//! Notice of a trap (IBA 1.4 §13.4.8.2, §14.2.5.1).
//!
//! | bytes | field |
//! |---|---|
//! | 0 | generic (0x80), type (7 bits): 1 urgent, 2 security, 4 informational |
//! | 1..4 | what raises it: 1 channel adapter, 2 switch |
//! | 4..6 | number of the trap |
//! | 6..8 | LID of the port that raises it |
//! | 8..10 | toggle, count |
//! | 10..64 | of 128 a LID |
//! | 10..64 | of 144 and 256 two bytes, a LID, what the trap says |
//! | 10..64 | of 259 a packet, a LID, a port |
//!
//! The LID is that of the switch (128, 259), of the port (144) or of the requester (256).

use super::NodeType;
use super::smp::Data;
use crate::bytes::Writer;

/// A trap that a node raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// 128: the state of a port of a switch has changed.
    LinkStateChange,
    /// 144: capabilities of a port have changed to these.
    CapabilityChange(u32),
    /// 256: an SMP had the wrong M_Key.
    BadMKey {
        /// The LID of the requester.
        slid: u16,
        /// The method of the request.
        method: u8,
        /// The attribute of the request.
        attribute: u16,
        /// The modifier of the request.
        modifier: u32,
        /// The key of the request.
        m_key: u64,
    },
    /// 259: a port of a switch has refused packets that are not of its partitions.
    BadPkeyAtSwitch {
        /// The number of the port.
        port: u8,
    },
}

impl Trap {
    /// The number of the trap.
    pub const fn number(self) -> u16 {
        match self {
            Self::LinkStateChange => 128,
            Self::CapabilityChange(_) => 144,
            Self::BadMKey { .. } => 256,
            Self::BadPkeyAtSwitch { .. } => 259,
        }
    }

    /// The notice of a node of this kind, by its port with this LID.
    pub fn emit(self, kind: NodeType, lid: u16) -> Data {
        const GENERIC: u8 = 0x80;
        let mut data = [0; 64];
        let out = &mut Writer::new(&mut data);
        let (urgency, producer) = match self {
            Self::LinkStateChange => (1, NodeType::Switch),
            Self::CapabilityChange(_) => (4, kind),
            Self::BadMKey { .. } => (2, kind),
            Self::BadPkeyAtSwitch { .. } => (2, NodeType::Switch),
        };
        out.u8_u24(GENERIC | urgency, producer as u32);
        out.u16(self.number());
        out.u16(lid);
        out.skip::<2>();
        match self {
            Self::LinkStateChange => out.u16(lid),
            Self::CapabilityChange(mask) => {
                out.skip::<2>();
                out.u16(lid);
                out.skip::<2>();
                out.u32(mask);
            }
            Self::BadMKey { slid, method, attribute, modifier, m_key } => {
                out.skip::<2>();
                out.u16(slid);
                out.skip::<2>();
                out.array([method, 0]);
                out.u16(attribute);
                out.u32(modifier);
                out.u64(m_key);
            }
            // DATAVALID says that no field of the packet is there: the port has counted many.
            Self::BadPkeyAtSwitch { port } => {
                out.skip::<48>();
                out.u16(lid);
                out.array([port]);
            }
        }
        data
    }
}
