//! The streams of iWARP devices: opened, accepted and written to for the connection manager
//! ([`cm::streams`]), and given to queue pairs.
//!
//! Until a stream is a queue pair's, what comes by it is told under the connection manager's lock.
//! From then on bytes go to the queue pair, and only the end of the stream is told to both.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cm::streams::{Accepted, Action, Agreed, Close, HandOver, Open, Rtr, RtrMessage, StreamId};
use cm::{PathRecord, PortSpace, Service};
use locks::{Rank, RwLock};
use nic::qp::streams::Handover;
use nic::{Device, DeviceId, Gather, NewStream, Qp, Scatter, Stream, Transport};
use transport::iwarp::{Attr, MAX_PAYLOAD};

use crate::address::with_scope;
use crate::cm_agent::Core;
use crate::env::{AcceptedStream, Env, StreamInput, StreamRead};
use crate::id::{Claimed, Id};
use crate::{Errno, Error, Node};

/// Bytes that the connection manager is told of at once: its messages are shorter.
const MAX_UNDELIVERED: usize = 4096;

/// Ports that a stream is opened from in vain, at most, where its program named none.
const PORT_TRIES: usize = 32;

/// How long an accepting queue pair that need not wait for an RTR sends nothing, unless the peer
/// does. The kernel's siw gives a stream up whose first FPDU it reads together with the reply.
const GRACE: Duration = Duration::from_millis(10);
/// When a connecting queue pair that sends no RTR sends a WRITE of no bytes. The kernel's siw does
/// not look at what came before it was ready, until more comes.
const NUDGE: Duration = Duration::from_millis(50);

/// All streams of a node, by the environment's tokens.
#[derive(Debug)]
pub(crate) struct Streams(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    tokens: BTreeMap<(DeviceId, StreamId), u64>,
    /// Streams that accepting queue pairs get a moment later.
    held: VecDeque<Held>,
    /// Connecting queue pairs that remind their peers of what they sent, the first one first.
    nudges: VecDeque<(Instant, Weak<Qp>)>,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    device: DeviceId,
    id: StreamId,
    given: Box<HandOver>,
}

#[derive(Debug)]
struct Entry {
    device: DeviceId,
    id: StreamId,
    stream: Arc<dyn Stream>,
    /// What the connection manager wrote and the stream did not take yet.
    unsent: Vec<u8>,
    /// The queue pair whose stream it is.
    qp: Option<Weak<Qp>>,
    /// The connection that is established by the first bytes that come.
    awaits: Option<cm::ConnId>,
}

impl Default for Streams {
    fn default() -> Self {
        Self(RwLock::new(Rank::Streams, Table::default()))
    }
}

impl Streams {
    fn insert(&self, token: u64, device: DeviceId, id: StreamId, stream: Arc<dyn Stream>) {
        let mut table = self.0.write();
        table.tokens.insert((device, id), token);
        let entry = Entry { device, id, stream, unsent: Vec::new(), qp: None, awaits: None };
        table.entries.insert(token, entry);
    }

    fn remove(&self, device: DeviceId, id: StreamId) -> Option<Entry> {
        let mut table = self.0.write();
        table.held.retain(|held| (held.device, held.id) != (device, id));
        let token = table.tokens.remove(&(device, id))?;
        table.entries.remove(&token)
    }

