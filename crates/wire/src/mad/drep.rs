//! DisconnectReply (IBA 1.4 table 113): confirms a DREQ.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | local communication id |
//! | 4..8 | remote communication id |
//! | 8..232 | private data |

use crate::bytes::{Reader, Writer};
use crate::mad::PrivateData;
use crate::{CommId, Malformed};

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

impl Drep {
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            local_comm_id: CommId(from.u32()?),
            remote_comm_id: CommId(from.u32()?),
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.array(self.private_data);
    }
}
