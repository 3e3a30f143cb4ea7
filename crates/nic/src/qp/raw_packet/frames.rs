//! The frames of a raw packet queue pair: those it sends, and those that rules steer to it.

use std::sync::Arc;
use std::time::Instant;

use transport::ud::Taken;

use crate::error::Error;
use crate::qp::attr::QpType;
use crate::qp::engine::Engine;
use crate::qp::{Inner, Qp};
use crate::steering::rss::Spread;

impl Inner {
    /// Sends the frames of a raw packet queue pair.
    pub(crate) fn transmit_frames(&mut self, qp: &Qp) {
        let device = qp.pd().device.clone();
        let (Engine::Raw(raw), mut context) = self.split(qp) else { return };
        raw.send_all(&mut context, |frame| device.frames.send_frame(device.config.interface, frame));
    }
}

impl Qp {
    /// A frame that a rule steers to this queue pair.
    pub(crate) fn input_frame(&self, now: Instant, frame: &[u8]) {
        let device = self.device();
        if let Some(spread) = self.spread.get() {
            return device.count(spread.receive(frame));
        }
        let mut inner = self.lock();
        if inner.destroyed {
            return device.count(Taken::NotForUs);
        }
        let (Engine::Raw(raw), mut context) = inner.split(self) else { return };
        device.count(raw.receive(frame, &mut context));
        self.finish_step(inner, now);
    }

    /// Gives a raw packet queue pair work queues in place of its receive queue, whatever its state.
    ///
    /// # Errors
    ///
    /// `Value`: not a raw packet queue pair. `Invalid`: it has some.
    pub fn spread_over(&self, spread: Arc<Spread>) -> Result<(), Error> {
        let kind = self.init().kind;
        if kind != QpType::RawPacket {
            return Err(Error::name("only raw packet queue pairs spread what they receive", kind.name()));
        }
        self.spread.set(spread).map_err(|_| Error::Invalid("the queue pair has an indirection table already"))
    }
}
