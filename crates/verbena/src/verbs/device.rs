//! Limits of a device (ibv_query_device(3)) and state of its port (ibv_query_port(3),
//! ibv_query_gid(3)).

use std::net::IpAddr;

use nic::limits;

use crate::error::Result;
use crate::provider::Device;

/// What a device can (`struct ibv_device_attr`), as far as programs ask. More of anything is
/// `Exhausted` or `OutOfRange`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Queue pairs of a process.
    pub max_qp: u32,
    /// Work requests of a queue: `send_depth` and `recv_depth`.
    pub max_qp_wr: u32,
    /// Pieces of a work request.
    pub max_sge: u32,
    /// Bytes that may be sent inline.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions of one.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives of one.
    pub max_srq_wr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Registrations of memory, windows among them.
    pub max_mr: u32,
    /// READs and atomics of a peer that a queue pair serves at once.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a queue pair starts at once.
    pub max_qp_init_rd_atom: u8,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Bytes of a message of a connection.
    pub max_message: u64,
    /// Bytes of memory on the device.
    pub device_memory: u64,
    /// Whether peers' atomics are atomic with each other alone, or with the processor's too.
    pub atomic_caps: AtomicCaps,
}

/// `enum ibv_atomic_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicCaps {
    /// There are none.
    None,
    /// Among the adapter's own.
    Hca,
    /// With the processor's as well.
    Global,
}

/// A device's one port as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Packets pass: IBV_PORT_ACTIVE; else the interface is down.
    pub active: bool,
    /// Largest payload of a packet that the link takes, 256 to 4096 bytes.
    pub mtu: u32,
    /// Speed of the link in Mb/s, where it is known: loopback has none.
    pub speed_mbps: Option<u32>,
    /// The port's addresses, in the order of its GIDs (RoCE v2). Programs do not need the indices.
    pub addresses: Vec<IpAddr>,
}

impl Device {
    /// What it can.
    ///
    /// # Errors
    ///
    /// `Forked`; `Unsupported` over the machine's rdma-core.
    pub fn attr(&self) -> Result<DeviceAttr> {
        self.stack().check("ibv_query_device")?;
        self.nic()?;
        Ok(DeviceAttr {
            max_qp: limits::MAX_QP,
            max_qp_wr: limits::MAX_QP_WR,
            max_sge: limits::MAX_SGE,
            max_inline: limits::MAX_INLINE,
            max_cq: limits::MAX_CQ,
            max_cqe: limits::MAX_CQE,
            max_srq: limits::MAX_SRQ,
            max_srq_wr: limits::MAX_SRQ_WR,
            max_pd: limits::MAX_PD,
            max_mr: limits::MAX_MR,
            max_qp_rd_atom: limits::MAX_RD_ATOMIC,
            max_qp_init_rd_atom: limits::MAX_RD_ATOMIC,
            max_mcast_grp: limits::MAX_GROUPS as u32,
            max_message: limits::MAX_MESSAGE,
            device_memory: limits::MAX_DM,
            atomic_caps: AtomicCaps::Hca,
        })
    }

    /// How its port is.
    ///
    /// # Errors
    ///
    /// `Forked`; `Unsupported` over the machine's rdma-core.
    pub fn port(&self) -> Result<PortAttr> {
        self.stack().check("ibv_query_port")?;
        let port = self.nic()?.port();
        let borne = port.gids.iter().filter(|(_, entry)| entry.borne);
        Ok(PortAttr {
            active: port.up,
            mtu: port.mtu.bytes() as u32,
            speed_mbps: port.speed_mbps,
            addresses: borne.filter_map(|(_, entry)| entry.address).collect(),
        })
    }

    /// The device's addresses.
    ///
    /// # Errors
    ///
    /// Those of [`Device::port`].
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        Ok(self.port()?.addresses)
    }
}
