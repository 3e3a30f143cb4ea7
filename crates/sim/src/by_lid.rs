//! Packets of an InfiniBand subnet, as they leave a process.

use nic::Path;
use transport::TxBatch;
use wire::{LidAddress, Qpn};

use crate::env::{Action, SimEnv};

/// A packet of an InfiniBand subnet.
#[derive(Clone, Debug)]
pub(crate) struct ByLid {
    pub source: LidAddress,
    pub dest: LidAddress,
    pub dest_qpn: Qpn,
    /// With GRH, where `dest` says so, and room for an ICRC.
    pub bytes: Vec<u8>,
}

impl SimEnv {
    /// Sends a batch from a LID to another.
    pub(crate) fn send_by_lid(&self, source: LidAddress, path: &Path, batch: &TxBatch) {
        let Some(dest) = path.dest.lid() else { return };
        for packet in batch.iter() {
            if self.step(|_, _| ()).is_some() {
                let (dest_qpn, bytes) = (path.dest_qpn, packet.to_vec());
                self.act(Action::SendByLid(ByLid { source, dest, dest_qpn, bytes }));
            }
        }
    }
}
