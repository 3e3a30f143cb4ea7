//! Names that processes of one network namespace claim, as abstract Unix sockets (unix(7)): atomic
//! to claim, gone with the process, scoped like the addresses. They are the index of blocks and
//! ports, and the way packets take to the process that they are for. What names look like is in
//! `name_text`, what messages look like in `name_messages`. Both ends must belong to one user.

mod claim;
mod owner;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use claim::{common_address, own_address, ringless_address};
use local::Known;
use locks::{Mutex, MutexGuard, Rank};
use socket2::{Domain, SockRef, Socket, Type};
use stack::env::Datagram;
use stack::{Name, Watch};
use sys::fork::Fd;
use sys::{ControlBuffer, Room, limits};

use crate::counters::{Counters, add};
use crate::name_messages;
use crate::reactor::{HANG_UP, IN, Reactor, Source};
use crate::sockets;
use crate::tx::Tx;
use crate::user;
pub use claim::other_builds;
pub(crate) use claim::{Listener, More, port_names};
pub(crate) use owner::{Answer, NameOwner};

/// Most connections to other processes that are kept for forwarding alone.
const MAX_NAME_OWNERS: usize = 512;
/// Bytes of queue on such a connection; the system's limit may be lower.
const QUEUE_BYTES: u32 = 1 << 21;

/// The processes that bear names we use.
pub(crate) struct Names {
    owners: Mutex<BTreeMap<Name, Arc<NameOwner>>>,
    /// A socket that is not connected yet, for the next name: no process has most of the names
    /// that unsolicited traffic makes us look for.
    spare: Mutex<Option<Fd>>,
    /// Whether this is a host of a fabric.
    on_fabric: bool,
    /// The sockets that send, of which some are closed where there is no descriptor left.
    tx: Arc<Tx>,
    /// Blocks left to other users.
    left: AtomicU32,
}

/// Another process that hands us packets.
pub(crate) struct Connection {
    fd: Fd,
    token: u64,
}

/// The form of a name ([`crate::name_text`]).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Own,
    Ringless,
    Common,
}

