//! What a fault that is brought about on purpose does to a connection.

use wire::bth::NakCode;

use super::{Failure, Rc};
use crate::op::{Context, Status};

impl Rc {
    /// The adapter ends the oldest request with a status: all others are flushed, and the state is
    /// the error state.
    pub fn fail_oldest(&mut self, status: Status, cx: &mut impl Context) {
        self.fail_if(Err(status), cx);
    }

    /// The adapter ends the receive of the message that is expected next with a status: the peer is
    /// told by a NAK, and the state is the error state. Nothing where no receive is posted. Follow
    /// with [`Rc::fill`].
    pub fn fail_receive(&mut self, status: Status, cx: &mut impl Context) {
        // IBA 1.4 table 57: a message that is too long is the requester's mistake.
        let code = match status {
            Status::LocalLength => NakCode::InvalidRequest,
            _ => NakCode::RemoteOperational,
        };
        if self.takes_requests(cx) && self.responder.fail_receive(&self.conn, status, code, cx) {
            self.failure = Some(Failure::Refused(code));
            self.enter_error(cx);
        }
    }
}
