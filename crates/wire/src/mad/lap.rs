//! LoadAlternatePath and AlternatePathResponse (IBA 1.4 tables 115 and 116): the side that
//! connected asks for another alternate path, and always gets an answer.
//!
//! LAP:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4, 4..8 | local communication id, remote communication id |
//! | 8..12 | reserved |
//! | 12..15, 15 | remote QPN; remote CM response timeout (5 bits), reserved |
//! | 16..20 | reserved |
//! | 20..22, 22..24 | alternate local port LID, alternate remote port LID |
//! | 24..40, 40..56 | alternate local port GID, alternate remote port GID |
//! | 56..60 | flow label (20 bits), reserved (4), traffic class (8) |
//! | 60, 61 | hop limit; reserved (2 bits), packet rate (6) |
//! | 62, 63 | service level (4 bits), subnet local (1); local ACK timeout (5 bits) |
//! | 64..232 | private data |
//!
//! APR:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4, 4..8 | local communication id, remote communication id |
//! | 8, 9 | length of the additional information, status |
//! | 10..12 | reserved |
//! | 12..84 | additional information |
//! | 84..232 | private data |

use crate::bytes::{Reader, Writer};
use crate::mad::{PrivateData, ReqPath};
use crate::{CommId, Gid, Malformed, Qpn};

/// LoadAlternatePath (table 115).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lap {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Remote CM response timeout code, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// The alternate path.
    pub alternate: ReqPath,
    /// Private data.
    pub private_data: PrivateData<168>,
}

/// AlternatePathResponse (table 116).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apr {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Length of the additional information.
    pub info_len: u8,
    /// One of [`apr_status`].
    pub status: u8,
    /// Additional information.
    pub info: [u8; 72],
    /// Private data.
    pub private_data: PrivateData<148>,
}

/// Status of an [`Apr`] (IBA 1.4 table 117).
pub mod apr_status {
    /// The path is loaded.
    pub const LOADED: u8 = 0;
    /// The communication id is unknown.
    pub const INVALID_COMM_ID: u8 = 1;
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: u8 = 2;
    /// The consumer said no.
    pub const REJECTED: u8 = 3;
}

impl Lap {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let local_comm_id = CommId(from.u32()?);
        let remote_comm_id = CommId(from.u32()?);
        from.skip::<4>()?;
        let (remote_qpn, timeout) = from.u24_u8()?;
        from.skip::<4>()?;
        let (local_lid, remote_lid) = (from.u16()?, from.u16()?);
        let (local_gid, remote_gid) = (Gid(from.array()?), Gid(from.array()?));
        let word = from.u32()?;
        let [hop_limit, rate, level, ack_timeout] = from.array()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            remote_qpn: Qpn::new(remote_qpn),
            remote_cm_response_timeout: timeout >> 3,
            alternate: ReqPath {
                local_lid,
                remote_lid,
                local_gid,
                remote_gid,
                flow_label: word >> 12,
                packet_rate: rate & 0x3f,
                traffic_class: word as u8,
                hop_limit,
                service_level: level >> 4,
                subnet_local: level & 8 != 0,
                local_ack_timeout: ack_timeout >> 3,
            },
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        let path = &self.alternate;
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.skip::<4>();
        out.u24_u8(self.remote_qpn.get(), self.remote_cm_response_timeout << 3);
        out.skip::<4>();
        out.u16(path.local_lid);
        out.u16(path.remote_lid);
        out.array(path.local_gid.0);
        out.array(path.remote_gid.0);
        out.u32(path.flow_label << 12 | u32::from(path.traffic_class));
        out.u8(path.hop_limit);
        out.u8(path.packet_rate & 0x3f);
        out.u8(path.service_level << 4 | u8::from(path.subnet_local) << 3);
        out.u8(path.local_ack_timeout << 3);
        out.array(self.private_data);
    }
}

impl Apr {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let local_comm_id = CommId(from.u32()?);
        let remote_comm_id = CommId(from.u32()?);
        let [info_len, status] = from.array()?;
        from.skip::<2>()?;
        let (info, private_data) = (from.array()?, from.array()?);
        Ok(Self { local_comm_id, remote_comm_id, info_len, status, info, private_data })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.array([self.info_len, self.status]);
        out.skip::<2>();
        out.array(self.info);
        out.array(self.private_data);
    }
}
