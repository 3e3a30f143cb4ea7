//! SwitchInfo (IBA 1.4 §14.2.5.4).
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4, 4..6 | entries of the linear, random and multicast forwarding tables |
//! | 6..8 | highest LID of the linear table that is in use |
//! | 8, 9, 10 | default ports |
//! | 11 | life time (5 bits), PortStateChange, optimized SL to VL mapping (2 bits) |
//! | 12..14 | LIDs a port |
//! | 14..16 | P_Keys that the switch enforces |
//! | 16 | inbound and outbound enforcement, raw filters, enhanced port 0 |
//! | 18..20 | top of the multicast table |

use super::smp::Data;
use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// What a switch says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchInfo {
    /// Entries of the linear forwarding table.
    pub linear_cap: u16,
    /// Entries of the random forwarding table.
    pub random_cap: u16,
    /// Entries of the multicast forwarding table.
    pub multicast_cap: u16,
    /// The highest LID of the linear table that is in use.
    pub linear_top: u16,
    /// Default ports: unicast, primary multicast, other multicast.
    pub default_ports: [u8; 3],
    /// How long a packet lives in the switch, 5 bits.
    pub life_time: u8,
    /// Whether the state of a port has changed since the bit was cleared.
    pub port_state_change: bool,
    /// Optimized SL to VL mapping, 2 bits.
    pub optimized_sl_to_vl: u8,
    /// LIDs a port.
    pub lids_per_port: u16,
    /// P_Keys that the switch can enforce.
    pub enforcement_cap: u16,
    /// What the switch enforces; bit 3 is an enhanced port 0.
    pub flags: u8,
    /// The highest LID of the multicast table that is in use.
    pub multicast_top: u16,
}

impl SwitchInfo {
    /// The bit of an enhanced port 0.
    pub const ENHANCED_PORT_0: u8 = 0x08;

    /// Reads the attribute.
    ///
    /// # Errors
    ///
    /// None: each value is legal.
    pub fn parse(data: &Data) -> Result<Self, Malformed> {
        let from = &mut Reader::new(data);
        let (linear_cap, random_cap, multicast_cap) = (from.u16()?, from.u16()?, from.u16()?);
        let (linear_top, default_ports, life) = (from.u16()?, from.array()?, from.u8()?);
        let (lids_per_port, enforcement_cap, flags) = (from.u16()?, from.u16()?, from.u8()?);
        from.skip::<1>()?;
        Ok(Self {
            linear_cap,
            random_cap,
            multicast_cap,
            linear_top,
            default_ports,
            life_time: life >> 3,
            port_state_change: life & 4 != 0,
            optimized_sl_to_vl: life & 3,
            lids_per_port,
            enforcement_cap,
            flags,
            multicast_top: from.u16()?,
        })
    }

    /// The attribute as bytes.
    pub fn emit(&self) -> Data {
        let mut data = [0; 64];
        let out = &mut Writer::new(&mut data);
        out.u16(self.linear_cap);
        out.u16(self.random_cap);
        out.u16(self.multicast_cap);
        out.u16(self.linear_top);
        out.array(self.default_ports);
        let change = u8::from(self.port_state_change) << 2;
        out.u8(self.life_time << 3 | change | self.optimized_sl_to_vl & 3);
        out.u16(self.lids_per_port);
        out.u16(self.enforcement_cap);
        out.u8(self.flags);
        out.skip::<1>();
        out.u16(self.multicast_top);
        data
    }
}
