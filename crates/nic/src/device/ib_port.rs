//! What an InfiniBand port says of itself: what its subnet manager has told it (PortInfo, GUIDInfo
//! and P_KeyTable, IBA 1.4 §14.2.5) and what its node is.

use wire::{Gid, Guid, LidAddress, Mtu, Pkey};

use crate::device::port::{LinkRate, PhysState, PortState};

/// The upper half of the GIDs of a subnet without a prefix of its own.
const DEFAULT_PREFIX: u64 = 0xfe80 << 48;

/// An InfiniBand port as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// Logical state.
    pub state: PortState,
    /// State of the link.
    pub phys_state: PhysState,
    /// The first of its LIDs; 0 as long as no subnet manager has given it one.
    pub lid: u16,
    /// How many low bits of a LID are path bits, 0 to 7: the port has 2^LMC LIDs.
    pub lmc: u8,
    /// LID of the port where the subnet manager is; 0 where there is none.
    pub sm_lid: u16,
    /// Service level of packets to the subnet manager, 0 to 15.
    pub sm_sl: u8,
    /// How long a packet stays in the subnet at most: 4.096 us * 2^`subnet_timeout`.
    pub subnet_timeout: u8,
    /// What the subnet manager did to the port when it came up, 4 bits.
    pub init_type_reply: u8,
    /// Virtual lanes, in the code of VLCap (1: VL0, 2: VL0 and VL1, 3: VL0 to VL3, ...).
    pub max_vl: u8,
    /// CapabilityMask of its PortInfo.
    pub capabilities: u32,
    /// Lanes and speed of each.
    pub rate: LinkRate,
    /// Largest MTU that the port can have.
    pub mtu_max: Mtu,
    /// Largest MTU that the link to its neighbour has.
    pub mtu_active: Mtu,
    /// Upper half of its GIDs.
    pub subnet_prefix: u64,
    /// Lower halves of its GIDs, by index: the first is the port's GUID; 0 where there is none.
    pub guids: Vec<Guid>,
    /// P_Key table, by index; 0 where there is none.
    pub pkeys: Vec<Pkey>,
    /// Whether each path needs a global routing header.
    pub grh_required: bool,
    /// GUID of its node (channel adapter).
    pub node_guid: Guid,
    /// GUID of the system that the node belongs to.
    pub system_image_guid: Guid,
    /// Vendor of the node, an OUI of 24 bits.
    pub vendor_id: u32,
    /// The vendor's number of the node's kind.
    pub device_id: u16,
    /// Counts up with each time that the subnet manager asks clients to register again.
    pub client_reregister: u32,
}

impl IbPort {
    /// The bits of a LID that are path bits.
    fn path_mask(&self) -> u16 {
        (1 << self.lmc.min(7)) - 1
    }

    /// Whether a LID is one of the port's.
    pub fn bears(&self, lid: u16) -> bool {
        self.lid != 0 && lid & !self.path_mask() == self.lid & !self.path_mask()
    }

    /// The path bits of one of the port's LIDs.
    pub fn path_bits(&self, lid: u16) -> u8 {
        (lid & self.path_mask()) as u8
    }

    /// The LID of packets with these path bits, of which those count that the LMC allows, and this
    /// service level. `None` as long as the port has no LID, and for a service level above 15.
    pub fn source(&self, path_bits: u8, service_level: u8) -> Option<LidAddress> {
        let bits = u16::from(path_bits) & self.path_mask();
        LidAddress::new(self.lid | bits, service_level, bits as u8).ok().filter(|_| self.lid != 0)
    }

    /// Whether a GID is of the port's subnet. Every port has GIDs of the default prefix, too
    /// (IBA 1.4 §4.1.1).
    pub fn is_in_subnet(&self, gid: Gid) -> bool {
        let prefix = (u128::from_be_bytes(gid.0) >> 64) as u64;
        prefix == self.subnet_prefix || prefix == DEFAULT_PREFIX
    }

    /// The GID of an index of its GID table.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        let guid = self.guids.get(index).filter(|guid| guid.0 != 0)?;
        Some(Gid((u128::from(self.subnet_prefix) << 64 | u128::from(guid.0)).to_be_bytes()))
    }
}
