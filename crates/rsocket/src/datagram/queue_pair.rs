//! A datagram socket's queue pair on one device, with a place for each datagram that comes or goes.

use std::sync::Arc;

use nic::device::CqSlot;
use nic::device::async_events::AsyncEventQueue;
use nic::rdma_cm::UDP_QKEY;
use nic::{Access, Ah, Arm, Channel, Cq, Datagram, Device, Error, Pd, Qp, QpCap, QpInit, QpState, QpType};
use stack::{Env, Id, Node};
use transport::op::{Completion, Data, RecvWr, SendOp, SendWr, SgeList, Status};
use wire::Qpn;
use wire::grh::GRH_LEN;
use wire::roce::SendTail;

use crate::queue_pair::{FEW, Memory, Owner, RECEIVE, Unheard};
use crate::settings::{DATAGRAM, Settings};

const SLOT: usize = DATAGRAM as usize;
/// Bytes of a place for a datagram that comes: the GRH stands before it.
const RECEIVE_SLOT: usize = GRH_LEN + SLOT;

/// A datagram that has come: its place, and how long it is with its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub(super) slot: u32,
    pub(super) len: usize,
}

/// A queue pair for datagrams, and their memory.
pub(super) struct QueuePair {
    owner: Arc<dyn Owner>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    pd: Arc<Pd>,
    _slot: CqSlot,
    outgoing: Box<dyn Memory>,
    incoming: Box<dyn Memory>,
    /// Places for datagrams that go.
    free: Vec<u32>,
    places: usize,
}

impl QueuePair {
    /// A queue pair that sends and receives, of an identifier that leads over its device.
    ///
    /// # Errors
    ///
    /// `Limit` where the device or the system has no more of something.
    pub(super) fn new<W: Env>(
        owner: &Arc<dyn Owner>,
        node: &Node<W>,
        id: &Arc<Id>,
        device: &Arc<Device>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let (sends, receives) = settings.datagrams();
        let pd = Arc::new(device.alloc_pd()?);
        let slot = device.take_cq()?;
        let channel = Channel::new(owner.signal());
        let events = AsyncEventQueue::new(Box::new(Unheard));
        let cq = Cq::new(sends + receives, Some(channel.clone()), events.clone())?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { kind: QpType::Ud, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, events };
        let outgoing = owner.memory(&pd, sends as usize * SLOT, Access::LOCAL_WRITE)?;
        let incoming = owner.memory(&pd, receives as usize * RECEIVE_SLOT, Access::LOCAL_WRITE)?;
        let qp = Qp::create(device, &pd, init)?;
        let (free, places) = ((0..sends).collect(), sends as usize);
        let mut made =
            Self { owner: owner.clone(), qp, cq, channel, pd, _slot: slot, outgoing, incoming, free, places };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, bits) = node.init_qp_attr(id, state).map_err(|_| Error::Invalid("no attributes"))?;
            made.qp.modify(made.owner.now(), &attr, bits)?;
        }
        for slot in 0..receives {
            made.post_receive(slot);
        }
        made.cq.arm(Arm::Next);
        Ok(made)
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.qp.device()
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Whether another datagram may be sent.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all datagrams have left.
    pub(super) fn is_flushed(&self) -> bool {
        self.free.len() == self.places
    }

    /// Sends the pieces as one datagram, at most [`DATAGRAM`] bytes; false where there is no room.
    /// A datagram that the queue pair does not take is lost, like one that the network loses.
    pub(super) fn send(&mut self, ah: &Ah, qpn: Qpn, pieces: &[&[u8]]) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        let first = slot as usize * SLOT;
        let mut at = first;
        for piece in pieces {
            self.outgoing.write(at, piece);
            at += piece.len();
        }
        let sge = transport::Sge {
            addr: self.outgoing.addr() + first as u64,
            length: (at - first) as u32,
            lkey: self.outgoing.key(),
        };
        let (op, data) = (SendOp::Send(SendTail::None), Data::Sges(SgeList::one(sge)));
        let wr = SendWr { wr_id: slot.into(), op, data, signaled: true, solicited: false, fence: false };
        let to = Datagram { ah: ah.clone(), qpn, qkey: UDP_QKEY };
        if self.qp.post_datagram(self.owner.now(), wr, &to).is_err() {
            self.free.push(slot);
        }
        true
    }

    /// Gives the place of a datagram back to those that come.
    pub(super) fn post_receive(&mut self, slot: u32) {
        let sges = SgeList::one(transport::Sge {
            addr: self.incoming.addr() + slot as u64 * RECEIVE_SLOT as u64,
            length: RECEIVE_SLOT as u32,
            lkey: self.incoming.key(),
        });
        // It fails only where the queue pair has failed, and takes nothing any more.
        _ = self.qp.post_receive(RecvWr { wr_id: RECEIVE | u64::from(slot), sges });
    }

    /// Copies from a datagram that has come, from byte `at` on.
    pub(super) fn read(&self, slot: u32, at: usize, bytes: &mut [u8]) {
        self.incoming.read(slot as usize * RECEIVE_SLOT + GRH_LEN + at, bytes);
    }

    /// Tells of all datagrams that have come, and of sends that are over.
    pub(super) fn drive(&mut self, come: &mut Vec<Filled>) {
        loop {
            while self.channel.pop().is_some() {}
            self.take(come);
            self.cq.rearm(Arm::Next);
            // What came before it was armed has raised no event.
            if self.cq.is_empty() {
                return;
            }
        }
    }

    /// Likewise, without asking for an event of the next: that was done.
    pub(super) fn take(&mut self, come: &mut Vec<Filled>) {
        let mut few = Vec::with_capacity(FEW);
        loop {
            few.clear();
            if self.cq.poll(FEW, |completion| few.push(completion)).is_err() || few.is_empty() {
                return;
            }
            few.iter().for_each(|completion| self.completed(completion, come));
        }
    }

    fn completed(&mut self, completion: &Completion, come: &mut Vec<Filled>) {
        let slot = (completion.wr_id & !RECEIVE) as u32;
        if completion.wr_id & RECEIVE == 0 {
            self.free.push(slot);
        } else if completion.status == Status::Success {
            // No datagram is longer than its place.
            let len = (completion.byte_len as usize).saturating_sub(GRH_LEN).min(SLOT);
            come.push(Filled { slot, len });
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.qp.destroy();
        self.channel.forget(&self.cq);
    }
}