/// What another process says.
pub(crate) enum Message<'a> {
    /// A packet that landed there.
    Packet(Datagram<'a>),
    /// A message of its connection manager.
    HandedOver(Datagram<'a>),
    /// The process will send by a ring in this memory, and wants this word repeated
    /// (`local::peer_memory`).
    Ring(Fd, u64),
}

impl Names {
    /// No name is known yet. On a host of a `fabric` packets have no way but rings.
    pub(crate) fn new(tx: Arc<Tx>, on_fabric: bool) -> Self {
        Self {
            on_fabric,
            owners: Mutex::new(Rank::NameOwners, BTreeMap::new()),
            spare: Mutex::new(Rank::SpareSocket, None),
            tx,
            left: AtomicU32::new(0),
        }
    }

    /// The owner of `name`, if it is known already: then handing on is one system call.
    pub(crate) fn known(&self, name: Name) -> Option<Arc<NameOwner>> {
        self.lock().get(&name).cloned()
    }

    /// Hands a message that we made to the process that bears `name`. False where it has to go by
    /// the network: no process bears the name, or none of this user, or the owner wants it so.
    pub(crate) fn hand_over(
        &self,
        name: Name,
        datagram: &Datagram<'_>,
        reactor: &Reactor,
        counters: &Counters,
    ) -> bool {
        let takes = self.owner(name, reactor).is_ok_and(|owner| !owner.has_declined());
        let mut header = name_messages::emit(datagram);
        name_messages::mark_handed_over(&mut header);
        takes && self.pass(name, &header, datagram.bytes, &counters.messages_handed_over, reactor, counters)
    }

    /// Hands a packet to the process that bears `name`; false where no process does, or none of
    /// this user. A process that can not take it just now loses it.
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
        // A connection may have ended unnoticed, and its name have a new owner: so a second
        // attempt.
        for _ in 0..2 {
            let owner = match self.owner(name, reactor) {
                Ok(owner) => owner,
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
            match SockRef::from(&owner.fd).send_vectored_with_flags(&buffers, flags) {
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
                    self.forget(&owner);
                }
                Err(_) => {
                    add(&counters.forward_drops, 1);
                    return true;
                }
            }
        }
        false
    }

    /// Has the engine tell when the owner of `name` ends; `None` where no process bears it. One
    /// that can not be watched (another user's) passes for one that lives.
    pub(crate) fn watch(&self, name: Name, reactor: &Reactor) -> Option<Watch> {
        // A connection may have ended unnoticed, and its name have a new owner: so a second
        // attempt.
        for _ in 0..2 {
            let owner = match self.owner(name, reactor) {
                Ok(owner) => owner,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return None,
                Err(_) => return Some(Watch::NONE),
            };
            if sys::has_hung_up(&owner.fd) {
                self.forget(&owner);
                continue;
            }
            owner.watched.store(true, Ordering::Release);
            // A hang-up that the engine has seen before the mark was set is found here.
            let is_known = self.lock().get(&name).is_some_and(|known| known.token == owner.token);
            if is_known || !owner.watched.swap(false, Ordering::AcqRel) {
                return Some(Watch(owner.token));
            }
        }
        None
    }

    /// An owner hung up; returns its name, and which owner it was, where it is watched.
    pub(crate) fn ended(&self, owner: &NameOwner, reactor: &Reactor) -> Option<(Name, Watch)> {
        self.forget(owner);
        reactor.remove(owner.token, &owner.fd);
        owner.watched.swap(false, Ordering::AcqRel).then_some((owner.name, Watch(owner.token)))
    }

    /// Forgets all owners.
    pub(crate) fn close(&self, reactor: &Reactor) {
        *self.spare.lock() = None;
        for owner in std::mem::take(&mut *self.lock()).into_values() {
            reactor.remove(owner.token, &owner.fd);
        }
    }

    /// ECONNREFUSED where no process bears the name.
    pub(crate) fn owner(&self, name: Name, reactor: &Reactor) -> io::Result<Arc<NameOwner>> {
        let mut owners = self.lock();
        if let Some(owner) = owners.get(&name) {
            return Ok(owner.clone());
        }
        if owners.len() >= MAX_NAME_OWNERS {
            let idle = owners.iter().find(|(_, owner)| !owner.is_needed());
            if let Some(idle) = idle.map(|(name, _)| *name).and_then(|name| owners.remove(&name)) {
                reactor.remove(idle.token, &idle.fd);
            }
        }
        let connect = || self.connect(name, reactor.token());
        let owner = match connect() {
            Err(error) if limits::no_descriptor_is_left(&error) && self.tx.give_up_one(reactor) => connect(),
            connected => connected,
        };
        let owner = Arc::new(owner?);
        reactor.add(owner.token, &owner.fd, IN | HANG_UP, Source::NameOwner(owner.clone()))?;
        owners.insert(name, owner.clone());
        Ok(owner)
    }

    fn connect(&self, name: Name, token: u64) -> io::Result<NameOwner> {
        let spare = self.spare.lock().take();
        let mut fd = spare.map_or_else(unconnected, Ok)?;
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let mut form = Form::Own;
        // A process that takes no ring bears its blocks so, too: the first packets would be lost in
        // a ring that it declines. On a host of a fabric it takes rings, for packets alone.
        if matches!(name, Name::Block(_)) && SockRef::from(&fd).connect(&ringless_address(name)?).is_ok() {
            match user::check(&fd) {
                Ok(()) => form = Form::Ringless,
                Err(_) => fd = unconnected()?,
            }
        }
        let mut connected = match form {
            Form::Ringless => Ok(()),
            _ => SockRef::from(&fd).connect(&own_address(name)?),
        };
        if connected.as_ref().is_err_and(refused) {
            form = Form::Common;
            connected = SockRef::from(&fd).connect(&common_address(name)?);
        }
        if let Err(error) = connected {
            if refused(&error) {
                *self.spare.lock() = Some(fd);
            }
            return Err(error);
        }
        user::check(&fd)?;
        let pid = sys::peer_pid(&fd).unwrap_or(0);
        let no = || AtomicBool::new(false);
        // Another build's takes whole packets from the network, and from other processes that
        // received them.
        let (packets_only, other_build) = (form == Form::Ringless, form == Form::Common);
        let declined = AtomicBool::new(other_build || packets_only && !self.on_fabric);
        let (watched, has_ring) = (no(), no());
        Ok(NameOwner { name, fd, token, pid, watched, has_ring, declined, packets_only, other_build })
    }

    /// The engine still tells of its end, which is why it stays with the engine.
    fn forget(&self, owner: &NameOwner) {
        let mut owners = self.lock();
        if owners.get(&owner.name).is_some_and(|known| known.token == owner.token) {
            owners.remove(&owner.name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<NameOwner>>> {
        self.owners.lock()
    }
}

/// A socket to connect to a name.
fn unconnected() -> io::Result<Fd> {
    let fd = Fd::open(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
    SockRef::from(&fd).set_nonblocking(true)?;
    sockets::buffer(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, QUEUE_BYTES);
    Ok(fd)
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
                ([name_messages::RING, ..], Some(memory)) => {
                    let Some(nonce) = name_messages::read_ring_offer(&room[..]) else {
                        // Another build's, whose records are others.
                        add(&counters.local.other_builds, 1);
                        self.decline_ring();
                        continue;
                    };
                    Some(Message::Ring(memory, nonce))
                }
                // The rings are read before the engine sleeps again, and until then nothing more is
                // said as a rule: no second look here.
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

    /// Takes it out of the epoll instance, which closes it.
    pub(crate) fn close(&self, reactor: &Reactor) {
        reactor.remove(self.token, &self.fd);
    }
}

impl local::Connection for Connection {
    fn token(&self) -> u64 {
        self.token
    }

    fn export(&self, tables: &Fd, identity: Known) {
        let _ =
            sys::send_descriptor(&self.fd, &name_messages::export(identity.address, identity.says), tables);
    }

    fn export_buffer(&self, address: u64, writable: bool, buffer: &Fd) -> bool {
        sys::send_descriptor(&self.fd, &name_messages::buffer(address, writable), buffer).is_ok()
    }

    fn tell_gone(&self, address: u64) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = SockRef::from(&self.fd).send_with_flags(&name_messages::gone(address), flags);
    }

    fn give(&self, wake_fd: &Fd) {
        let _ = sys::send_descriptor(&self.fd, &[name_messages::WAKE_FD], wake_fd);
    }

    fn is_gone(&self) -> bool {
        sys::has_hung_up(&self.fd)
    }

    fn fd(&self) -> &Fd {
        &self.fd
    }
}
