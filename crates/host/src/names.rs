//! Names that processes of one network namespace claim, as abstract Unix sockets (unix(7)): atomic to claim, gone with
//! the process, scoped like the addresses. They are the index of blocks and ports, and the way packets take to
//! the process that they are for. What names and messages look like is in `name_messages`. Both ends must belong to one user.

mod bearer;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use locks::{Mutex, MutexGuard, Rank};
use node::world::{Claim, ClaimError, Datagram};
use node::{Name, Watch};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use wire::Qpn;
use wire::mad::PortSpace;

use crate::arena::Arena;
use crate::counters::{Counters, add};
use crate::fork::Fd;
use crate::name_messages;
use crate::reach::{Borrower, Known};
use crate::reactor::{HANG_UP, IN, Reactor, Source};
use crate::rings::memory::Part;
use crate::sockets;
use crate::sys::{self, ControlBuffer, Room};
use crate::user;
pub(crate) use bearer::{Answer, Bearer};

/// Connections of other processes that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Most connections to other processes that are kept for forwarding alone.
const MAX_BEARERS: usize = 512;
/// Bytes of queue on such a connection; the system's limit may be lower.
const QUEUE_BYTES: u32 = 1 << 21;
/// Connections that are accepted before the engine looks at anything else: other users can ask too.
const ACCEPTS_PER_EVENT: usize = 32;

/// The block of a queue pair number; one process bears its name.
#[inline]
pub(crate) fn block(qpn: Qpn) -> u16 {
    (qpn.get() >> 12) as u16
}

/// The processes that bear names we use.
pub(crate) struct Names {
    bearers: Mutex<BTreeMap<Name, Arc<Bearer>>>,
    /// A socket that is connected to nobody, for the next name: most that strangers make us look for are nobody's.
    spare: Mutex<Option<Fd>>,
}

/// A name of ours, where other processes connect.
pub(crate) struct Listener {
    fd: Fd,
    token: u64,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    closed: bool,
    open: Vec<Arc<Connection>>,
}

/// Another process that hands us packets.
pub(crate) struct Connection {
    fd: Fd,
    token: u64,
}

/// What another process says.
pub(crate) enum Message<'a> {
    /// A packet that landed there.
    Packet(Datagram<'a>),
    /// A message of its connection manager.
    HandedOver(Datagram<'a>),
    /// It will send by a ring in this memory.
    Ring(Fd),
}

/// A name held.
struct Held {
    listener: Arc<Listener>,
    reactor: Arc<Reactor>,
}

impl Claim for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        self.reactor.remove(self.listener.token, &self.listener.fd);
        let mut connections = self.listener.lock();
        connections.closed = true;
        for connection in connections.open.drain(..) {
            self.reactor.remove(connection.token, &connection.fd);
        }
        // Until the engine lets go of an event it has in hand, the socket may live on: stop listening now.
        let _ = SockRef::from(&self.listener.fd).shutdown(std::net::Shutdown::Both);
    }
}

