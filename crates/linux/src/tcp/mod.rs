//! TCP sockets of iWARP devices: how streams are opened and accepted; `stream`: one of them;
//! `streams`: which of them threads read that poll; `parked`, `closing`: listeners and streams that
//! were given up, and stay for a while.

mod closing;
mod parked;
mod stream;
mod streams;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use nic::Stream;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use stack::env::Claim;
use stack::{AcceptedStream, InputHandler, StreamInput};
use sys::fork::Fd;

use crate::reactor::{IN, Source};
use stream::Phase;
pub(crate) use stream::TcpStream;
pub(crate) use streams::Streams;

/// Streams that one event of a listener accepts.
const ACCEPTS_PER_EVENT: usize = 64;
/// Streams that wait for a listener, at most.
const BACKLOG: i32 = 1024;
/// A peer that acknowledges nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(8);
/// How often an idle peer is asked whether it is there, and how often in vain.
const PROBE: Duration = Duration::from_secs(2);
const PROBES: u32 = 4;

/// The socket of a listener.
pub(crate) struct TcpListener {
    fd: Fd,
    token: u64,
    /// Where it listens, and whether an unspecified IPv6 address takes none of IPv4.
    at: SocketAddr,
    v6_only: bool,
    /// Given up for a moment where the system has no descriptor left: a peer that waits to be
    /// accepted is refused then, and the engine does not turn in circles.
    spare: ArcSwapOption<Fd>,
    streams: Arc<Streams>,
}

fn spare() -> ArcSwapOption<Fd> {
    let spare = Fd::open(|| Socket::new(Domain::IPV4, Type::DGRAM.cloexec(), Some(Protocol::UDP)));
    ArcSwapOption::new(spare.ok().map(Arc::new))
}

/// A listener that is held: it is parked when this is dropped.
struct Listening(Arc<TcpListener>);

impl Claim for Listening {}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.streams.park(&self.0);
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
    streams: &Arc<Streams>,
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
    let stream = TcpStream::new(fd, Phase::Connecting, streams);
    stream.attend()?;
    Ok((stream.token, stream))
}

/// Accepts streams at an address and port until the claim is dropped.
pub(crate) fn listen(at: SocketAddr, v6_only: bool, streams: &Arc<Streams>) -> io::Result<Box<dyn Claim>> {
    if let Some(listener) = streams.unpark(at, v6_only) {
        listener.attend()?;
        return Ok(Box::new(Listening(listener)));
    }
    let fd = socket(at)?;
    let socket = SockRef::from(&fd);
    if at.is_ipv6() {
        socket.set_only_v6(v6_only)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    let (token, spare, streams) = (streams.reactor.token(), spare(), streams.clone());
    let listener = Arc::new(TcpListener { fd, token, at, v6_only, spare, streams });
    listener.attend()?;
    Ok(Box::new(Listening(listener)))
}

impl TcpListener {
    /// Has the engine told of peers that connect.
    fn attend(self: &Arc<Self>) -> io::Result<()> {
        self.streams.reactor.add(self.token, &self.fd, IN, Source::StreamListener(self.clone()))
    }

    /// Peers that connect wait.
    fn pause(&self) {
        self.streams.reactor.remove(self.token, &self.fd);
    }

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
    pub(crate) fn accept(&self, handler: &impl InputHandler) {
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
            let stream = TcpStream::new(fd, Phase::Open, &self.streams);
            let told = AcceptedStream { local, peer, stream: stream.clone() };
            handler.stream(Instant::now(), stream.token, StreamInput::Accepted(told));
            // What it says is told after that.
            if let Err(error) = stream.attend() {
                handler.stream(Instant::now(), stream.token, StreamInput::Lost(error.into()));
            }
        }
    }
}
