//! One direction of a stream: bytes that wait until they are due, in their order, and the end
//! behind them.

use std::collections::VecDeque;
use std::time::Instant;

use nic::Errno;
use wire::iwarp::fpdu::LENGTH_LEN;

use crate::framing::{Framing, Part};
use crate::passage::{Fate, Passage};

/// Bytes that may be taken from the front.
#[derive(Debug)]
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
    /// Bytes of it that are gone.
    gone: usize,
}

/// What is behind the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The half ends.
    Fin,
    /// The stream is let go of as well.
    Close,
    /// The stream is lost.
    Lost(Errno),
}

/// What befalls a stream as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    Reset,
    /// With the revision of the request.
    Rejected(u8),
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    framing: Framing,
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces.
    len: usize,
    /// The last byte is due then.
    last: Option<Instant>,
    pub end: Option<End>,
    /// Bytes of the part in hand that came, and the place of the bit of it that is changed.
    seen: usize,
    flip: Option<(usize, u8)>,
    rate: Option<(usize, u64)>,
    /// Nothing that comes from now on gets through.
    is_blocked: bool,
    /// When the stream is given up, as nothing gets through.
    pub given_up: Option<Instant>,
}

impl Lane {
    /// Takes bytes. `judge` says what becomes of each part, and `turn` when so many bytes have had
    /// their turn by a rule, which wait for it from some time on. What befalls the stream at once.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        now: Instant,
        mut judge: impl FnMut(Part) -> Passage,
        mut turn: impl FnMut((usize, u64), usize, Instant) -> Instant,
    ) -> Option<Blow> {
        let (mut framing, mut blow) = (std::mem::take(&mut self.framing), None);
        framing.take(bytes, |run| {
            let mut at = now;
            if let Some((part, len)) = run.begins {
                let passage = judge(part);
                at = passage.at;
                self.begin(part, len, &passage);
                blow = blow.or(match (passage.fate, part) {
                    (Fate::Reset, _) => Some(Blow::Reset),
                    (Fate::Rejected, Part::Request(revision)) => Some(Blow::Rejected(revision)),
                    _ => None,
                });
            }
            if !self.is_blocked {
                if let Some(rate) = self.rate {
                    at = turn(rate, run.bytes.len(), at);
                }
                self.add(run.bytes, at);
            }
        });
        self.framing = framing;
        blow
    }

    fn begin(&mut self, part: Part, len: usize, passage: &Passage) {
        (self.seen, self.flip, self.rate) = (0, None, passage.rate);
        match passage.fate {
            Fate::Arrives => {}
            // Where the length is changed no bound of an FPDU is found any more, and the stream
            // stands still: a CRC tells only of what it covers.
            Fate::Damaged(bits) if matches!(part, Part::Fpdu(_)) && len > LENGTH_LEN => {
                let at = LENGTH_LEN + (bits >> 3) as usize % (len - LENGTH_LEN);
                self.flip = Some((at, 1 << (bits & 7)));
            }
            Fate::Damaged(_) => {}
            Fate::GivenUp => {
                self.is_blocked = true;
                self.given_up = self.given_up.or(Some(passage.at));
            }
            Fate::Reset | Fate::Unanswered | Fate::Rejected => self.is_blocked = true,
        }
    }

    /// Adds bytes of the part in hand.
    fn add(&mut self, mut bytes: Vec<u8>, at: Instant) {
        let flipped = self.flip.and_then(|(place, bit)| Some((place.checked_sub(self.seen)?, bit)));
        if let Some((byte, bit)) = flipped.and_then(|(at, bit)| Some((bytes.get_mut(at)?, bit))) {
            *byte ^= bit;
        }
        self.seen += bytes.len();
        // A stream keeps its order.
        let due = self.last.map_or(at, |last| last.max(at));
        self.last = Some(due);
        self.len += bytes.len();
        match self.pieces.back_mut() {
            Some(back) if back.due == due => back.bytes.extend(bytes),
            _ => self.pieces.push_back(Piece { due, bytes, gone: 0 }),
        }
    }

    /// Bytes that no fault befalls: an answer that a peer could give.
    pub(crate) fn forge(&mut self, bytes: &[u8], at: Instant) {
        self.add(bytes.to_vec(), at);
    }

    /// No more bytes come.
    pub(crate) fn finish(&mut self, end: End, now: Instant) {
        let rest = self.framing.end();
        if !rest.is_empty() && !self.is_blocked {
            self.add(rest, now);
        }
        self.end = Some(end);
    }

    /// Bytes that are due, at most so many, as far as they lie together.
    pub(crate) fn front(&self, now: Instant, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.pieces.iter().take_while(|piece| piece.due <= now) {
            let rest = piece.bytes.get(piece.gone..).unwrap_or_default();
            let room = most - bytes.len();
            bytes.extend(&rest[..rest.len().min(room)]);
            if bytes.len() == most {
                break;
            }
        }
        bytes
    }

    /// So many bytes of the front are gone.
    pub(crate) fn advance(&mut self, bytes: usize) {
        let mut left = bytes.min(self.len);
        self.len -= left;
        while let Some(front) = self.pieces.front_mut() {
            let gone = left.min(front.bytes.len() - front.gone);
            front.gone += gone;
            left -= gone;
            if front.gone < front.bytes.len() {
                break;
            }
            self.pieces.pop_front();
        }
    }

    /// Forgets all bytes; how many these were.
    pub(crate) fn clear(&mut self) -> usize {
        self.pieces.clear();
        std::mem::take(&mut self.len)
    }

    /// All bytes are due.
    pub(crate) fn release(&mut self, now: Instant) {
        self.pieces.iter_mut().for_each(|piece| piece.due = piece.due.min(now));
    }

    /// Whether nothing that comes gets through any more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// When the first byte is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.pieces.front().map(|piece| piece.due)
    }

    /// The end, where nothing is before it.
    pub(crate) fn reached_end(&self) -> Option<End> {
        let is_next = self.len == 0 && !self.is_blocked;
        self.end.filter(|end| is_next || matches!(end, End::Lost(_)))
    }
}
