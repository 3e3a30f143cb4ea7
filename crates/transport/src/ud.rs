//! The unreliable datagram service over RoCEv2 (IBA 1.4 §9.8.3): one queue pair. It sends messages
//! of one packet to the destination each request names, and takes those of any sender that knows
//! its Q_Key.
//!
//! A message lies in its receive buffer after 40 bytes that say where it came from ([`wire::grh`]);
//! over InfiniBand they may be left alone.
//! Addresses are the adapter's: here they are a mark `A` that comes back with the packets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use wire::bth::{Bth, Deth};
use wire::grh::{GRH_LEN, Grh};
use wire::roce::{Header, Op, Packet, SendAt, SendTail, Service};
use wire::{LidAddress, Pkey, Psn, Qkey, Qpn};

use crate::batch::{TxBatch, packet_len};
use crate::execute::{Datagram, Ends, Inbound, Refusal};
use crate::op::{Context, NetworkHeader, QpEvent, SendOp, SendWr, Side, Status};
use crate::pacing::{Failing, Pacer, Takes, sent};
pub use crate::pacing::{Pace, UnreliableState};

/// With this bit a work request asks for the queue pair's own Q_Key in place of its own (IBA 1.4
/// §9.8.3).
const CONTROLLED_QKEY: u32 = 1 << 31;

/// Where a datagram goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination<A> {
    /// Where it goes.
    pub address: A,
    /// The GRH that an InfiniBand packet there begins with, where it has one.
    pub grh: Option<Arc<Grh>>,
    /// The queue pair there, [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key it expects; with the top bit set the sender's own is sent.
    pub qkey: Qkey,
}

/// The outcome of a datagram that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The datagram completed a receive.
    Yes,
    /// Dropped: another service's packet, or the state takes none.
    NotForUs,
    /// Dropped: its Q_Key is not ours (IBA 1.4 §9.8.3).
    QkeyViolation,
    /// Dropped: no receive was posted, or the next one is too short.
    NoRoom,
}

/// One UD queue pair; `A` is an address.
#[derive(Debug)]
pub struct Ud<A> {
    state: UnreliableState,
    qpn: Qpn,
    pkey: Pkey,
    qkey: Qkey,
    /// Longest message, the port's MTU.
    mtu: usize,
    psn: Psn,
    queue: VecDeque<(SendWr, Destination<A>)>,
    pacer: Pacer,
    failing: Failing,
    /// What comes, and a receive that was taken for a datagram too long for it.
    inbound: Inbound,
}

