//! The messages of a connection: what this side has to say as MADs, and what a peer's MAD says in
//! the words of the rest of the house. Nothing else here knows where a field stands.
//!
//! | message | room for the program | before it |
//! |---|---|---|
//! | REQ | [`REQ_DATA`](wire::mad::REQ_DATA) | RDMA IP CM header (A11), 36 bytes; none between GIDs |
//! | REP | [`REP_DATA`] | |
//! | REJ | [`REJ_DATA`] | |
//! | SIDR_REQ | [`SIDR_REQ_DATA`](wire::mad::SIDR_REQ_DATA) | the RDMA IP CM header |
//! | SIDR_REP | [`SIDR_REP_DATA`] | |

use wire::mad::{
    Apr, Drep, Dreq, IpCm, Lap, Mad, Message, Mra, REJ_DATA, REP_DATA, Rej, Rep, Req, ReqPath, Rtu,
    SIDR_REP_DATA, SidrRep, SidrReq, reason, sidr_status,
};
use wire::{CommId, Gid, Guid, LidAddress, Qkey, Qpn, ServiceId};

use super::config::Config;
use super::connection::{CmState, Connection};
use super::private_data::ips_of;
use crate::mads::Origin;
use crate::parameters::{
    Accept, Connect, Parameters, PathRecord, Refusal, Reply, Request, Service, SidrAnswer, SidrAsk,
    SidrRequest, TransportService,
};

/// Values of "message rejected" in a REJ, and of "message MRAed" in an MRA.
pub(super) const REJECTS_REQ: u8 = 0;
pub(super) const REJECTS_REP: u8 = 1;
pub(super) const REJECTS_OTHER: u8 = 2;

/// LID that stands for "any": RoCE has none.
const PERMISSIVE_LID: u16 = 0xffff;
/// Queue pair number of multicast, which is no connection's.
const NOBODY: Qpn = Qpn::MULTICAST;

impl Connection {
    /// Asks for the connection.
    pub(super) fn req(&self, config: &Config, connect: &Connect, private_data: [u8; 92]) -> Mad {
        let (transport_service, extended_transport) = service_codes(connect.transport_service);
        let asked = &connect.parameters;
        let timing = &config.timing;
        self.mad(Message::Req(Req {
            local_comm_id: self.local,
            ece: asked.ece,
            service_id: service_id(connect.service),
            local_ca_guid: config.guid,
            local_qkey: Qkey(0),
            local_qpn: asked.qpn,
            responder_resources: asked.responder_resources,
            local_eecn: 0,
            initiator_depth: asked.initiator_depth,
            remote_eecn: 0,
            remote_cm_response_timeout: timing.cm_response_timeout,
            transport_service,
            flow_control: asked.flow_control,
            starting_psn: asked.starting_psn,
            local_cm_response_timeout: timing.cm_response_timeout,
            retry_count: asked.retry_count,
            pkey: connect.path.pkey,
            path_mtu: connect.path.mtu,
            rdc_exists: false,
            rnr_retry_count: asked.rnr_retry_count,
            max_cm_retries: timing.max_cm_retries,
            srq: asked.srq,
            extended_transport,
            primary: self.primary_path(),
            alternate: NO_PATH,
            private_data,
        }))
    }

    /// Accepts it. The number of an XRC target stands where that of an EE context would (annex
    /// A14), see [`answering_qpn`].
    pub(super) fn rep(&self, config: &Config, accept: &Accept, private_data: [u8; REP_DATA]) -> Mad {
        let granted = &accept.parameters;
        let (local_qpn, local_eecn) =
            if self.xrc { (Qpn::default(), granted.qpn.get()) } else { (granted.qpn, 0) };
        self.mad(Message::Rep(Rep {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            ece: granted.ece,
            local_qkey: Qkey(0),
            local_qpn,
            local_eecn,
            starting_psn: granted.starting_psn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            target_ack_delay: config.ack_delay.min(31),
            failover: 0,
            flow_control: granted.flow_control,
            rnr_retry_count: granted.rnr_retry_count,
            srq: granted.srq || self.xrc,
            local_ca_guid: config.guid,
            private_data,
        }))
    }

