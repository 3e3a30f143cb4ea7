//! A stream of an iWARP device. It is in the reactor as long as its peer may say something; its
//! descriptor stays as long as the node or a queue pair has the stream.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use local::Drained;
use local::lease::Lease;
use locks::{Mutex, Rank};
use nic::{Errno, Gather, Scatter, Stream};
use socket2::SockRef;
use stack::{InputHandler, StreamInput, StreamRead};
use sys::fork::Fd;
use sys::{receive_pieces, send_pieces};

use crate::leased::{Armed, Leased};
use crate::reactor::{ERRORS_ONLY, Reactor, STREAM, Source};
use crate::tcp::Streams;

/// How often one event reads its stream before the others get their turn.
const READS_PER_EVENT: usize = 4;

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The kernel connects.
    Connecting,
    Open,
    /// No event is told any more.
    Over,
}

pub(crate) struct TcpStream {
    fd: Fd,
    /// The name that the engine and the node have for the stream.
    pub(crate) token: u64,
    streams: Arc<Streams>,
    phase: AtomicU8,
    /// Held by the thread that reads, until what it read is dispatched.
    reading: Mutex<()>,
    /// Whether polling threads serve it, the engine, or both.
    pub(crate) lease: Lease,
    armed: Armed,
    /// There was no room for what was to be sent last.
    is_full: AtomicBool,
    /// When something last came, in nanoseconds of the clock.
    pub(super) delivered_at: AtomicU64,
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStream").field("fd", &self.fd).field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.streams.closed();
    }
}

impl TcpStream {
    pub(super) fn new(fd: Fd, phase: Phase, streams: &Arc<Streams>) -> Arc<Self> {
        streams.opened();
        Arc::new(Self {
            fd,
            token: streams.reactor.token(),
            streams: streams.clone(),
            phase: AtomicU8::new(phase as u8),
            reading: Mutex::new(Rank::ReceiveToken, ()),
            lease: Lease::default(),
            armed: Armed::default(),
            is_full: AtomicBool::new(false),
            delivered_at: AtomicU64::new(0),
        })
    }

    /// Has the engine told of the stream from now on, unless that is over.
    pub(super) fn attend(self: &Arc<Self>) -> io::Result<()> {
        if self.is_in(Phase::Over) {
            return Ok(());
        }
        self.streams.reactor.add(self.token, &self.fd, STREAM, Source::Stream(self.clone()))
    }

    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u8
    }

    /// Whether something may come by it.
    pub(super) fn may_come(&self) -> bool {
        self.is_in(Phase::Open)
    }

    /// For the engine: does what an event of epoll(7) means. Reading and sending are left to a
    /// thread that polls where the stream is leased to one: `Busy`.
    pub(crate) fn serve(
        &self,
        events: u32,
        is_leased: bool,
        handler: &impl InputHandler,
        reactor: &Reactor,
    ) -> Drained {
        let has = |bits: i32| events & bits as u32 != 0;
        let now = Instant::now();
        if self.is_in(Phase::Connecting) {
            match SockRef::from(&self.fd).take_error() {
                Ok(None) if has(libc::EPOLLOUT) => {
                    self.phase.store(Phase::Open as u8, Ordering::Release);
                    handler.stream(now, self.token, StreamInput::Opened);
                }
                Ok(None) => return Drained::Empty,
                Ok(Some(error)) | Err(error) => {
                    self.leave();
                    handler.stream(now, self.token, StreamInput::Lost(error.into()));
                    return Drained::Empty;
                }
            }
        }
        let ends = has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        if is_leased && !ends {
            return Drained::Busy;
        }
        // The thread that found no room may not have noted it yet: it has the queue pair locked.
        let sent = self.send_more(now, has(libc::EPOLLOUT), handler);
        if !ends && !has(libc::EPOLLIN) {
            return sent;
        }
        let (drained, is_all) = self.read(READS_PER_EVENT, now, ends, handler);
        if !is_all && !self.is_in(Phase::Over) {
            // Nothing is told again of what is there, before it is asked for.
            reactor.change(self.token, &self.fd, STREAM);
        }
        // The event is not told again: the thread that reads may have found nothing before it.
        if drained == Drained::Busy { Drained::Busy } else { sent.plus(drained) }
    }

    /// Sends what there was no room for, where that was so lately, or there `is_room` now.
    pub(super) fn send_more(&self, now: Instant, is_room: bool, handler: &impl InputHandler) -> Drained {
        let was_full = self.is_full.load(Ordering::Relaxed) && self.is_full.swap(false, Ordering::AcqRel);
        if was_full || is_room {
            handler.stream(now, self.token, StreamInput::Writable);
        }
        if was_full { Drained::Some { bulk: true } } else { Drained::Empty }
    }

    /// Reads a few times; whether that was all there is. Where the peer `ends` its half that is the
    /// end alone.
    pub(super) fn read(
        &self,
        times: usize,
        now: Instant,
        ends: bool,
        handler: &impl InputHandler,
    ) -> (Drained, bool) {
        let Some(_token) = self.reading.try_lock() else { return (Drained::Busy, !ends) };
        let mut drained = Drained::Empty;
        for _ in 0..times {
            if self.is_in(Phase::Over) {
                return (drained, true);
            }
            match handler.read_stream(now, self.token) {
                StreamRead::Nothing => return (drained, true),
                StreamRead::All if !ends => return (Drained::Some { bulk: false }.plus(drained), true),
                StreamRead::All => drained = Drained::Some { bulk: false }.plus(drained),
                StreamRead::Some => drained = Drained::Some { bulk: true },
                StreamRead::Ended | StreamRead::Lost(_) => return (Drained::Some { bulk: false }, true),
            }
        }
        (drained, false)
    }

    fn leave(&self) {
        self.phase.store(Phase::Over as u8, Ordering::Release);
        self.streams.reactor.remove(self.token, &self.fd);
        self.streams.forget(self.token);
    }
}

