//! The stream of an iWARP queue pair: taken over from the connection manager, read by the
//! environment, written to at the end of each step.

use std::sync::Arc;
use std::time::Instant;

use transport::iwarp::{Attr, Rtr};

use crate::error::Error;
use crate::qp::attr::{QpAttr, QpState};
use crate::qp::engine::Engine;
use crate::qp::outgoing::Outgoing;
use crate::qp::scratch::with_frame;
use crate::qp::{Inner, Qp};
use crate::stream::Stream;

/// What a queue pair takes a stream over with.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// What both ends agreed on.
    pub attr: Attr,
    /// The message by which this side says that it is ready.
    pub sends_rtr: Option<Rtr>,
    /// The message by which the peer says that it is.
    pub awaits_rtr: Option<Rtr>,
    /// Bytes of the stream that have come already.
    pub behind: &'a [u8],
}

impl Qp {
    /// To RTS, without a stream yet: what is posted waits for it. Queue pairs of iWARP get there by
    /// the connection manager alone.
    ///
    /// # Errors
    ///
    /// `Value` for a state other than Init; `Invalid` for a queue pair of another transport.
    pub fn await_stream(&self, now: Instant, attr: &QpAttr) -> Result<(), Error> {
        let mut inner = self.lock();
        if !matches!(inner.engine, Engine::Iwarp(_)) {
            return Err(Error::Invalid("the queue pair travels on no stream"));
        }
        match inner.current_state() {
            QpState::Init => {}
            state => return Err(Error::name("a stream is awaited in state INIT, not in", state.name())),
        }
        inner.attr = QpAttr { state: QpState::Rts, cur_state: QpState::Rts, ..*attr };
        inner.state = QpState::Rts;
        self.finish_step(inner, now);
        Ok(())
    }

    /// The stream is the queue pair's from now on. False where that has failed meanwhile.
    #[must_use]
    pub fn take_stream(&self, now: Instant, stream: Arc<dyn Stream>, with: &Handover<'_>) -> bool {
        let mut inner = self.lock();
        if inner.destroyed || inner.state != QpState::Rts {
            return false;
        }
        inner.outgoing = Some(Box::new(Outgoing::new(stream)));
        if let (Engine::Iwarp(engine), mut context) = inner.split(self) {
            engine.ready(with.attr);
            with.sends_rtr.into_iter().for_each(|rtr| engine.send_rtr(rtr));
            with.awaits_rtr.into_iter().for_each(|rtr| engine.expect_rtr(rtr));
            engine.receive(with.behind, &mut context);
        }
        self.finish_step(inner, now);
        true
    }

    /// Bytes of the stream have come.
    pub fn stream_received(&self, now: Instant, bytes: &[u8]) {
        self.on_stream(now, |engine, context| {
            context.qp.received.add(1);
            engine.receive(bytes, context);
        });
    }

    /// Reminds the peer of what it was sent, by a WRITE of no bytes: a peer that did not look at
    /// its stream when the first bytes came does so now.
    pub fn nudge_stream(&self, now: Instant) {
        self.on_stream(now, |engine, _| engine.send_rtr(Rtr::Write));
    }

    /// There is room in the stream again.
    pub fn stream_writable(&self, now: Instant) {
        self.on_stream(now, |_, _| {});
    }

    /// The peer has ended its half of the stream, or the stream is lost.
    pub fn stream_ended(&self, now: Instant) {
        self.on_stream(now, |engine, context| engine.end_of_stream(context));
    }

    /// The connection ends on the wish of this side: gracefully where nothing is under way.
    pub fn end_stream(&self, now: Instant) {
        self.on_stream(now, |engine, context| {
            if !engine.close() {
                engine.fail(context);
            }
        });
    }

    fn on_stream(
        &self,
        now: Instant,
        step: impl FnOnce(&mut transport::Iwarp, &mut crate::qp::engine_context::EngineContext<'_>),
    ) {
        let mut inner = self.lock();
        if inner.destroyed {
            return;
        }
        if let (Engine::Iwarp(engine), mut context) = inner.split(self) {
            step(engine, &mut context);
        }
        self.finish_step(inner, now);
    }
}

impl Inner {
    /// Sends what the engine has, as far as the stream takes it, and ends the stream where the
    /// engine says so.
    pub(super) fn transmit_stream(&mut self, qp: &Qp) {
        let Some(mut out) = self.outgoing.take() else { return };
        with_frame(|bytes| while self.send_next(qp, &mut out, bytes) {});
        let ends = matches!(&self.engine, Engine::Iwarp(engine) if engine.ends_stream());
        if ends && out.batch.is_empty() && !out.is_ended {
            out.is_ended = true;
            out.stream.finish();
        }
        self.outgoing = Some(out);
    }

    /// Sends what is to leave next, copied to `bytes`. Whether more may leave.
    fn send_next(&mut self, qp: &Qp, out: &mut Outgoing, bytes: &mut Vec<u8>) -> bool {
        let (Engine::Iwarp(engine), mut context) = self.split(qp) else { return false };
        if out.is_ended {
            return false;
        }
        if out.batch.is_empty() {
            engine.fill(&mut out.batch, &mut context);
        }
        bytes.clear();
        if out.batch.copy_out(usize::MAX, &context.view(), bytes).is_err() {
            // Memory of a request is gone, or of a READ response: an FPDU cannot be finished. The
            // peer ends its half when it finds so, and the connection manager hears of that.
            out.batch.clear();
            engine.lost_memory(&mut context);
            out.is_ended = true;
            out.stream.finish();
            return false;
        }
        if bytes.is_empty() {
            return false;
        }
        let Ok(sent) = out.stream.send(bytes) else {
            engine.end_of_stream(&mut context);
            return false;
        };
        out.batch.advance(sent as u64);
        engine.sent(sent as u64, &mut context);
        sent == bytes.len()
    }

    /// The queue pair goes: what the stream has not taken is lost.
    pub(super) fn drop_stream(&mut self, qp: &Qp) {
        self.transmit_stream(qp);
        if let Some(out) = self.outgoing.take() {
            if out.batch.is_empty() { out.stream.close() } else { out.stream.reset() }
        }
    }
}
