//! How connections end: DREQ and DREP, REJ, destruction, time wait, and peers that are gone (IBA
//! 1.4 §12.9.7, §12.9.8).

use std::time::Instant;

use wire::mad::{Drep, Dreq, REJ_DATA, Rej, reason};
use wire::{Address, CommId, Guid};

use super::connection::{CmState, Connection};
use super::messages::{REJECTS_OTHER, REJECTS_REQ, drep};
use super::table::{Addressee, Cm};
use super::timing::{Retry, timeout};
use crate::event::{ConnId, ETIMEDOUT, Error, Event};
use crate::mads::Origin;
use crate::parameters::Refusal;

/// A time wait is longer by this part of it at most, to end with others.
const TOGETHER: u32 = 8;

impl Cm {
    /// Ends a connection: sends DREQ and repeats it; `Disconnected`, then `TimewaitExit` follow.
    /// Harmless when it is ending or has ended (a DREQ of the peer is answered without the
    /// consumer's help).
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: there is no connection yet.
    pub fn disconnect(&mut self, now: Instant, id: ConnId) -> Result<(), Error> {
        match self.connections.get(&id).ok_or(Error::Unknown(id))?.state {
            CmState::Established | CmState::RepSent | CmState::RepReceived => {
                self.send_dreq(now, id);
                Ok(())
            }
            CmState::DreqSent | CmState::TimeWait | CmState::Refused | CmState::Closed => Ok(()),
            state => Err(Error::State(id, state.name())),
        }
    }

    /// The consumer is done with the connection, whatever its state; no event follows. The peer is
    /// told as the state asks (REJ, DREQ, a SIDR_REP that says no); DREQ and time wait run on
    /// until `Released`.
    pub fn destroy(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.detached = true;
        match conn.state {
            CmState::ReqSent => {
                self.send_timeout_rej(id);
                self.close(id);
            }
            CmState::ReqReceived => {
                let mad = conn.rej(self.config.guid, reason::CONSUMER_DEFINED, [0; REJ_DATA]);
                self.remember_refusal(now, id, mad);
            }
            CmState::RepReceived | CmState::RepSent => {
                let mad = conn.rej(self.config.guid, reason::CONSUMER_DEFINED, [0; REJ_DATA]);
                self.answer(id, mad);
                self.enter_timewait(now, id);
            }
            CmState::Established => self.send_dreq(now, id),
            CmState::SidrReceived => {
                // Cannot fail: the state allows it.
                _ = self.refuse_sidr(now, id, Refusal::ConsumerDefined, &[]);
            }
            CmState::Closed | CmState::SidrSent => self.close(id),
            CmState::DreqSent | CmState::TimeWait | CmState::Refused | CmState::SidrAnswered => {}
        }
    }

    /// The process ends: every connection as by [`Cm::destroy`], which is what a kernel says for
    /// those that end. Nothing is repeated.
    pub fn leave(&mut self, now: Instant) {
        let mut all: Vec<ConnId> = self.connections.keys().copied().collect();
        all.sort_unstable();
        all.into_iter().for_each(|id| self.destroy(now, id));
    }

    /// An ICMP error says that nothing at `peer` takes our packets. Of the connections to it only
    /// those that have no answer yet are concerned (`Unreachable`), and those that were ending
    /// end; established ones are the queue pair's affair. `comm_id` is our communication id in
    /// the packet that came back, where known: then only that connection.
    pub fn peer_unreachable(&mut self, now: Instant, peer: Address, comm_id: Option<CommId>) {
        let hit = |conn: &&Connection| {
            conn.path.dest() == peer && comm_id.is_none_or(|comm_id| conn.local == comm_id)
        };
        let mut hit: Vec<_> = self
            .connections
            .values()
            .map(|conn| &**conn)
            .filter(hit)
            .map(|conn| (conn.id, conn.state))
            .collect();
        hit.sort_unstable_by_key(|&(id, _)| id);
        for (id, state) in hit {
            match state {
                CmState::ReqSent | CmState::SidrSent => {
                    self.event(id, Event::Unreachable { status: ETIMEDOUT });
                    self.close(id);
                }
                CmState::RepSent => {
                    self.event(id, Event::Unreachable { status: ETIMEDOUT });
                    self.enter_timewait(now, id);
                }
                CmState::DreqSent => self.disconnected(now, id),
                _ => {}
            }
        }
    }

    /// A process that owned far ends is gone for sure. `is_gone` gets a far communication id
    /// (`None`: not known, no answer has come) and the far GID. Connections end as if its kernel
    /// had cleaned up after it: DREQ for connected ones, REJ for the rest.
    pub fn peer_gone(&mut self, now: Instant, is_gone: impl Fn(Option<CommId>, Address) -> bool) {
        self.with_peer(is_gone).into_iter().for_each(|id| self.end_of_peer(now, id));
    }

