//! A stream that shows what is sent and read by it, as segments of TCP. A socket shows bytes only:
//! segments are those of its calls, cut at what an IP packet holds, and the three of the opening
//! are written when the socket says that it stands.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use locks::{Mutex, Rank};
use nic::{Errno, Gather, NewStream, Scatter, Stream};

use crate::Recorder;
use crate::message::flags::{ACK, FIN, PSH, RST, SYN};
use crate::message::{Direction, Outcome, Packet, Protocol, Segment};

/// Most bytes of a segment: what IPv4 holds beside its header and that of TCP.
const MAX_SEGMENT: usize = 65_535 - 20 - 20;

/// A stream over another one, that shows each segment to a recorder.
pub(crate) struct CaptureStream {
    stream: Arc<dyn Stream>,
    recorder: Arc<dyn Recorder>,
    interface: u32,
    ours: SocketAddr,
    theirs: SocketAddr,
    shown: Mutex<Shown>,
}

impl std::fmt::Debug for CaptureStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// How far a stream was shown.
#[derive(Debug)]
struct Shown {
    ours: Half,
    theirs: Half,
    /// Nothing more is shown.
    is_over: bool,
}

/// One direction.
#[derive(Clone, Copy, Debug)]
struct Half {
    /// The sequence number of the next byte.
    next: u32,
    /// SYN was shown.
    has_begun: bool,
    /// FIN was shown.
    is_ended: bool,
}

impl Half {
    /// The first sequence number follows from both ends. So both have the same, where one file has
    /// what either of them shows.
    fn new(from: SocketAddr, to: SocketAddr) -> Self {
        let mut hasher = DefaultHasher::new();
        [from, to].map(|end| (end.ip(), end.port())).hash(&mut hasher);
        Self { next: hasher.finish() as u32, has_begun: false, is_ended: false }
    }
}

impl CaptureStream {
    pub(crate) fn new(stream: Arc<dyn Stream>, recorder: Arc<dyn Recorder>, new: &NewStream) -> Self {
        let &NewStream { interface, ours, theirs, is_accepted, .. } = new;
        let shown = Shown { ours: Half::new(ours, theirs), theirs: Half::new(theirs, ours), is_over: false };
        let shown = Mutex::new(Rank::ShownStream, shown);
        let new = Self { stream, recorder, interface, ours, theirs, shown };
        if is_accepted {
            new.show(Direction::In, SYN);
            new.show(Direction::Out, SYN | ACK);
            new.show(Direction::In, ACK);
        } else {
            new.show(Direction::Out, SYN);
        }
        new
    }

    /// Shows a segment without payload, now.
    fn show(&self, direction: Direction, flags: u8) {
        self.show_as(self.recorder.time(), direction, flags, Outcome::Good, &[]);
    }

    /// Shows a segment, and counts what it takes of the sequence.
    fn show_as(&self, time: u64, direction: Direction, flags: u8, outcome: Outcome<'_>, bytes: &[u8]) {
        let mut shown = self.shown.lock();
        if shown.is_over {
            return;
        }
        let Shown { ours, theirs, .. } = *shown;
        let (from, to, source, dest) = match direction {
            Direction::Out => (ours, theirs, self.ours, self.theirs),
            Direction::In => (theirs, ours, self.theirs, self.ours),
        };
        if from.is_ended && (flags & FIN != 0 || !bytes.is_empty()) {
            return;
        }
        // The first segment of all acknowledges nothing.
        let ack = if flags & ACK == 0 { 0 } else { to.next };
        // Nor has a refusal a number (RFC 9293 §3.10.7.1).
        let seq = if from.has_begun || flags & SYN != 0 { from.next } else { 0 };
        self.recorder.record(&Packet {
            time,
            direction,
            interface: self.interface,
            source,
            dest,
            traffic_class: 0,
            hop_limit: 0,
            outcome,
            protocol: Protocol::Tcp(Segment { seq, ack, flags }),
            bytes,
        });
        let half = match direction {
            Direction::Out => &mut shown.ours,
            Direction::In => &mut shown.theirs,
        };
        // SYN and FIN take a number each (RFC 9293 §3.4).
        let numbers = bytes.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        half.next = half.next.wrapping_add(numbers);
        half.has_begun |= flags & SYN != 0;
        half.is_ended |= flags & FIN != 0;
        shown.is_over |= flags & RST != 0;
    }

    /// Shows bytes of the stream. Those that memory has no more are a gap in the sequence.
    fn show_bytes(&self, time: u64, direction: Direction, bytes: Result<Vec<u8>, Errno>, len: usize) {
        let Ok(bytes) = bytes else {
            let mut shown = self.shown.lock();
            let half = if direction == Direction::Out { &mut shown.ours } else { &mut shown.theirs };
            half.next = half.next.wrapping_add(len as u32);
            return;
        };
        for segment in bytes.chunks(MAX_SEGMENT) {
            self.show_as(time, direction, PSH | ACK, Outcome::Good, segment);
        }
    }

    /// The system says that the stream is lost.
    fn show_loss(&self, why: Errno) {
        // The peer's RST says so, or its silence: then the system sends one.
        let by_peer = matches!(why, Errno::ECONNRESET | Errno::ECONNREFUSED | Errno::EPIPE);
        let direction = if by_peer { Direction::In } else { Direction::Out };
        self.show_as(
            self.recorder.time(),
            direction,
            RST | ACK,
            Outcome::Lost(why.name().unwrap_or("unknown")),
            &[],
        );
    }
}

impl Stream for CaptureStream {
    fn send(&self, from: &Gather<'_>) -> Result<usize, Errno> {
        // The answer comes later than this.
        let time = self.recorder.time();
        let sent = self.stream.send(from);
        match sent {
            Ok(len) => self.show_bytes(time, Direction::Out, from.copy_out(len), len),
            Err(Errno::EAGAIN | Errno::EFAULT) => {}
            Err(errno) => self.show_loss(errno),
        }
        sent
    }
    fn receive(&self, into: &Scatter<'_>) -> Result<usize, Errno> {
        let came = self.stream.receive(into);
        match came {
            Ok(0) => self.show(Direction::In, FIN | ACK),
            Ok(len) => self.show_bytes(self.recorder.time(), Direction::In, into.copy_out(len), len),
            Err(Errno::EAGAIN | Errno::EFAULT) => {}
            Err(errno) => self.show_loss(errno),
        }
        came
    }
    fn finish(&self) {
        self.stream.finish();
        self.show(Direction::Out, FIN | ACK);
    }
    fn close(&self) {
        self.stream.close();
        self.show(Direction::Out, FIN | ACK);
    }
    fn reset(&self) {
        self.stream.reset();
        self.show(Direction::Out, RST | ACK);
    }
    fn opened(&self) {
        self.stream.opened();
        self.show(Direction::In, SYN | ACK);
        self.show(Direction::Out, ACK);
    }
    fn lost(&self, why: Errno) {
        self.stream.lost(why);
        self.show_loss(why);
    }
    fn fault(&self, is_out: bool, what: &'static str) {
        let direction = if is_out { Direction::Out } else { Direction::In };
        self.show_as(self.recorder.time(), direction, ACK, Outcome::Fault(what), &[]);
    }
}

impl Drop for CaptureStream {
    fn drop(&mut self) {
        // The last descriptor goes: the system ends this half, where nothing did before.
        self.show(Direction::Out, FIN | ACK);
    }
}
