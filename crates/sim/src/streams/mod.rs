//! Ordered streams of bytes between processes, as TCP's: the table of their ends, and what a node
//! does with one ([`Stream`]). `socket`: one end. What moves, and what nodes are told of it, is the
//! simulation's (`sim::streams`).

mod socket;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nic::{Errno, Gather, Scatter, Stream};
use stack::env::Claim;

use crate::Dice;
use crate::env::{Action, HostId, ProcessId, Shared, SimEnv};
pub(crate) use socket::{End, Other, Phase, Socket, Tail};

/// First port that is chosen for a stream whose caller leaves that open, and how many there are.
const FIRST_PORT: u64 = 49_152;
const PORTS: u64 = 16_384;

/// Something that will happen to a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamDue {
    /// The wish to connect arrives where a listener may be.
    Syn(u64),
    /// The listener's answer arrives.
    SynAck(u64),
    /// The confirmation arrives: the listener's process gets the stream.
    Ack(u64),
    /// Bytes arrive, or the end of this half.
    Move(u64),
    /// The process looks at what has come.
    Readable(u64),
    /// The process hears that there is room.
    Writable(u64),
    /// The system asks whether the peer is there.
    Probe(u64),
    /// The stream is lost.
    Lost(u64, Errno),
}

/// All streams and listeners of a simulation, by token.
#[derive(Debug)]
pub(crate) struct Streams {
    sockets: BTreeMap<u64, Socket>,
    listeners: BTreeMap<u64, Listener>,
    last: u64,
    pub dice: Dice,
}

/// Where streams are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub host: HostId,
    pub process: ProcessId,
    at: SocketAddr,
    v6_only: bool,
}

impl Listener {
    fn is_at(&self, host: HostId, to: SocketAddr) -> bool {
        let ours = self.at.ip();
        let is_any =
            ours.is_unspecified() && (ours.is_ipv4() == to.is_ipv4() || ours.is_ipv6() && !self.v6_only);
        self.host == host && self.at.port() == to.port() && (ours == to.ip() || is_any)
    }

    /// An address as a socket of this listener shows it: one of IPv4 is mapped in IPv6.
    pub(crate) fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.at.is_ipv6() => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
            }
            _ => address,
        }
    }
}

impl Streams {
    pub(crate) fn new(dice: Dice) -> Self {
        Self { sockets: BTreeMap::new(), listeners: BTreeMap::new(), last: 0, dice }
    }

    fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn get(&self, token: u64) -> Option<&Socket> {
        self.sockets.get(&token)
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut Socket> {
        self.sockets.get_mut(&token)
    }

    /// Whether the other end is there, or comes to be.
    pub(crate) fn is_there(&self, token: u64) -> bool {
        self.get(token).is_some_and(|socket| match socket.other {
            Other::Awaited => true,
            Other::Is(there) => self.sockets.contains_key(&there),
            Other::Gone => false,
        })
    }

    /// The tokens of streams.
    pub(crate) fn tokens(&self, is_it: impl Fn(&Socket) -> bool) -> Vec<u64> {
        self.sockets.iter().filter(|(_, socket)| is_it(socket)).map(|(token, _)| *token).collect()
    }

    fn listen(&mut self, listener: Listener) -> Result<u64, Errno> {
        let Listener { host, at, .. } = listener;
        let meets =
            |other: &Listener| other.is_at(host, at) || host == other.host && listener.is_at(host, other.at);
        if self.listeners.values().any(meets) {
            return Err(Errno::EADDRINUSE);
        }
        let token = self.token();
        self.listeners.insert(token, listener);
        Ok(token)
    }

    /// The listener of an address: one that names it rather than one of all addresses.
    pub(crate) fn listener(&self, host: HostId, to: SocketAddr) -> Option<Listener> {
        let all = self.listeners.values().filter(|listener| listener.is_at(host, to));
        all.max_by_key(|listener| listener.at.ip() == to.ip()).copied()
    }

    pub(crate) fn forget_listeners(&mut self, process: ProcessId) {
        self.listeners.retain(|_, listener| listener.process != process);
    }

    /// A stream that is to be connected.
    fn connect(&mut self, env: &SimEnv, mut from: SocketAddr, to: SocketAddr) -> Result<u64, Errno> {
        let is_taken = |streams: &Self, from| {
            streams.sockets.values().any(|s| s.host == env.host && (s.local, s.peer) == (from, to))
        };
        let token = self.token();
        if from.port() == 0 {
            let port = (0..PORTS).map(|n| (FIRST_PORT + (token + n) % PORTS) as u16);
            let free = |port: &u16| !is_taken(self, SocketAddr::new(from.ip(), *port));
            from.set_port(port.into_iter().find(free).ok_or(Errno::EADDRNOTAVAIL)?);
        }
        if is_taken(self, from) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let now = env.shared.clock.nanos();
        let socket = Socket::new(&mut self.dice, (env.process, env.host), (from, to), now);
        self.sockets.insert(token, socket);
        Ok(token)
    }

    /// The end of a stream where it was accepted.
    pub(crate) fn accept(&mut self, token: u64, listener: &Listener, now: u64) -> Option<u64> {
        let accepted = self.token();
        let client = self.sockets.get_mut(&token)?;
        client.other = Other::Is(accepted);
        let (local, peer) = (listener.shown(client.peer), listener.shown(client.local));
        let mut socket = Socket::new(&mut self.dice, (listener.process, listener.host), (local, peer), now);
        (socket.other, socket.phase) = (Other::Is(token), Phase::Open);
        self.sockets.insert(accepted, socket);
        Some(accepted)
    }

    /// Moves some bytes to the other end, and the end of this half behind the last ones.
    pub(crate) fn shift(&mut self, token: u64) -> Option<Shifted> {
        let Other::Is(there) = self.get(token)?.other else { return None };
        let mut from = self.sockets.remove(&token)?;
        let shifted = match self.sockets.get_mut(&there) {
            Some(to) => from.shift(to, &mut self.dice),
            None => Shifted::default(),
        };
        self.sockets.insert(token, from);
        Some(Shifted { there, ..shifted })
    }

    /// The stream is lost at this end; the other one is not told.
    pub(crate) fn lose(&mut self, token: u64, why: Errno) {
        if let Some(socket) = self.sockets.get_mut(&token) {
            socket.lose(why);
        }
        self.tidy(token);
    }

    /// Forgets an end that no process has any more, when the other one knows all.
    pub(crate) fn tidy(&mut self, token: u64) {
        if self.get(token).is_some_and(Socket::is_done)
            && let Some(socket) = self.sockets.remove(&token)
            && let Other::Is(there) = socket.other
            && let Some(there) = self.sockets.get_mut(&there)
        {
            there.other = Other::Gone;
        }
    }

    /// The process has no descriptor of it any more, and its system ends it.
    pub(crate) fn release(&mut self, token: u64) {
        if let Some(socket) = self.sockets.get_mut(&token) {
            socket.release();
        }
        self.tidy(token);
    }

    /// A host is gone without a word.
    pub(crate) fn silence(&mut self, host: HostId) {
        self.listeners.retain(|_, listener| listener.host != host);
        for token in self.tokens(|socket| socket.host == host) {
            if let Some(socket) = self.sockets.get_mut(&token) {
                socket.lose(Errno::ENETDOWN);
                socket.held = false;
            }
            self.tidy(token);
        }
    }
}

/// What came of moving some bytes.
#[derive(Debug, Default)]
pub(crate) struct Shifted {
    /// The other end.
    pub there: u64,
    pub len: usize,
    /// The other end has something to look at.
    pub is_news: bool,
    /// No process has the other end any more.
    pub is_refused: bool,
    /// There is room again, for which this end waits.
    pub has_room: bool,
    /// There is more, and room for it.
    pub goes_on: bool,
}

/// An end, as its process has it.
pub(crate) struct SimStream {
    shared: Arc<Shared>,
    process: ProcessId,
    host: HostId,
    token: u64,
}

impl std::fmt::Debug for SimStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimStream").field("token", &self.token).finish_non_exhaustive()
    }
}

