//! Fragments: several packets of a message that come as one fragment from a process of the same
//! host, the headers of one, then all of their bytes. They have their PSNs, and are acknowledged as
//! ever. A fragment that was not taken, because there was no receive or something before it was
//! lost, is sent again in packets.

use std::time::Instant;

use wire::roce::{Header, Op, Packet, ReadAt, SendAt, Service, WriteAt};
use wire::{Mtu, Psn};

use crate::op::{Context, Payload, ZeroCopy};
#[cfg(doc)]
use crate::op::{FragmentBytes, LocalPath};
use crate::rc::responder::Responder;
use crate::rc::{AckDelay, Connection, Rc, Role, State};

/// Packets of a fragment in the ring, at most: while they are copied the next ones are on their
/// way.
pub(super) const MAX_PACKETS: u32 = 64;
/// Bytes of the shortest fragment; what is shorter goes as packets.
pub(in crate::rc) const MIN_FRAGMENT: u32 = 2048;

/// Bytes of a fragment that one end copies, at most, however many packets that is.
pub(super) const MAX_ZERO_COPY: u32 = 512 << 10;

/// A packet that has come, or several in one fragment.
pub(in crate::rc) struct Arrival<'a> {
    pub header: &'a Header,
    pub payload: Payload<'a>,
    /// How many.
    pub packets: u32,
}

impl<'a> Arrival<'a> {
    #[inline]
    pub(crate) fn of(packet: &'a Packet<'a>) -> Self {
        Arrival { header: &packet.header, payload: packet.payload.into(), packets: 1 }
    }

    /// Bytes of as many full packets.
    pub(crate) fn most_bytes(&self, conn: &Connection) -> usize {
        self.packets as usize * conn.mtu
    }
}

/// How many of `left` packets, which have `bytes` bytes, leave next as one fragment that holds at
/// most so many bytes and packets; `None` where they are no such fragment.
pub(super) fn fragment(mtu: u32, left: u32, bytes: u64, most_bytes: usize, most: u32) -> Option<(u32, u32)> {
    let most_bytes = u32::try_from(most_bytes).unwrap_or(u32::MAX);
    let packets = left.min(most_bytes / mtu).min(most);
    let len = u64::from(packets * mtu).min(bytes) as u32;
    (len >= MIN_FRAGMENT).then_some((packets, len))
}

/// Bytes of each fragment of a message that both ends copy, but for the last one: as many fragments
/// for the one as for the other, where they are long enough.
pub(super) fn zero_copy_len(mtu: u32, len: u32, min: u32) -> u32 {
    let fragments = len.div_ceil(MAX_ZERO_COPY).next_multiple_of(2);
    len.div_ceil(fragments).next_multiple_of(mtu).max(min)
}

/// What an ACK or a request for a READ tells of.
fn told(payload: Payload<'_>) -> Option<ZeroCopy> {
    let Payload::Shared(bytes) = payload else { return None };
    (bytes.len() == ZeroCopy::LEN).then(|| ZeroCopy::from_bytes(&bytes.to_vec()))?
}

/// Whether the sender copies a fragment, where it knows the place: every other one, from the last
/// but one back. `after`: bytes that follow it.
pub(super) fn is_the_senders(after: u64, fragment_len: u32) -> bool {
    after.div_ceil(fragment_len.into()) % 2 == 1
}

/// How many packets of this MTU a fragment with this payload may stand for.
fn most_packets(payload: Payload<'_>, mtu: usize) -> usize {
    match payload {
        Payload::ZeroCopy(_) => MAX_ZERO_COPY as usize / mtu,
        _ => MAX_PACKETS as usize,
    }
}

/// The headers of the first packet of several that come as one fragment with these.
fn first_packet(fragment: &Header) -> Header {
    let op = match fragment.op {
        Op::Send(SendAt::Only(_)) => Op::Send(SendAt::First),
        Op::Send(SendAt::Last(_)) => Op::Send(SendAt::Middle),
        Op::Write(WriteAt::Only(reth, _)) => Op::Write(WriteAt::First(reth)),
        Op::Write(WriteAt::Last(_)) => Op::Write(WriteAt::Middle),
        Op::ReadResponse(ReadAt::Only(aeth)) => Op::ReadResponse(ReadAt::First(aeth)),
        Op::ReadResponse(ReadAt::Last(_)) => Op::ReadResponse(ReadAt::Middle),
        op => op,
    };
    Header { op, ..*fragment }
}

impl Responder {
    /// Numbers from this one on are used up, so many, by requests that needed nothing of this
    /// process.
    pub(crate) fn skip(&mut self, from: Psn, count: u32) {
        let is_between = self.flushing.is_none() && !self.inbound.in_message();
        if self.begun && from == self.expected && is_between {
            self.expected = from.add(count);
        }
    }
}

impl Rc {
    /// A fragment of a message for this queue pair, as several packets would bring it: a SEND, a
    /// WRITE or a READ response. Or an ACK that acknowledges nothing, but says where a message
    /// goes ([`LocalPath::advertise`]), or which PSNs are used up
    /// ([`LocalPath::report_unsent`]). Or the request for a READ, which says where that goes
    /// ([`FragmentBytes::Requested`]). The rest is as with [`Rc::receive`].
    ///
    /// `mtu` is the sender's path MTU, by which it counts packets. Where ours is another one, the
    /// first packet of several is taken in, and refused as it would be if it had come by itself.
    pub fn receive_fragment(
        &mut self,
        now: Instant,
        header: &Header,
        mtu: Mtu,
        payload: Payload<'_>,
        ack_delay: AckDelay,
        cx: &mut impl Context,
    ) {
        let psn = header.bth.psn;
        let (payload, packets) = match (header.op, told(payload)) {
            (Op::Acknowledge(_), Some(ZeroCopy::Exported(place))) => {
                return self.requester.is_shown(psn, place);
            }
            (Op::Acknowledge(_), Some(ZeroCopy::Placed(count))) => return self.responder.skip(psn, count),
            (Op::Acknowledge(_), None) => return,
            (Op::ReadRequest(_), Some(place @ ZeroCopy::Exported(_))) => (Payload::ZeroCopy(place), 1),
            (Op::ReadRequest(_), _) => return,
            _ => (payload, payload.len().div_ceil(mtu.bytes())),
        };
        if self.conn.role != Role::Rc
            || header.service != Service::Rc
            || !(1..=most_packets(payload, mtu.bytes())).contains(&packets)
        {
            return;
        }
        let first = first_packet(header);
        let arrival = match mtu.bytes() == self.conn.mtu || packets == 1 {
            true => Arrival { header, payload, packets: packets as u32 },
            false => Arrival { header: &first, payload: payload.first(mtu.bytes()), packets: 1 },
        };
        match header.op {
            Op::ReadResponse(_) if matches!(self.state, State::Rts | State::Sqd) => {
                let outcome = self.requester.response(now, &self.conn, &arrival, cx);
                self.fail_if(outcome, cx);
            }
            Op::Send(_) | Op::Write(_) | Op::ReadRequest(_) => {
                self.request(&arrival, None, cx);
                // The peer may have to wait with the next one until it knows that this one is done.
                let ack_delay =
                    if matches!(payload, Payload::ZeroCopy(_)) { AckDelay::No } else { ack_delay };
                self.delay_ack(header.op, arrival.packets, ack_delay);
            }
            _ => {}
        }
    }
}
