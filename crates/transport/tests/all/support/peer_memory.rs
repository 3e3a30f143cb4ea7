//! The local path of a test's context: what is executed in the peer's memory, and fragments.

use transport::op::{
    DirectOutcome, Fault, FragmentBytes, FragmentOutcome, LocalPath, Memory, Part, RecvWr, SendOp, SendWr,
    Source,
};
use transport::rc::{RtrAttr, RtsAttr};
use wire::bth::Reth;
use wire::roce::{Header, Op, WriteAt};
use wire::{Mtu, Psn};

use super::{End, PSN, TestContext, ack, rtr, sge, write};

/// A way to the peer's memory, as a test has it.
#[derive(Debug, Default)]
pub(crate) struct TestPeerMemory {
    pub refuses: bool,
    /// The peer has work to do with a FLUSH.
    pub flushes_take_time: bool,
    /// Marks of the requests that were executed so.
    pub done: Vec<u64>,
    /// How often one could not.
    pub refused: u32,
}

impl TestPeerMemory {
    pub(crate) fn execute(&mut self, wr: &SendWr) -> DirectOutcome {
        if self.refuses {
            self.refused += 1;
            return DirectOutcome::Refused;
        }
        if self.flushes_take_time && matches!(wr.op, SendOp::Flush { .. }) {
            return DirectOutcome::Unavailable;
        }
        self.done.push(wr.wr_id);
        DirectOutcome::Done
    }
}

impl End {
    /// An end in RTS, after a request that the peer has acknowledged. If it is to have heard, also
    /// after a request of the peer's. Neither is the first of the connection any more.
    pub(crate) fn proven(mtu: Mtu, len: usize, rts: RtsAttr, hears: bool) -> Self {
        let before = Psn::new(PSN - 1);
        let rq_psn = if hears { before } else { Psn::new(PSN) };
        let mut end = Self::with(RtrAttr { rq_psn, ..rtr(mtu) }, len);
        end.rc.ready_to_send(RtsAttr { sq_psn: before, ..rts });
        let nothing = sge(1, 0, 0);
        end.post(SendWr { signaled: false, ..write(0, sge(0, 0, 0), nothing, None) });
        assert_eq!(end.sent().len(), 1);
        end.hear(-1, ack(1), &[]);
        if hears {
            let to = Reth { addr: nothing.addr, rkey: nothing.lkey, length: 0 };
            end.hear(-1, Op::Write(WriteAt::Only(to, None)), &[]);
            assert_eq!(end.sent().len(), 1);
            assert!(end.rc.take_begun() && !end.rc.take_begun());
        }
        end
    }
}

/// The local path to the peer, as the fields of its context say.
#[derive(Debug)]
pub(crate) struct TestLocalPath<'a> {
    pub cx: &'a mut TestContext,
}

impl LocalPath for TestLocalPath<'_> {
    fn reaches(&self) -> bool {
        self.cx.reaches
    }
    fn hear(&mut self) {
        self.cx.heard = true;
    }
    fn is_stream(&self, _: &SendWr) -> bool {
        self.cx.stream
    }
    fn copy(&mut self, wr: &SendWr) -> DirectOutcome {
        self.cx.reach.as_mut().map_or(DirectOutcome::Unavailable, |reach| reach.execute(wr))
    }
    fn max_fragment(&self) -> usize {
        self.cx.max_fragment
    }
    fn send_fragment(
        &mut self,
        header: &Header,
        part: Part<'_>,
        bytes: FragmentBytes,
    ) -> Result<FragmentOutcome, Fault> {
        match bytes {
            FragmentBytes::Inline => self.cx.inline(header, part),
            FragmentBytes::Exported => Ok(self.cx.away(header, part, None)),
            FragmentBytes::Placed(to) => Ok(self.cx.away(header, part, Some(to))),
            FragmentBytes::Requested => Ok(self.cx.ask(header, part)),
        }
    }
    fn advertise(&mut self, header: &Header, receive: &RecvWr) -> bool {
        self.cx.advertises && self.cx.show(header, receive)
    }
    fn revoke(&mut self) {
        self.cx.is_revoked = true;
    }
    fn has_unread(&self) -> bool {
        self.cx.has_unread
    }
}

impl TestContext {
    /// Sends a fragment whose bytes come with it.
    fn inline(&self, header: &Header, part: Part<'_>) -> Result<FragmentOutcome, Fault> {
        let outcome = self.outcome.unwrap_or(FragmentOutcome::Sent);
        if outcome == FragmentOutcome::Sent {
            let mut bytes = vec![0; header.len() + part.len];
            let len = header.emit(part.len, &mut bytes);
            match part.from {
                Source::List(list) => (&self.memory).gather(list, part.at, &mut bytes[len..])?,
                Source::Range(range) => (&self.memory).read(range, part.at, &mut bytes[len..])?,
            }
            bytes.resize(len + part.len.next_multiple_of(4), 0);
            self.fragments.borrow_mut().push(bytes);
        }
        Ok(outcome)
    }
}
