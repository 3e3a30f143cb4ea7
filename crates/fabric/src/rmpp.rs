//! Messages of several MADs (IBA 1.4 §13.6), for agents on whose behalf their port does RMPP.
//!
//! | from | to | how |
//! |---|---|---|
//! | port | port | the message travels whole, its segments are counted on the way |
//! | port | port, where packets may be lost | [`Outgoing`] and [`Incoming`] |
//! | port | program | [`Outgoing`]: segments, as far as the program's ACKs allow |
//! | program | port | [`Incoming`]: segments are put together, and acknowledged |
//! | program | program | segments pass |
//!
//! The first segment's header stands in a whole message, as the kernel leaves it there.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::mad::rmpp::{Kind, Rmpp, is_active};
use wire::mad::{Header, MAD_LEN, class, method};

use crate::client::{MAX_MESSAGE, RMPP_HEADERS};
use crate::deliver::From;
use crate::fabric::{Body, ClientId, Fabric, Packet};
use crate::route::TRACE;
use crate::subnet::PortId;
use crate::transactions::Transaction;

/// Bytes of a class's own header behind the one of RMPP: of subnet administration SM_Key,
/// attribute offset and component mask, of vendors the OUI.
const SA_HEADER: usize = 20;
const OUI_HEADER: usize = 4;
/// The response time that says nothing.
const NO_RESPONSE_TIME: u8 = 31;
/// Segments that a program may send before the next ACK.
const WINDOW: u32 = 64;
/// After so long without an ACK segments are sent again, so often.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES: u32 = 7;
/// Messages under way at most.
const MAX_TRANSFERS: usize = 1024;

/// Bytes of the header of a MAD's class.
fn class_header(mad: &[u8]) -> usize {
    match mad.get(1).copied().unwrap_or(0) {
        class::SUBN_ADM => SA_HEADER,
        class if class::has_oui(class) => OUI_HEADER,
        _ => 0,
    }
}

/// Bytes of a message before its data, and of its data in each segment.
fn layout(mad: &[u8]) -> (usize, usize) {
    let head = RMPP_HEADERS + class_header(mad);
    (head, MAD_LEN - head)
}

/// Packets of a message on a link.
pub(crate) fn packets(mad: &[u8]) -> u64 {
    let (head, room) = layout(mad);
    mad.len().saturating_sub(head).div_ceil(room).max(1) as u64
}

/// The header of the first segment of a message, which is that of a whole one (IBA 1.4
/// §13.6.3.2).
pub(crate) fn whole(mad: &[u8]) -> Rmpp {
    header_of(mad, 1)
}

/// The header of a segment. The first one tells the payload of all, the last one its own; each
/// segment's begins with the header of the class.
fn header_of(mad: &[u8], segment: u32) -> Rmpp {
    let (head, room) = layout(mad);
    let (all, own) = (packets(mad), class_header(mad) as u64);
    let data = mad.len().saturating_sub(head) as u64;
    let is_last = u64::from(segment) == all;
    let length = match (segment, is_last) {
        (1, _) => data + all * own,
        (_, true) => data - (all - 1) * room as u64 + own,
        _ => room as u64 + own,
    };
    Rmpp {
        kind: Kind::Data,
        response_time: NO_RESPONSE_TIME,
        is_first: segment == 1,
        is_last,
        status: 0,
        segment,
        length_or_window: u32::try_from(length).unwrap_or(u32::MAX),
    }
}

/// A segment of a message, from 1 on.
fn segment_of(mad: &[u8], segment: u32) -> Vec<u8> {
    let (head, room) = layout(mad);
    let begin = head + room * (segment as usize - 1);
    let mut bytes = mad[..head.min(mad.len())].to_vec();
    bytes.resize(head, 0);
    bytes[Header::LEN..RMPP_HEADERS].copy_from_slice(&header_of(mad, segment).emit());
    bytes.extend_from_slice(mad.get(begin..mad.len().min(begin + room)).unwrap_or_default());
    bytes.resize(MAD_LEN, 0);
    bytes
}

/// What names a message under way: the port that does RMPP, and the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at: PortId,
    transaction_id: u64,
    class: u8,
}

/// A message that a port sends to a program in segments.
#[derive(Debug)]
struct Outgoing {
    mad: Vec<u8>,
    to: u16,
    from: From,
    acknowledged: u32,
    sent: u32,
    next: Duration,
    tries: u32,
}

/// A message that a program sends to a port in segments.
#[derive(Debug)]
struct Incoming {
    mad: Vec<u8>,
    /// The highest segment of those that came in order.
    received: u32,
    is_complete: bool,
    ends: Duration,
}

/// Messages under way.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    outgoing: BTreeMap<Key, Outgoing>,
    incoming: BTreeMap<Key, Incoming>,
}