    /// When a stream is to be handed over that is held.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let table = self.0.read();
        let held = table.held.front().map(|held| held.until);
        held.into_iter().chain(table.nudges.front().map(|(at, _)| *at)).min()
    }

    /// A stream that is held and may be handed over now.
    fn take_held(&self, is_it: impl Fn(&Held) -> bool) -> Option<Held> {
        let at = self.0.read().held.iter().position(&is_it)?;
        let mut table = self.0.write();
        table.held.get(at).is_some_and(is_it).then(|| table.held.remove(at))?
    }

    fn take_nudge(&self, now: Instant) -> Option<Weak<Qp>> {
        self.0.write().nudges.pop_front_if(|(at, _)| *at <= now).map(|(_, qp)| qp)
    }

    /// The stream's name in the connection manager, and the queue pair that has it.
    fn find(&self, token: u64) -> Option<(DeviceId, StreamId, Option<Arc<Qp>>)> {
        let table = self.0.read();
        let entry = table.entries.get(&token)?;
        Some((entry.device, entry.id, entry.qp.as_ref().and_then(Weak::upgrade)))
    }

    fn stream(&self, token: u64) -> Option<Arc<dyn Stream>> {
        self.0.read().entries.get(&token).map(|entry| entry.stream.clone())
    }

    fn with<T>(&self, device: DeviceId, id: StreamId, f: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut table = self.0.write();
        let token = *table.tokens.get(&(device, id))?;
        table.entries.get_mut(&token).map(f)
    }

    /// The connection that the first bytes of a stream establish, once.
    fn take_awaiting(&self, token: u64) -> Option<cm::ConnId> {
        self.0.read().entries.get(&token)?.awaits?;
        self.0.write().entries.get_mut(&token)?.awaits.take()
    }
}

