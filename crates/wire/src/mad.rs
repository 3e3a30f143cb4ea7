//! Management datagrams on QP1: the common header, and every message of the connection manager
//! (IBA 1.4 §13.4.2, §12.6).
//!
//! A MAD is 256 bytes: 24 of common header (base version 1, class 7 "communication management", class version 2,
//! method 3 Send, status 0, transaction id, attribute id, modifier 0), then 232 of the message.

use std::net::IpAddr;

use crate::{CommId, Gid, Guid, Malformed, Mtu, Pkey, Psn, Qkey, Qpn, ServiceId};

/// Length of every MAD.
pub const MAD_LEN: usize = 256;

/// Well-known Q_Key of QP1 (IBA 1.4 §10.2.5).
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// A connection manager MAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction id: chosen by whoever starts an exchange, echoed in answers.
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

/// A message of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum Message {
    /// ConnectRequest, attribute 0x0010.
    Req(Req),
    /// MsgRcptAck, 0x0011.
    Mra(Mra),
    /// ConnectReject, 0x0012.
    Rej(Rej),
    /// ConnectReply, 0x0013.
    Rep(Rep),
    /// ReadyToUse, 0x0014.
    Rtu(Rtu),
    /// DisconnectRequest, 0x0015.
    Dreq(Dreq),
    /// DisconnectReply, 0x0016.
    Drep(Drep),
    /// ServiceIDResReq, 0x0017.
    SidrReq(SidrReq),
    /// ServiceIDResReqResp, 0x0018.
    SidrRep(SidrRep),
}

/// A private data field: always the message's full size on the wire, zero-padded.
pub type PrivateData<const N: usize> = [u8; N];

/// One of the two paths of a REQ. On RoCE the LIDs are 0xffff (permissive) and unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqPath {
    /// Local port LID.
    pub local_lid: u16,
    /// Remote port LID.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// Inter-packet delay, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether the path stays in the subnet.
    pub subnet_local: bool,
    /// Local ACK timeout code, 5 bits: 4.096 us * 2^code.
    pub local_ack_timeout: u8,
}

/// ConnectRequest (IBA 1.4 table 106).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// Service asked for.
    pub service_id: ServiceId,
    /// The sender's channel adapter.
    pub local_ca_guid: Guid,
    /// The sender's Q_Key.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics the sender accepts at once.
    pub responder_resources: u8,
    /// Local end-to-end context number, 24 bits.
    pub local_eecn: u32,
    /// READs and atomics the sender wants to start at once.
    pub initiator_depth: u8,
    /// Remote end-to-end context number, 24 bits.
    pub remote_eecn: u32,
    /// Remote CM response timeout code, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// Transport service type, 2 bits: 0 RC, 1 UC, 2 RD, 3 with `extended_transport` XRC.
    pub transport_service: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// First PSN the sender will send.
    pub starting_psn: Psn,
    /// Local CM response timeout code, 5 bits.
    pub local_cm_response_timeout: u8,
    /// Retry count, 3 bits.
    pub retry_count: u8,
    /// Partition.
    pub pkey: Pkey,
    /// Payload MTU of the path.
    pub path_mtu: Mtu,
    /// Whether an RDC exists, 1 bit.
    pub rdc_exists: bool,
    /// RNR retry count, 3 bits.
    pub rnr_retry_count: u8,
    /// Times a CM message is sent again, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender uses a shared receive queue.
    pub srq: bool,
    /// Extended transport type, 3 bits.
    pub extended_transport: u8,
    /// Primary path.
    pub primary: ReqPath,
    /// Alternate path; all zero where there is none.
    pub alternate: ReqPath,
    /// Private data, 92 bytes; for RDMA IP CM service ids its first 36 are [`IpCm`].
    pub private_data: PrivateData<92>,
}

/// MsgRcptAck (table 107).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Which message is meant: 0 REQ, 1 REP, 2 LAP; 2 bits.
    pub message: u8,
    /// Service timeout code, 5 bits.
    pub service_timeout: u8,
    /// Private data.
    pub private_data: PrivateData<222>,
}

/// ConnectReject (table 108).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication id, 0 where it has none.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Which message is rejected: 0 REQ, 1 REP, 2 none; 2 bits.
    pub message: u8,
    /// Length of the additional reject information, 7 bits.
    pub info_len: u8,
    /// Reason (table 109).
    pub reason: u16,
    /// Additional reject information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<148>,
}

/// ConnectReply (table 110).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The sender's Q_Key.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context, 24 bits.
    pub local_eecn: u32,
    /// First PSN the sender will send.
    pub starting_psn: Psn,
    /// READs and atomics the sender accepts at once.
    pub responder_resources: u8,
    /// READs and atomics the sender wants to start at once.
    pub initiator_depth: u8,
    /// Target ACK delay code, 5 bits.
    pub target_ack_delay: u8,
    /// Failover accepted, 2 bits.
    pub failover: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retry count, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender uses a shared receive queue.
    pub srq: bool,
    /// The sender's channel adapter.
    pub local_ca_guid: Guid,
    /// Private data.
    pub private_data: PrivateData<196>,
}

/// ReadyToUse (table 111).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Private data.
    pub private_data: PrivateData<224>,
}

/// DisconnectRequest (table 112).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data.
    pub private_data: PrivateData<220>,
}

/// DisconnectReply (table 113).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Private data.
    pub private_data: PrivateData<224>,
}

/// ServiceIDResReq (table 119).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// Request id.
    pub request_id: CommId,
    /// Partition.
    pub pkey: Pkey,
    /// Service asked for.
    pub service_id: ServiceId,
    /// Private data, 216 bytes; for RDMA IP CM service ids its first 36 are [`IpCm`].
    pub private_data: PrivateData<216>,
}

/// ServiceIDResReqResp (table 120).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The request's id.
    pub request_id: CommId,
    /// Status (table 121): 0 valid, 1 not supported, 2 rejected, ...
    pub status: u8,
    /// Length of the additional information.
    pub info_len: u8,
    /// Queue pair that provides the service.
    pub qpn: Qpn,
    /// Service.
    pub service_id: ServiceId,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// Additional information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<136>,
}

/// The RDMA IP CM service's header in front of the consumer's private data (IBA annex A11), 36 bytes.
///
/// | bytes | field |
/// |---|---|
/// | 0 | CM private data version: major (4 bits), minor (4 bits): 0 |
/// | 1 | IP version (4 bits), reserved |
/// | 2..4 | source port |
/// | 4..20 | source address (IPv4 in the last four bytes) |
/// | 20..36 | destination address, likewise |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCm {
    /// Source address; of the same family as `dest`.
    pub source: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination address.
    pub dest: IpAddr,
}

/// The port spaces of rdma_cm that map to RDMA IP CM service ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// RDMA_PS_TCP, protocol 6.
    Tcp,
    /// RDMA_PS_UDP, protocol 17.
    Udp,
    /// RDMA_PS_IPOIB.
    Ipoib,
    /// RDMA_PS_IB.
    Ib,
}

impl Mad {
    /// Parses a MAD of [`MAD_LEN`] bytes (longer input is an error, shorter is `Truncated`).
    pub fn parse(bytes: &[u8]) -> Result<Mad, Malformed> {
        todo!("{bytes:?}")
    }
    /// The MAD as bytes.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        todo!()
    }
}
