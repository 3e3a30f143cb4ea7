//! What two ends ask of each other and grant, whatever messages carry it: the service, the way
//! there, the numbers of the queue pairs, depths and retry counts, private data, and why a request
//! is refused.

use std::net::IpAddr;

use wire::mad::{Ece, PortSpace};
use wire::{Address, Gid, LidAddress, Mtu, Pkey, Psn, Qkey, Qpn};

/// A service of a host: a port of one of rdma_cm's port spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// Port space.
    pub space: PortSpace,
    /// Port, not 0.
    pub port: u16,
}

/// The process of a peer that no message tells. A node does not watch it: the end of its stream
/// says as much.
pub const NO_PROCESS: u32 = 0;

/// Transport service of the queue pairs.
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

/// How to reach the far end: what a path record says (`struct ibv_sa_path_rec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Our GID.
    pub local_gid: Gid,
    /// Theirs.
    pub remote_gid: Gid,
    /// Our LID and theirs, where packets go by LIDs; `None` where they go to the addresses that the
    /// GIDs are (RoCE).
    pub lids: Option<[LidAddress; 2]>,
    /// Our IP address and theirs, which the RDMA IP CM header says; `None` where these are the
    /// addresses that the GIDs are.
    pub ips: Option<[IpAddr; 2]>,
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

impl PathRecord {
    /// A path with what the kernel takes for RoCE: hop limit 64, packet life time 16, default
    /// partition, the rest 0.
    pub fn new(local_gid: Gid, remote_gid: Gid, link: u32, mtu: Mtu) -> Self {
        Self {
            local_gid,
            remote_gid,
            lids: None,
            ips: None,
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

    /// Our IP address.
    #[inline]
    pub fn local_ip(&self) -> IpAddr {
        self.ips.map_or_else(|| self.local_gid.ip(), |[ours, _]| ours)
    }

    /// The IP address of the peer.
    #[inline]
    pub fn remote_ip(&self) -> IpAddr {
        self.ips.map_or_else(|| self.remote_gid.ip(), |[_, theirs]| theirs)
    }

    /// The address that our packets bear.
    #[inline]
    pub fn source(&self) -> Address {
        match self.lids {
            None => self.local_gid.ip().into(),
            Some([ours, _]) => ours.into(),
        }
    }

    /// The address of the peer, to which our packets go and from which its come.
    #[inline]
    pub fn dest(&self) -> Address {
        match self.lids {
            None => self.remote_gid.ip().into(),
            Some([_, theirs]) => theirs.into(),
        }
    }
}

/// What one end says of its queue pair (`struct rdma_conn_param`). In calls it is ours and says
/// what we want; in events it is the peer's, and its depths are turned round: they say what we may
/// accept and start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The queue pair.
    pub qpn: Qpn,
    /// First PSN that the end which is told of it shall send (IBA 1.4 §12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics that we accept at once.
    pub responder_resources: u8,
    /// READs and atomics that we start at once. In an answer, what the peer does not accept is cut
    /// off.
    pub initiator_depth: u8,
    /// End-to-end flow control; told, never acted on.
    pub flow_control: bool,
    /// Retry count for both ends' queue pairs, 0 to 7. A request's alone; 0 in an answer.
    pub retry_count: u8,
    /// RNR retry count for the queue pair of the end which is told of it, 0 to 7 (7: for ever).
    pub rnr_retry_count: u8,
    /// The queue pair has a shared receive queue.
    pub srq: bool,
    /// What the queue pair offers, or takes of an offer.
    pub ece: Ece,
}

/// A connection to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Service asked for.
    pub service: Service,
    /// Our port, which the peer is told.
    pub source_port: u16,
    /// The way there.
    pub path: PathRecord,
    /// Transport service.
    pub transport_service: TransportService,
    /// Our queue pair.
    pub parameters: Parameters,
    /// The program's private data; over InfiniBand the peer gets it filled up with zeros.
    pub private_data: Vec<u8>,
}

/// A yes to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Our queue pair.
    pub parameters: Parameters,
    /// The program's private data; over InfiniBand the peer gets it filled up with zeros.
    pub private_data: Vec<u8>,
}

/// A request that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Service asked for.
    pub service: Service,
    /// The port that the asking peer calls its own.
    pub peer_port: u16,
    /// The way back: our side first. Addresses are those the packet bore, not those the message
    /// names.
    pub path: PathRecord,
    /// The process that asks, as [`Setup::process_of`](crate::Setup::process_of) tells it;
    /// [`NO_PROCESS`] where no message says.
    pub process: u32,
    /// Transport service asked for.
    pub transport_service: TransportService,
    /// The peer's queue pair, and what we may accept and start at most.
    pub parameters: Parameters,
    /// What the peer's connection manager put before the private data. Shown to programs that
    /// listen by an `AF_IB` address.
    pub header: Vec<u8>,
    /// The program's private data, the whole field.
    pub private_data: Vec<u8>,
}

/// A yes that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The process that answers, as [`Setup::process_of`](crate::Setup::process_of) tells it;
    /// [`NO_PROCESS`] where no message says.
    pub process: u32,
    /// The peer's queue pair, and what we may accept and start at most.
    pub parameters: Parameters,
    /// The program's private data, the whole field.
    pub private_data: Vec<u8>,
}

/// A question for the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrAsk {
    /// Service asked for.
    pub service: Service,
    /// Our port, which the peer is told.
    pub source_port: u16,
    /// The way there.
    pub path: PathRecord,
    /// The program's private data; over InfiniBand the peer gets it filled up with zeros.
    pub private_data: Vec<u8>,
}

/// A question that came for the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// Service asked for.
    pub service: Service,
    /// The port that the asking peer calls its own.
    pub peer_port: u16,
    /// The way back.
    pub path: PathRecord,
    /// The process that asks, as [`Setup::process_of`](crate::Setup::process_of) tells it.
    pub process: u32,
    /// What the peer's connection manager put before the private data, as in [`Request`].
    pub header: Vec<u8>,
    /// The program's private data, the whole field.
    pub private_data: Vec<u8>,
}

/// The answer: the queue pair that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrAnswer {
    /// Queue pair of the service.
    pub qpn: Qpn,
    /// Q_Key of the service's queue pair.
    pub qkey: Qkey,
    /// The program's private data; over InfiniBand the peer gets it filled up with zeros.
    pub private_data: Vec<u8>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The service is not served here.
    InvalidService,
    /// The service is for queue pairs of another type.
    InvalidTransportService,
    /// The path MTU asked for is above the port's.
    InvalidMtu,
    /// There is no room for the request.
    NoResources,
    /// There is no queue pair for the request.
    NoQueuePair,
    /// The program refuses it (rdma_reject(3)).
    ConsumerDefined,
    /// The program refuses it because of its ECE options (rdma_reject_ece(3)).
    VendorOption,
    /// A reason of the message, one of [`wire::mad::reason`], that no other says: a simulated
    /// system may have any.
    Other(u16),
}

/// Attributes of the queue pair for the moves to RTR and RTS, computed as the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The way to the peer.
    pub path: PathRecord,
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