impl Entry {
    /// Sends what the stream takes of what the connection manager wrote.
    fn flush(&mut self) -> Result<(), Errno> {
        while !self.unsent.is_empty() {
            let sent = self.stream.send(&Gather::of(&self.unsent));
            match sent {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// An address of IPv4 as one, where a socket of IPv6 shows it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether the stream is of a connection that this side accepted.
fn accepts(core: &Core, device: DeviceId, given: &HandOver) -> bool {
    core.ids.get(&(device, given.conn)).is_some_and(|id| id.lock().accepted)
}

fn message(rtr: RtrMessage) -> transport::iwarp::Rtr {
    match rtr {
        RtrMessage::Write => transport::iwarp::Rtr::Write,
        RtrMessage::Read => transport::iwarp::Rtr::Read,
    }
}

fn attr(agreed: &Agreed) -> Attr {
    let Agreed { crc, ird, ord, .. } = *agreed;
    Attr { crc, ird: ird.into(), ord: ord.into(), max_payload: MAX_PAYLOAD }
}

impl<W: Env> Node<W> {
    /// Does what a connection manager wants of a stream.
    pub(crate) fn act_on_stream(
        &self,
        core: &mut Core,
        now: Instant,
        (device, id): (DeviceId, StreamId),
        action: Action,
    ) {
        let done = match action {
            Action::Open(open) => self.open_stream(core, device, id, &open),
            Action::Write(bytes) => self.write_stream(device, id, &bytes),
            Action::HandOver(given) if accepts(core, device, &given) && given.agreed.rtr == Rtr::None => {
                let until = now + GRACE;
                self.streams.0.write().held.push_back(Held { until, device, id, given });
                self.env.wake_at(until);
                Ok(())
            }
            Action::HandOver(given) => self.hand_over_stream(core, now, (device, id), &given),
            Action::Close(how) => {
                self.close_stream(now, (device, id), how);
                Ok(())
            }
        };
        self.give_up_where(core, now, (device, id), done);
    }

    /// Ends a stream of which something could not be done, and tells the connection manager.
    fn give_up_where(
        &self,
        core: &mut Core,
        now: Instant,
        (device, id): (DeviceId, StreamId),
        done: Result<(), Errno>,
    ) {
        let Err(errno) = done else { return };
        self.close_stream(now, (device, id), Close::Reset);
        if let Some(streams) = core.cms.get_mut(&device).and_then(|cm| cm.streams()) {
            streams.lost(now, id, errno.0);
        }
    }

    fn open_stream(&self, core: &Core, device: DeviceId, id: StreamId, open: &Open) -> Result<(), Errno> {
        let path = &open.path;
        let mut from = with_scope(path.local_gid.ip(), open.source_port, path.link);
        let to = with_scope(path.remote_gid.ip(), open.service.port, path.link);
        let mut opened = self.env.open_stream(from, to);
        // A port that no program asked for is a random number, and another stream to the same peer
        // may have it, or had it a moment ago.
        let unbound = core.ids.get(&(device, open.conn)).filter(|id| id.lock().claim.is_none());
        for _ in 0..PORT_TRIES {
            let (Err(Errno::EADDRNOTAVAIL | Errno::EADDRINUSE), Some(id)) = (&opened, unbound) else { break };
            from.set_port(self.ephemeral());
            opened = self.env.open_stream(from, to);
            id.lock().source.iter_mut().for_each(|source| source.set_port(from.port()));
        }
        let (token, stream) = opened?;
        let new = NewStream { token, interface: path.link, ours: from, theirs: to, is_accepted: false };
        self.streams.insert(token, device, id, self.link.stream(&new, stream));
        Ok(())
    }

    fn write_stream(&self, device: DeviceId, id: StreamId, bytes: &[u8]) -> Result<(), Errno> {
        let written = self.streams.with(device, id, |entry| {
            entry.unsent.extend(bytes);
            entry.flush()
        });
        written.unwrap_or(Err(Errno::ECONNRESET))
    }

    /// Does what is due: streams that were held go to their queue pairs, and peers are reminded.
    pub(crate) fn streams_due(&self, core: &mut Core, now: Instant) {
        while let Some(held) = self.streams.take_held(|held| held.until <= now) {
            self.act_at_last(core, now, held);
        }
        while let Some(qp) = self.streams.take_nudge(now) {
            qp.upgrade().inspect(|qp| qp.nudge_stream(now));
        }
    }

    fn act_at_last(&self, core: &mut Core, now: Instant, held: Held) {
        let Held { device, id, given, .. } = held;
        let done = self.hand_over_stream(core, now, (device, id), &given);
        self.give_up_where(core, now, (device, id), done);
    }

    fn hand_over_stream(
        &self,
        core: &mut Core,
        now: Instant,
        (device, id): (DeviceId, StreamId),
        given: &HandOver,
    ) -> Result<(), Errno> {
        let qp = core.qp((device, given.conn)).ok_or(Errno::EINVAL)?;
        let agreed = &given.agreed;
        let (sends, awaits) = match agreed.rtr {
            Rtr::None => (None, None),
            Rtr::Send(rtr) => (Some(message(rtr)), None),
            Rtr::Await(rtr) => (None, Some(message(rtr))),
        };
        let stream = self.streams.with(device, id, |entry| {
            // A reply of some hundred bytes, on a stream that carried nothing yet.
            entry.flush()?;
            if !entry.unsent.is_empty() {
                return Err(Errno::ENOBUFS);
            }
            Ok(entry.stream.clone())
        });
        let stream = stream.unwrap_or(Err(Errno::ECONNRESET))?;
        let with =
            Handover { attr: attr(agreed), sends_rtr: sends, awaits_rtr: awaits, behind: &given.behind };
        if !qp.take_stream(now, stream, &with) {
            return Err(Errno::ECONNRESET);
        }
        // Not before: a queue pair without its stream reads nothing. A thread that is told of bytes
        // meanwhile waits for the connection manager's lock.
        self.streams.with(device, id, |entry| {
            entry.qp = Some(Arc::downgrade(&qp));
            entry.awaits = awaits.map(|_| given.conn);
        });
        // There may have been room again before the table said whose stream it is.
        qp.stream_writable(now);
        if agreed.rtr == Rtr::None && !accepts(core, device, given) {
            self.streams.0.write().nudges.push_back((now + NUDGE, Arc::downgrade(&qp)));
            self.env.wake_at(now + NUDGE);
        }
        Ok(())
    }

    fn close_stream(&self, now: Instant, (device, id): (DeviceId, StreamId), how: Close) {
        let Some(entry) = self.streams.remove(device, id) else { return };
        match (entry.qp.as_ref().and_then(Weak::upgrade), how) {
            (Some(qp), Close::Gracefully) => qp.end_stream(now),
            (Some(qp), Close::Reset) => {
                qp.stream_ended(now);
                entry.stream.reset();
            }
            (None, Close::Gracefully) => entry.stream.close(),
            (None, Close::Reset) => entry.stream.reset(),
        }
    }

    /// The environment tells of a stream.
    pub(crate) fn on_stream(&self, now: Instant, token: u64, input: StreamInput) {
        match input {
            StreamInput::Accepted(accepted) => self.on_accepted(now, token, accepted),
            StreamInput::Opened => self.tell_of_stream(now, token, |streams, id| {
                self.streams.stream(token).inspect(|stream| stream.opened());
                streams.opened(now, id);
            }),
            StreamInput::Lost(errno) => self.stream_lost(now, token, errno),
            StreamInput::Writable => match self.streams.find(token) {
                Some((.., Some(qp))) => qp.stream_writable(now),
                Some((device, id, None)) => {
                    if let Some(Err(errno)) = self.streams.with(device, id, Entry::flush) {
                        self.stream_lost(now, token, errno);
                    }
                }
                None => {}
            },
        }
    }

    /// Something has come by a stream, or its end.
    pub(crate) fn on_readable(&self, now: Instant, token: u64) -> StreamRead {
        let read = match self.streams.find(token) {
            Some((.., Some(qp))) => qp.read_stream(now),
            Some(_) => return self.read_message(now, token),
            None => return StreamRead::Nothing,
        };
        match read {
            StreamRead::Nothing => {}
            StreamRead::Some | StreamRead::All => {
                if let Some(conn) = self.streams.take_awaiting(token) {
                    self.stream_established(now, token, conn);
                }
            }
            StreamRead::Ended => self.tell_of_stream(now, token, |streams, id| streams.ended(now, id)),
            StreamRead::Lost(errno) => self.stream_lost(now, token, errno),
        }
        read
    }

    /// Reads what the connection manager is to have, under its lock: the stream may have become a
    /// queue pair's meanwhile, and does not while this reads.
    fn read_message(&self, now: Instant, token: u64) -> StreamRead {
        let mut core = self.cm_agent.lock();
        let (device, id, stream) = match self.streams.find(token) {
            Some((device, id, None)) => (device, id, self.streams.with(device, id, |e| e.stream.clone())),
            Some(_) => {
                drop(core);
                return self.on_readable(now, token);
            }
            None => return StreamRead::Nothing,
        };
        let mut bytes = [0; MAX_UNDELIVERED];
        let came = stream.map_or(Err(Errno::EAGAIN), |stream| stream.receive(&Scatter::of(&mut bytes)));
        let read = match came {
            Ok(0) => StreamRead::Ended,
            Ok(_) => StreamRead::Some,
            Err(Errno::EAGAIN) => return StreamRead::Nothing,
            Err(errno) => StreamRead::Lost(errno),
        };
        let bytes = bytes.get(..came.unwrap_or(0)).unwrap_or_default();
        if let Some(mut held) = self.streams.take_held(|held| (held.device, held.id) == (device, id)) {
            // The peer says something, so it is ready.
            held.given.behind.extend(bytes);
            self.act_at_last(&mut core, now, held);
        } else if let Some(streams) = core.cms.get_mut(&device).and_then(|cm| cm.streams())
            && !bytes.is_empty()
        {
            streams.received(now, id, bytes);
        }
        self.carry_out(core, now);
        match read {
            StreamRead::Ended => self.end_of_stream(now, token),
            StreamRead::Lost(errno) => self.stream_lost(now, token, errno),
            _ => {}
        }
        read
    }

    /// A stream has ended of which no queue pair knew when that was read.
    fn end_of_stream(&self, now: Instant, token: u64) {
        let qp = self.streams.find(token).and_then(|(.., qp)| qp);
        qp.iter().for_each(|qp| qp.stream_ended(now));
        self.tell_of_stream(now, token, |streams, id| streams.ended(now, id));
    }

    /// A stream is lost: the table keeps it no longer, because the connection manager does not ask
    /// to close what is lost.
    fn stream_lost(&self, now: Instant, token: u64, errno: Errno) {
        let mut core = self.cm_agent.lock();
        let Some((device, id, _)) = self.streams.find(token) else { return };
        self.streams.stream(token).inspect(|stream| stream.lost(errno));
        self.give_up_where(&mut core, now, (device, id), Err(errno));
        self.carry_out(core, now);
    }

    /// What the connection manager is to know of a stream.
    fn tell_of_stream(
        &self,
        now: Instant,
        token: u64,
        tell: impl FnOnce(&mut dyn cm::streams::Streams, StreamId),
    ) {
        let mut core = self.cm_agent.lock();
        let Some((device, id, _)) = self.streams.find(token) else { return };
        let Some(streams) = core.cms.get_mut(&device).and_then(|cm| cm.streams()) else { return };
        tell(streams, id);
        self.carry_out(core, now);
    }

    fn stream_established(&self, now: Instant, token: u64, conn: cm::ConnId) {
        let Some((device, ..)) = self.streams.find(token) else { return };
        let mut core = self.cm_agent.lock();
        if let Some((cm, conn)) = core.cm((device, conn)) {
            // An error says that the connection has ended.
            _ = cm.established(now, conn);
        }
        self.carry_out(core, now);
    }

    fn on_accepted(&self, now: Instant, token: u64, accepted: AcceptedStream) {
        let AcceptedStream { local, peer, stream } = accepted;
        let Some(device) = self.stream_device(local.ip()) else { return stream.reset() };
        let (ours, theirs) = (canonical(local), canonical(peer));
        let new = NewStream { token, interface: device.config.interface, ours, theirs, is_accepted: true };
        let stream = self.link.stream(&new, stream);
        let mut core = self.cm_agent.lock();
        let path = PathRecord::new(
            local.ip().to_canonical().into(),
            peer.ip().to_canonical().into(),
            device.config.interface,
            device.port().mtu,
        );
        let service = Service { space: PortSpace::Tcp, port: local.port() };
        let told = Accepted { path, service, peer_port: peer.port() };
        let id = self.with_cm(&mut core, &device, |cm| Some(cm.streams()?.accepted(now, &told)));
        match id {
            Some(id) => self.streams.insert(token, device.config.id, id, stream),
            None => stream.reset(),
        }
        self.carry_out(core, now);
    }

    /// The iWARP device that bears an address of ours.
    fn stream_device(&self, ours: IpAddr) -> Option<Arc<Device>> {
        let ours = ours.to_canonical();
        let bears = |d: &&Arc<Device>| {
            d.config.transport == Transport::Iwarp && d.port().gids.index_of(ours).is_some()
        };
        self.devices.iter().find(bears).cloned()
    }

    /// Takes the TCP port of a listener, where an iWARP device may get its requests.
    ///
    /// # Errors
    ///
    /// EADDRINUSE where a socket has the port; EADDRNOTAVAIL and the like.
    pub(crate) fn listen_for_streams(
        &self,
        id: &Id,
        at: SocketAddr,
        device: Option<&Device>,
    ) -> Result<Option<Claimed>, Error> {
        let is_stream = |d: &Device| d.config.transport == Transport::Iwarp;
        let wants = device.map_or_else(|| self.devices.iter().any(|d| is_stream(d)), is_stream);
        if !wants || id.space != PortSpace::Tcp || id.is_datagram() {
            return Ok(None);
        }
        let v6_only = id.lock().v6_only;
        self.env.listen_streams(at, v6_only).map(|claim| Some(Claimed(claim))).map_err(Error::System)
    }
}
