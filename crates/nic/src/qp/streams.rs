//! The stream of an iWARP queue pair: taken over from the connection manager, read by the
//! environment, written to at the end of each step.

use std::sync::Arc;
use std::time::Instant;

use transport::Iwarp;
use transport::iwarp::{Attr, Rtr, StreamBatch};

use crate::errno::Errno;
use crate::error::Error;
use crate::memory::View;
use crate::qp::attr::{QpAttr, QpState};
use crate::qp::engine::Engine;
use crate::qp::engine_context::EngineContext;
use crate::qp::outgoing::Outgoing;
use crate::qp::scratch::with_frame;
use crate::qp::{Inner, Qp};
use crate::stream::{Gather, Scatter, Stream};

/// Bytes of a read that go to a buffer.
const READ: usize = 64 << 10;
/// Bytes of a read behind those that go to their place: the end of a payload, padding and CRC, and
/// the next header.
const BEHIND_SINK: usize = 96;
/// Reads before the queue pair is unlocked.
const READS: usize = 8;

/// What came of reading a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRead {
    /// Nothing has come.
    Nothing,
    /// Something has, and there may be more.
    Some,
    /// Something has, and that was all.
    All,
    /// The peer has ended its half.
    Ended,
    /// The stream is lost; why.
    Lost(Errno),
}

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

    /// Reads what has come by the stream.
    pub fn read_stream(&self, now: Instant) -> StreamRead {
        let mut inner = self.lock();
        if inner.destroyed {
            return StreamRead::Nothing;
        }
        let Some(out) = inner.outgoing.take() else { return StreamRead::Nothing };
        let read = with_frame(|buffer| {
            buffer.resize(READ, 0);
            inner.read(self, &*out.stream, buffer)
        });
        inner.outgoing = Some(out);
        if read != StreamRead::Nothing {
            self.finish_step(inner, now);
        }
        read
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

    fn on_stream(&self, now: Instant, step: impl FnOnce(&mut Iwarp, &mut EngineContext<'_>)) {
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
    /// Reads a few times, and gives the engine what comes.
    fn read(&mut self, qp: &Qp, stream: &dyn Stream, buffer: &mut [u8]) -> StreamRead {
        let mut read = StreamRead::Nothing;
        for _ in 0..READS {
            let (Engine::Iwarp(engine), mut context) = self.split(qp) else { return StreamRead::Nothing };
            let (came, room) = read_once(engine, &mut context, stream, buffer);
            match came {
                Ok(0) => {
                    engine.end_of_stream(&mut context);
                    return StreamRead::Ended;
                }
                Ok(len) if len < room => return StreamRead::All,
                Ok(_) => read = StreamRead::Some,
                Err(Errno::EAGAIN) if read == StreamRead::Nothing => return StreamRead::Nothing,
                Err(Errno::EAGAIN) => return StreamRead::All,
                Err(errno) => {
                    engine.end_of_stream(&mut context);
                    return StreamRead::Lost(errno);
                }
            }
        }
        read
    }

    /// Sends what the engine has, as far as the stream takes it, and ends the stream where the
    /// engine says so.
    pub(super) fn transmit_stream(&mut self, qp: &Qp) {
        let Some(mut out) = self.outgoing.take() else { return };
        while self.send_next(qp, &mut out) {}
        let ends = matches!(&self.engine, Engine::Iwarp(engine) if engine.ends_stream());
        if ends && out.batch.is_empty() && !out.is_ended {
            out.is_ended = true;
            out.stream.finish();
        }
        self.outgoing = Some(out);
    }

    /// Sends what is to leave next. Whether more may leave.
    fn send_next(&mut self, qp: &Qp, out: &mut Outgoing) -> bool {
        let (Engine::Iwarp(engine), mut context) = self.split(qp) else { return false };
        if out.is_ended {
            return false;
        }
        if out.batch.is_empty() {
            engine.fill(&mut out.batch, &mut context);
            if out.batch.is_empty() {
                return false;
            }
        }
        match send_batch(&out.batch, &context.view(), &*out.stream) {
            Ok(sent) => {
                out.batch.advance(sent as u64);
                engine.sent(sent as u64, &mut context);
                return true;
            }
            Err(Unsent::Stream(Errno::EAGAIN)) => {}
            Err(Unsent::Stream(errno)) if errno != Errno::EFAULT => engine.end_of_stream(&mut context),
            // Memory of a request is gone, or of a READ response: an FPDU cannot be finished. The
            // peer ends its half when it finds so, and the connection manager hears of that.
            Err(Unsent::Stream(_) | Unsent::Memory) => {
                out.batch.clear();
                engine.lost_memory(&mut context);
                out.is_ended = true;
                out.stream.finish();
            }
        }
        false
    }

    /// The queue pair goes: what the stream has not taken is lost.
    pub(super) fn drop_stream(&mut self, qp: &Qp) {
        self.transmit_stream(qp);
        if let Some(out) = self.outgoing.take() {
            if out.batch.is_empty() { out.stream.close() } else { out.stream.reset() }
        }
    }
}

/// Why nothing was sent.
enum Unsent {
    /// Memory of ours that may not be read, or is not there.
    Memory,
    /// What the stream says.
    Stream(Errno),
}

/// Sends from the front of a batch, from where it is where that can be; how many bytes.
fn send_batch(batch: &StreamBatch, view: &View<'_>, stream: &dyn Stream) -> Result<usize, Unsent> {
    match Gather::of_batch(batch, view) {
        Ok(Some(from)) => stream.send(&from).map_err(Unsent::Stream),
        Err(_) => Err(Unsent::Memory),
        Ok(None) => with_frame(|bytes| {
            bytes.clear();
            batch.copy_out(READ, view, bytes).map_err(|_| Unsent::Memory)?;
            stream.send(&Gather::of(bytes)).map_err(Unsent::Stream)
        }),
    }
}

/// Reads once, to where the bytes belong where that can be; what came, and for how much there was
/// room.
fn read_once(
    engine: &mut Iwarp,
    context: &mut EngineContext<'_>,
    stream: &dyn Stream,
    buffer: &mut [u8],
) -> (Result<usize, Errno>, usize) {
    let (view, receives) = (context.view(), context.receive_view());
    let direct = engine.sink().and_then(|sink| {
        let (rest, len) = (buffer.get_mut(..BEHIND_SINK)?, sink.len());
        let into = Scatter::of_sink(sink, rest, &view, &receives)?;
        let came = stream.receive(&into);
        // Memory that is not there is found where the bytes are delivered one by one.
        (came != Err(Errno::EFAULT)).then(|| (came, into.split(came.unwrap_or(0)), len + BEHIND_SINK))
    });
    let (came, (placed, rest), room) = direct.unwrap_or_else(|| {
        let room = buffer.len();
        let came = stream.receive(&Scatter::of(buffer));
        (came, (0, came.unwrap_or(0)), room)
    });
    if came.is_ok_and(|len| len > 0) {
        context.qp.received.add(1);
        engine.placed(placed);
        engine.receive(buffer.get(..rest).unwrap_or_default(), context);
    }
    (came, room)
}
