//! Opening the way to another process of this host before the first message.
//!
//! All processes of a host share one UDP port, and the kernel chooses by a hash which process gets
//! a flow. Where it chose wrong, packets are handed on until the flow's owner has a socket of its
//! own for it, and around that moment they overtake each other. A reliable connection asks again;
//! an unreliable one loses the message. So a few packets that mean nothing go ahead.

use transport::TxBatch;
use wire::bth::Bth;
use wire::roce::{Header, Op, Service};
use wire::{Pkey, Qpn};

use crate::link::Path;
use crate::qp::Qp;
use crate::qp::scratch::with_batch;

/// More than make a flow's owner open a socket for it.
const KNOCKS: usize = 8;
/// Reserved bytes of a congestion notification packet (annex A17 §A17.9.3).
const CNP_LEN: usize = 16;

impl Qp {
    /// Sends congestion notification packets to a peer at one of our own addresses. None is ever an
    /// adapter, which would slow down for them; Verbena takes no notice.
    pub(crate) fn prime_flow(&self, path: &Path) {
        let device = &self.pd().device;
        if !device.port().gids.bears(path.dest) {
            return;
        }
        with_batch(|batch| {
            batch.clear();
            for _ in 0..KNOCKS {
                push(batch, path.dest_qpn);
            }
            device.link.send(path, batch);
        });
    }
}

fn push(batch: &mut TxBatch, dest_qp: Qpn) {
    let bth = Bth { pkey: Pkey::default(), dest_qp, ..Bth::default() };
    let header = Header { bth, service: Service::Rc, op: Op::CongestionNotification };
    let zeroes = |reserved: &mut [u8]| {
        reserved.fill(0);
        Ok(())
    };
    // The filling can not fail, and eight small packets fit an empty batch.
    let _ = batch.push(&header, CNP_LEN, zeroes);
}
