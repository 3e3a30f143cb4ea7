//! PortInfo (IBA 1.4 §14.2.5.6).
//!
//! | bytes | field |
//! |---|---|
//! | 0..8, 8..16 | M_Key, GID prefix |
//! | 16..18, 18..20 | LID, LID of the master subnet manager |
//! | 20..24, 24..26, 26..28 | capabilities, diagnosis, lease of the M_Key in seconds |
//! | 28 | number of the port that the request came in by |
//! | 29, 30, 31 | width: enabled, supported, active |
//! | 32 | speed supported, state |
//! | 33 | physical state, what it is when the link is down |
//! | 34 | protection by the M_Key (2 bits), LMC (3 bits) |
//! | 35 | speed: active, enabled |
//! | 36 | MTU of the neighbour, SL of the master subnet manager |
//! | 37..41 | VLs supported, initialization; limits and caps of VL arbitration |
//! | 41, 42 | initialization's reply, MTU supported; stall count, head of queue life |
//! | 43 | operational VLs, what the port enforces |
//! | 44..46, 46..48, 48..50 | violations: M_Key, P_Key, Q_Key |
//! | 50, 51, 52, 53 | GUIDs; reregister, subnet timeout; response time; error thresholds |
//! | 60..62 | more capabilities |
//! | 62, 63 | extended speed: active, supported; enabled |

use super::smp::Data;
use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// The state of a port (IBA 1.4 §7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PortState {
    /// In a request: as it is. No port answers so.
    #[default]
    NoChange = 0,
    /// No link.
    Down = 1,
    /// A link, for subnet management only.
    Init = 2,
    /// Configured; no packet but subnet management leaves.
    Armed = 3,
    /// All packets pass.
    Active = 4,
}

/// The physical state of a port, of those that this crate's users set (IBA 1.4 §5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PhysicalState {
    /// In a request: as it is.
    #[default]
    NoChange = 0,
    /// Low power.
    Sleep = 1,
    /// Looks for a link.
    Polling = 2,
    /// Off, by a subnet manager.
    Disabled = 3,
    /// Learns the link.
    Training = 4,
    /// A link.
    LinkUp = 5,
    /// Learns it again after errors.
    Recovery = 6,
    /// A test of the physical layer.
    Test = 7,
}

/// Bits of [`PortInfo::capabilities`] (IBA 1.4 table 146).
pub mod capability {
    /// A subnet manager is there.
    pub const IS_SM: u32 = 1 << 1;
    /// Notices.
    pub const NOTICE: u32 = 1 << 2;
    /// Traps.
    pub const TRAP: u32 = 1 << 3;
    /// SL to VL mapping.
    pub const SL_MAPPING: u32 = 1 << 6;
    /// The system image GUID is told.
    pub const SYSTEM_GUID: u32 = 1 << 11;
    /// Extended speeds.
    pub const EXTENDED_SPEEDS: u32 = 1 << 14;
    /// The field of more capabilities.
    pub const CAPABILITIES_2: u32 = 1 << 15;
    /// Communication management.
    pub const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
    /// Device management, as adapters of Mellanox have it set.
    pub const DEVICE_MANAGEMENT: u32 = 1 << 19;
    /// Vendor classes.
    pub const VENDOR_CLASS: u32 = 1 << 20;
    /// A notice of capabilities that change.
    pub const CAPABILITY_CHANGE: u32 = 1 << 22;
    /// Clients register again when they are told to.
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
}

/// What a port says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table above has them in this order")]
pub struct PortInfo {
    pub m_key: u64,
    pub gid_prefix: u64,
    pub lid: u16,
    pub sm_lid: u16,
    pub capabilities: u32,
    pub diagnosis: u16,
    pub m_key_lease_s: u16,
    pub local_port: u8,
    pub width_enabled: u8,
    pub width_supported: u8,
    pub width_active: u8,
    pub speed_supported: u8,
    pub state: PortState,
    pub physical_state: PhysicalState,
    pub down_default: u8,
    pub m_key_protection: u8,
    pub lmc: u8,
    pub speed_active: u8,
    pub speed_enabled: u8,
    pub neighbour_mtu: u8,
    pub sm_sl: u8,
    pub vl_cap: u8,
    pub init_type: u8,
    pub vl_high_limit: u8,
    pub vl_arbitration_high_cap: u8,
    pub vl_arbitration_low_cap: u8,
    pub init_type_reply: u8,
    pub mtu_cap: u8,
    pub stall_and_life: u8,
    pub operational_vls: u8,
    pub enforcement: u8,
    pub m_key_violations: u16,
    pub p_key_violations: u16,
    pub q_key_violations: u16,
    pub guid_cap: u8,
    pub client_reregister: bool,
    pub subnet_timeout: u8,
    pub response_time: u8,
    pub error_thresholds: u8,
    pub capabilities_2: u16,
    pub extended_speed_active: u8,
    pub extended_speed_supported: u8,
    pub extended_speed_enabled: u8,
}

