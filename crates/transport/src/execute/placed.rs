//! Bytes that the carrier puts into their place by itself, and only tells of.

use super::{Inbound, Message};
use crate::op::{Remote, Sge};

impl Inbound {
    /// Where the next bytes of the SEND that arrives belong: elements of its receive, and how much
    /// has come. `None` where none arrives, or no receive was taken for it.
    pub fn next_of_send(&self) -> Option<(&[Sge], u64)> {
        let (Message::Send { received, .. }, Some(receive)) = (&self.message, &self.receive) else {
            return None;
        };
        Some((receive.sges.as_slice(), *received))
    }

    /// Where the next bytes of the WRITE that arrives belong, up to its end.
    pub fn next_of_write(&self) -> Option<Remote> {
        let Message::Write { to, received } = self.message else { return None };
        let addr = to.addr.wrapping_add(received);
        Some(Remote { addr, length: to.length - received, ..to })
    }

    /// The carrier has put so many bytes where [`Inbound::next_of_send`] or
    /// [`Inbound::next_of_write`] said, fewer than the message lacks.
    pub fn placed(&mut self, len: u64) {
        if let Message::Send { received, .. } | Message::Write { received, .. } = &mut self.message {
            *received += len;
        }
    }
}
