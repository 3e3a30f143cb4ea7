//! The connection manager of one process: the tables that find a connection, what comes in, what
//! goes out, and time.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Instant;

use wire::mad::{Mad, Message};
use wire::{Address, CommId, Guid, Qpn};

use super::address::Addresses;
use super::config::Config;
use super::connection::{CmState, Connection, PeersNumber, RemoteKey};
use super::numbered::Numbered;
use super::probe::Probes;
use super::timers::Timers;
use crate::event::{ConnId, ETIMEDOUT, Error, Event};
use crate::mads::Origin;
use crate::parameters::{PathRecord, QpAttributes};
use crate::protocol::Output;

/// Draws from the caller's source of communication ids before a call fails.
const COMM_ID_DRAWS: usize = 128;

/// The connection manager of one process. See the crate's page for the order of calls.
///
/// After every call that changes something, [`Cm::poll`] until it gives nothing, and look at
/// [`Cm::deadline`].
pub struct Cm {
    pub(super) config: Config,
    comm_ids: Box<dyn FnMut() -> CommId + Send>,
    pub(super) transaction_ids: Box<dyn FnMut() -> u64 + Send>,
    next: u64,
    pub(super) connections: Numbered<ConnId, Box<Connection>>,
    pub(super) by_local: Numbered<CommId, ConnId>,
    /// By the peer's communication id and the transaction id: any host may write another's
    /// communication id into a REQ.
    by_remote: BTreeMap<(RemoteKey, u64), ConnId>,
    /// Connected ones, by the peer's communication id and by its queue pair, of which a peer has
    /// one each.
    connected_id: BTreeMap<PeersNumber, ConnId>,
    connected_qpn: BTreeMap<PeersNumber, ConnId>,
    pub(super) addresses: Addresses,
    /// Deadlines of connections, as `armed` of each says.
    timers: Timers,
    pub(super) probes: Probes,
    pub(super) pending: usize,
    /// Remembered answers (refused requests, SIDR), oldest first; ids that are gone may spin in
    /// it.
    answered: VecDeque<ConnId>,
    output: VecDeque<Output>,
    /// When the time wait ends that began last.
    pub(super) timewait_end: Option<Instant>,
    stateless_answers: u32,
    unmatched: u64,
}

impl Cm {
    /// A connection manager without connections.
    ///
    /// `comm_ids` gives candidates for local communication ids: unpredictable, from the numbers
    /// that are this process's own among those with the same GUID. Candidates in use, and 0, are
    /// passed over. `transaction_ids` gives 64 random bits each time: a host that does not see our
    /// packets must not guess them.
    pub fn new(
        config: Config,
        comm_ids: impl FnMut() -> CommId + Send + 'static,
        transaction_ids: impl FnMut() -> u64 + Send + 'static,
    ) -> Self {
        Self {
            config,
            comm_ids: Box::new(comm_ids),
            transaction_ids: Box::new(transaction_ids),
            next: 1,
            connections: Numbered::default(),
            by_local: Numbered::default(),
            by_remote: BTreeMap::new(),
            connected_id: BTreeMap::new(),
            connected_qpn: BTreeMap::new(),
            addresses: Addresses::default(),
            timers: Timers::default(),
            probes: Probes::default(),
            pending: 0,
            answered: VecDeque::new(),
            output: VecDeque::new(),
            timewait_end: None,
            stateless_answers: 0,
            unmatched: 0,
        }
    }

    /// A MAD that arrived at QP1.
    ///
    /// Messages for a connection count only when they come from its peer's address and bear its
    /// transaction id. What names no connection is answered where the standard asks for it and
    /// otherwise dropped.
    pub fn input(&mut self, now: Instant, from: Origin, mad: &Mad) {
        let tid = mad.transaction_id;
        match &mad.message {
            Message::Req(req) => self.on_req(now, from, tid, req),
            Message::Mra(mra) => self.on_mra(now, from, tid, mra),
            Message::Rej(rej) => self.on_rej(now, from, tid, rej),
            Message::Rep(rep) => self.on_rep(now, from, tid, rep),
            Message::Rtu(rtu) => self.on_rtu(now, from, tid, rtu),
            Message::Dreq(dreq) => self.on_dreq(now, from, tid, dreq),
            Message::Drep(drep) => self.on_drep(now, from, tid, drep),
            Message::SidrReq(req) => self.on_sidr_req(now, from, tid, req),
            Message::SidrRep(rep) => self.on_sidr_rep(from, tid, rep),
            Message::Lap(lap) => self.on_lap(now, from, tid, lap),
            Message::Apr(apr) => self.on_apr(now, from, tid, apr),
        }
    }

