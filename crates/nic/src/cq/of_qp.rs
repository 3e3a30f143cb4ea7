//! What a completion queue holds of one queue pair.

use transport::op::{Completion, Status};

use crate::cq::Cq;
use crate::sync::Ordering;

impl Cq {
    /// Whether it holds a completion of a message that came to this queue pair.
    pub fn has_received(&self, qpn: wire::Qpn) -> bool {
        let came = |c: &Completion| c.qpn == qpn && c.status == Status::Success && c.opcode.is_receive();
        !self.is_empty() && self.lock().queue.iter().any(|(c, _)| came(c))
    }
    /// Removes the completions of a queue pair that is being reset.
    pub fn forget_qp(&self, qpn: wire::Qpn) {
        self.retain(|c| c.qpn != qpn);
    }
    /// Removes what a queue pair that is being destroyed had received or flushed. A program that
    /// takes up a receive posts the next, and a flushed request says no more than the destruction
    /// does. What its send queue had done stays.
    pub fn forget_all_but_sent(&self, qpn: wire::Qpn) {
        let was_sent = |c: &Completion| c.status != Status::WrFlush && !c.opcode.is_receive();
        self.retain(|c| c.qpn != qpn || was_sent(c));
    }
    fn retain(&self, stays: impl Fn(&Completion) -> bool) {
        let mut state = self.lock();
        state.queue.retain(|(c, _)| stays(c));
        self.len.store(state.queue.len(), Ordering::Release);
    }
}
