//! The parts of one half of an iWARP stream: a frame of MPA, then FPDUs (RFC 5044 §4, §7.1). Rules
//! decide about each part, as they decide about packets.

use wire::iwarp::Parsed;
use wire::iwarp::ddp::Opcode;
use wire::iwarp::fpdu::{LENGTH_LEN, peek_fpdu_len};
use wire::iwarp::mpa::{self, Frame, Kind};

use crate::spec::Operation;

/// Bytes at the front of an FPDU that say how long it is and what it does: the length, and the
/// control bytes of DDP and RDMAP.
const FRONT: usize = LENGTH_LEN + 2;

/// A part of a stream, as far as rules can name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The initiator's frame of MPA: the request of the connection, with its revision.
    Request(u8),
    /// The responder's.
    Reply,
    /// An FPDU; its operation, where a rule has a word for it.
    Fpdu(Option<Operation>),
    /// What follows bytes that are none of these.
    Unknown,
}

/// Bytes of one part, as they come out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The part that begins with them, and how long it is.
    pub begins: Option<(Part, usize)>,
    pub bytes: Vec<u8>,
}

/// How far a half has come.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    phase: Phase,
    /// The front of a part whose length is not known yet.
    front: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// Before the frame of MPA.
    #[default]
    Start,
    /// Between FPDUs.
    Between,
    /// So many bytes of a part are missing.
    Within(usize),
    /// No part has an end any more.
    Lost,
}

impl Framing {
    /// Takes bytes, and gives them out by their parts. Those of a front that is not whole wait for
    /// more.
    pub(crate) fn take(&mut self, bytes: &[u8], mut give: impl FnMut(Run)) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.phase {
                Phase::Within(left) => {
                    let (of_part, behind) = rest.split_at(left.min(rest.len()));
                    rest = behind;
                    self.phase = match left - of_part.len() {
                        0 => Phase::Between,
                        left => Phase::Within(left),
                    };
                    give(Run { begins: None, bytes: of_part.to_vec() });
                }
                Phase::Lost => {
                    give(Run { begins: None, bytes: rest.to_vec() });
                    return;
                }
                Phase::Start | Phase::Between => {
                    let Some((first, behind)) = rest.split_first() else { return };
                    self.front.push(*first);
                    rest = behind;
                    self.begin(&mut give);
                }
            }
        }
    }

    /// What waits for more, as the half has ended.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.front)
    }

    /// Gives out the front, where it says what begins.
    fn begin(&mut self, give: &mut impl FnMut(Run)) {
        let found = match self.phase {
            Phase::Start => frame(&self.front),
            _ => fpdu(&self.front),
        };
        let Some((part, len)) = found else { return };
        let bytes = self.end();
        self.phase = match part {
            Part::Unknown => Phase::Lost,
            _ if len == bytes.len() => Phase::Between,
            _ => Phase::Within(len - bytes.len()),
        };
        give(Run { begins: Some((part, len)), bytes });
    }
}

/// The frame of MPA that has this front; `None` while that may become one. Its whole length is
/// known with its header.
fn frame(front: &[u8]) -> Option<(Part, usize)> {
    let tried = [Kind::Request, Kind::Reply].map(|kind| Frame::parse(kind, front));
    for (kind, parsed) in [Kind::Request, Kind::Reply].into_iter().zip(&tried) {
        let len = match parsed {
            Ok(Parsed::Whole(frame)) => frame.len(),
            Ok(Parsed::Needs(more)) if front.len() >= mpa::HEADER_LEN => front.len() + more,
            Ok(Parsed::Needs(_)) => return None,
            Err(_) => continue,
        };
        // The byte behind the key and the flags (RFC 5044 §7.1.1).
        let revision = front.get(17).copied().unwrap_or_default();
        let part = if kind == Kind::Request { Part::Request(revision) } else { Part::Reply };
        return Some((part, len));
    }
    Some((Part::Unknown, front.len()))
}

/// The FPDU that has this front; `None` while that is too short.
fn fpdu(front: &[u8]) -> Option<(Part, usize)> {
    let (&[.., control], true) = (front, front.len() >= FRONT) else { return None };
    // The operation is in the lower four bits (RFC 5040 §4.1).
    let operation = Opcode::from_code(control & 0x0f).and_then(|opcode| match opcode {
        Opcode::Write => Some(Operation::Write),
        Opcode::ReadRequest => Some(Operation::ReadRequest),
        Opcode::ReadResponse => Some(Operation::ReadResponse),
        Opcode::Send | Opcode::SendInvalidate | Opcode::SendSe | Opcode::SendSeInvalidate => {
            Some(Operation::Send)
        }
        Opcode::Terminate => None,
    });
    let len = peek_fpdu_len(front).filter(|len| *len >= FRONT)?;
    Some((Part::Fpdu(operation), len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Rkey;
    use wire::iwarp::ddp::{Header, Segment, TaggedOp, UntaggedOp};
    use wire::iwarp::fpdu::Fpdu;
    use wire::iwarp::mpa::{ENHANCED_REVISION, Enhanced, MAX_LEN};

    fn stream() -> (Vec<u8>, Vec<(Part, usize)>) {
        let mut out = [0; MAX_LEN];
        let request = Frame {
            kind: Kind::Request,
            markers: false,
            crc: true,
            rejected: false,
            revision: ENHANCED_REVISION,
            enhanced: Some(Enhanced::default()),
            private_data: b"for the program",
        };
        let len = request.emit(&mut out);
        let (mut bytes, mut parts) = (out[..len].to_vec(), vec![(Part::Request(ENHANCED_REVISION), len)]);
        let send = UntaggedOp::Send { solicited: true, invalidate: None };
        let segments = [
            (Segment::Untagged { op: send, msn: 1, mo: 0 }, Some(Operation::Send), 5),
            (Segment::Tagged { op: TaggedOp::Write, stag: Rkey(1), to: 0 }, Some(Operation::Write), 0),
            (Segment::Untagged { op: UntaggedOp::Terminate, msn: 1, mo: 0 }, None, 300),
        ];
        for (segment, operation, payload_len) in segments {
            let before = bytes.len();
            let header = Header { payload_len, last: true, segment };
            Fpdu { header, payload: &vec![7; payload_len.into()] }.emit(true, &mut bytes);
            parts.push((Part::Fpdu(operation), bytes.len() - before));
        }
        (bytes, parts)
    }

    #[test]
    fn parts_begin_where_they_do_wherever_the_stream_is_cut() {
        let (stream, parts) = stream();
        for cut in [1, 2, 3, 7, 64, stream.len()] {
            let (mut framing, mut out, mut found) = (Framing::default(), Vec::new(), Vec::new());
            for chunk in stream.chunks(cut) {
                framing.take(chunk, |run| {
                    found.extend(run.begins);
                    out.extend(run.bytes);
                });
            }
            assert_eq!((&found, &out), (&parts, &stream), "{cut}");
            assert_eq!(framing.end(), []);
        }
    }

    #[test]
    fn bytes_that_are_no_mpa_pass_and_a_front_that_is_cut_off_comes_out_at_the_end() {
        let (mut framing, mut out) = (Framing::default(), Vec::new());
        framing.take(b"GET / HTTP/1.1", |run| out.extend(run.bytes));
        assert_eq!((&out[..], framing.end()), (&b"GET / HTTP/1.1"[..], vec![]));
        let mut framing = Framing::default();
        framing.take(b"MPA ID R", |run| panic!("{run:?}"));
        assert_eq!(framing.end(), b"MPA ID R");
    }
}
