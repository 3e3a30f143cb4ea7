//! What goes into the connection manager and what comes out: paths, parameters of the calls, events, and the queue
//! pair attributes each step wants.

use std::net::IpAddr;

use wire::mad::{Ece, Mad, Rep, Req, SidrReq};
use wire::{CommId, Gid, Guid, Mtu, Pkey, Psn, Qkey, Qpn, ServiceId};

use crate::timing::Timing;

/// `-ETIMEDOUT`, the status of an `Unreachable` event on Linux.
pub const ETIMEDOUT: i32 = -110;

/// What a [`Cm`](crate::Cm) is and how much it holds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The channel adapter's GUID, the same for all processes of a host that share an address.
    pub guid: Guid,
    /// Connections at most, whatever their state, time wait and remembered refusals included.
    pub max_connections: usize,
    /// Incoming requests at most that the consumer has not answered yet.
    pub max_pending_requests: usize,
    /// Refused requests remembered at most; beyond, the oldest is forgotten.
    pub max_refusals: usize,
    /// ACK delay code of this adapter, 0 to 31; 15 is rxe's.
    pub ack_delay: u8,
    /// Durations.
    pub timing: Timing,
    /// Whether the connection manager behind a GUID is of our kind on another host: one that refuses a message about a
    /// connection it does not know, so that its processes can be probed (see `probe`).
    pub is_kin: fn(Guid) -> bool,
    /// The process of a host that drew a communication id.
    pub process_of: fn(CommId) -> u32,
}

impl Config {
    /// Defaults for the adapter `guid`: 65,536 connections, 1,024 pending requests, 1,024 refusals, rxe's ACK delay.
    pub fn new(guid: Guid) -> Config {
        Config {
            guid,
            max_connections: 65_536,
            max_pending_requests: 1_024,
            max_refusals: 1_024,
            ack_delay: 15,
            timing: Timing::default(),
            is_kin: |_| false,
            process_of: |id| id.0,
        }
    }
}

/// Names a connection or a SIDR exchange of one [`Cm`](crate::Cm). Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(crate) u64);

/// How to reach the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our GID.
    pub local_gid: Gid,
    /// Theirs.
    pub remote_gid: Gid,
    /// The caller's own mark for the link or GID index; carried, never looked at.
    pub link: u32,
    /// Payload MTU.
    pub mtu: Mtu,
    /// Traffic class (IPv4: ToS).
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit (IPv4: TTL).
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Static rate, 6 bits; 0 is the port's own.
    pub packet_rate: u8,
    /// Packet life time code, 0 to 31; 16 is what the kernel takes for RoCE.
    pub packet_life_time: u8,
    /// Partition.
    pub pkey: Pkey,
}

impl Path {
    /// A path with what the kernel takes for RoCE: hop limit 64, packet life time 16, default partition, the rest 0.
    pub fn new(local_gid: Gid, remote_gid: Gid, link: u32, mtu: Mtu) -> Path {
        Path {
            local_gid,
            remote_gid,
            link,
            mtu,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            service_level: 0,
            packet_rate: 0,
            packet_life_time: 16,
            pkey: Pkey::default(),
        }
    }

    pub(crate) fn remote_ip(&self) -> IpAddr {
        self.remote_gid.ip()
    }
}

/// Where a MAD came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's GID, from the IP header.
    pub source: Gid,
    /// The GID it was sent to.
    pub dest: Gid,
    /// The caller's own mark for the link it came over; answers go back with it.
    pub link: u32,
}

impl Origin {
    pub(crate) fn path(&self) -> Path {
        Path::new(self.dest, self.source, self.link, Mtu::default())
    }
}

/// Transport service of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportService {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection (annex A14).
    Xrc,
}

impl TransportService {
    /// Transport service type and extended transport type of a REQ (IBA 1.4 §12.7.8, annex A14).
    pub fn codes(self) -> (u8, u8) {
        match self {
            TransportService::Rc => (0, 0),
            TransportService::Uc => (1, 0),
            TransportService::Xrc => (3, 1),
        }
    }

    /// The service a REQ asks for; `None` for RD and what is reserved.
    pub fn from_codes(service: u8, extended: u8) -> Option<TransportService> {
        Some(match (service, extended) {
            (0, _) => TransportService::Rc,
            (1, _) => TransportService::Uc,
            (3, 1) => TransportService::Xrc,
            _ => return None,
        })
    }
}

/// Parameters of [`Cm::connect`](crate::Cm::connect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Service asked for.
    pub service_id: ServiceId,
    /// The way there.
    pub path: Path,
    /// Private data, all of it: for RDMA IP CM services the header comes first.
    pub private_data: [u8; 92],
    /// Our queue pair.
    pub qpn: Qpn,
    /// First PSN the *peer* shall send (IBA 1.4 §12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics we accept at once.
    pub responder_resources: u8,
    /// READs and atomics we want to start at once.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retry count for both sides' queue pairs, 0 to 7.
    pub retry_count: u8,
    /// RNR retry count for the peer's queue pair, 0 to 7 (7: for ever).
    pub rnr_retry_count: u8,
    /// Our queue pair has a shared receive queue.
    pub srq: bool,
    /// Transport service.
    pub transport_service: TransportService,
    /// Q_Key; 0 for connected services.
    pub qkey: Qkey,
    /// What our queue pair offers.
    pub ece: Ece,
}

