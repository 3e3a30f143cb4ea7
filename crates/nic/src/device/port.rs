//! What a port says of itself, in the numbers of `ibv_query_port`(3): one source for the calls and
//! for what is shown of it elsewhere.

use wire::{Mtu, Pkey};

use crate::device::gid::GidTable;

/// What changes about a port while the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Active: the interface is up.
    pub up: bool,
    /// Largest RDMA MTU that the link allows.
    pub mtu: Mtu,
    /// Link speed in Mb/s, where known.
    pub speed_mbps: Option<u32>,
    /// GID table.
    pub gids: GidTable,
}

/// Logical state: `enum ibv_port_state`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// The interface is down.
    Down = 1,
    /// Packets pass.
    Active = 4,
}

/// State of the link under a port (IBA 1.4 §14.2.5.6, PortPhysicalState), same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PhysState {
    /// Switched off.
    Disabled = 3,
    /// Up.
    LinkUp = 5,
}

/// Lanes and speed of each, in the codes of `active_width` and `active_speed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    /// 1: one lane, 16: two, 2: four (IBA 1.4 §14.2.5.6, LinkWidthActive).
    pub width: u8,
    /// 1: SDR, 2: DDR, 8: FDR10, 32: EDR, 64: HDR, 128: NDR.
    pub speed: u8,
}

/// `port_cap_flags` of a RoCE port: IBV_PORT_CM_SUP and IBV_PORT_IP_BASED_GIDS.
pub const CAPABILITIES: u32 = 1 << 16 | 1 << 26;

/// Whether a packet is of the partition that the port, and with it each queue pair, is a full
/// member of. That is the default one, the only entry of its table. A sender that is no member is
/// not heard (IBA 1.4 §10.9.3).
pub fn is_of_partition(pkey: Pkey) -> bool {
    pkey.matches(Pkey::default())
}

/// What `fw_ver` says: the version of this software.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

impl Port {
    /// Logical state.
    pub fn state(&self) -> PortState {
        if self.up { PortState::Active } else { PortState::Down }
    }

    /// State of the link.
    pub fn phys_state(&self) -> PhysState {
        if self.up { PhysState::LinkUp } else { PhysState::Disabled }
    }

    /// Lanes and speed for an Ethernet speed: the pairs that the kernel gives its RoCE ports. What
    /// has no speed, such as loopback, counts as 1 Gb/s.
    pub fn rate(&self) -> LinkRate {
        const X1: u8 = 1;
        const X2: u8 = 16;
        const X4: u8 = 2;
        let (width, speed) = match self.speed_mbps.unwrap_or(1_000) {
            0..=1_000 => (X1, 1),
            1_001..=10_000 => (X1, 8),
            10_001..=20_000 => (X4, 2),
            20_001..=25_000 => (X1, 32),
            25_001..=40_000 => (X4, 8),
            40_001..=50_000 => (X2, 32),
            50_001..=100_000 => (X4, 32),
            100_001..=200_000 => (X4, 64),
            _ => (X4, 128),
        };
        LinkRate { width, speed }
    }
}

impl LinkRate {
    /// How many lanes.
    pub fn lanes(self) -> u32 {
        match self.width {
            16 => 2,
            2 => 4,
            _ => 1,
        }
    }

    /// A lane's signalling rate in units of 100 Mb/s, and the name of its generation.
    pub fn lane(self) -> (u32, &'static str) {
        match self.speed {
            2 => (50, "DDR"),
            8 => (100, "FDR10"),
            32 => (250, "EDR"),
            64 => (500, "HDR"),
            128 => (1_000, "NDR"),
            _ => (25, "SDR"),
        }
    }
}
