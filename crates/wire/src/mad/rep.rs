//! ConnectReply (IBA 1.4 table 110): accepts a REQ.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | local communication id |
//! | 4..8 | remote communication id |
//! | 8..12 | local Q_Key |
//! | 12..15, 15 | local QPN, vendor id of the ECE options (upper 8 bits) |
//! | 16..19, 19 | local EECN, vendor id (middle 8 bits) |
//! | 20..23, 23 | starting PSN, vendor id (lower 8 bits) |
//! | 24 | responder resources |
//! | 25 | initiator depth |
//! | 26 | target ACK delay (5 bits), failover accepted (2), end-to-end flow control (1) |
//! | 27 | RNR retry count (3 bits), SRQ (1), reserved (4) |
//! | 28..36 | local CA GUID |
//! | 36..232 | private data |
//!
//! The ECE options are the attribute modifier.

use crate::bytes::{Reader, Writer};
use crate::mad::{Ece, PrivateData};
use crate::{CommId, Guid, Malformed, Psn, Qkey, Qpn};

/// ConnectReply (table 110).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// What of the offer the sender's queue pair takes.
    pub ece: Ece,
    /// The sender's Q_Key.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The sender's end-to-end context, 24 bits.
    pub local_eecn: u32,
    /// First PSN the receiver of this message sends; its sender expects it (IBA 1.4 §12.7.31).
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

impl Rep {
    pub(super) fn read(from: &mut Reader<'_>, options: u32) -> Result<Self, Malformed> {
        let local_comm_id = CommId(from.u32()?);
        let remote_comm_id = CommId(from.u32()?);
        let local_qkey = Qkey(from.u32()?);
        let (local_qpn, high) = from.u24_u8()?;
        let (local_eecn, middle) = from.u24_u8()?;
        let (starting_psn, low) = from.u24_u8()?;
        let [responder_resources, initiator_depth, delay_bits, retry_bits] = from.array()?;
        Ok(Self {
            local_comm_id,
            remote_comm_id,
            ece: Ece { vendor_id: u32::from_be_bytes([0, high, middle, low]), options },
            local_qkey,
            local_qpn: Qpn::new(local_qpn),
            local_eecn,
            starting_psn: Psn::new(starting_psn),
            responder_resources,
            initiator_depth,
            target_ack_delay: delay_bits >> 3,
            failover: delay_bits >> 1 & 3,
            flow_control: delay_bits & 1 != 0,
            rnr_retry_count: retry_bits >> 5,
            srq: retry_bits & 0x10 != 0,
            local_ca_guid: Guid(from.u64()?),
            private_data: from.array()?,
        })
    }

    pub(super) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.local_comm_id.0);
        out.u32(self.remote_comm_id.0);
        out.u32(self.local_qkey.0);
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        out.u24_u8(self.local_qpn.get(), high);
        out.u24_u8(self.local_eecn, middle);
        out.u24_u8(self.starting_psn.get(), low);
        out.u8(self.responder_resources);
        out.u8(self.initiator_depth);
        out.u8(self.target_ack_delay << 3 | (self.failover & 3) << 1 | u8::from(self.flow_control));
        out.u8(self.rnr_retry_count << 5 | u8::from(self.srq) << 4);
        out.u64(self.local_ca_guid.0);
        out.array(self.private_data);
    }
}
