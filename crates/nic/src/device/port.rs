//! What a port says of itself, in the numbers of `ibv_query_port`(3): one source for the calls and
//! for what is shown of it elsewhere.

use wire::{Mtu, Pkey};

use crate::device::gid::GidTable;
use crate::device::ib_port::IbPort;

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
    /// What an InfiniBand port has beside that; `None` on every other link layer.
    pub ib: Option<Box<IbPort>>,
}

/// Logical state: `enum ibv_port_state`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// The interface is down.
    Down = 1,
    /// The link of an InfiniBand port is up, and the subnet manager has not configured it.
    Init = 2,
    /// The subnet manager has configured an InfiniBand port, and packets do not pass yet.
    Armed = 3,
    /// Packets pass.
    Active = 4,
}

/// State of the link under a port (IBA 1.4 §14.2.5.6, PortPhysicalState), same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PhysState {
    /// The port is asleep.
    Sleep = 1,
    /// The port looks for a peer at the other end of its cable.
    Polling = 2,
    /// Switched off.
    Disabled = 3,
    /// Both ends of the link agree on lanes and speed.
    Training = 4,
    /// Up.
    LinkUp = 5,
    /// The link lost its synchronisation and looks for it.
    LinkErrorRecovery = 6,
}

/// Lanes and speed of each, in the codes of `active_width` and `active_speed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    /// 1: one lane, 16: two, 2: four, 4: eight, 8: twelve (IBA 1.4 §14.2.5.6, LinkWidthActive).
    pub width: u8,
    /// 1: SDR, 2: DDR, 4: QDR, 8: FDR10, 16: FDR, 32: EDR, 64: HDR, 128: NDR, 256: XDR.
    pub speed: u16,
}

/// `port_cap_flags` of a RoCE port: IBV_PORT_CM_SUP and IBV_PORT_IP_BASED_GIDS.
pub const CAPABILITIES: u32 = 1 << 16 | 1 << 26;

/// The P_Key table of a port that is no InfiniBand port: a full member of the default partition.
const DEFAULT_PKEYS: [Pkey; 1] = [Pkey(0xffff)];

/// What `fw_ver` says: the version of this software.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

impl Port {
    /// P_Key table; 0 where an entry is empty.
    pub fn pkeys(&self) -> &[Pkey] {
        self.ib.as_ref().map_or(&DEFAULT_PKEYS, |ib| &ib.pkeys)
    }

    /// Whether a packet is of a partition that the port is a member of. A sender that is no member
    /// is not heard (IBA 1.4 §10.9.3).
    pub fn is_of_partition(&self, pkey: Pkey) -> bool {
        self.pkeys().iter().any(|own| own.matches(pkey))
    }

    /// `port_cap_flags`.
    pub fn capabilities(&self) -> u32 {
        self.ib.as_ref().map_or(CAPABILITIES, |ib| ib.capabilities)
    }

    /// Logical state.
    pub fn state(&self) -> PortState {
        match (&self.ib, self.up) {
            (_, true) => PortState::Active,
            // An interface that is gone takes the state along.
            (Some(ib), false) if ib.state != PortState::Active => ib.state,
            (_, false) => PortState::Down,
        }
    }

    /// State of the link.
    pub fn phys_state(&self) -> PhysState {
        match (&self.ib, self.up) {
            (_, true) => PhysState::LinkUp,
            (Some(ib), false) if ib.state != PortState::Active => ib.phys_state,
            (_, false) => PhysState::Disabled,
        }
    }

    /// Lanes and speed for an Ethernet speed: the pairs that the kernel gives its RoCE ports. What
    /// has no speed, such as loopback, counts as 1 Gb/s. An InfiniBand port knows its own.
    pub fn rate(&self) -> LinkRate {
        if let Some(ib) = &self.ib {
            return ib.rate;
        }
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
            4 => 8,
            8 => 12,
            _ => 1,
        }
    }

    /// A lane's signalling rate in units of 100 Mb/s, and the name of its generation.
    pub fn lane(self) -> (u32, &'static str) {
        match self.speed {
            2 => (50, "DDR"),
            4 => (100, "QDR"),
            8 => (100, "FDR10"),
            16 => (140, "FDR"),
            32 => (250, "EDR"),
            64 => (500, "HDR"),
            128 => (1_000, "NDR"),
            256 => (2_000, "XDR"),
            _ => (25, "SDR"),
        }
    }
}
