//! TCP sockets of iWARP devices: streams, which the engine thread reads, and listeners.
//!
//! A socket is in the reactor as long as its peer may say something. Its descriptor stays as long
//! as the node or a queue pair has the stream.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use nic::{Errno, Stream};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use stack::env::Claim;
use stack::{AcceptedStream, InputHandler, StreamInput};
use sys::fork::Fd;

use crate::reactor::{IN, Reactor, STREAM, Source};

/// Bytes that one read takes.
const READ: usize = 256 << 10;
/// How often one event reads its stream before the others get their turn.
const READS_PER_EVENT: usize = 16;
/// Streams that one event of a listener accepts.
const ACCEPTS_PER_EVENT: usize = 64;
/// Streams that wait for a listener, at most.
const BACKLOG: i32 = 1024;
/// A peer that acknowledges nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(8);
/// How often an idle peer is asked whether it is there, and how often in vain.
const PROBE: Duration = Duration::from_secs(2);
const PROBES: u32 = 4;

/// The kernel connects.
const CONNECTING: u8 = 0;
const OPEN: u8 = 1;
/// No event is told any more.
const OVER: u8 = 2;

/// A stream of an iWARP device.
pub(crate) struct TcpStream {
    fd: Fd,
    token: u64,
    reactor: Arc<Reactor>,
    phase: AtomicU8,
}

/// The socket of a listener.
pub(crate) struct TcpListener {
    fd: Fd,
    token: u64,
    /// Given up for a moment where the system has no descriptor left: a peer that waits to be
    /// accepted is refused then, and the engine does not turn in circles.
    spare: ArcSwapOption<Fd>,
}

fn spare() -> ArcSwapOption<Fd> {
    let spare = Fd::open(|| Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), Some(Protocol::UDP)));
    ArcSwapOption::new(spare.ok().map(Arc::new))
}

/// A listener that is held: it goes with this.
struct Listening {
    listener: Arc<TcpListener>,
    reactor: Arc<Reactor>,
}

impl Claim for Listening {}

impl Drop for Listening {
    fn drop(&mut self) {
        self.reactor.remove(self.listener.token, &self.listener.fd);
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStream").field("fd", &self.fd).field("token", &self.token).finish_non_exhaustive()
    }
}

fn socket(address: SocketAddr) -> io::Result<Fd> {
    Fd::open(|| {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        Ok(socket)
    })
}

/// What every stream is set up for.
fn set_up(fd: &Fd) -> io::Result<()> {
    let socket = SockRef::from(fd);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(SILENCE))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE).with_retries(PROBES))
}

/// Opens a stream; its token.
pub(crate) fn open(
    from: SocketAddr,
    to: SocketAddr,
    reactor: &Arc<Reactor>,
) -> io::Result<(u64, Arc<dyn Stream>)> {
    let fd = socket(to)?;
    set_up(&fd)?;
    let socket = SockRef::from(&fd);
    socket.bind(&from.into())?;
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    let stream = TcpStream::new(fd, CONNECTING, reactor);
    reactor.add(stream.token, &stream.fd, STREAM, Source::Stream(stream.clone()))?;
    Ok((stream.token, stream))
}

/// Accepts streams at an address and port until the claim is dropped.
pub(crate) fn listen(at: SocketAddr, v6_only: bool, reactor: &Arc<Reactor>) -> io::Result<Box<dyn Claim>> {
    let fd = socket(at)?;
    let socket = SockRef::from(&fd);
    if at.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    let listener = Arc::new(TcpListener { fd, token: reactor.token(), spare: spare() });
    reactor.add(listener.token, &listener.fd, IN, Source::StreamListener(listener.clone()))?;
    Ok(Box::new(Listening { listener, reactor: reactor.clone() }))
}

impl TcpListener {
    fn accept_one(&self) -> io::Result<(Fd, Option<SocketAddr>)> {
        let mut peer = None;
        let fd = Fd::open(|| {
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let (socket, from) = SockRef::from(&self.fd).accept4(flags)?;
            peer = from.as_socket();
            Ok(socket)
        })?;
        Ok((fd, peer))
    }