impl<A: Copy + PartialEq> Ud<A> {
    /// A queue pair in state Init that sends at the port's pace.
    pub fn new(qpn: Qpn, pkey: Pkey, pace: Arc<Pace>) -> Self {
        Self {
            state: UnreliableState::Init,
            qpn,
            pkey,
            qkey: Qkey::default(),
            mtu: 0,
            psn: Psn::default(),
            queue: VecDeque::new(),
            pacer: Pacer::new(pace),
            failing: Failing::default(),
            inbound: Inbound::default(),
        }
    }
    /// Current state.
    pub fn state(&self) -> UnreliableState {
        self.state
    }
    /// Sets the P_Key that datagrams bear from now on.
    pub fn set_pkey(&mut self, pkey: Pkey) {
        self.pkey = pkey;
    }
    /// Sets the Q_Key that datagrams must bear.
    pub fn set_qkey(&mut self, qkey: Qkey) {
        self.qkey = qkey;
    }
    /// Init to RTR; messages sent will have at most `mtu` bytes, 256 to 4096.
    pub fn ready_to_receive(&mut self, mtu: usize) {
        self.mtu = mtu;
        self.state = UnreliableState::Rtr;
    }
    /// RTR to RTS; `sq_psn` is the first PSN sent.
    pub fn ready_to_send(&mut self, sq_psn: Psn) {
        self.psn = sq_psn;
        self.state = UnreliableState::Rts;
    }
    /// RTS to SQD: nothing is sent any more, nor waited for. Nothing in other states.
    pub fn drain(&mut self) {
        self.state.drain();
        if self.state == UnreliableState::Sqd {
            self.pacer.rest();
        }
    }
    /// SQD or SQE back to RTS. Follow with [`Ud::fill`]. Nothing in other states.
    pub fn resume(&mut self) {
        self.state.resume();
    }
    /// The PSN the next datagram will bear.
    pub fn sq_psn(&self) -> Psn {
        self.psn
    }
    /// To the error state: everything outstanding on the send queue completes with `WrFlush`, in
    /// order. Posted receives are the adapter's to flush.
    pub fn fail(&mut self, cx: &mut impl Context) {
        self.state = UnreliableState::Error;
        self.flush(cx);
        self.inbound.flush_receive(Ends { local: self.qpn, ..Ends::default() }, cx);
    }
    /// Send work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.queue.len()
    }
    /// Queues a SEND; the adapter has checked queue depth and state. In the states SQE and Error it
    /// is flushed at once. Follow with [`Ud::fill`].
    pub fn post(&mut self, wr: SendWr, to: Destination<A>, cx: &mut impl Context) {
        self.queue.push_back((wr, to));
        if self.state.flushes() {
            self.flush(cx);
        }
    }

    /// The request that was posted last fails with a status when its turn comes, and the state is
    /// then SQE. Nothing where none is outstanding.
    pub fn fail_last(&mut self, status: Status) {
        self.failing.set_last(self.queue.len(), status);
    }

    /// A datagram for this queue pair, whose ICRC is checked already, and the header that goes
    /// before it. `from` says what an InfiniBand packet's LRH says ([`NetworkHeader::Lrh`]); there
    /// the header may be missing.
    pub fn receive(
        &mut self,
        from: Option<LidAddress>,
        grh: Option<&Grh>,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Taken {
        let (Service::Ud(deth), Op::Send(SendAt::Only(tail))) = (packet.header.service, packet.header.op)
        else {
            return Taken::NotForUs;
        };
        if !self.state.receives() {
            return Taken::NotForUs;
        }
        if deth.qkey != self.qkey {
            return Taken::QkeyViolation;
        }
        let bytes = grh.map(Grh::emit);
        let datagram = Datagram {
            at: GRH_LEN,
            head: bytes.as_ref().map_or(&[], |bytes| bytes),
            header: match (from, grh) {
                (Some(from), _) => NetworkHeader::Lrh(from),
                (None, None) => NetworkHeader::None,
                (None, Some(Grh::V4 { .. })) => NetworkHeader::V4,
                (None, Some(Grh::V6 { .. } | Grh::Ib { .. })) => NetworkHeader::V6,
            },
            bytes: packet.payload,
            tail,
            solicited: packet.header.bth.solicited,
        };
        let ends = Ends { local: self.qpn, peer: deth.source_qp };
        match self.inbound.datagram(ends, datagram, cx) {
            Ok(()) => Taken::Yes,
            Err(refusal @ Refusal::Local(_)) => {
                self.inbound.fail(refusal, ends, cx);
                cx.event(QpEvent::Fatal);
                self.fail(cx);
                Taken::NoRoom
            }
            // Dropped, and the receive is still good (IBA 1.4 §9.9.3, class D).
            Err(
                Refusal::NoReceive
                | Refusal::TooLong
                | Refusal::Remote(_)
                | Refusal::Illegal
                | Refusal::Away
                | Refusal::Absent,
            ) => Taken::NoRoom,
        }
    }

    /// The adapter ends the next receive with a status, and the state is the error state. Nothing
    /// where no receive is posted.
    pub fn fail_receive(&mut self, status: Status, cx: &mut impl Context) {
        if self.state.receives()
            && self.inbound.fail_receive(status, Ends { local: self.qpn, ..Ends::default() }, cx)
        {
            cx.event(QpEvent::Fatal);
            self.fail(cx);
        }
    }

    /// Writes as many packets to one address as there are to send, as the pace allows and as fit,
    /// and returns the address; call again with an emptied batch until there is none.
    pub fn fill(&mut self, now: Instant, batch: &mut TxBatch, cx: &mut impl Context) -> Option<A> {
        if self.state != UnreliableState::Rts {
            return None;
        }
        let mut address = None;
        while let Some((wr, to)) = self.queue.front() {
            if address.is_some_and(|address| address != to.address) {
                return address;
            }
            let len = match self.failing.oldest().map_or_else(|| legal_len(wr), Err) {
                Ok(len) => len,
                Err(status) => {
                    self.fail_oldest(status, cx);
                    return address;
                }
            };
            if len > self.mtu as u64 {
                // Nothing is sent, and that is no error (IBA 1.4 C10-93.1.1).
                self.retire(cx);
                continue;
            }
            let header = self.header(wr, to);
            let grh_len = if to.grh.is_some() { GRH_LEN } else { 0 };
            let packet_len = grh_len + packet_len(&header, len as usize);
            if !batch.has_room(packet_len) || !self.pacer.may_send(now, packet_len, Takes::Receive) {
                return address;
            }
            let memory = &cx.memory();
            let fill = |dst: &mut [u8]| wr.data.copy_out(0, dst, memory);
            let copied = match &to.grh {
                None => batch.push_with_remainder(&header, len as usize, fill),
                Some(grh) => batch.push_global(grh, &header, len as usize, fill),
            };
            if copied.is_err() {
                self.fail_oldest(Status::LocalProtection, cx);
                return address;
            }
            address = Some(to.address);
            self.psn = self.psn.add(1);
            self.retire(cx);
        }
        self.pacer.rest();
        address
    }

    /// When [`Ud::fill`] wants to be called again, because the pace held something back.
    pub fn deadline(&self) -> Option<Instant> {
        self.pacer.deadline()
    }

    fn header(&self, wr: &SendWr, to: &Destination<A>) -> Header {
        let qkey = if to.qkey.0 & CONTROLLED_QKEY != 0 { self.qkey } else { to.qkey };
        let tail = if let SendOp::Send(tail) = wr.op { tail } else { SendTail::None };
        let bth = Bth {
            solicited: wr.solicited,
            pkey: self.pkey,
            dest_qp: to.qpn,
            psn: self.psn,
            ..Bth::default()
        };
        let service = Service::Ud(Deth { qkey, source_qp: self.qpn });
        Header { bth, service, op: Op::Send(SendAt::Only(tail)) }
    }

    /// The oldest request has left.
    fn retire(&mut self, cx: &mut impl Context) {
        self.failing.advance();
        if let Some((wr, _)) = self.queue.pop_front()
            && wr.signaled
        {
            cx.complete(Side::Send, sent(&wr, Status::Success, self.qpn));
        }
    }

    fn fail_oldest(&mut self, status: Status, cx: &mut impl Context) {
        self.state = UnreliableState::Sqe;
        if let Some((wr, _)) = self.queue.pop_front() {
            cx.complete(Side::Send, sent(&wr, status, self.qpn));
        }
        self.flush(cx);
    }

    fn flush(&mut self, cx: &mut impl Context) {
        self.failing = Failing::default();
        self.pacer.rest();
        while let Some((wr, _)) = self.queue.pop_front() {
            cx.complete(Side::Send, sent(&wr, Status::WrFlush, self.qpn));
        }
    }
}

/// Bytes of the message; the status of a request that this service does not carry.
fn legal_len(wr: &SendWr) -> Result<u64, Status> {
    match wr.op {
        SendOp::Send(SendTail::None | SendTail::Immediate(_)) => Ok(wr.data.len_bytes()),
        // IBA 1.4 table 38.
        SendOp::Send(SendTail::Invalidate(_))
        | SendOp::Write { .. }
        | SendOp::Read { .. }
        | SendOp::Atomic { .. }
        | SendOp::Flush { .. }
        | SendOp::Local(_) => Err(Status::LocalQpOperation),
    }
}