impl Transfers {
    /// Forgets what belongs to an agent's requests.
    pub(crate) fn forget(&mut self, agent: u32) {
        let is_other = |key: &Key| (key.transaction_id >> 32) as u32 != agent;
        self.outgoing.retain(|key, _| is_other(key));
        self.incoming.retain(|key, _| is_other(key));
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        let outgoing = self.outgoing.values().map(|transfer| transfer.next);
        outgoing.chain(self.incoming.values().map(|transfer| transfer.ends)).min()
    }
}

impl Fabric {
    /// Takes a segment or message of a class that has RMPP; false where it is to be delivered as a
    /// single MAD is.
    pub(crate) fn transfer(
        &mut self,
        now: Duration,
        end: PortId,
        from: From,
        header: &Header,
        mad: &[u8],
    ) -> bool {
        if !class::has_rmpp(header.class) || !is_active(mad) {
            return false;
        }
        let Ok(Some(rmpp)) = Rmpp::parse(mad) else {
            self.counters.malformed += 1;
            return true;
        };
        let key =
            Key { at: self.subnet.end_port(end), transaction_id: header.transaction_id, class: header.class };
        let receiver = self.receiver(header, end, mad);
        if rmpp.kind != Kind::Data {
            if !self.acknowledged(now, key, rmpp)
                && let Some((client, id, false)) = receiver
            {
                self.deliver_to(client, id, from, mad);
            }
            return true;
        }
        match receiver {
            None => {
                self.counters.unexpected += 1;
                true
            }
            // Whole, or a message of one segment without what fills it.
            Some((_, _, true)) if mad.len() != MAD_LEN => false,
            Some((client, id, true)) => {
                self.assemble(now, key, (client, id), from, header, rmpp, mad);
                true
            }
            Some((client, id, false)) => {
                self.end_transaction(header);
                let mut mad = mad.to_vec();
                mad.resize(MAD_LEN, 0);
                self.deliver_to(client, id, from, &mad);
                true
            }
        }
    }

    /// Whether a message of several packets is sent in segments: to an agent that does RMPP itself,
    /// and where a rule may lose some of them.
    pub(crate) fn goes_in_segments(&mut self, at: PortId, lid: u16, header: &Header, mad: &[u8]) -> bool {
        let mut way = Vec::new();
        let Ok(end) = self.subnet.route(at, lid, TRACE, |out, _| way.push(out)) else { return false };
        let is_lossy = |at: &PortId| {
            let port = self.subnet.port(*at);
            port.drop_ppm != 0 || port.damage_ppm != 0
        };
        let receiver = self.receiver(header, end, mad);
        receiver.is_some_and(|(_, _, by_port)| !by_port || way.iter().any(is_lossy))
    }

    /// The agent that a message is for, and whether its port does RMPP for it.
    fn receiver(&self, header: &Header, end: PortId, mad: &[u8]) -> Option<(ClientId, u32, bool)> {
        let found = if header.is_response() {
            let agent = (header.transaction_id >> 32) as u32;
            self.agents.get(&agent).copied().filter(|(client, _)| self.is_at(*client, end))
        } else {
            self.taker(header, end, mad)
        };
        let (client, id) = found?;
        let agent = self.clients.get(&client)?.agent(id)?;
        Some((client, id, agent.registration.has_kernel_rmpp()))
    }

    /// Ends the wait for an answer; false where no agent waits for it.
    fn end_transaction(&mut self, header: &Header) -> bool {
        let tid = header.transaction_id;
        let key = Transaction { agent: (tid >> 32) as u32, low: tid as u32 };
        !header.is_response() || self.transactions.answered(key, header.class).is_some()
    }

    /// Begins to send a message in segments: the first one, as the window is before any ACK.
    pub(crate) fn segment(&mut self, now: Duration, to: u16, from: From, header: &Header, mad: Vec<u8>) {
        let key = Key { at: from.port, transaction_id: header.transaction_id, class: header.class };
        // The same message again, while it is under way.
        if self.transfers.outgoing.contains_key(&key) {
            return;
        }
        if self.transfers.outgoing.len() >= MAX_TRANSFERS {
            self.counters.overflowed += 1;
            return;
        }
        let next = now + PATIENCE;
        let transfer = Outgoing { mad, to, from, acknowledged: 0, sent: 0, next, tries: 0 };
        self.transfers.outgoing.insert(key, transfer);
        self.send_segments(key, 1);
    }

    /// Sends what was not sent yet up to this segment.
    fn send_segments(&mut self, key: Key, up_to: u32) {
        let Some(transfer) = self.transfers.outgoing.get_mut(&key) else { return };
        let all = u32::try_from(packets(&transfer.mad)).unwrap_or(u32::MAX);
        let up_to = up_to.min(all).min(transfer.acknowledged.saturating_add(WINDOW));
        let lid = transfer.to;
        let From { port, lid: slid, qpn, sl, pkey_index } = transfer.from;
        for segment in transfer.sent + 1..=up_to {
            let body = Body::Gmp(segment_of(&transfer.mad, segment));
            self.work.push_back(Packet {
                at: port,
                body,
                lid,
                slid,
                sl,
                source_qpn: qpn,
                qpn: 1,
                pkey_index,
            });
        }
        transfer.sent = transfer.sent.max(up_to);
    }

