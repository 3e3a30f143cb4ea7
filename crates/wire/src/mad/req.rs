//! ConnectRequest (IBA 1.4 table 106): asks for a connection.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | local communication id |
//! | 5..8 | vendor id of the ECE options, which are the attribute modifier |
//! | 8..16 | service id |
//! | 16..24 | local CA GUID |
//! | 28..32 | local Q_Key |
//! | 32..35, 35 | local QPN, responder resources |
//! | 36..39, 39 | local EECN, initiator depth |
//! | 40..43 | remote EECN |
//! | 43 | remote CM response timeout (5 bits), transport service (2), flow control (1) |
//! | 44..47 | starting PSN |
//! | 47 | local CM response timeout (5 bits), retry count (3) |
//! | 48..50 | partition key |
//! | 50 | path MTU (4 bits), RDC exists (1), RNR retry count (3) |
//! | 51 | max CM retries (4 bits), SRQ (1), extended transport type (3) |
//! | 52..96 | primary path |
//! | 96..140 | alternate path |
//! | 140..232 | private data |
//!
//! A path, 44 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | local port LID |
//! | 2..4 | remote port LID |
//! | 4..20 | local port GID |
//! | 20..36 | remote port GID |
//! | 36..40 | flow label (20 bits), reserved (6), packet rate (6) |
//! | 40 | traffic class |
//! | 41 | hop limit |
//! | 42 | service level (4 bits), subnet local (1), reserved (3) |
//! | 43 | local ACK timeout (5 bits), reserved (3) |
//!
//! Bytes that no row names are reserved.

use crate::bytes::{Reader, Writer};
use crate::mad::{Ece, PrivateData};
use crate::{CommId, Gid, Guid, Malformed, Mtu, Pkey, Psn, Qkey, Qpn, ServiceId};

/// ConnectRequest (IBA 1.4 table 106).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// What the sender's queue pair offers.
    pub ece: Ece,
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
    /// First PSN the receiver of this message sends; its sender expects it (IBA 1.4 §12.7.31).
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
    /// Private data, 92 bytes; for RDMA IP CM service ids its first 36 are [`IpCm`](super::IpCm).
    pub private_data: PrivateData<92>,
}

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

impl Req {
    pub(super) fn read(from: &mut Reader<'_>, options: u32) -> Result<Self, Malformed> {
        let local_comm_id = CommId(from.u32()?);
        let ece = Ece { vendor_id: from.u8_u24()?.1, options };
        let service_id = ServiceId(from.u64()?);
        let local_ca_guid = Guid(from.u64()?);
        from.skip::<4>()?;
        let local_qkey = Qkey(from.u32()?);
        let (local_qpn, responder_resources) = from.u24_u8()?;
        let (local_eecn, initiator_depth) = from.u24_u8()?;
        let (remote_eecn, remote_bits) = from.u24_u8()?;
        let (starting_psn, local_bits) = from.u24_u8()?;
        let pkey = Pkey(from.u16()?);
        let mtu_bits = from.u8()?;
        let cm_bits = from.u8()?;
        Ok(Self {
            local_comm_id,
            ece,
            service_id,
            local_ca_guid,
            local_qkey,
            local_qpn: Qpn::new(local_qpn),
            responder_resources,
            local_eecn,
            initiator_depth,
            remote_eecn,
            remote_cm_response_timeout: remote_bits >> 3,
            transport_service: remote_bits >> 1 & 3,
            flow_control: remote_bits & 1 != 0,
            starting_psn: Psn::new(starting_psn),
            local_cm_response_timeout: local_bits >> 3,
            retry_count: local_bits & 7,
            pkey,
            path_mtu: Mtu::from_code(mtu_bits >> 4).ok_or(Malformed::Field("REQ path MTU"))?,
            rdc_exists: mtu_bits & 8 != 0,
            rnr_retry_count: mtu_bits & 7,
            max_cm_retries: cm_bits >> 4,
            srq: cm_bits & 8 != 0,
            extended_transport: cm_bits & 7,
            primary: ReqPath::read(from)?,
            alternate: ReqPath::read(from)?,
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u8_u24(0, self.ece.vendor_id);
        out.u64(self.service_id.0);
        out.u64(self.local_ca_guid.0);
        out.skip::<4>();
        out.u32(self.local_qkey.0);
        out.u24_u8(self.local_qpn.get(), self.responder_resources);
        out.u24_u8(self.local_eecn, self.initiator_depth);
        let remote_bits = self.remote_cm_response_timeout << 3
            | (self.transport_service & 3) << 1
            | u8::from(self.flow_control);
        out.u24_u8(self.remote_eecn, remote_bits);
        out.u24_u8(self.starting_psn.get(), self.local_cm_response_timeout << 3 | self.retry_count & 7);
        out.u16(self.pkey.0);
        out.u8(self.path_mtu.code() << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7);
        out.u8(self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.extended_transport & 7);
        self.primary.write(out);
        self.alternate.write(out);
        out.array(self.private_data);
    }
}

impl ReqPath {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let local_lid = from.u16()?;
        let remote_lid = from.u16()?;
        let local_gid = Gid(from.array()?);
        let remote_gid = Gid(from.array()?);
        let word = from.u32()?;
        let [traffic_class, hop_limit, level, timeout] = from.array()?;
        Ok(Self {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label: word >> 12,
            packet_rate: (word & 0x3f) as u8,
            traffic_class,
            hop_limit,
            service_level: level >> 4,
            subnet_local: level & 8 != 0,
            local_ack_timeout: timeout >> 3,
        })
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.u16(self.local_lid);
        out.u16(self.remote_lid);
        out.array(self.local_gid.0);
        out.array(self.remote_gid.0);
        out.u32(self.flow_label << 12 | u32::from(self.packet_rate & 0x3f));
        out.u8(self.traffic_class);
        out.u8(self.hop_limit);
        out.u8(self.service_level << 4 | u8::from(self.subnet_local) << 3);
        out.u8(self.local_ack_timeout << 3);
    }
}
