//! Looking after a queue that has a channel of its own, so that whoever waits for a completion is woken.

use super::{Arm, Channel, Cq};

impl Cq {
    /// Has `drain` take what there is, until the queue is armed and empty: what comes later raises an event. For whoever an event of
    /// `channel`, which is this queue's alone, had look.
    pub fn attend(&self, channel: &Channel, mut drain: impl FnMut()) {
        loop {
            while channel.pop().is_some() {}
            drain();
            self.arm(Arm::Next);
            // What came before it was armed has raised none.
            if self.is_empty() {
                return;
            }
        }
    }
}