    /// Takes an ACK, STOP or ABORT of a message that a port sends; false where there is none.
    fn acknowledged(&mut self, now: Duration, key: Key, rmpp: Rmpp) -> bool {
        let Some(transfer) = self.transfers.outgoing.get_mut(&key) else {
            if rmpp.kind != Kind::Ack {
                self.transfers.incoming.remove(&key);
            }
            return false;
        };
        let all = u32::try_from(packets(&transfer.mad)).unwrap_or(u32::MAX);
        if rmpp.kind != Kind::Ack || rmpp.segment >= all {
            self.transfers.outgoing.remove(&key);
            return true;
        }
        if rmpp.segment >= transfer.acknowledged && rmpp.segment <= transfer.sent {
            if rmpp.segment > transfer.acknowledged {
                transfer.tries = 0;
            }
            transfer.acknowledged = rmpp.segment;
            transfer.next = now + PATIENCE;
            self.send_segments(key, rmpp.length_or_window);
        }
        true
    }

    /// Puts a segment of a program to those before it, and acknowledges.
    #[expect(clippy::too_many_arguments, reason = "a segment with all that is known of it")]
    fn assemble(
        &mut self,
        now: Duration,
        key: Key,
        receiver: (ClientId, u32),
        from: From,
        header: &Header,
        rmpp: Rmpp,
        mad: &[u8],
    ) {
        let (head, room) = layout(mad);
        if rmpp.segment == 1 && rmpp.is_first {
            let is_full = self.transfers.incoming.len() >= MAX_TRANSFERS;
            if is_full && !self.transfers.incoming.contains_key(&key) {
                self.counters.overflowed += 1;
                return;
            }
            self.transfers.incoming.entry(key).or_insert_with(|| Incoming {
                mad: mad[..head].to_vec(),
                received: 0,
                is_complete: false,
                ends: now,
            });
        }
        let Some(transfer) = self.transfers.incoming.get_mut(&key) else {
            self.counters.unexpected += 1;
            return;
        };
        transfer.ends = now + PATIENCE * TRIES;
        if rmpp.segment == transfer.received + 1 && !transfer.is_complete {
            let payload = (rmpp.length_or_window as usize).saturating_sub(class_header(mad));
            let len = match (rmpp.is_last, rmpp.is_first) {
                (true, _) => payload.min(room),
                (false, _) => room,
            };
            if transfer.mad.len() + len > MAX_MESSAGE {
                self.transfers.incoming.remove(&key);
                self.counters.overflowed += 1;
                return;
            }
            transfer.mad.extend_from_slice(&mad[head..head + len]);
            transfer.received = rmpp.segment;
            transfer.is_complete = rmpp.is_last;
        }
        let (received, is_complete) = (transfer.received, transfer.is_complete);
        self.acknowledge(key.at, from, header, received);
        if is_complete && rmpp.is_last && received == rmpp.segment {
            let Some(transfer) = self.transfers.incoming.get_mut(&key) else { return };
            // What stays answers a last segment that comes again.
            let mut whole_mad = std::mem::take(&mut transfer.mad);
            if whole_mad.is_empty() {
                return;
            }
            let first = whole(&whole_mad).emit();
            whole_mad[Header::LEN..RMPP_HEADERS].copy_from_slice(&first);
            if self.end_transaction(header) {
                self.deliver_to(receiver.0, receiver.1, from, &whole_mad);
            } else {
                self.counters.unexpected += 1;
            }
        }
    }

    /// Sends an ACK, whose method is the message's with the other bit of answers.
    fn acknowledge(&mut self, at: PortId, to: From, header: &Header, segment: u32) {
        let header = Header { method: header.method ^ method::RESPONSE, ..*header };
        let rmpp = Rmpp {
            kind: Kind::Ack,
            response_time: NO_RESPONSE_TIME,
            is_first: false,
            is_last: false,
            status: 0,
            segment,
            length_or_window: segment.saturating_add(WINDOW),
        };
        let mut mad = vec![0; MAD_LEN];
        mad[..Header::LEN].copy_from_slice(&header.emit());
        mad[Header::LEN..RMPP_HEADERS].copy_from_slice(&rmpp.emit());
        self.answer(at, to, 1, Body::Gmp(mad));
    }

    /// Sends segments again that no ACK has come for, and forgets what never ends.
    pub(crate) fn retry_transfers(&mut self, now: Duration) {
        self.transfers.incoming.retain(|_, transfer| transfer.ends > now);
        let due = self.transfers.outgoing.iter_mut().filter(|(_, transfer)| transfer.next <= now);
        let mut again = Vec::new();
        for (key, transfer) in due {
            transfer.tries += 1;
            transfer.next = now + PATIENCE;
            transfer.sent = transfer.acknowledged;
            again.push((*key, transfer.acknowledged + 1));
        }
        self.transfers.outgoing.retain(|_, transfer| transfer.tries <= TRIES);
        again.into_iter().for_each(|(key, up_to)| self.send_segments(key, up_to));
    }
}
