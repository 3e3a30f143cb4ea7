//! FPDUs that come, whatever the cuts: header, payload, padding and CRC. Payload goes to its place
//! as it comes; nothing completes before the CRC is good.

use arrayvec::ArrayVec;
use wire::iwarp::Parsed;
use wire::iwarp::crc::{CRC_LEN, Crc32c};
use wire::iwarp::ddp::{Header, Segment, TaggedOp, UntaggedOp};
use wire::iwarp::fpdu::{MAX_TRAILER_LEN, pad};
use wire::iwarp::rdmap::{Cause, ReadRequest, Terminate};
use wire::roce::SendTail;

use super::reader::Reader;
use super::refused::{illegal, refused_response, refused_send, refused_write};
use super::requester::Requester;
use super::{Attr, Broken, Rtr, Way};
use crate::execute::{Ends, Inbound, Refusal, SendPiece};
use crate::op::{Context, NetworkHeader, QpEvent, Remote, Sge, Status, Tail};

/// Bytes of the FPDU in hand that are kept: its header, and the payload of a READ request or of a
/// TERMINATE.
const KEPT: usize = Header::MAX_LEN + Terminate::MAX_LEN;
/// Fewest bytes that are worth a read of their own.
const MIN_DIRECT: usize = 4096;
/// Bytes at the end of an FPDU's payload that come as all others do: a message's last word is to be
/// stored after all else.
const LAST_BYTES: usize = 64;

/// Where the next bytes of a stream belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink<'a> {
    /// In elements of a READ request: so many bytes, from a byte on.
    Request(&'a [Sge], u64, usize),
    /// In elements of a receive, likewise.
    Receive(&'a [Sge], u64, usize),
    /// In memory that the peer writes.
    Remote(Remote),
}

impl Sink<'_> {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        match self {
            Self::Request(.., len) | Self::Receive(.., len) => *len,
            Self::Remote(range) => range.length as usize,
        }
    }

    /// Whether it has no bytes, which none has that is given out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug, Default)]
pub(super) struct Receiver {
    phase: Phase,
    /// The front of the FPDU in hand.
    front: ArrayVec<u8, KEPT>,
    crc: Option<Crc32c>,
    /// The SEND that is arriving.
    sends: Inbound,
    /// The WRITE segment that is arriving. Segments of a SEND may be around it.
    writes: Inbound,
    /// FPDUs that have come whole.
    fpdus: u64,
    /// SENDs that have come.
    send_count: u64,
    /// Bytes of the SEND in hand that came by segments before this one.
    send_received: u32,
    /// READ requests that have come.
    read_count: u32,
    /// The first message is to be this one.
    rtr: Option<Rtr>,
    /// The SEND in hand is an RTR message.
    is_rtr: bool,
}

#[derive(Debug, Default)]
enum Phase {
    /// Bytes of the header are missing.
    #[default]
    Header,
    /// So many bytes of payload are missing.
    Payload(Header, usize),
    /// Bytes of padding and CRC are missing.
    Trailer(Header, ArrayVec<u8, MAX_TRAILER_LEN>),
}

/// What else changes as bytes come.
pub(super) struct Step<'a> {
    pub attr: &'a Attr,
    pub ends: Ends,
    pub requester: &'a mut Requester,
    pub reader: &'a mut Reader,
    pub terminated_by: &'a mut Option<Cause>,
}

impl Receiver {
    pub(super) fn expect_rtr(&mut self, rtr: Rtr) {
        self.rtr = Some(rtr);
    }

    /// What has come whole; its bytes are counted elsewhere.
    pub(super) fn received(&self) -> Way {
        Way { bytes: 0, fpdus: self.fpdus, sends: self.send_count }
    }

    /// Whether the peer's first message has not begun, which this side waits for.
    pub(super) fn awaits_rtr(&self) -> bool {
        self.rtr.is_some()
    }

    pub(super) fn is_between_messages(&self) -> bool {
        matches!(self.phase, Phase::Header) && self.front.is_empty() && !self.sends.in_message()
    }

    /// A receive in use completes as flushed.
    pub(super) fn flush(&mut self, ends: Ends, cx: &mut impl Context) {
        self.sends.flush_receive(ends, cx);
        self.writes.abandon();
        (self.phase, self.rtr) = (Phase::Header, None);
        self.front.clear();
    }

