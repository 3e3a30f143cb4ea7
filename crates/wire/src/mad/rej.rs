//! ConnectReject (IBA 1.4 table 108): refuses a REQ or a REP, or gives a handshake up.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | local communication id |
//! | 4..8 | remote communication id |
//! | 8 | message rejected (2 bits), reserved |
//! | 9 | length of the additional reject information (7 bits), reserved |
//! | 10..12 | reason |
//! | 12..84 | additional reject information |
//! | 84..232 | private data |

use crate::bytes::{Reader, Writer};
use crate::mad::PrivateData;
use crate::{CommId, Malformed};

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
    /// Why, one of [`reason`].
    pub reason: u16,
    /// Additional reject information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<148>,
}

impl Rej {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            local_comm_id: CommId(from.u32()?),
            remote_comm_id: CommId(from.u32()?),
            message: from.u8()? >> 6,
            info_len: from.u8()? >> 1,
            reason: from.u16()?,
            info: from.array()?,
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.u8(self.message << 6);
        out.u8(self.info_len << 1);
        out.u16(self.reason);
        out.array(self.info);
        out.array(self.private_data);
    }
}

/// Reasons of a [`Rej`] (IBA 1.4 table 109).
pub mod reason {
    /// No queue pair available.
    pub const NO_QP: u16 = 1;
    /// No end-to-end context available.
    pub const NO_EEC: u16 = 2;
    /// No resources available.
    pub const NO_RESOURCES: u16 = 3;
    /// The sender gave up waiting.
    pub const TIMEOUT: u16 = 4;
    /// The request is not supported.
    pub const UNSUPPORTED_REQUEST: u16 = 5;
    /// The communication id is unknown.
    pub const INVALID_COMM_ID: u16 = 6;
    /// The pair of communication ids is unknown.
    pub const INVALID_COMM_INSTANCE: u16 = 7;
    /// No program listens on the service id.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The transport service type is not offered.
    pub const INVALID_TRANSPORT_SERVICE: u16 = 9;
    /// The queue pair still belongs to an older connection.
    pub const STALE_CONNECTION: u16 = 10;
    /// The RDC does not exist.
    pub const RDC_NOT_EXIST: u16 = 11;
    /// The primary remote port GID is rejected.
    pub const INVALID_GID: u16 = 12;
    /// The primary remote port LID is rejected.
    pub const INVALID_LID: u16 = 13;
    /// The primary service level is not supported.
    pub const INVALID_SL: u16 = 14;
    /// The primary traffic class is not supported.
    pub const INVALID_TRAFFIC_CLASS: u16 = 15;
    /// The primary hop limit is rejected.
    pub const INVALID_HOP_LIMIT: u16 = 16;
    /// The primary packet rate is rejected.
    pub const INVALID_PACKET_RATE: u16 = 17;
    /// The alternate remote port GID is rejected.
    pub const INVALID_ALT_GID: u16 = 18;
    /// The alternate remote port LID is rejected.
    pub const INVALID_ALT_LID: u16 = 19;
    /// The alternate service level is not supported.
    pub const INVALID_ALT_SL: u16 = 20;
    /// The alternate traffic class is not supported.
    pub const INVALID_ALT_TRAFFIC_CLASS: u16 = 21;
    /// The alternate hop limit is rejected.
    pub const INVALID_ALT_HOP_LIMIT: u16 = 22;
    /// The alternate packet rate is rejected.
    pub const INVALID_ALT_PACKET_RATE: u16 = 23;
    /// Ask the port and queue pair named in the additional information.
    pub const PORT_CM_REDIRECT: u16 = 24;
    /// Ask for the port named in the additional information.
    pub const PORT_REDIRECT: u16 = 25;
    /// The path MTU is not supported.
    pub const INVALID_MTU: u16 = 26;
    /// Fewer responder resources than the initiator depth asks for.
    pub const INSUFFICIENT_RESP_RESOURCES: u16 = 27;
    /// The consumer said no; its private data may say why.
    pub const CONSUMER_DEFINED: u16 = 28;
    /// The RNR retry count is rejected.
    pub const INVALID_RNR_RETRY: u16 = 29;
    /// The sender uses the communication id for another connection.
    pub const DUPLICATE_LOCAL_COMM_ID: u16 = 30;
    /// The class version of the MAD is not supported.
    pub const INVALID_CLASS_VERSION: u16 = 31;
    /// The primary flow label is rejected.
    pub const INVALID_FLOW_LABEL: u16 = 32;
    /// The alternate flow label is rejected.
    pub const INVALID_ALT_FLOW_LABEL: u16 = 33;
    /// The options of [`Ece`](crate::mad::Ece) are not supported.
    pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}