    /// The next thing to send or to tell.
    pub fn poll(&mut self) -> Option<Output> {
        self.output.pop_front()
    }

    /// When [`Cm::expire`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().into_iter().chain(self.probes.deadline()).min()
    }

    /// Does what is due at `now`.
    pub fn expire(&mut self, now: Instant) {
        while let Some(id) = self.timers.take_due(now, &mut self.connections) {
            self.expire_one(now, id);
        }
        self.expire_probes(now);
    }

    /// What the queue pair wants for RTR and RTS; `None` before the peer's numbers are known and
    /// after the end.
    pub fn qp_attr(&self, conn: ConnId) -> Option<QpAttributes> {
        self.connections.get(&conn)?.attributes()
    }

    /// What a queue pair wants that is moved before its request is accepted; `rq_psn` is 0 there
    /// and must be what the acceptance will say. `None` once it is answered.
    pub fn requested_qp_attr(&self, conn: ConnId) -> Option<QpAttributes> {
        self.connections.get(&conn)?.requested_attributes()
    }

    /// The connection's local and remote communication id, the latter once known.
    pub fn comm_ids(&self, conn: ConnId) -> Option<(CommId, Option<CommId>)> {
        self.connections.get(&conn).map(|c| (c.local, c.remote))
    }

    /// Whether a MAD without a communication id of ours belongs here: one of ours has `(guid, comm
    /// id)` as its peer. (REJ for a time out, and duplicates of a REQ, name only the sender.)
    pub fn has_peer(&self, guid: Guid, peer: Address, remote: CommId) -> bool {
        let key = (remote, guid, peer);
        self.by_remote.range((key, 0)..=(key, u64::MAX)).next().is_some()
    }

    /// Messages dropped so far because they name a connection of ours and bear another transaction
    /// id, come from another address or name another peer.
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// Connections and SIDR exchanges held, time wait and remembered answers included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn expire_one(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.stale_check.is_some() {
            return self.expire_stale_check(now, id);
        }
        let Some(retry) = &mut conn.retry else {
            return self.time_is_up(id);
        };
        if retry.step(now) {
            if self.may_send_unasked(id) {
                self.retransmit(id);
            }
            self.rearm(id);
            return;
        }
        match conn.state {
            CmState::ReqSent => {
                self.send_timeout_rej(id);
                self.event(id, Event::Unreachable { status: ETIMEDOUT });
                self.close(id);
            }
            CmState::RepSent => {
                self.send_timeout_rej(id);
                self.event(id, Event::Unreachable { status: ETIMEDOUT });
                self.enter_timewait(now, id);
            }
            CmState::DreqSent => {
                self.event(id, Event::Disconnected { status: ETIMEDOUT });
                self.enter_timewait(now, id);
            }
            CmState::SidrSent => {
                self.event(id, Event::Unreachable { status: ETIMEDOUT });
                self.close(id);
            }
            // Only the states above repeat anything.
            _ => {}
        }
    }

    // What every part uses.

    /// Draws a communication id and makes a connection with it. One that the peer began has its
    /// `transaction_id`.
    pub(super) fn insert(
        &mut self,
        state: CmState,
        path: PathRecord,
        transaction_id: Option<u64>,
    ) -> Result<&mut Connection, Error> {
        if self.connections.len() >= self.config.max_connections {
            return Err(Error::Full(self.config.max_connections));
        }
        let mut local = CommId(0);
        for _ in 0..COMM_ID_DRAWS {
            local = (self.comm_ids)();
            if local.0 != 0 && !self.by_local.contains_key(&local) {
                let id = ConnId(self.next);
                self.next += 1;
                let transaction_id = transaction_id.unwrap_or_else(|| (self.transaction_ids)());
                self.by_local.insert(local, id);
                self.addresses.enter(path.dest());
                let conn = Connection::new(id, state, path, local, transaction_id);
                return Ok(self.connections.entry(id).or_insert_with(|| Box::new(conn)));
            }
        }
        Err(Error::CommIds(local))
    }

    /// The connection that a message means whose receiver's communication id is `ours`.
    /// `transaction_id`: what it must bear. A message that does not fit is counted here.
    pub(super) fn addressee(&mut self, from: Origin, transaction_id: Option<u64>, ours: CommId) -> Addressee {
        let conn = self.by_local.get(&ours).and_then(|id| self.connections.get(id));
        let Some(conn) = conn else { return Addressee::Nobody };
        let id = conn.id;
        if conn.path.dest() != from.source || transaction_id.is_some_and(|t| t != conn.transaction_id) {
            self.count_unmatched();
            return Addressee::Other;
        }
        self.addresses.confirm(from.source);
        Addressee::Is(id)
    }

    /// Like [`Cm::addressee`], for a message that names both ids.
    pub(super) fn addressee_of(
        &mut self,
        from: Origin,
        transaction_id: Option<u64>,
        ours: CommId,
        theirs: CommId,
    ) -> Addressee {
        match self.addressee(from, transaction_id, ours) {
            Addressee::Is(id) if self.connections.get(&id).is_none_or(|conn| conn.remote != Some(theirs)) => {
                self.count_unmatched();
                Addressee::Other
            }
            addressee => addressee,
        }
    }

    /// A message that names a connection of ours does not fit it.
    pub(super) fn count_unmatched(&mut self) {
        self.unmatched += 1;
    }

    /// The connection that a peer began, or answered, under an id of its own.
    pub(super) fn find_remote(
        &self,
        guid: Guid,
        peer: Address,
        remote: CommId,
        transaction_id: u64,
    ) -> Option<&Connection> {
        let id = self.by_remote.get(&((remote, guid, peer), transaction_id))?;
        self.connections.get(id).map(|conn| &**conn)
    }

    /// The connected one that holds the peer's communication id, or its queue pair.
    pub(super) fn find_connected(
        &self,
        guid: Guid,
        peer: Address,
        remote: CommId,
        qpn: Qpn,
    ) -> Option<ConnId> {
        let by_id = self.connected_id.get(&(remote.0, guid, peer));
        by_id.or_else(|| self.connected_qpn.get(&(qpn.get(), guid, peer))).copied()
    }

    /// Enters the peer's id into the tables.
    pub(super) fn index_remote(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else { return };
        if let Some(key) = conn.remote_key() {
            self.by_remote.insert((key, conn.transaction_id), id);
        }
    }

    /// The peer has shown that it is connected: its id and queue pair are this connection's.
    /// Another that has one of them is in doubt.
    pub(super) fn claim(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else { return };
        let (remote, qpn) = (conn.id_key(), conn.qpn_key());
        let before =
            [remote.and_then(|key| self.connected_id.insert(key, id)), self.connected_qpn.insert(qpn, id)];
        before.into_iter().flatten().filter(|&old| old != id).for_each(|old| self.check_stale(now, old));
    }

    /// The peer's queue pair is no longer ours to defend.
    pub(super) fn unclaim(&mut self, id: ConnId) {
        self.unprobe(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.stale_check = None;
        if let Some(key) = conn.id_key()
            && self.connected_id.get(&key) == Some(&id)
        {
            self.connected_id.remove(&key);
        }
        let key = conn.qpn_key();
        if self.connected_qpn.get(&key) == Some(&id) {
            self.connected_qpn.remove(&key);
        }
    }

    /// Changes the state and keeps the count of unanswered requests.
    pub(super) fn set_state(&mut self, id: ConnId, state: CmState) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.state.is_unanswered() && !state.is_unanswered() {
            self.pending = self.pending.saturating_sub(1);
        }
        conn.state = state;
    }

    /// Brings the timer in line with the connection.
    pub(super) fn rearm(&mut self, id: ConnId) {
        self.timers.rearm(id, &mut self.connections);
    }

    pub(super) fn event(&mut self, id: ConnId, event: Event) {
        if self.connections.get(&id).is_some_and(|conn| !conn.detached) {
            self.output.push_back(Output::Event { conn: id, event });
        }
    }

    pub(super) fn transmit(&mut self, id: ConnId, mad: Mad, attempt: u32) {
        let Some(conn) = self.connections.get(&id) else { return };
        self.output.push_back(Output::Transmit {
            conn: Some(id),
            path: conn.path,
            mad: Box::new(mad),
            attempt,
        });
    }

    /// Sends an answer of a connection: each from another source port.
    pub(super) fn answer(&mut self, id: ConnId, mad: Mad) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        let attempt = conn.answers;
        conn.answers = conn.answers.wrapping_add(1);
        self.transmit(id, mad, attempt);
    }

    /// Sends what is being repeated, or remembered, once more; with the attempt it has come to.
    pub(super) fn retransmit(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else { return };
        let Some(mad) = conn.message.as_deref().cloned() else { return };
        match conn.retry {
            Some(retry) => self.transmit(id, mad, retry.attempt.wrapping_add(conn.answers)),
            None => self.answer(id, mad),
        }
    }

    /// Sends it because the peer has asked again.
    pub(super) fn repeat(&mut self, id: ConnId) {
        if let Some(conn) = self.connections.get_mut(&id)
            && conn.retry.is_some()
        {
            conn.answers = conn.answers.wrapping_add(1);
        }
        self.retransmit(id);
    }

    /// Answers a message that belongs to no connection.
    pub(super) fn answer_stateless(&mut self, from: Origin, mad: Mad) {
        let attempt = self.stateless_answers;
        self.stateless_answers = attempt.wrapping_add(1);
        self.output.push_back(Output::Transmit {
            conn: None,
            path: from.path(),
            mad: Box::new(mad),
            attempt,
        });
    }

    /// Remembers the answer in `message` until `until`, and forgets the oldest where there are too
    /// many.
    pub(super) fn remember_answer(&mut self, id: ConnId, state: CmState, until: Instant) {
        self.unclaim(id);
        self.set_state(id, state);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.retry = None;
        conn.until = Some(until);
        conn.detached = true;
        self.rearm(id);
        self.answered.push_back(id);
        while self.answered.len() > self.config.max_refusals {
            match self.answered.pop_front() {
                Some(oldest) => self.remove(oldest),
                None => break,
            }
        }
    }

    /// Ends everything the connection holds. What the consumer still owns stays as an empty shell
    /// until destroyed.
    pub(super) fn close(&mut self, id: ConnId) {
        self.unclaim(id);
        self.set_state(id, CmState::Closed);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.retry = None;
        conn.until = None;
        conn.message = None;
        if self.by_local.get(&conn.local) == Some(&id) {
            self.by_local.remove(&conn.local);
        }
        if let Some(key) = conn.remote_key() {
            let key = (key, conn.transaction_id);
            if self.by_remote.get(&key) == Some(&id) {
                self.by_remote.remove(&key);
            }
        }
        if std::mem::take(&mut conn.holds_qpn) {
            self.output.push_back(Output::Released { conn: id, qpn: conn.local_qpn });
        }
        let (detached, peer) = (conn.detached, conn.path.dest());
        self.rearm(id);
        if detached && self.connections.remove(&id).is_some() {
            self.addresses.leave(peer);
        }
        if self.answered.front() == Some(&id) {
            self.answered.pop_front();
        }
    }

    /// Closes and forgets.
    pub(super) fn remove(&mut self, id: ConnId) {
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.detached = true;
            self.close(id);
        }
    }
}

/// Which connection a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressee {
    /// A connection, and it fits.
    Is(ConnId),
    /// The message names a connection of ours and does not fit.
    Other,
    /// No connection has the id.
    Nobody,
}

impl fmt::Debug for Cm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cm")
            .field("guid", &self.config.guid)
            .field("connections", &self.connections.len())
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}
