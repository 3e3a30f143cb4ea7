//! What a queue pair's messages travel on. A connection has one carrier, with the state that only
//! it needs, chosen when the queue pair learns its peer. A further way to a peer is a further arm
//! here, and says what sending, receiving and flow control mean on it.

use std::sync::Arc;
use std::time::Instant;

use transport::CongestionWindow;
use wire::{Address, Mtu};

use crate::device::adapter::Adapter;
use crate::link::Path;
use crate::qp::attr::QpType;
use crate::qp::source_port::Detours;

/// What a queue pair's messages travel on: see the module.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// Nothing yet: a connection without a peer.
    Unconnected,
    /// RoCE v2 datagrams to and from one peer: RC, UC, XRC.
    Datagram(DatagramCarrier),
    /// RoCE v2 datagrams, each request to the address that it bears: UD.
    AddressHandles,
    /// Whole Ethernet frames: raw packet.
    Frames,
}

/// UDP datagrams to one peer.
#[derive(Debug)]
pub(crate) struct DatagramCarrier {
    pub path: Path,
    /// Path MTU.
    pub mtu: Mtu,
    /// The path leads to this host, to a process whose memory may be reached.
    pub is_local: bool,
    /// Packets for which there is room on it.
    pub room: u32,
    /// Shared with all that is sent to the same address, or by the same channel.
    window: Arc<CongestionWindow>,
    detours: Detours,
}

/// Asked by queue pairs that have nothing under way.
static NO_DESTINATION: CongestionWindow = CongestionWindow::new();

impl Carrier {
    /// The carrier of a queue pair in state Reset.
    pub(crate) fn new(kind: QpType) -> Self {
        match kind {
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv => Self::Unconnected,
            QpType::Ud => Self::AddressHandles,
            QpType::RawPacket => Self::Frames,
        }
    }

    /// A connection's peer is at the end of this path from now on.
    pub(crate) fn connect(&mut self, path: Path, mtu: Mtu, device: &Adapter) {
        let local = device.link.local().filter(|local| local.is_local(&path));
        let is_local = local.is_some();
        let channel = local.and_then(|local| local.channel(&path));
        let room = channel.map_or(u32::MAX, |(_, bytes)| bytes / mtu.bytes() as u32);
        let window = || device.window(path.dest, channel.map(|(number, _)| number));
        match self {
            Self::Datagram(carrier) if carrier.path == path => {
                (carrier.room, carrier.mtu) = (room, mtu);
            }
            Self::Datagram(carrier) => {
                (carrier.window, carrier.room) = (window(), room);
                (carrier.path, carrier.mtu, carrier.is_local) = (path, mtu, is_local);
            }
            _ => {
                let (window, detours) = (window(), Detours::default());
                *self = Self::Datagram(DatagramCarrier { path, mtu, is_local, room, window, detours });
            }
        }
    }

    /// All goes as packets, which bear a P_Key, where `always`.
    pub(crate) fn keep_to_packets(&mut self, always: bool) {
        if let Self::Datagram(carrier) = self {
            carrier.is_local &= !always;
        }
    }

    /// The datagrams of a connection that has a peer.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<&DatagramCarrier> {
        if let Self::Datagram(carrier) = self { Some(carrier) } else { None }
    }

    /// The window that packets which want an acknowledgement count against.
    #[inline]
    pub(crate) fn window(&self) -> &CongestionWindow {
        self.datagram().map_or(&NO_DESTINATION, |carrier| &carrier.window)
    }
}

impl DatagramCarrier {
    /// Whether a packet with these addresses is from the peer. Between LIDs the service level of
    /// either direction is its own (IBA 1.4 §13.5.4), and a GRH is as good as none.
    #[inline]
    pub(crate) fn is_from_peer(&self, source: Address, dest: Address) -> bool {
        let Path { source: ours, dest: theirs, .. } = &self.path;
        (*theirs == source && *ours == dest) || (theirs.is_same_lid(source) && ours.is_same_lid(dest))
    }

    /// The path is suspected to end at a process that is stopped: leaves from another source port,
    /// not too often. `timeout` is the queue pair's code.
    pub(crate) fn suspect(&mut self, now: Instant, timeout: u8) {
        if self.detours.take(now, timeout) {
            self.path.source_port_epoch = self.path.source_port_epoch.wrapping_add(1);
        }
    }
}