impl Leased for TcpStream {
    fn token(&self) -> u64 {
        self.token
    }
    fn lease(&self) -> &Lease {
        &self.lease
    }
    fn arm(&self, reactor: &Reactor) {
        self.armed.set(true, || reactor.change(self.token, &self.fd, STREAM));
    }
    fn disarm(&self, reactor: &Reactor) {
        self.armed.set(false, || reactor.change(self.token, &self.fd, ERRORS_ONLY));
    }
}

impl Stream for TcpStream {
    fn send(&self, from: &Gather<'_>) -> Result<usize, Errno> {
        let pieces = from.pieces().iter().map(|piece| (piece.addr, piece.len));
        // SAFETY: they may be read as long as `from` is there.
        let sent = unsafe { send_pieces(&self.fd, pieces) }.map_err(Errno::from);
        if sent == Err(Errno::EAGAIN) {
            self.is_full.store(true, Ordering::Release);
        }
        sent
    }

    fn receive(&self, into: &Scatter<'_>) -> Result<usize, Errno> {
        let pieces = into.pieces().iter().map(|piece| (piece.addr, piece.len));
        // SAFETY: they may be written to as long as `into` is there.
        let came = unsafe { receive_pieces(&self.fd, pieces) }.map_err(Errno::from);
        if !matches!(came, Ok(1..) | Err(Errno::EAGAIN | Errno::EFAULT)) {
            self.leave();
        }
        came
    }

    fn finish(&self) {
        // It fails only where the stream is lost, of which is told.
        let _ = SockRef::from(&self.fd).shutdown(std::net::Shutdown::Write);
    }

    fn close(&self) {
        self.streams.let_go(&self.fd);
        self.finish();
        self.leave();
    }

    fn reset(&self) {
        self.leave();
        // A queue pair may have the descriptor for long, so the RST does not wait for its end.
        if sys::disconnect(&self.fd).is_err() {
            let socket = SockRef::from(&self.fd);
            let _ = socket.set_linger(Some(Duration::ZERO));
            let _ = socket.shutdown(std::net::Shutdown::Read);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use socket2::{Domain, Socket, Type};
    use sys::WakeFd;
    use sys::clock::Clock;

    use super::*;
    use crate::alarm::Alarm;

    #[test]
    fn a_stream_that_is_let_go_of_delivers_what_was_sent_though_its_peer_has_said_more() {
        let clock = Clock::start();
        let alarm = Arc::new(Alarm::new(WakeFd::new().unwrap()));
        let streams = Arc::new(Streams::new(Arc::new(Reactor::new().unwrap()), clock, alarm));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = Fd::open(|| Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)).unwrap();
        SockRef::from(&fd).connect(&listener.local_addr().unwrap().into()).unwrap();
        SockRef::from(&fd).set_nonblocking(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let stream = TcpStream::new(fd, Phase::Open, &streams);

        let mut sent = 0;
        while let Ok(bytes) = SockRef::from(&stream.fd).send(&[1; 65_536]) {
            sent += bytes;
        }
        // A word of the peer that the queue pair has not read.
        peer.write_all(b"credits").unwrap();
        stream.close();
        drop(stream);
        let mut all = Vec::new();
        let mut piece = vec![0; 65_536];
        loop {
            match peer.read(&mut piece).expect("no reset before the end") {
                0 => break,
                len => all.extend_from_slice(&piece[..len]),
            }
            streams.close_due(clock.now());
        }
        assert_eq!(all.len(), sent);
        let end = Instant::now() + Duration::from_secs(30);
        while streams.close_due(clock.now()) < u64::MAX {
            assert!(Instant::now() < end, "the socket is closed once the peer has all");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