    /// Accepts some of the streams that wait.
    pub(crate) fn accept(&self, handler: &impl InputHandler, reactor: &Arc<Reactor>) {
        for _ in 0..ACCEPTS_PER_EVENT {
            let (fd, peer) = match self.accept_one() {
                Ok(accepted) => accepted,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    drop(self.spare.swap(None));
                    drop(self.accept_one());
                    self.spare.store(spare().into_inner());
                    continue;
                }
                // The peer went away meanwhile.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(_) => return,
            };
            let local = SockRef::from(&fd).local_addr().ok().and_then(|address| address.as_socket());
            let (Some(peer), Some(local), Ok(())) = (peer, local, set_up(&fd)) else { continue };
            let stream = TcpStream::new(fd, OPEN, reactor);
            let told = AcceptedStream { local, peer, stream: stream.clone() };
            handler.stream(Instant::now(), stream.token, StreamInput::Accepted(told));
            // What it says is told after that.
            if stream.phase.load(Ordering::Acquire) == OPEN {
                let source = Source::Stream(stream.clone());
                if let Err(error) = reactor.add(stream.token, &stream.fd, STREAM, source) {
                    handler.stream(Instant::now(), stream.token, StreamInput::Lost(error.into()));
                }
            }
        }
    }
}

impl TcpStream {
    fn new(fd: Fd, phase: u8, reactor: &Arc<Reactor>) -> Arc<Self> {
        let (token, reactor) = (reactor.token(), reactor.clone());
        Arc::new(Self { fd, token, reactor, phase: AtomicU8::new(phase) })
    }

    /// Tells what an event of epoll(7) means.
    pub(crate) fn serve(
        &self,
        events: u32,
        bytes: &mut Vec<u8>,
        handler: &impl InputHandler,
        reactor: &Reactor,
    ) {
        let has = |bits: i32| events & bits as u32 != 0;
        let now = Instant::now();
        if self.phase.load(Ordering::Acquire) == CONNECTING {
            match SockRef::from(&self.fd).take_error() {
                Ok(None) if has(libc::EPOLLOUT) => {
                    self.phase.store(OPEN, Ordering::Release);
                    handler.stream(now, self.token, StreamInput::Opened);
                }
                Ok(None) => return,
                Ok(Some(error)) | Err(error) => {
                    return self.end(now, StreamInput::Lost(error.into()), handler);
                }
            }
        } else if has(libc::EPOLLOUT) {
            handler.stream(now, self.token, StreamInput::Writable);
        }
        if has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) {
            self.read(bytes, handler, reactor);
        }
    }

    fn read(&self, bytes: &mut Vec<u8>, handler: &impl InputHandler, reactor: &Reactor) {
        bytes.resize(READ, 0);
        let socket = SockRef::from(&self.fd);
        for _ in 0..READS_PER_EVENT {
            if self.phase.load(Ordering::Acquire) == OVER {
                return;
            }
            let room = handler.stream_room(self.token).clamp(1, READ);
            let read = (&*socket).read(bytes.get_mut(..room).unwrap_or_default());
            let now = Instant::now();
            match read {
                Ok(0) => return self.end(now, StreamInput::Ended, handler),
                Ok(len) => handler.stream(
                    now,
                    self.token,
                    StreamInput::Received(bytes.get(..len).unwrap_or_default()),
                ),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.end(now, StreamInput::Lost(error.into()), handler),
            }
        }
        // There may be more, of which nothing is told again before it is asked for.
        reactor.pause(&self.fd);
        reactor.resume(self.token, &self.fd, STREAM);
    }

    fn end(&self, now: Instant, how: StreamInput<'_>, handler: &impl InputHandler) {
        self.leave();
        handler.stream(now, self.token, how);
    }

    fn leave(&self) {
        self.phase.store(OVER, Ordering::Release);
        self.reactor.remove(self.token, &self.fd);
    }
}

impl Stream for TcpStream {
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let socket = SockRef::from(&self.fd);
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            match socket.send_with_flags(rest, libc::MSG_NOSIGNAL) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    fn finish(&self) {
        // It fails only where the stream is lost, of which is told.
        let _ = SockRef::from(&self.fd).shutdown(std::net::Shutdown::Write);
    }

    fn close(&self) {
        self.finish();
        self.leave();
    }

    fn reset(&self) {
        self.leave();
        let socket = SockRef::from(&self.fd);
        // The last descriptor that closes sends the RST.
        let _ = socket.set_linger(Some(Duration::ZERO));
        let _ = socket.shutdown(std::net::Shutdown::Read);
    }
}
