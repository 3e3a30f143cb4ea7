//! Raw packet queue pairs (`IBV_QPT_RAW_PACKET`): a SEND is one whole Ethernet frame, without its
//! checksum, and so is what a receive gets. What comes in finds its queue pair by the rules of
//! [`crate::steering::flow`]; one that is made over an indirection table spreads its frames over
//! work queues ([`crate::steering::rss`]).

mod frames;
mod steer;

use std::collections::VecDeque;

use transport::execute::{Datagram, Ends, Inbound, Refusal};
use transport::op::{Context, Memory, NetworkHeader, QpEvent, SendWr, Side, Status};
use transport::pacing::{Failing, UnreliableState, sent};
use transport::ud::Taken;
use wire::Qpn;
use wire::roce::SendTail;

use crate::errno::Errno;
use crate::qp::scratch::with_frame;

/// Longest frame: the longest IP packet after an Ethernet header with a VLAN tag.
pub const MAX_FRAME: usize = 65_535 + 18;

/// One raw packet queue pair. Nothing is acknowledged, so a request is complete when its frame has
/// left.
#[derive(Debug)]
pub(crate) struct Raw {
    state: UnreliableState,
    qpn: Qpn,
    queue: VecDeque<SendWr>,
    failing: Failing,
    /// What comes, and a receive that was taken for a frame too long for it.
    inbound: Inbound,
}

impl Raw {
    /// In state Init.
    pub(crate) fn new(qpn: Qpn) -> Self {
        let (queue, failing) = (VecDeque::new(), Failing::default());
        Self { state: UnreliableState::Init, qpn, queue, failing, inbound: Inbound::default() }
    }
    pub(crate) fn state(&self) -> UnreliableState {
        self.state
    }
    /// Init to RTR.
    pub(crate) fn ready_to_receive(&mut self) {
        self.state = UnreliableState::Rtr;
    }
    /// RTR to RTS.
    pub(crate) fn ready_to_send(&mut self) {
        self.state = UnreliableState::Rts;
    }
    /// RTS to SQD: nothing is sent any more.
    pub(crate) fn drain(&mut self) {
        self.state.drain();
    }
    /// SQD or SQE back to RTS.
    pub(crate) fn resume(&mut self) {
        self.state.resume();
    }
    /// Send work requests posted and not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.queue.len()
    }
    /// Queues a frame; flushed at once in the states SQE and Error.
    pub(crate) fn post(&mut self, wr: SendWr, cx: &mut impl Context) {
        self.queue.push_back(wr);
        if self.state.flushes() {
            self.flush(cx);
        }
    }
    /// The request that was posted last fails with a status when its turn comes, and the state is
    /// then SQE. Nothing where none is outstanding.
    pub(crate) fn fail_last(&mut self, status: Status) {
        self.failing.set_last(self.queue.len(), status);
    }
    /// To the error state: what is outstanding completes with `WrFlush`.
    pub(crate) fn fail(&mut self, cx: &mut impl Context) {
        self.state = UnreliableState::Error;
        self.flush(cx);
        self.inbound.flush_receive(self.ends(), cx);
    }

    fn flush(&mut self, cx: &mut impl Context) {
        self.failing = Failing::default();
        while let Some(wr) = self.queue.pop_front() {
            cx.complete(Side::Send, sent(&wr, Status::WrFlush, self.qpn));
        }
    }

    /// Sends what is queued, each frame by `send`.
    pub(crate) fn send_all(
        &mut self,
        cx: &mut impl Context,
        mut send: impl FnMut(&[u8]) -> Result<(), Errno>,
    ) {
        with_frame(|frame| {
            while self.state == UnreliableState::Rts {
                let Some(wr) = self.queue.pop_front() else { break };
                let fault = self.failing.oldest();
                self.failing.advance();
                let gathered = fault.map_or_else(|| gather(&wr, frame, &cx.memory()), Err);
                match gathered.and_then(|()| status_of(send(frame))) {
                    Ok(()) if !wr.signaled => {}
                    Ok(()) => cx.complete(Side::Send, sent(&wr, Status::Success, self.qpn)),
                    Err(status) => {
                        self.state = UnreliableState::Sqe;
                        cx.complete(Side::Send, sent(&wr, status, self.qpn));
                        self.flush(cx);
                    }
                }
            }
        });
    }

    /// A frame that a rule steers here.
    pub(crate) fn receive(&mut self, frame: &[u8], cx: &mut impl Context) -> Taken {
        if !self.state.receives() {
            return Taken::NotForUs;
        }
        match self.inbound.datagram(self.ends(), whole_frame(frame), cx) {
            Ok(()) => Taken::Yes,
            Err(refusal @ Refusal::Local(_)) => {
                self.inbound.fail(refusal, self.ends(), cx);
                cx.event(QpEvent::Fatal);
                self.fail(cx);
                Taken::NoRoom
            }
            // Dropped, and the receive is still good, as for datagrams (IBA 1.4 §9.9.3, class D).
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

    /// What completions of receives name: a frame's sender has no queue pair.
    fn ends(&self) -> Ends {
        Ends { local: self.qpn, ..Ends::default() }
    }
}

/// A frame as a receive takes it: as it is, and nothing is said about it but its length.
pub(crate) fn whole_frame(frame: &[u8]) -> Datagram<'_> {
    Datagram {
        at: 0,
        head: &[],
        header: NetworkHeader::None,
        bytes: frame,
        tail: SendTail::None,
        solicited: false,
    }
}

/// Puts the bytes of a request together.
fn gather(wr: &SendWr, frame: &mut Vec<u8>, memory: &impl Memory) -> Result<(), Status> {
    let len = usize::try_from(wr.data.len_bytes()).ok().filter(|&len| len <= MAX_FRAME);
    frame.resize(len.ok_or(Status::LocalLength)?, 0);
    wr.data.copy_out(0, frame, memory).map(drop).map_err(|_| Status::LocalProtection)
}

/// What the system's answer means for the request. A frame that there was no room for is lost, as
/// on any wire.
fn status_of(sent: Result<(), Errno>) -> Result<(), Status> {
    match sent {
        // Longer than the link takes, or shorter than an Ethernet header.
        Err(Errno::EMSGSIZE | Errno::EINVAL) => Err(Status::LocalLength),
        Err(Errno::EPERM | Errno::EACCES | Errno::ENODEV) => Err(Status::LocalQpOperation),
        Ok(()) | Err(_) => Ok(()),
    }
}