/// Parameters of [`Cm::accept`](crate::Cm::accept).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Our queue pair.
    pub qpn: Qpn,
    /// First PSN the *peer* shall send (IBA 1.4 §12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics we accept at once.
    pub responder_resources: u8,
    /// READs and atomics we want to start at once; what the peer does not accept is cut off.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count for the peer's queue pair, 0 to 7 (7: for ever).
    pub rnr_retry_count: u8,
    /// Our queue pair has a shared receive queue.
    pub srq: bool,
    /// Q_Key; 0 for connected services.
    pub qkey: Qkey,
    /// What of the peer's offer our queue pair takes.
    pub ece: Ece,
    /// Private data.
    pub private_data: [u8; 196],
}

/// An incoming request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The message.
    pub req: Req,
    /// The way back: our side first. Addresses are those the packet bore, not those the message names.
    pub path: Path,
    /// What we may offer at most: the peer's initiator depth.
    pub responder_resources: u8,
    /// What we may start at most: the peer's responder resources.
    pub initiator_depth: u8,
}

/// What happened to a connection, as rdma_cm tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody asks for a connection; answer with accept, reject or destroy. The first event of its [`ConnId`].
    Request(Box<Request>),
    /// The peer accepts: move the queue pair by [`Cm::qp_attr`](crate::Cm::qp_attr), then call
    /// [`Cm::established`](crate::Cm::established).
    Reply(Box<Rep>),
    /// The peer is ready (RTU or data received). Passive side only.
    Established,
    /// The peer refuses, or ends the connection by REJ.
    Rejected {
        /// One of [`wire::mad::reason`].
        reason: u16,
        /// Additional reject information.
        info: [u8; 72],
        /// Private data.
        private_data: [u8; 148],
    },
    /// Nobody answers.
    Unreachable {
        /// Negative errno: [`ETIMEDOUT`].
        status: i32,
    },
    /// The connection ended. Move the queue pair to the error state.
    Disconnected {
        /// 0, or [`ETIMEDOUT`] where the peer never answered our DREQ.
        status: i32,
    },
    /// Time wait is over: the queue pair may be used anew.
    TimewaitExit,
    /// Somebody asks for a datagram service; answer with [`Cm::sidr_reply`](crate::Cm::sidr_reply) or destroy.
    SidrRequest {
        /// The message.
        request: Box<SidrReq>,
        /// The way back.
        path: Path,
    },
    /// The answer to a SIDR request; the exchange is over.
    SidrReply {
        /// One of [`wire::mad::sidr_status`]; the rest is valid for 0 only.
        status: u8,
        /// Queue pair of the service.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: Qkey,
        /// Private data.
        private_data: [u8; 136],
    },
}

/// What [`Cm::poll`](crate::Cm::poll) hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a MAD to QP1 of the far end.
    Transmit {
        /// The connection it belongs to, if any.
        conn: Option<ConnId>,
        /// The way.
        path: Path,
        /// The message.
        mad: Box<Mad>,
        /// 0 for a message sent the first time, more for every repetition: the sender changes its source port with it,
        /// so that a stuck process which shares the far port does not get them all.
        attempt: u32,
    },
    /// Tell the consumer.
    Event {
        /// Whose.
        conn: ConnId,
        /// What.
        event: Event,
    },
    /// The connection no longer holds its queue pair number nor its communication id; comes once for each connection that
    /// had a queue pair, after destroy too.
    Released {
        /// The connection.
        conn: ConnId,
        /// Its queue pair.
        qpn: Qpn,
    },
}

/// Attributes of the queue pair for the moves to RTR and RTS, computed as the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The way to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN we expect.
    pub rq_psn: Psn,
    /// First PSN we send.
    pub sq_psn: Psn,
    /// Payload MTU.
    pub path_mtu: Mtu,
    /// READs and atomics we may start at once.
    pub max_rd_atomic: u8,
    /// READs and atomics we accept at once.
    pub max_dest_rd_atomic: u8,
    /// Local ACK timeout code, 5 bits.
    pub timeout: u8,
    /// Retry count, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retry count, 0 to 7 (7: for ever).
    pub rnr_retry: u8,
    /// RNR NAK timer code we answer with: 0, which stands for 655 ms.
    pub min_rnr_timer: u8,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection is not in a state that allows the call (EINVAL).
    #[error("connection {0:?} is {1}: the call is not possible now")]
    State(ConnId, &'static str),
    /// No such connection, or it has been destroyed (EINVAL).
    #[error("connection {0:?} does not exist")]
    Unknown(ConnId),
    /// A parameter is out of range (EINVAL).
    #[error("{0} is out of range")]
    Parameter(&'static str),
    /// The table is full (ENOMEM).
    #[error("all {0} connections are in use: destroy some, or raise max_connections")]
    Full(usize),
    /// The caller's source of communication ids gives none that is free (ENOMEM).
    #[error("no communication id is free; the last one offered was {0:?}")]
    CommIds(CommId),
}
