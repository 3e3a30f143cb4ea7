//! What leaves by a stream: headers and short payloads as bytes, long payloads as ranges of
//! registered memory, which are not copied.

use std::collections::VecDeque;

use wire::iwarp::crc::Crc32c;
use wire::iwarp::ddp::Header;
use wire::iwarp::fpdu::{MAX_TRAILER_LEN, trailer};

use crate::op::{Data, Fault, Memory, Remote, Sge};

/// Most bytes that a batch takes before it is full. One FPDU more may be in it.
const MAX_BYTES: usize = 1 << 20;
/// Most bytes of its own that a batch takes before it is full.
const MAX_OWN: usize = 256 << 10;
/// Most pieces that a batch takes before it is full; Linux takes 1,024 in a call (UIO_MAXIOV).
const MAX_PIECES: usize = 512;
/// Bytes of memory that an empty batch keeps, at most.
const MAX_KEPT: usize = 16 << 10;
/// Longest payload that is copied: an element more for the kernel costs as much.
const MAX_COPY: usize = 2048;

/// A part of what leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many of the batch's own bytes.
    Own(usize),
    /// Memory that a request names.
    Local(Sge),
    /// Memory that the peer reads.
    Remote(Remote),
}

/// Where the payload of an FPDU is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// In the data of a request, from a byte on.
    Request(&'a Data, u64),
    /// In memory that the peer reads, from a byte on.
    Remote(Remote, u64),
}

/// FPDUs on their way to a stream.
#[derive(Debug, Default)]
pub struct StreamBatch {
    own: Vec<u8>,
    /// Bytes at the front of `own` that the stream has taken.
    gone: usize,
    pieces: VecDeque<Piece>,
    len: u64,
}

impl Piece {
    /// Bytes of the piece.
    pub fn len(&self) -> u64 {
        match self {
            Self::Own(len) => *len as u64,
            Self::Local(sge) => sge.length.into(),
            Self::Remote(range) => range.length,
        }
    }

    /// Whether the piece has no bytes, which none of a batch has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn drop_front(&mut self, bytes: u64) {
        match self {
            Self::Own(len) => *len -= bytes as usize,
            Self::Local(sge) => {
                sge.addr = sge.addr.wrapping_add(bytes);
                sge.length -= bytes as u32;
            }
            Self::Remote(range) => {
                range.addr = range.addr.wrapping_add(bytes);
                range.length -= bytes;
            }
        }
    }
}