    /// Takes bytes up to the end of a part of an FPDU; what is left of them.
    pub(super) fn take<'b>(
        &mut self,
        bytes: &'b [u8],
        step: &mut Step<'_>,
        cx: &mut impl Context,
    ) -> Result<&'b [u8], Broken> {
        match std::mem::take(&mut self.phase) {
            Phase::Header => self.take_header(bytes, step, cx),
            Phase::Payload(header, left) => {
                let (chunk, rest) = bytes.split_at(left.min(bytes.len()));
                self.crc = self.crc.map(|crc| crc.update(chunk));
                self.place(&header, left, chunk, step, cx)?;
                self.phase = match left - chunk.len() {
                    0 => Phase::Trailer(header, ArrayVec::new()),
                    left => Phase::Payload(header, left),
                };
                Ok(rest)
            }
            Phase::Trailer(header, mut trailer) => {
                let needs = pad(header.ulpdu_len()) + CRC_LEN - trailer.len();
                let (chunk, rest) = bytes.split_at(needs.min(bytes.len()));
                trailer.extend(chunk.iter().copied());
                if chunk.len() < needs {
                    self.phase = Phase::Trailer(header, trailer);
                    return Ok(rest);
                }
                self.check_crc(&trailer, cx)?;
                self.fpdus += 1;
                self.end_segment(&header, step, cx)?;
                self.front.clear();
                Ok(rest)
            }
        }
    }

    /// Where the payload that comes next belongs, where it is long and no CRC covers it: bytes that
    /// another thread of the program changes meanwhile would not be those of the CRC.
    pub(super) fn sink<'s>(&'s self, requester: &'s Requester) -> Option<Sink<'s>> {
        let Phase::Payload(header, left) = &self.phase else { return None };
        let len = left.checked_sub(LAST_BYTES).filter(|len| *len >= MIN_DIRECT && self.crc.is_none())?;
        match header.segment {
            Segment::Tagged { op: TaggedOp::Write, .. } => {
                Some(Sink::Remote(Remote { length: len as u64, ..self.writes.next_of_write()? }))
            }
            Segment::Tagged { op: TaggedOp::ReadResponse, .. } => {
                let (sges, at) = requester.read_sink()?;
                Some(Sink::Request(sges, at, len))
            }
            Segment::Untagged { op: UntaggedOp::Send { .. }, .. } => {
                let (sges, at) = self.sends.next_of_send()?;
                let all: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
                (at + len as u64 <= all).then_some(Sink::Receive(sges, at, len))
            }
            Segment::Untagged { .. } => None,
        }
    }

    /// So many bytes, as many as the sink has or fewer, are where it says.
    pub(super) fn placed(&mut self, len: usize, requester: &mut Requester) {
        let Phase::Payload(header, left) = &mut self.phase else { return };
        *left = left.saturating_sub(len);
        match header.segment {
            Segment::Tagged { op: TaggedOp::Write, .. } => self.writes.placed(len as u64),
            Segment::Tagged { op: TaggedOp::ReadResponse, .. } => requester.placed(len as u64),
            Segment::Untagged { .. } => self.sends.placed(len as u64),
        }
    }

    fn take_header<'b>(
        &mut self,
        bytes: &'b [u8],
        step: &mut Step<'_>,
        cx: &mut impl Context,
    ) -> Result<&'b [u8], Broken> {
        let mut rest = bytes;
        loop {
            match Header::parse(&self.front) {
                Err(bad) => return Err(illegal(bad.cause(), &self.front, cx)),
                Ok(Parsed::Needs(_)) if rest.is_empty() => return Ok(rest),
                Ok(Parsed::Needs(more)) => {
                    let (chunk, after) = rest.split_at(more.min(rest.len()));
                    self.front.extend(chunk.iter().copied());
                    rest = after;
                }
                Ok(Parsed::Whole(header)) => {
                    self.crc = step.attr.crc.then(|| Crc32c::new().update(&self.front));
                    self.begin_segment(&header, step, cx)?;
                    self.phase = match usize::from(header.payload_len) {
                        0 => Phase::Trailer(header, ArrayVec::new()),
                        len => Phase::Payload(header, len),
                    };
                    return Ok(rest);
                }
            }
        }
    }

    fn check_crc(&mut self, trailer: &[u8], cx: &mut impl Context) -> Result<(), Broken> {
        let (Some(crc), Some((padding, sent))) = (self.crc.take(), trailer.split_last_chunk()) else {
            return Ok(());
        };
        if crc.update(padding).finish() == *sent {
            return Ok(());
        }
        Err(illegal(Cause::MpaCrc, &self.front, cx))
    }

    /// The header is there: what can be judged by it.
    fn begin_segment(
        &mut self,
        header: &Header,
        step: &mut Step<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        let rtr = self.rtr.take();
        let cause = match header.segment {
            Segment::Tagged { op: TaggedOp::Write, .. } => None,
            Segment::Tagged { op: TaggedOp::ReadResponse, stag, to } => {
                let len = u64::from(header.payload_len);
                match step.requester.awaited() {
                    // RFC 5040 leaves it open; the kernel's siw says so.
                    None => Some(Cause::DdpCatastrophic),
                    Some(awaited) if awaited.stag != stag => Some(Cause::TaggedInvalidStag),
                    Some(awaited) => {
                        let fits = if header.last { len == awaited.left } else { len < awaited.left };
                        (awaited.to != to || !fits).then_some(Cause::TaggedBaseOrBounds)
                    }
                }
            }
            Segment::Untagged { op: UntaggedOp::Send { .. }, msn, mo } => {
                let (count, received) = (self.send_count as u32, self.send_received);
                wrong_place(msn, count, mo, received)
            }
            Segment::Untagged { op: UntaggedOp::ReadRequest, msn, mo } => {
                wrong_place(msn, self.read_count, mo, 0)
                    .or(is_wrong_request(header).then_some(Cause::OperationUnspecified))
            }
            Segment::Untagged { op: UntaggedOp::Terminate, msn, mo } => wrong_place(msn, 0, mo, 0),
        };
        if let Some(cause) = cause {
            return Err(illegal(cause, &self.front, cx));
        }
        if let Segment::Tagged { op: TaggedOp::Write, stag, to } = header.segment
            && header.payload_len > 0
        {
            let range = Remote { addr: to, length: header.payload_len.into(), rkey: stag };
            let begun = self.writes.write(Some(range), (&[][..]).into(), false, cx);
            begun.map_err(|refusal| refused_write(refusal, &self.front, cx))?;
        }
        if let Segment::Untagged { op: UntaggedOp::Send { .. }, mo: 0, .. } = header.segment {
            self.is_rtr = rtr == Some(Rtr::Send) && header.last && header.payload_len == 0;
            if !self.is_rtr && !self.sends.in_message() {
                self.send_piece(&[], true, None, false, step, cx)?;
            }
        }
        Ok(())
    }

    /// Bytes of payload, of which `left` were missing.
    fn place(
        &mut self,
        header: &Header,
        left: usize,
        chunk: &[u8],
        step: &mut Step<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        let ends_segment = chunk.len() == left;
        match header.segment {
            Segment::Tagged { op: TaggedOp::Write, .. } => {
                let written = self.writes.write(None, chunk.into(), ends_segment, cx);
                written.map_err(|refusal| refused_write(refusal, &self.front, cx))
            }
            Segment::Tagged { op: TaggedOp::ReadResponse, .. } => {
                let tail = if header.last && ends_segment { Tail::End } else { Tail::More };
                step.requester.place(chunk, tail, cx).map_err(|fault| {
                    step.requester.fail_read(Status::LocalProtection, step.ends, cx);
                    refused_response(fault, &self.front, cx)
                })
            }
            Segment::Untagged { op: UntaggedOp::Send { .. }, .. } => {
                self.send_piece(chunk, false, None, false, step, cx)
            }
            Segment::Untagged { op: UntaggedOp::ReadRequest | UntaggedOp::Terminate, .. } => {
                let room = self.front.remaining_capacity();
                self.front.extend(chunk.iter().copied().take(room));
                Ok(())
            }
        }
    }

    /// All of a segment has come, and its CRC is good.
    fn end_segment(
        &mut self,
        header: &Header,
        step: &mut Step<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        match header.segment {
            Segment::Tagged { op: TaggedOp::Write, .. } => {}
            Segment::Tagged { op: TaggedOp::ReadResponse, .. } => {
                if header.last {
                    step.requester.response_ended(step.ends, cx);
                }
            }
            Segment::Untagged { op: UntaggedOp::Send { solicited, invalidate }, .. } => {
                self.send_received = self.send_received.wrapping_add(header.payload_len.into());
                if header.last {
                    if !std::mem::take(&mut self.is_rtr) {
                        let end = invalidate.map_or(SendTail::None, SendTail::Invalidate);
                        self.send_piece(&[], false, Some(end), solicited, step, cx)?;
                    }
                    (self.send_count, self.send_received) = (self.send_count + 1, 0);
                }
            }
            Segment::Untagged { op: UntaggedOp::ReadRequest, .. } => {
                self.read_count = self.read_count.wrapping_add(1);
                let payload = self.front.get(Header::UNTAGGED_LEN..).unwrap_or_default();
                match ReadRequest::parse(payload) {
                    Ok(request) => step.reader.request(step.attr, &request, &self.front, cx)?,
                    Err(_) => return Err(illegal(Cause::OperationUnspecified, &self.front, cx)),
                }
            }
            Segment::Untagged { op: UntaggedOp::Terminate, .. } => {
                let payload = self.front.get(Header::UNTAGGED_LEN..).unwrap_or_default();
                *step.terminated_by = Terminate::parse(payload).ok().and_then(|why| why.cause());
                cx.event(QpEvent::Fatal);
                return Err(Broken(None));
            }
        }
        Ok(())
    }

    fn send_piece(
        &mut self,
        bytes: &[u8],
        first: bool,
        end: Option<SendTail>,
        solicited: bool,
        step: &Step<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        let header = NetworkHeader::None;
        let piece = SendPiece { bytes: bytes.into(), first, end, solicited, header, shows: None };
        self.sends.send(step.ends, piece, cx).map_err(|refusal: Refusal| {
            self.sends.fail(refusal, step.ends, cx);
            refused_send(refusal, &self.front, cx)
        })
    }
}

/// Whether an untagged segment is not the one that comes next: `count` messages came before, and
/// `received` bytes of this one.
fn wrong_place(msn: u32, count: u32, mo: u32, received: u32) -> Option<Cause> {
    if msn != count.wrapping_add(1) {
        return Some(Cause::MsnRange);
    }
    (mo != received).then_some(Cause::InvalidMo)
}

/// Whether a READ request is not one segment with the one payload that it may have.
fn is_wrong_request(header: &Header) -> bool {
    !header.last || usize::from(header.payload_len) != ReadRequest::LEN
}
