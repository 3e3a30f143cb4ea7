//! Looking after a queue that has a channel of its own, so that a thread that waits for a
//! completion is woken.

use super::{Arm, Channel, Cq};

impl Cq {
    /// Asks for one event, of this kind, whatever was asked for before: [`Arm::Solicited`] where no
    /// thread waits, so that errors are told of.
    pub fn rearm(&self, arm: Arm) {
        self.lock().armed = Some(arm);
    }

    /// Has `drain` take what there is, until `again` has asked for an event by [`Cq::rearm`] and
    /// the queue is empty. Of what comes later as much is told as was asked for. For a thread that
    /// looks because of an event of `channel`, which is this queue's alone.
    pub fn attend(&self, channel: &Channel, mut drain: impl FnMut(), mut again: impl FnMut()) {
        loop {
            while channel.pop().is_some() {}
            drain();
            again();
            // What came before it was armed has raised none.
            if self.is_empty() {
                return;
            }
        }
    }
}
