//! Names of this process: claimed, listened at, given back.
//!
//! Each has two forms ([`crate::name_text`]): that of this user and protocol number, and the common
//! one by which other builds find the process. The first is this user's alone. The second may be
//! another user's already: then other builds do not find this process, and nothing else changes.
//! The block of a process that takes no ring has a third one, which says that.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use locks::{Mutex, MutexGuard, Rank};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use stack::Name;
use stack::env::{Claim, ClaimError};
use sys::fork::Fd;
use sys::limits;
use wire::mad::PortSpace;

use super::{Connection, Names, unconnected};
use crate::name_text;
use crate::reactor::{HANG_UP, IN, Reactor, Source};
use crate::user;

/// Connections of other processes that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Connections that are accepted before the engine looks at anything else: other users can ask too.
const ACCEPTS_PER_EVENT: usize = 32;
/// Blocks that are left to other users, which may be at other addresses of this host, before those
/// users' blocks do not count any more.
const MAX_LEFT: u32 = 16;

/// A name of ours, where other processes connect.
pub(crate) struct Listener {
    fd: Fd,
    token: u64,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    closed: bool,
    /// The engine has them, and closes those that end.
    open: Vec<Weak<Connection>>,
}

/// Whether more processes want to connect to a name than were taken in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// No process does.
    None,
    /// Some processes may.
    Some,
    /// At least one process does, and there is no descriptor left for it.
    NoDescriptor,
}

/// A name held, in all forms that could be had.
struct Held {
    listeners: Vec<Arc<Listener>>,
    reactor: Arc<Reactor>,
}

impl Claim for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        for listener in &self.listeners {
            self.reactor.remove(listener.token, &listener.fd);
            let mut connections = listener.lock();
            connections.closed = true;
            for connection in connections.open.drain(..).filter_map(|connection| connection.upgrade()) {
                self.reactor.remove(connection.token, &connection.fd);
            }
            // Until the engine lets go of an event it has in hand, the socket may live on: stop
            // listening now.
            let _ = SockRef::from(&listener.fd).shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Names {
    /// Claims a name, for a process that takes rings or does not.
    pub(crate) fn claim(
        &self,
        name: Name,
        takes_rings: bool,
        reactor: &Arc<Reactor>,
    ) -> Result<Box<dyn Claim>, ClaimError> {
        let claimed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ClaimError::InUse,
            _ => ClaimError::System(error.into()),
        };
        let own = own_address(name).and_then(|address| Listener::new(&address, reactor)).map_err(claimed)?;
        let mut held = Held { listeners: vec![own], reactor: reactor.clone() };
        match common_address(name).and_then(|address| Listener::new(&address, reactor)) {
            Ok(common) => held.listeners.push(common),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if bears_common(name) || self.leaves(name) {
                    return Err(ClaimError::InUse);
                }
            }
            Err(error) => return Err(claimed(error)),
        }
        if matches!(name, Name::Block(_)) && !takes_rings {
            // Without it others learn when they offer a ring.
            let ringless = ringless_address(name).and_then(|address| Listener::new(&address, reactor));
            held.listeners.extend(ringless);
        }
        Ok(Box::new(held))
    }

    /// Whether a name of another user is left to that: a block, whose numbers packets to another
    /// address of this host may bear, as long as there seem to be others.
    fn leaves(&self, name: Name) -> bool {
        matches!(name, Name::Block(_)) && self.left.fetch_add(1, Ordering::Relaxed) < MAX_LEFT
    }
}

/// Whether a process of our user bears the common form of a name.
fn bears_common(name: Name) -> bool {
    let connect = || {
        let fd = unconnected()?;
        SockRef::from(&fd).connect(&common_address(name)?)?;
        user::check(&fd)
    };
    connect().is_ok()
}

/// The names claimed for a port by processes of our user in this namespace (/proc/net/unix,
/// proc_net(5)).
pub(crate) fn port_names(space: PortSpace, port: u16) -> Vec<Name> {
    let (mut names, mut others) = owned_by_this_host(|name| name.is_of_port(space, port));
    names.append(&mut others);
    names.sort_unstable();
    names
}

/// The names that processes of our user bear in this namespace: those of this protocol number, and
/// those that builds of other numbers bear by the common form alone. Each once.
fn owned_by_this_host(wanted: impl Fn(&Name) -> bool) -> (Vec<Name>, Vec<Name>) {
    let table = std::fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let (table, uid) = (String::from_utf8_lossy(&table), sys::own_uid());
    let texts = table.lines().filter_map(|line| line.rsplit_once(' ')?.1.strip_prefix('@'));
    // Accepted connections bear the name of their listener too.
    let each_once = |names: &mut dyn Iterator<Item = Name>| -> Vec<Name> {
        names.filter(&wanted).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let own = each_once(&mut texts.clone().filter_map(|text| name_text::parse(text, uid)));
    let mut others = each_once(&mut texts.filter_map(name_text::parse_common));
    others.retain(|name| !own.contains(name) && bears_common(*name));
    (own, others)
}

/// How many blocks of queue pair numbers processes of this user bear here that are of builds of
/// another protocol number ([`crate::name_text::PROTOCOL`]). Those exchange whole packets with this
/// one, and nothing else.
pub fn other_builds() -> usize {
    owned_by_this_host(|name| matches!(name, Name::Block(_))).1.len()
}

impl Listener {
    fn new(address: &SockAddr, reactor: &Arc<Reactor>) -> io::Result<Arc<Self>> {
        let fd = Fd::open(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
        let socket = SockRef::from(&fd);
        socket.set_nonblocking(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?;
        let connections = Mutex::new(Rank::Connections, Connections::default());
        let listener = Arc::new(Self { fd, token: reactor.token(), connections });
        reactor.add(
            listener.token,
            &listener.fd,
            IN | libc::EPOLLET as u32,
            Source::Listener(listener.clone()),
        )?;
        Ok(listener)
    }

    /// Takes in processes that want to hand us packets; whether there may be more. To be called
    /// until there are none: the engine is told of new ones only.
    pub(crate) fn accept(&self, reactor: &Reactor) -> More {
        for _ in 0..ACCEPTS_PER_EVENT {
            let fd = match Fd::open(|| SockRef::from(&self.fd).accept().map(|(socket, _)| socket)) {
                Ok(fd) => fd,
                Err(error) if limits::no_descriptor_is_left(&error) => return More::NoDescriptor,
                Err(_) => return More::None,
            };
            if user::check(&fd).is_err() {
                continue;
            }
            let connection = Arc::new(Connection { fd, token: reactor.token() });
            let mut connections = self.lock();
            if connections.closed {
                return More::None;
            }
            let source = Source::Connection(connection.clone());
            if reactor.add(connection.token, &connection.fd, IN | HANG_UP, source).is_ok() {
                connections.open.retain(|connection| connection.strong_count() > 0);
                connections.open.push(Arc::downgrade(&connection));
            }
        }
        More::Some
    }

    /// The name of this listener with the engine.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock()
    }
}

/// The form of a name that is this user's and of this protocol number.
pub(super) fn own_address(name: Name) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{}", name_text::text(name, sys::own_uid())))
}

/// The form of a name whose owner takes no ring.
pub(super) fn ringless_address(name: Name) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{}", name_text::ringless_text(name, sys::own_uid())))
}

/// The form of a name by which other builds find its owner.
pub(super) fn common_address(name: Name) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{}", name_text::common_text(name)))
}
