//! What a fault that is brought about on purpose does to a connection.

use super::Rc;
use crate::op::{Context, Status};

impl Rc {
    /// The adapter ends the oldest request with a status: all others are flushed, and the state is
    /// the error state.
    pub fn fail_oldest(&mut self, status: Status, cx: &mut impl Context) {
        self.fail_if(Err(status), cx);
    }
}
