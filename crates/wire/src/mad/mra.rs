//! MsgRcptAck (IBA 1.4 table 107): "received, the answer will take this long".
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | local communication id |
//! | 4..8 | remote communication id |
//! | 8 | message acknowledged (2 bits), reserved |
//! | 9 | service timeout (5 bits), reserved |
//! | 10..232 | private data |

use crate::bytes::{Reader, Writer};
use crate::mad::PrivateData;
use crate::{CommId, Malformed};

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

impl Mra {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            local_comm_id: CommId(from.u32()?),
            remote_comm_id: CommId(from.u32()?),
            message: from.u8()? >> 6,
            service_timeout: from.u8()? >> 3,
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.u8(self.message << 6);
        out.u8(self.service_timeout << 3);
        out.array(self.private_data);
    }
}