    /// The connections whose far communication id (`None`: not known) and far GID `is_it` knows, in
    /// whatever state.
    pub fn with_peer(&self, is_it: impl Fn(Option<CommId>, Address) -> bool) -> Vec<ConnId> {
        let hit = |conn: &&Connection| is_it(conn.remote.or(conn.remote_hint), conn.path.dest());
        let mut hit: Vec<_> =
            self.connections.values().map(|conn| &**conn).filter(hit).map(|conn| conn.id).collect();
        hit.sort_unstable();
        hit
    }

    /// The process at the other end of one connection is no more: what its kernel would have said
    /// for it, had it one (ib_cm's `cm_destroy_id`). Harmless where the connection is unknown
    /// or has ended.
    pub fn end_of_peer(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else { return };
        match conn.state {
            CmState::ReqSent => {
                self.rejected(id, reason::CONSUMER_DEFINED);
                self.close(id);
            }
            CmState::ReqReceived => {
                self.rejected(id, reason::TIMEOUT);
                self.close(id);
            }
            CmState::RepReceived | CmState::RepSent => {
                self.rejected(id, reason::CONSUMER_DEFINED);
                self.enter_timewait(now, id);
            }
            CmState::Established | CmState::DreqSent => self.disconnected(now, id),
            _ => {}
        }
    }

    /// The connection that stands, and that this DREQ ends.
    pub fn ended_by(&self, from: Origin, transaction_id: u64, dreq: &Dreq) -> Option<ConnId> {
        let conn = self.by_local.get(&dreq.remote_comm_id).and_then(|id| self.connections.get(id))?;
        let stands = matches!(conn.state, CmState::RepReceived | CmState::RepSent | CmState::Established);
        let fits = conn.path.dest() == from.source
            && conn.remote == Some(dreq.local_comm_id)
            && conn.local_qpn == dreq.remote_qpn
            && self.knows_transaction(conn.id, transaction_id);
        (stands && fits).then_some(conn.id)
    }

    pub(super) fn on_dreq(&mut self, now: Instant, from: Origin, transaction_id: u64, dreq: &Dreq) {
        let answer = drep(transaction_id, dreq);
        let id = match self.addressee(from, None, dreq.remote_comm_id) {
            Addressee::Is(id) => id,
            // §12.9.8.3: a peer that asks to disconnect what we do not know is told that it is
            // disconnected.
            Addressee::Nobody => return self.answer_stateless(from, answer),
            Addressee::Other => return,
        };
        let is_ours = self.knows_transaction(id, transaction_id);
        let Some(conn) = self.connections.get(&id) else { return };
        if conn.state == CmState::ReqSent {
            if transaction_id == conn.transaction_id {
                // The peer accepted and thought better of it, and its REP is lost.
                self.answer(id, answer);
                self.rejected(id, reason::CONSUMER_DEFINED);
                return self.close(id);
            }
            return self.count_unmatched();
        }
        if conn.remote != Some(dreq.local_comm_id) {
            return self.count_unmatched();
        }
        if conn.local_qpn != dreq.remote_qpn {
            // A question: see `stale_check`.
            return;
        }
        if !is_ours {
            self.count_unmatched();
            return self.check_stale(now, id);
        }
        match conn.state {
            CmState::RepReceived | CmState::RepSent | CmState::Established | CmState::DreqSent => {
                if let Some(conn) = self.connections.get_mut(&id) {
                    // The first of these answers; what was answered before were other messages.
                    conn.answers = 0;
                }
                self.answer(id, answer);
                self.disconnected(now, id);
            }
            CmState::TimeWait => self.answer(id, answer),
            _ => {}
        }
    }

    pub(super) fn on_drep(&mut self, now: Instant, from: Origin, transaction_id: u64, drep: &Drep) {
        let (ours, theirs) = (drep.remote_comm_id, drep.local_comm_id);
        let Addressee::Is(id) = self.addressee_of(from, None, ours, theirs) else { return };
        let Some(conn) = self.connections.get(&id) else { return };
        if conn.stale_check.is_some_and(|stale_check| stale_check.transaction_id == transaction_id) {
            return self.unknown_to_peer(now, id);
        }
        match conn.state {
            _ if conn.transaction_id != transaction_id => self.count_unmatched(),
            CmState::DreqSent => self.disconnected(now, id),
            _ => {}
        }
    }

    pub(super) fn on_rej(&mut self, now: Instant, from: Origin, transaction_id: u64, rej: &Rej) {
        let Some(id) = self.rejected_connection(from, transaction_id, rej) else { return };
        let Some(state) = self.connections.get(&id).map(|conn| conn.state) else { return };
        let event = Event::Rejected { reason: rej.reason.into(), private_data: rej.private_data.to_vec() };
        if rej.reason == reason::INVALID_COMM_ID && rej.message == REJECTS_OTHER {
            // No process there knows the connection: the answer to a probe.
            return self.unknown_to_peer(now, id);
        }
        match state {
            CmState::ReqSent | CmState::ReqReceived => {
                self.event(id, event);
                self.close(id);
            }
            CmState::RepReceived | CmState::RepSent | CmState::Established => {
                self.event(id, event);
                self.enter_timewait(now, id);
            }
            CmState::DreqSent => self.disconnected(now, id),
            _ => {}
        }
    }