    /// The queue pair is ready.
    pub(super) fn rtu(&self) -> Mad {
        self.mad(Message::Rtu(Rtu {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            private_data: [0; 224],
        }))
    }

    /// Ends the connection.
    pub(super) fn dreq(&self) -> Mad {
        self.mad(Message::Dreq(self.dreq_for(self.remote_qpn)))
    }

    /// Asks whether the peer still knows the connection: see `stale_check`.
    pub(super) fn question(&self, transaction_id: u64) -> Mad {
        Mad { transaction_id, message: Message::Dreq(self.dreq_for(NOBODY)) }
    }

    fn dreq_for(&self, remote_qpn: Qpn) -> Dreq {
        let (local_comm_id, remote_comm_id) = (self.local, self.remote_or_zero());
        Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data: [0; 220] }
    }

    /// Asks for patience. `message`: 0 a REQ, 1 a REP, 2 a LAP is acknowledged.
    pub(super) fn mra(&self, message: u8, service_timeout: u8) -> Mad {
        self.mad(Message::Mra(Mra {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            message,
            service_timeout,
            private_data: [0; 222],
        }))
    }

    /// A LAP that changes nothing: its alternate path is the primary one.
    pub(super) fn lap(&self, remote_cm_response_timeout: u8) -> Mad {
        self.mad(Message::Lap(Lap {
            local_comm_id: self.local,
            remote_comm_id: self.remote_or_zero(),
            remote_qpn: self.remote_qpn,
            remote_cm_response_timeout,
            alternate: self.primary_path(),
            private_data: [0; 168],
        }))
    }

    /// A REJ of what the state calls for: the REQ, the REP, or neither. One for a time out names
    /// the sender's GUID, since the peer may have to find the connection by it (IBA 1.4
    /// §12.6.7.2: the peer's id may not be known yet).
    pub(super) fn rej(&self, guid: Guid, why: u16, private_data: [u8; REJ_DATA]) -> Mad {
        let message = match self.state {
            CmState::ReqReceived => REJECTS_REQ,
            CmState::RepReceived => REJECTS_REP,
            _ => REJECTS_OTHER,
        };
        let guid = guid.0.to_be_bytes();
        let info = if why == reason::TIMEOUT { &guid[..] } else { &[] };
        self.mad(rej(self.local, self.remote_or_zero(), message, why, info, private_data))
    }

    /// Asks for a datagram service.
    pub(super) fn sidr_req(&self, ask: &SidrAsk, private_data: [u8; 216]) -> Mad {
        self.mad(Message::SidrReq(SidrReq {
            request_id: self.local,
            pkey: ask.path.pkey,
            service_id: service_id(ask.service),
            private_data,
        }))
    }

    /// Answers such a question; `answer` counts for status 0.
    pub(super) fn sidr_rep(&self, status: u8, answer: &SidrAnswer, private_data: [u8; SIDR_REP_DATA]) -> Mad {
        self.mad(Message::SidrRep(SidrRep {
            request_id: self.remote_or_zero(),
            status,
            info_len: 0,
            qpn: answer.qpn,
            service_id: self.req_mark.map(|mark| ServiceId(mark.service_id)).unwrap_or_default(),
            qkey: answer.qkey,
            info: [0; 72],
            private_data,
        }))
    }

    /// The path as a REQ names it.
    fn primary_path(&self) -> ReqPath {
        let path = &self.path;
        let [local_lid, remote_lid] = path.lids.map_or([PERMISSIVE_LID; 2], |lids| lids.map(LidAddress::lid));
        ReqPath {
            local_lid,
            remote_lid,
            local_gid: path.local_gid,
            remote_gid: path.remote_gid,
            flow_label: path.flow_label,
            packet_rate: path.packet_rate,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            service_level: path.service_level,
            // IBA 1.4 §12.7.16: no router is on the way, so nothing needs a GRH.
            subnet_local: path.lids.is_some() && path.hop_limit <= 1,
            local_ack_timeout: self.local_ack_timeout,
        }
    }

    /// The peer's id as an answer names it: 0 where it is not known.
    fn remote_or_zero(&self) -> CommId {
        self.remote.unwrap_or_default()
    }

    fn mad(&self, message: Message) -> Mad {
        Mad { transaction_id: self.transaction_id, message }
    }
}