/// Claims a name.
pub(crate) fn claim(name: Name, reactor: &Arc<Reactor>) -> Result<Box<dyn Claim>, ClaimError> {
    let listen = || -> io::Result<Arc<Listener>> {
        let fd = Fd::open(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
        let socket = SockRef::from(&fd);
        socket.set_nonblocking(true)?;
        socket.bind(&address(name)?)?;
        socket.listen(BACKLOG)?;
        let connections = Mutex::new(Rank::Connections, Connections::default());
        let listener = Arc::new(Listener { fd, token: reactor.token(), connections });
        reactor.add(
            listener.token,
            &listener.fd,
            IN | libc::EPOLLET as u32,
            Source::Listener(listener.clone()),
        )?;
        Ok(listener)
    };
    match listen() {
        Ok(listener) => Ok(Box::new(Held { listener, reactor: reactor.clone() })),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(ClaimError::InUse),
        Err(error) => Err(ClaimError::System(error.into())),
    }
}

/// The names claimed for a port, by any process of the namespace (/proc/net/unix, proc_net(5)).
pub(crate) fn port_names(space: PortSpace, port: u16) -> Vec<Name> {
    let table = std::fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let mut names: Vec<Name> = String::from_utf8_lossy(&table)
        .lines()
        .filter_map(|line| name_messages::parse(line.rsplit_once(' ')?.1.strip_prefix('@')?))
        .filter(|name| name.is_of_port(space, port))
        .collect();
    // Accepted connections bear the name of their listener too.
    names.sort_unstable();
    names.dedup();
    names
}

impl Default for Names {
    fn default() -> Names {
        Names {
            bearers: Mutex::new(Rank::Bearers, BTreeMap::new()),
            spare: Mutex::new(Rank::SpareSocket, None),
        }
    }
}

impl Names {
    /// The bearer of `name`, if it is known already: then handing on is one system call.
    pub(crate) fn known(&self, name: Name) -> Option<Arc<Bearer>> {
        self.lock().get(&name).cloned()
    }

    /// Hands a message that we made to the process that bears `name`; false where it has to go by the network: where nobody bears it,
    /// or nobody of this user, or one who wants it so.
    pub(crate) fn hand_over(
        &self,
        name: Name,
        datagram: &Datagram<'_>,
        reactor: &Reactor,
        counters: &Counters,
    ) -> bool {
        let takes = self.bearer(name, reactor).is_ok_and(|bearer| !bearer.has_declined());
        let mut header = name_messages::emit(datagram);
        name_messages::mark_handed_over(&mut header);
        takes && self.pass(name, &header, datagram.bytes, &counters.messages_handed_over, reactor, counters)
    }

    /// Hands a packet to the process that bears `name`; false where nobody does, or nobody of this user. One that can not take it
    /// just now loses it.
    pub(crate) fn forward(
        &self,
        name: Name,
        datagram: &Datagram<'_>,
        reactor: &Reactor,
        counters: &Counters,
    ) -> bool {
        let header = name_messages::emit(datagram);
        self.pass(name, &header, datagram.bytes, &counters.forwarded_out, reactor, counters)
    }

    /// Sends a packet to the process that bears `name`, as [`Names::forward`] says, and counts it.
    fn pass(
        &self,
        name: Name,
        header: &[u8],
        bytes: &[u8],
        counter: &AtomicU64,
        reactor: &Reactor,
        counters: &Counters,
    ) -> bool {
        let buffers = [IoSlice::new(header), IoSlice::new(bytes)];
        // A connection may have ended unnoticed, and its name have a new bearer: so a second attempt.
        for _ in 0..2 {
            let bearer = match self.bearer(name, reactor) {
                Ok(bearer) => bearer,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return false,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    add(&counters.forward_refused, 1);
                    return false;
                }
                Err(_) => {
                    add(&counters.forward_drops, 1);
                    return true;
                }
            };
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            match SockRef::from(&bearer.fd).send_vectored_with_flags(&buffers, flags) {
                Ok(_) => {
                    add(counter, 1);
                    return true;
                }
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
                    ) =>
                {
                    self.forget(&bearer);
                }
                Err(_) => {
                    add(&counters.forward_drops, 1);
                    return true;
                }
            }
        }
        false
    }

    /// Has the engine tell when the bearer of `name` ends; `None` where nobody bears it. One that can not be watched (another
    /// user's) passes for one that lives.
    pub(crate) fn watch(&self, name: Name, reactor: &Reactor) -> Option<Watch> {
        // A connection may have ended unnoticed, and its name have a new bearer: so a second attempt.
        for _ in 0..2 {
            let bearer = match self.bearer(name, reactor) {
                Ok(bearer) => bearer,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return None,
                Err(_) => return Some(Watch::NONE),
            };
            if sys::has_hung_up(&bearer.fd) {
                self.forget(&bearer);
                continue;
            }
            bearer.watched.store(true, Ordering::Release);
            // A hang-up that the engine has seen before the mark was set is found here.
            let is_known = self.lock().get(&name).is_some_and(|known| known.token == bearer.token);
            if is_known || !bearer.watched.swap(false, Ordering::AcqRel) {
                return Some(Watch(bearer.token));
            }
        }
        None
    }

    /// A bearer hung up; its name, and which bearer it was, where somebody watches it.
    pub(crate) fn ended(&self, bearer: &Bearer, reactor: &Reactor) -> Option<(Name, Watch)> {
        self.forget(bearer);
        reactor.remove(bearer.token, &bearer.fd);
        bearer.watched.swap(false, Ordering::AcqRel).then_some((bearer.name, Watch(bearer.token)))
    }

    /// Forgets all bearers.
    pub(crate) fn close(&self, reactor: &Reactor) {
        *self.spare.lock() = None;
        for bearer in std::mem::take(&mut *self.lock()).into_values() {
            reactor.remove(bearer.token, &bearer.fd);
        }
    }

    /// ECONNREFUSED where nobody bears the name.
    pub(crate) fn bearer(&self, name: Name, reactor: &Reactor) -> io::Result<Arc<Bearer>> {
        let mut bearers = self.lock();
        if let Some(bearer) = bearers.get(&name) {
            return Ok(bearer.clone());
        }
        if bearers.len() >= MAX_BEARERS {
            let idle = bearers.iter().find(|(_, bearer)| !bearer.is_needed());
            if let Some(idle) = idle.map(|(name, _)| *name).and_then(|name| bearers.remove(&name)) {
                reactor.remove(idle.token, &idle.fd);
            }
        }
        let bearer = Arc::new(self.connect(name, reactor.token())?);
        reactor.add(bearer.token, &bearer.fd, IN | HANG_UP, Source::Bearer(bearer.clone()))?;
        bearers.insert(name, bearer.clone());
        Ok(bearer)
    }

    fn connect(&self, name: Name, token: u64) -> io::Result<Bearer> {
        let spare = self.spare.lock().take();
        let fd = spare.map_or_else(unconnected, Ok)?;
        if let Err(error) = SockRef::from(&fd).connect(&address(name)?) {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                *self.spare.lock() = Some(fd);
            }
            return Err(error);
        }
        user::check(&fd)?;
        let pid = sys::peer_pid(&fd).unwrap_or(0);
        let no = || AtomicBool::new(false);
        Ok(Bearer { name, fd, token, pid, watched: no(), has_ring: no(), declined: no() })
    }

    /// The engine still tells of its end, which is why it stays with the engine.
    fn forget(&self, bearer: &Bearer) {
        let mut bearers = self.lock();
        if bearers.get(&bearer.name).is_some_and(|known| known.token == bearer.token) {
            bearers.remove(&bearer.name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<Bearer>>> {
        self.bearers.lock()
    }
}

/// A socket to connect to a name.
fn unconnected() -> io::Result<Fd> {
    let fd = Fd::open(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
    SockRef::from(&fd).set_nonblocking(true)?;
    sockets::buffer(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, QUEUE_BYTES);
    Ok(fd)
}

impl Listener {
    /// Takes in processes that want to hand us packets; whether there may be more. To be called until there are none: the engine
    /// is told of new ones only.
    pub(crate) fn accept(&self, reactor: &Reactor) -> bool {
        for _ in 0..ACCEPTS_PER_EVENT {
            // Where descriptors run out, the next connection tries again.
            let Ok(fd) = Fd::open(|| SockRef::from(&self.fd).accept().map(|(socket, _)| socket)) else {
                return false;
            };
            if user::check(&fd).is_err() {
                continue;
            }
            let connection = Arc::new(Connection { fd, token: reactor.token() });
            let mut connections = self.lock();
            if connections.closed {
                return false;
            }
            let source = Source::Connection(connection.clone());
            if reactor.add(connection.token, &connection.fd, IN | HANG_UP, source).is_ok() {
                // Those that ended are held by nobody else.
                connections.open.retain(|connection| Arc::strong_count(connection) > 1);
                connections.open.push(connection);
            }
        }
        true
    }

    /// Its name with the engine.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock()
    }
}

impl Connection {
    /// Reads what has come, at most `limit` packets; false where the other end is gone.
    pub(crate) fn read(
        &self,
        limit: usize,
        room: &mut Room,
        counters: &Counters,
        mut each: impl FnMut(Message<'_>),
    ) -> bool {
        for _ in 0..limit {
            let mut control = ControlBuffer::new();
            let received = match room.receive(&self.fd, &mut control, libc::MSG_CMSG_CLOEXEC) {
                Ok(received) if received.len == 0 => return false,
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            let descriptor = sys::take_descriptors(received.control).into_iter().next();
            let message = match (&room[..], descriptor) {
                ([name_messages::RING], Some(memory)) => Some(Message::Ring(memory)),
                // The rings are read before the engine sleeps again, and until then nothing more is said as a rule: no second look here.
                ([name_messages::LOOK], _) => return true,
                (packet, _) => name_messages::read(packet).map(match name_messages::is_handed_over(packet) {
                    true => Message::HandedOver,
                    false => Message::Packet,
                }),
            };
            match message {
                Some(message) => each(message),
                None => add(&counters.forward_errors, 1),
            }
        }
        true
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Says that no packets are taken by the ring that was offered here.
    pub(crate) fn decline_ring(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = SockRef::from(&self.fd).send_with_flags(&[name_messages::NO_RING], flags);
    }

    /// Lends it these tables, for the ring that was offered here.
    pub(crate) fn lend(&self, tables: &Fd, guard: Known) {
        let _ = sys::send_descriptor(&self.fd, &name_messages::lend(guard.address, guard.says), tables);
    }

    /// Lets it map this memory, for the ring that was offered here.
    pub(crate) fn show(&self, arena: &Arena) {
        let _ = sys::send_descriptor(&self.fd, &name_messages::arena(arena.address()), arena.fd());
    }

    /// Gives it what wakes a thread of this process, with the ring that was offered here.
    pub(crate) fn give(&self, bell: &Fd) {
        let _ = sys::send_descriptor(&self.fd, &[name_messages::BELL], bell);
    }

    /// Somebody to lend to, who says in this memory what is used.
    pub(crate) fn borrower(&self, hazards: Part) -> Borrower {
        Borrower::new(hazards, &self.fd)
    }

    /// Whether the other end is gone.
    pub(crate) fn is_gone(&self) -> bool {
        sys::has_hung_up(&self.fd)
    }

    /// Takes it out of the epoll instance, which closes it.
    pub(crate) fn close(&self, reactor: &Reactor) {
        reactor.remove(self.token, &self.fd);
    }
}

fn address(name: Name) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{}", name_messages::text(name)))
}
