//! A way to the peer's memory.

use transport::op::{AtOnce, Company, SendOp, SendWr};
use transport::rc::{RtrAttr, RtsAttr};
use wire::bth::Reth;
use wire::roce::{Op, WriteAt};
use wire::{Mtu, Psn};

use super::{End, PSN, ack, rtr, sge, write};

/// A way to the peer's memory, as a test has it.
#[derive(Debug, Default)]
pub struct TestReach {
    pub refuses: bool,
    /// The peer has work to do with a FLUSH.
    pub flushes_take_time: bool,
    /// What is under way with each request.
    pub company: Company,
    /// Marks of the requests that were executed so.
    pub done: Vec<u64>,
    /// How often one could not.
    pub refused: u32,
}

impl TestReach {
    pub fn execute(&mut self, wr: &SendWr) -> AtOnce {
        if self.refuses {
            self.refused += 1;
            return AtOnce::Refused;
        }
        if self.flushes_take_time && matches!(wr.op, SendOp::Flush { .. }) {
            return AtOnce::NoWay;
        }
        self.done.push(wr.wr_id);
        AtOnce::Done
    }
}

impl End {
    /// An end in RTS, after a request that the peer has acknowledged. If it is to have heard, also
    /// after a request of the peer's. Neither is the first of the connection any more.
    pub fn proven(mtu: Mtu, len: usize, rts: RtsAttr, hears: bool) -> End {
        let before = Psn::new(PSN - 1);
        let rq_psn = if hears { before } else { Psn::new(PSN) };
        let mut end = End::with(RtrAttr { rq_psn, ..rtr(mtu) }, len);
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