const NO_PATH: ReqPath = ReqPath {
    local_lid: 0,
    remote_lid: 0,
    local_gid: Gid([0; 16]),
    remote_gid: Gid([0; 16]),
    flow_label: 0,
    packet_rate: 0,
    traffic_class: 0,
    hop_limit: 0,
    service_level: 0,
    subnet_local: false,
    local_ack_timeout: 0,
};

// Answers to messages, whether there is a connection or not.

/// A REJ; of `extra` the first 72 bytes.
pub(super) fn rej(
    local: CommId,
    remote: CommId,
    message: u8,
    why: u16,
    extra: &[u8],
    private_data: [u8; REJ_DATA],
) -> Message {
    let mut info = [0; 72];
    let len = extra.len().min(info.len());
    info[..len].copy_from_slice(&extra[..len]);
    Message::Rej(Rej {
        local_comm_id: local,
        remote_comm_id: remote,
        message,
        info_len: len as u8,
        reason: why,
        info,
        private_data,
    })
}

/// Refuses a REQ that makes no connection here.
pub(super) fn rej_of_req(req: &Req, why: u16) -> Message {
    rej(CommId(0), req.local_comm_id, REJECTS_REQ, why, &[], [0; REJ_DATA])
}

/// The answer to a DREQ, whether the connection exists or not.
pub(super) fn drep(transaction_id: u64, dreq: &Dreq) -> Mad {
    Mad {
        transaction_id,
        message: Message::Drep(Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; 224],
        }),
    }
}

/// The answer to a LAP.
pub(super) fn apr(transaction_id: u64, lap: &Lap, status: u8) -> Mad {
    Mad {
        transaction_id,
        message: Message::Apr(Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            info_len: 0,
            status,
            info: [0; 72],
            private_data: [0; 148],
        }),
    }
}

/// "No such service", the way each kind of request is told.
pub(super) fn unknown_service(request: &Message) -> Option<Message> {
    refusal(request, reason::INVALID_SERVICE_ID, sidr_status::UNSUPPORTED)
}

/// The answer to a request that is refused for this reason, or with this status where it is one for
/// datagrams; `None` for what is no request.
pub(super) fn refusal(request: &Message, why: u16, status: u8) -> Option<Message> {
    match request {
        Message::Req(req) => Some(rej_of_req(req, why)),
        Message::SidrReq(req) => Some(Message::SidrRep(SidrRep {
            request_id: req.request_id,
            status,
            info_len: 0,
            qpn: Qpn::default(),
            service_id: req.service_id,
            qkey: Qkey::default(),
            info: [0; 72],
            private_data: [0; SIDR_REP_DATA],
        })),
        _ => None,
    }
}

// What messages say.

/// Whether a DREQ is a question whether its receiver still knows the connection, and no message
/// that ends anything: see `stale_check`.
pub fn is_question(dreq: &Dreq) -> bool {
    dreq.remote_qpn == NOBODY
}

/// The queue pair that a REP names: of an XRC target the number stands where that of an EE context
/// would (annex A14).
pub(super) fn answering_qpn(rep: &Rep, xrc: bool) -> Qpn {
    if xrc { Qpn::new(rep.local_eecn) } else { rep.local_qpn }
}

/// The way back to where a REQ came from. Addresses are the packet's: a REQ cannot point us at
/// another host.
pub(super) fn path_back(from: Origin, req: &Req) -> PathRecord {
    let way = from.path();
    // A packet between LIDs need not bear GIDs, so the message says them.
    let gids =
        way.lids.map_or((way.local_gid, way.remote_gid), |_| (req.primary.remote_gid, req.primary.local_gid));
    let hop_limit = match (req.primary.hop_limit, way.lids) {
        (0, None) => 64,
        (hops, _) => hops,
    };
    PathRecord {
        local_gid: gids.0,
        remote_gid: gids.1,
        mtu: req.path_mtu,
        traffic_class: req.primary.traffic_class,
        flow_label: req.primary.flow_label,
        hop_limit,
        ips: ips_of(&way, &req.private_data),
        service_level: req.primary.service_level,
        packet_rate: req.primary.packet_rate,
        packet_life_time: req.primary.local_ack_timeout.saturating_sub(1),
        pkey: req.pkey,
        ..way
    }
}

