//! What a fault that is brought about on purpose does to a receive.

use super::{Completed, Ends, Inbound};
use crate::op::{Context, Status};

impl Inbound {
    /// The receive in use, or the next one posted, completes with a status. False where there is
    /// none.
    pub fn fail_receive(&mut self, status: Status, ends: Ends, cx: &mut impl Context) -> bool {
        let is_posted = self.take_receive(cx).is_ok();
        if is_posted {
            self.end_receive(status, Completed::Receive, ends, cx);
        }
        is_posted
    }
}