impl StreamBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }
    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Whether an FPDU more may be added.
    pub(super) fn has_room(&self) -> bool {
        self.len < MAX_BYTES as u64 && self.own.len() < MAX_OWN && self.pieces.len() < MAX_PIECES
    }
    /// The pieces, in order. Those of the batch's own bytes lie one after the other in
    /// [`StreamBatch::own`].
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }
    /// The batch's own bytes.
    pub fn own(&self) -> &[u8] {
        self.own.get(self.gone..).unwrap_or_default()
    }

    /// The stream has taken so many bytes from the front.
    pub fn advance(&mut self, bytes: u64) {
        let mut left = bytes.min(self.len);
        self.len -= left;
        while left > 0
            && let Some(front) = self.pieces.front_mut()
        {
            let taken = front.len().min(left);
            if let Piece::Own(_) = front {
                self.gone += taken as usize;
            }
            left -= taken;
            if taken == front.len() {
                self.pieces.pop_front();
            } else {
                front.drop_front(taken);
            }
        }
        if self.is_empty() {
            self.clear();
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.own.clear();
        if self.own.capacity() > MAX_KEPT {
            self.own = Vec::new();
        }
        self.pieces.clear();
        (self.gone, self.len) = (0, 0);
    }

    /// Appends a copy of the first `most` bytes, for a stream that takes no ranges of memory; how
    /// many these are.
    ///
    /// # Errors
    ///
    /// Why memory could not be read; what is before it was appended.
    pub fn copy_out(&self, most: usize, memory: &impl Memory, out: &mut Vec<u8>) -> Result<usize, Fault> {
        let (before, mut at, mut left) = (out.len(), 0, most);
        for piece in &self.pieces {
            let len = piece.len().min(left as u64) as usize;
            match piece {
                Piece::Own(_) => out.extend(self.own().get(at..at + len).unwrap_or_default()),
                Piece::Local(sge) => append(out, len, |dst| memory.get(sge, dst))?,
                Piece::Remote(range) => append(out, len, |dst| memory.read(*range, 0, dst))?,
            }
            at += if let Piece::Own(_) = piece { len } else { 0 };
            left -= len;
            if left == 0 {
                break;
            }
        }
        Ok(out.len() - before)
    }

    /// Appends an FPDU. With a CRC its payload is copied: it is to be what the CRC covers.
    pub(super) fn push(
        &mut self,
        header: &Header,
        payload: Source<'_>,
        crc: bool,
        memory: &impl Memory,
    ) -> Result<(), Fault> {
        let (len, before) = (usize::from(header.payload_len), self.own.len());
        let crc = self.begin(header, crc);
        if crc.is_none() && len > MAX_COPY {
            self.note_own(before);
            payload.ranges(len, |piece| self.push_piece(piece));
            self.finish(header, None, self.own.len());
            return Ok(());
        }
        let at = self.own.len();
        self.own.resize(at + len, 0);
        let copied = payload.copy(&mut self.own[at..], memory);
        copied.inspect_err(|_| self.own.truncate(before))?;
        self.finish(header, crc.map(|crc| crc.update(&self.own[at..])), before);
        Ok(())
    }

    /// Appends an FPDU with these bytes of payload, as many as its header says.
    pub(super) fn push_bytes(&mut self, header: &Header, payload: &[u8], crc: bool) {
        let before = self.own.len();
        let crc = self.begin(header, crc).map(|crc| crc.update(payload));
        self.own.extend(payload);
        self.finish(header, crc, before);
    }

    /// Writes a header; the CRC over it, where there is to be one.
    fn begin(&mut self, header: &Header, crc: bool) -> Option<Crc32c> {
        let mut head = [0; Header::MAX_LEN];
        let len = header.emit(&mut head);
        self.own.extend(&head[..len]);
        crc.then(|| Crc32c::new().update(&head[..len]))
    }

    /// Writes padding and CRC. From `before` on the batch's own bytes are not in its pieces yet.
    fn finish(&mut self, header: &Header, crc: Option<Crc32c>, before: usize) {
        let mut end = [0; MAX_TRAILER_LEN];
        let len = trailer(header.ulpdu_len(), crc, &mut end);
        self.own.extend(&end[..len]);
        self.note_own(before);
    }

    fn note_own(&mut self, before: usize) {
        let more = self.own.len() - before;
        self.len += more as u64;
        match self.pieces.back_mut() {
            Some(Piece::Own(len)) => *len += more,
            _ => self.pieces.push_back(Piece::Own(more)),
        }
    }

    fn push_piece(&mut self, piece: Piece) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

fn append(
    out: &mut Vec<u8>,
    len: usize,
    copy: impl FnOnce(&mut [u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let before = out.len();
    out.resize(before + len, 0);
    copy(&mut out[before..]).inspect_err(|_| out.truncate(before))
}

impl Source<'_> {
    fn copy(self, dst: &mut [u8], memory: &impl Memory) -> Result<(), Fault> {
        // No bytes need no key (RFC 5041 §5.1).
        if dst.is_empty() {
            return Ok(());
        }
        match self {
            Self::Request(data, at) => data.copy_out(at, dst, memory).map(|_| ()),
            Self::Remote(range, at) => memory.read(range, at, dst),
        }
    }

    /// The ranges of memory that a payload of `len` bytes lies in.
    fn ranges(self, len: usize, mut each: impl FnMut(Piece)) {
        match self {
            // Shorter than what is copied: see `StreamBatch::push`.
            Self::Request(Data::Inline(_) | Data::InlineLong(_), _) => {}
            Self::Request(Data::Sges(list), at) => {
                let (mut skip, mut left) = (at, len as u64);
                for sge in list.as_slice() {
                    let from = skip.min(sge.length.into());
                    let part = (u64::from(sge.length) - from).min(left);
                    skip -= from;
                    left -= part;
                    let addr = sge.addr.wrapping_add(from);
                    each(Piece::Local(Sge { addr, length: part as u32, lkey: sge.lkey }));
                }
            }
            Self::Remote(range, at) => {
                let addr = range.addr.wrapping_add(at);
                each(Piece::Remote(Remote { addr, length: len as u64, rkey: range.rkey }));
            }
        }
    }
}