/// A REQ for the rest of the house; `None` where it is for no port, or does not say in whose name.
pub(super) fn request(
    req: &Req,
    path: PathRecord,
    transport_service: TransportService,
    process: u32,
) -> Option<Request> {
    let (service, peer_port) = asked_for(req.service_id, &path, &req.private_data)?;
    let parameters = Parameters {
        qpn: req.local_qpn,
        starting_psn: req.starting_psn,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ece: req.ece,
    };
    let (front, data) = req.private_data.split_at(IpCm::LEN);
    Some(Request {
        service,
        peer_port,
        path,
        process,
        transport_service,
        parameters,
        header: front.to_vec(),
        private_data: data.to_vec(),
    })
}

/// A REP likewise.
pub(super) fn reply(rep: &Rep, xrc: bool, process: u32) -> Reply {
    let parameters = Parameters {
        qpn: answering_qpn(rep, xrc),
        starting_psn: rep.starting_psn,
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.flow_control,
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        ece: rep.ece,
    };
    Reply { process, parameters, private_data: rep.private_data.to_vec() }
}

/// A SIDR_REQ likewise.
pub(super) fn sidr_request(req: &SidrReq, path: PathRecord, process: u32) -> Option<SidrRequest> {
    let (service, peer_port) = asked_for(req.service_id, &path, &req.private_data)?;
    let (front, data) = req.private_data.split_at(IpCm::LEN);
    Some(SidrRequest {
        service,
        peer_port,
        path,
        process,
        header: front.to_vec(),
        private_data: data.to_vec(),
    })
}

/// The service, and the port of the peer: 0 where its request has no header, as between GIDs.
fn asked_for(service: ServiceId, path: &PathRecord, private_data: &[u8]) -> Option<(Service, u16)> {
    let port = match IpCm::parse(private_data) {
        Ok(header) => header.source_port,
        Err(_) if path.lids.is_some() => 0,
        Err(_) => return None,
    };
    Some((service_of(service)?, port))
}

/// The port that a service id of the RDMA IP CM service names (annex A11).
pub(super) fn service_of(id: ServiceId) -> Option<Service> {
    id.ip_port().map(|(space, port)| Service { space, port })
}

pub(super) fn service_id(service: Service) -> ServiceId {
    ServiceId::from_port(service.space, service.port)
}

// Codes.

/// Transport service type and extended transport type of a REQ (IBA 1.4 §12.7.8, annex A14).
fn service_codes(service: TransportService) -> (u8, u8) {
    match service {
        TransportService::Rc => (0, 0),
        TransportService::Uc => (1, 0),
        TransportService::Xrc => (3, 1),
    }
}

/// The transport service a REQ asks for; `None` for RD and what is reserved.
pub(super) fn transport_service(req: &Req) -> Option<TransportService> {
    Some(match (req.transport_service, req.extended_transport) {
        (0, _) => TransportService::Rc,
        (1, _) => TransportService::Uc,
        (3, 1) => TransportService::Xrc,
        _ => return None,
    })
}

impl Refusal {
    /// The reason of a REJ.
    pub(super) fn reason(self) -> u16 {
        match self {
            Self::InvalidService => reason::INVALID_SERVICE_ID,
            Self::InvalidTransportService => reason::INVALID_TRANSPORT_SERVICE,
            Self::InvalidMtu => reason::INVALID_MTU,
            Self::NoResources => reason::NO_RESOURCES,
            Self::NoQueuePair => reason::NO_QP,
            Self::ConsumerDefined => reason::CONSUMER_DEFINED,
            Self::VendorOption => reason::VENDOR_OPTION_NOT_SUPPORTED,
            Self::Other(reason) => reason,
        }
    }

    /// The status of a SIDR_REP.
    pub(super) fn status(self) -> u8 {
        match self {
            Self::InvalidService | Self::InvalidTransportService => sidr_status::UNSUPPORTED,
            Self::NoResources | Self::NoQueuePair => sidr_status::NO_QP,
            Self::InvalidMtu | Self::ConsumerDefined | Self::VendorOption | Self::Other(_) => {
                sidr_status::REJECTED
            }
        }
    }
}
