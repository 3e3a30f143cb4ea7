//! What comes by rings, as an input handler takes it in.

use std::time::Instant;

use local::PacketHandler;
use local::record::Ends;
use stack::env::{AckDelay, Before, Datagram};
use stack::{Input, InputHandler};
use transport::Short;
use transport::op::SharedBytes;

use crate::env::LinuxEnv;

/// Where the packets of a ring came from last, and the queue pairs of its short messages.
pub(crate) struct Origin {
    from: Datagram<'static>,
    before: Before,
}

/// Hands what comes by rings to an input handler.
pub(crate) struct ToHandler<'a, G> {
    pub(crate) handler: &'a G,
    /// Which interface bears a LID.
    pub(crate) env: &'a LinuxEnv,
}

impl<G: InputHandler> PacketHandler for ToHandler<'_, G> {
    type Origin = Origin;

    fn come_from(&self, ends: &Ends, origin: &mut Option<Origin>) {
        let from = self.env.at_interface(datagram(ends));
        match origin {
            Some(origin) => origin.from = from,
            None => *origin = Some(Origin { from, before: Before::default() }),
        }
    }

    #[inline(always)]
    fn packets(&self, now: Instant, origin: &Origin, ack_delay: AckDelay, bytes: &[u8], size: usize) {
        self.handler.input(now, Input::Unsealed { run: Datagram { ack_delay, bytes, ..origin.from }, size });
    }

    #[inline(always)]
    fn short(&self, now: Instant, origin: &mut Origin, ack_delay: AckDelay, short: &Short, bytes: &[u8]) {
        self.handler.short(now, &origin.from, ack_delay, short, bytes, &mut origin.before);
    }

    #[inline(always)]
    fn fragment(
        &self,
        now: Instant,
        origin: &Origin,
        ack_delay: AckDelay,
        headers: &[u8],
        payload: SharedBytes<'_>,
    ) {
        self.handler
            .input(now, Input::Fragment(Datagram { ack_delay, bytes: headers, ..origin.from }, payload));
    }

    fn release(&self) {
        self.handler.release(false);
    }
}

/// Where a packet comes from and goes to, without its bytes.
pub(crate) fn datagram(&Ends { source, dest, interface }: &Ends) -> Datagram<'static> {
    Datagram { source, dest, interface, forwarded: false, ack_delay: AckDelay::No, bytes: &[] }
}