impl PortInfo {
    /// Reads the attribute.
    ///
    /// # Errors
    ///
    /// `Field` for a state or physical state that is none.
    pub fn parse(data: &Data) -> Result<Self, Malformed> {
        let from = &mut Reader::new(data);
        let mut info = Self {
            m_key: from.u64()?,
            gid_prefix: from.u64()?,
            lid: from.u16()?,
            sm_lid: from.u16()?,
            capabilities: from.u32()?,
            diagnosis: from.u16()?,
            m_key_lease_s: from.u16()?,
            ..Self::default()
        };
        [info.local_port, info.width_enabled, info.width_supported, info.width_active] = from.array()?;
        let [speed_state, physical, protection, speed] = from.array()?;
        (info.speed_supported, info.state) = (speed_state >> 4, port_state(speed_state & 15)?);
        (info.physical_state, info.down_default) = (physical_state(physical >> 4)?, physical & 15);
        (info.m_key_protection, info.lmc) = (protection >> 6, protection & 7);
        (info.speed_active, info.speed_enabled) = halves(speed);
        (info.neighbour_mtu, info.sm_sl) = halves(from.u8()?);
        (info.vl_cap, info.init_type) = halves(from.u8()?);
        [info.vl_high_limit, info.vl_arbitration_high_cap, info.vl_arbitration_low_cap] = from.array()?;
        (info.init_type_reply, info.mtu_cap) = halves(from.u8()?);
        info.stall_and_life = from.u8()?;
        (info.operational_vls, info.enforcement) = halves(from.u8()?);
        (info.m_key_violations, info.p_key_violations, info.q_key_violations) =
            (from.u16()?, from.u16()?, from.u16()?);
        let [guid_cap, subnet, response_time, error_thresholds] = from.array()?;
        (info.guid_cap, info.client_reregister, info.subnet_timeout) =
            (guid_cap, subnet & 0x80 != 0, subnet & 0x1f);
        (info.response_time, info.error_thresholds) = (response_time & 0x1f, error_thresholds);
        from.skip::<6>()?;
        info.capabilities_2 = from.u16()?;
        (info.extended_speed_active, info.extended_speed_supported) = halves(from.u8()?);
        info.extended_speed_enabled = from.u8()? & 0x1f;
        Ok(info)
    }

    /// The attribute as bytes. Of a field narrower than its type the low bits are taken.
    pub fn emit(&self) -> Data {
        let mut data = [0; 64];
        let out = &mut Writer::new(&mut data);
        out.u64(self.m_key);
        out.u64(self.gid_prefix);
        out.u16(self.lid);
        out.u16(self.sm_lid);
        out.u32(self.capabilities);
        out.u16(self.diagnosis);
        out.u16(self.m_key_lease_s);
        out.array([self.local_port, self.width_enabled, self.width_supported, self.width_active]);
        out.u8(byte(self.speed_supported, self.state as u8));
        out.u8(byte(self.physical_state as u8, self.down_default));
        out.u8(self.m_key_protection << 6 | self.lmc & 7);
        out.u8(byte(self.speed_active, self.speed_enabled));
        out.u8(byte(self.neighbour_mtu, self.sm_sl));
        out.u8(byte(self.vl_cap, self.init_type));
        out.array([self.vl_high_limit, self.vl_arbitration_high_cap, self.vl_arbitration_low_cap]);
        out.u8(byte(self.init_type_reply, self.mtu_cap));
        out.u8(self.stall_and_life);
        out.u8(byte(self.operational_vls, self.enforcement));
        out.u16(self.m_key_violations);
        out.u16(self.p_key_violations);
        out.u16(self.q_key_violations);
        out.u8(self.guid_cap);
        out.u8(u8::from(self.client_reregister) << 7 | self.subnet_timeout & 0x1f);
        out.array([self.response_time & 0x1f, self.error_thresholds]);
        out.skip::<6>();
        out.u16(self.capabilities_2);
        out.u8(byte(self.extended_speed_active, self.extended_speed_supported));
        out.u8(self.extended_speed_enabled & 0x1f);
        data
    }
}

const fn halves(byte: u8) -> (u8, u8) {
    (byte >> 4, byte & 15)
}

const fn byte(high: u8, low: u8) -> u8 {
    high << 4 | low & 15
}

fn port_state(value: u8) -> Result<PortState, Malformed> {
    Ok(match value {
        0 => PortState::NoChange,
        1 => PortState::Down,
        2 => PortState::Init,
        3 => PortState::Armed,
        4 => PortState::Active,
        _ => return Err(Malformed::Field("port state")),
    })
}

fn physical_state(value: u8) -> Result<PhysicalState, Malformed> {
    Ok(match value {
        0 => PhysicalState::NoChange,
        1 => PhysicalState::Sleep,
        2 => PhysicalState::Polling,
        3 => PhysicalState::Disabled,
        4 => PhysicalState::Training,
        5 => PhysicalState::LinkUp,
        6 => PhysicalState::Recovery,
        7 => PhysicalState::Test,
        _ => return Err(Malformed::Field("physical state")),
    })
}