    /// Time wait or a memory is over.
    pub(super) fn time_is_up(&mut self, id: ConnId) {
        match self.connections.get(&id).map(|conn| conn.state) {
            Some(CmState::TimeWait) => {
                self.event(id, Event::TimewaitExit);
                self.close(id);
            }
            Some(CmState::Refused | CmState::SidrAnswered) => self.remove(id),
            _ => {}
        }
    }

    /// Packets of the connection may still be under way for as long as one can live on the path and
    /// back (§12.9.8.4).
    pub(super) fn enter_timewait(&mut self, now: Instant, id: ConnId) {
        self.unclaim(id);
        self.set_state(id, CmState::TimeWait);
        let longest = self.config.timing.max_timewait;
        if let Some(conn) = self.connections.get_mut(&id) {
            conn.message = None;
            conn.retry = None;
            let wait = timeout(conn.local_ack_timeout).min(longest);
            // No thread waits for the end of it. Many that end at about the same time end together,
            // and the caller is woken once for all of them.
            let (least, most) = (now + wait, now + (wait + wait / TOGETHER).min(longest));
            let end = self.timewait_end.filter(|end| (least..=most).contains(end)).unwrap_or(most);
            self.timewait_end = Some(end);
            conn.until = Some(end);
        }
        self.rearm(id);
    }

    /// "Timed out" to the peer, which may be waiting for us: it finds the connection by our GUID
    /// and id.
    pub(super) fn send_timeout_rej(&mut self, id: ConnId) {
        if !self.may_send_unasked(id) {
            return;
        }
        let Some(conn) = self.connections.get(&id) else { return };
        let mad = conn.rej(self.config.guid, reason::TIMEOUT, [0; REJ_DATA]);
        self.answer(id, mad);
    }

    fn send_dreq(&mut self, now: Instant, id: ConnId) {
        self.set_state(id, CmState::DreqSent);
        self.unprobe(id);
        let Some(conn) = self.connections.get_mut(&id) else { return };
        conn.stale_check = None;
        conn.message = Some(Box::new(conn.dreq()));
        conn.retry = Some(Retry::new(now, self.config.timing.disconnect));
        conn.answers = 0;
        self.retransmit(id);
        self.rearm(id);
    }

    fn disconnected(&mut self, now: Instant, id: ConnId) {
        self.event(id, Event::Disconnected { status: 0 });
        self.enter_timewait(now, id);
    }

    /// Tells of a refusal that no REJ says.
    pub(super) fn rejected(&mut self, id: ConnId, reason: u16) {
        self.event(id, Event::Rejected { reason: reason.into(), private_data: vec![0; REJ_DATA] });
    }

    /// Which connection a REJ means. Until its REP has come the sender has no id we know, and it
    /// may not know ours: then a REJ for a time out names the sender by GUID and id.
    fn rejected_connection(&mut self, from: Origin, transaction_id: u64, rej: &Rej) -> Option<ConnId> {
        let fits = match self.addressee(from, Some(transaction_id), rej.remote_comm_id) {
            Addressee::Is(id) => {
                let conn = self.connections.get(&id)?;
                let fits = match conn.state {
                    CmState::ReqSent => true,
                    // Of a duplicate REQ, too late.
                    _ if conn.active && rej.message == REJECTS_REQ => return None,
                    _ => conn.remote == Some(rej.local_comm_id),
                };
                fits.then_some(id)
            }
            Addressee::Other => return None,
            Addressee::Nobody if rej.reason != reason::TIMEOUT => return None,
            Addressee::Nobody => {
                let guid = Guid(u64::from_be_bytes(*rej.info.first_chunk()?));
                let conn = self.find_remote(guid, from.source, rej.local_comm_id, transaction_id)?;
                // A peer that is connected has our id.
                matches!(conn.state, CmState::ReqReceived | CmState::RepSent).then_some(conn.id)
            }
        };
        if fits.is_none() {
            self.count_unmatched();
        }
        fits
    }

    /// Whether the transaction id of a message that begins a transaction is good. Our kind begins
    /// none, and has the connection's; of others Linux's ib_cm makes it from its communication
    /// id.
    pub(super) fn knows_transaction(&self, id: ConnId, transaction_id: u64) -> bool {
        self.connections.get(&id).is_some_and(|conn| {
            conn.transaction_id == transaction_id || !(self.config.is_kin)(conn.remote_guid)
        })
    }
}
