//! Subnet management packets (IBA 1.4 §14.2.1): what a subnet manager and the agent of a node say.
//!
//! | bytes | field |
//! |---|---|
//! | 0..24 | [`Header`]; 6 is the hop pointer, 7 the hop count |
//! | 24..32 | M_Key |
//! | 32..34, 34..36 | DrSLID, DrDLID: LIDs of the parts of the way that are routed by LID |
//! | 64..128 | the attribute |
//! | 128..192 | initial path: the port out of each hop, from 1 on |
//! | 192..256 | return path: the port into each hop |

use super::{Header, MAD_LEN};
use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// Attributes (IBA 1.4 table 124).
pub mod attribute {
    /// Trap's and TrapRepress's.
    pub const NOTICE: u16 = 0x0002;
    /// 64 bytes of text.
    pub const NODE_DESCRIPTION: u16 = 0x0010;
    /// [`super::super::NodeInfo`].
    pub const NODE_INFO: u16 = 0x0011;
    /// [`super::super::SwitchInfo`].
    pub const SWITCH_INFO: u16 = 0x0012;
    /// A block of eight GUIDs.
    pub const GUID_INFO: u16 = 0x0014;
    /// [`super::super::PortInfo`].
    pub const PORT_INFO: u16 = 0x0015;
    /// A block of 32 P_Keys.
    pub const PKEY_TABLE: u16 = 0x0016;
    /// The virtual lanes of 16 service levels.
    pub const SL_TO_VL: u16 = 0x0017;
    /// A block of 32 entries of a VL arbitration table.
    pub const VL_ARBITRATION: u16 = 0x0018;
    /// The ports for 64 LIDs.
    pub const LINEAR_FORWARDING: u16 = 0x0019;
    /// Masks of 16 ports for 32 multicast LIDs.
    pub const MULTICAST_FORWARDING: u16 = 0x001b;
    /// What a subnet manager says of itself.
    pub const SM_INFO: u16 = 0x0020;
    /// Mellanox's ExtendedPortInfo, which OpenSM asks devices of vendor 0x2c9 for.
    pub const VENDOR_EXTENDED_PORT_INFO: u16 = 0xff90;
}

/// Hops of a directed route at most.
pub const MAX_HOPS: u8 = 63;
/// The LID of a part of a route that no LID routes.
pub const PERMISSIVE_LID: u16 = 0xffff;

/// A path of a directed route: entry 0 is not used.
pub type Path = [u8; 64];
/// The bytes of an attribute.
pub type Data = [u8; 64];

/// A subnet management packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smp {
    /// The common header.
    pub header: Header,
    /// The key that the node is asked with.
    pub m_key: u64,
    /// Where the way back ends that is routed by LID; [`PERMISSIVE_LID`] for none.
    pub dr_slid: u16,
    /// Where the way out ends that is routed by LID; [`PERMISSIVE_LID`] for none.
    pub dr_dlid: u16,
    /// The attribute.
    pub data: Data,
    /// Ports out.
    pub initial_path: Path,
    /// Ports in.
    pub return_path: Path,
}

impl Smp {
    /// A packet of 256 bytes.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Length`; `Field` for a hop count above [`MAX_HOPS`] or a hop pointer more than
    /// one above it, in the class that has them.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAD_LEN {
            return Err(Malformed::Length);
        }
        let header = Header::parse(bytes)?;
        let from = &mut Reader::new(bytes);
        from.skip::<{ Header::LEN }>()?;
        let (m_key, dr_slid, dr_dlid) = (from.u64()?, from.u16()?, from.u16()?);
        from.skip::<28>()?;
        let smp = Self {
            header,
            m_key,
            dr_slid,
            dr_dlid,
            data: from.array()?,
            initial_path: from.array()?,
            return_path: from.array()?,
        };
        let is_directed = header.class == super::class::SUBN_DIRECTED_ROUTE;
        if is_directed && (smp.hop_count() > MAX_HOPS || smp.hop_pointer() > smp.hop_count() + 1) {
            return Err(Malformed::Field("hop count"));
        }
        Ok(smp)
    }

    /// The packet as bytes.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let out = &mut Writer::new(&mut bytes);
        out.array(self.header.emit());
        out.u64(self.m_key);
        out.u16(self.dr_slid);
        out.u16(self.dr_dlid);
        out.skip::<28>();
        out.array(self.data);
        out.array(self.initial_path);
        out.array(self.return_path);
        bytes
    }

    /// Hops of the directed route.
    pub const fn hop_count(&self) -> u8 {
        self.header.class_specific as u8
    }

    /// Hops that the packet has made.
    pub const fn hop_pointer(&self) -> u8 {
        (self.header.class_specific >> 8) as u8
    }

    /// Sets the hops that the packet has made.
    pub const fn set_hop_pointer(&mut self, hops: u8) {
        self.header.class_specific = (hops as u16) << 8 | self.header.class_specific & 0xff;
    }
}
