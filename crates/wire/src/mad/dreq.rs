//! DisconnectRequest (IBA 1.4 table 112): ends a connection.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | local communication id |
//! | 4..8 | remote communication id |
//! | 8..11, 11 | remote QPN, reserved |
//! | 12..232 | private data |

use crate::bytes::{Reader, Writer};
use crate::mad::PrivateData;
use crate::{CommId, Malformed, Qpn};

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

impl Dreq {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            local_comm_id: CommId(from.u32()?),
            remote_comm_id: CommId(from.u32()?),
            remote_qpn: from.u24_u8().map(|(qpn, _)| Qpn::new(qpn))?,
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.u24_u8(self.remote_qpn.get(), 0);
        out.array(self.private_data);
    }
}