impl SimStream {
    pub(crate) fn new(shared: Arc<Shared>, process: ProcessId, host: HostId, token: u64) -> Arc<Self> {
        Arc::new(Self { shared, process, host, token })
    }

    /// Does something with the end, then has the simulation look at it.
    fn with<T>(&self, f: impl FnOnce(&mut Socket, &mut Dice) -> Result<T, Errno>) -> Result<T, Errno> {
        let done = {
            let mut streams = self.shared.streams();
            let Streams { sockets, dice, .. } = &mut *streams;
            sockets.get_mut(&self.token).map_or(Err(Errno::ECONNRESET), |socket| f(socket, dice))
        };
        if done.is_ok() {
            self.shared.outbox().push_back((self.process, Action::Stream(self.token)));
        }
        done
    }

    /// Whether the process lives after this step of its own.
    fn lives(&self) -> bool {
        let now = self.shared.clock.nanos();
        self.shared.hosts()[self.host.0].goes_on(now, self.process)
    }

    fn end(&self, how: impl FnOnce(&mut Socket, &mut Dice)) {
        if self.lives() {
            // Where the end is gone there is nothing to do.
            _ = self.with(|socket, dice| {
                how(socket, dice);
                Ok(())
            });
        }
    }
}

impl Stream for SimStream {
    fn send(&self, from: &Gather<'_>) -> Result<usize, Errno> {
        if !self.lives() {
            return Err(Errno::EPIPE);
        }
        self.with(|socket, dice| socket.send(from, dice))
    }

    fn receive(&self, into: &Scatter<'_>) -> Result<usize, Errno> {
        self.with(|socket, dice| socket.receive(into, dice))
    }

    fn finish(&self) {
        self.end(|socket, _| socket.finish());
    }

    fn close(&self) {
        self.end(|socket, _| {
            socket.finish();
            socket.phase = Phase::Over;
        });
    }

    fn reset(&self) {
        self.end(|socket, dice| socket.reset(dice));
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.shared.streams().release(self.token);
        self.shared.outbox().push_back((self.process, Action::Stream(self.token)));
    }
}

/// A listener that is held: it goes with this.
struct Listening {
    shared: Arc<Shared>,
    token: u64,
}

impl Claim for Listening {}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.streams().listeners.remove(&self.token);
    }
}

impl SimEnv {
    /// Opens a stream.
    pub(crate) fn open(&self, from: SocketAddr, to: SocketAddr) -> Result<(u64, Arc<dyn Stream>), Errno> {
        self.bears(from)?;
        let token = self.shared.streams().connect(self, from, to)?;
        self.act(Action::Connect(token));
        Ok((token, SimStream::new(self.shared.clone(), self.process, self.host, token)))
    }

    /// Accepts streams until the claim is dropped.
    pub(crate) fn listen(&self, at: SocketAddr, v6_only: bool) -> Result<Box<dyn Claim>, Errno> {
        self.bears(at)?;
        let listener = Listener { host: self.host, process: self.process, at, v6_only };
        let token = self.shared.streams().listen(listener)?;
        Ok(Box::new(Listening { shared: self.shared.clone(), token }))
    }

    /// Whether a living process of this host may have the address.
    fn bears(&self, address: SocketAddr) -> Result<(), Errno> {
        let ip = address.ip();
        self.with_host(|host| {
            if !host.processes.contains(&self.process) {
                return Err(Errno::ENODEV);
            }
            let is_ours = ip.is_unspecified() || host.interface.addresses.contains(&ip);
            is_ours.then_some(()).ok_or(Errno::EADDRNOTAVAIL)
        })
    }
}
