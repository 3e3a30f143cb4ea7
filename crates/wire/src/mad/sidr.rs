//! ServiceIDResReq and ServiceIDResReqResp (IBA 1.4 tables 119, 120): find the queue pair of a
//! datagram service.
//!
//! SIDR_REQ:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | request id |
//! | 4..6, 6..8 | partition key, reserved |
//! | 8..16 | service id |
//! | 16..232 | private data |
//!
//! SIDR_REP:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | request id |
//! | 4 | status |
//! | 5 | length of the additional information |
//! | 6..8 | reserved |
//! | 8..11, 11 | QPN, reserved |
//! | 12..20 | service id |
//! | 20..24 | Q_Key |
//! | 24..96 | additional information |
//! | 96..232 | private data |

use crate::bytes::{Reader, Writer};
use crate::mad::PrivateData;
use crate::{CommId, Malformed, Pkey, Qkey, Qpn, ServiceId};

/// ServiceIDResReq (table 119).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// Request id.
    pub request_id: CommId,
    /// Partition.
    pub pkey: Pkey,
    /// Service asked for.
    pub service_id: ServiceId,
    /// Private data, 216 bytes; for RDMA IP CM service ids its first 36 are [`IpCm`](super::IpCm).
    pub private_data: PrivateData<216>,
}

/// ServiceIDResReqResp (table 120).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The request's id.
    pub request_id: CommId,
    /// What the answer is, one of [`sidr_status`].
    pub status: u8,
    /// Length of the additional information.
    pub info_len: u8,
    /// Queue pair that provides the service.
    pub qpn: Qpn,
    /// Service.
    pub service_id: ServiceId,
    /// Q_Key of the service's queue pair.
    pub qkey: Qkey,
    /// Additional information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<136>,
}

/// Statuses of a [`SidrRep`] (IBA 1.4 table 121).
pub mod sidr_status {
    /// The queue pair and its Q_Key are valid.
    pub const VALID: u8 = 0;
    /// The service id is not supported.
    pub const UNSUPPORTED: u8 = 1;
    /// The service provider rejects the request.
    pub const REJECTED: u8 = 2;
    /// No queue pair is available.
    pub const NO_QP: u8 = 3;
    /// Ask the port named in the additional information.
    pub const REDIRECTED: u8 = 4;
    /// The class version of the MAD is not supported.
    pub const UNSUPPORTED_VERSION: u8 = 5;
}

impl SidrReq {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let request_id = CommId(from.u32()?);
        let pkey = Pkey(from.u16()?);
        from.skip::<2>()?;
        Ok(Self { request_id, pkey, service_id: ServiceId(from.u64()?), private_data: from.array()? })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.request_id.0);
        out.u16(self.pkey.0);
        out.skip::<2>();
        out.u64(self.service_id.0);
        out.array(self.private_data);
    }
}

impl SidrRep {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let request_id = CommId(from.u32()?);
        let [status, info_len, _, _] = from.array()?;
        Ok(Self {
            request_id,
            status,
            info_len,
            qpn: from.u24_u8().map(|(qpn, _)| Qpn::new(qpn))?,
            service_id: ServiceId(from.u64()?),
            qkey: Qkey(from.u32()?),
            info: from.array()?,
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.request_id.0);
        out.array([self.status, self.info_len, 0, 0]);
        out.u24_u8(self.qpn.get(), 0);
        out.u64(self.service_id.0);
        out.u32(self.qkey.0);
        out.array(self.info);
        out.array(self.private_data);
    }
}
