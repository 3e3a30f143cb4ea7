//! A way to the peer's memory.

use transport::op::{AtOnce, Company, SendOp, SendWr};

/// See the module.
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
