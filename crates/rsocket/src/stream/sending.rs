//! What goes to the peer's ring: entries of the target list, credits, the send buffer.
//!
//! A write on a stream with few messages under way leaves at once. While more are under way, or
//! none may leave, small writes are corked: they wait in the send buffer and leave together, when a
//! completion or credits come. No timer is needed, because one of the two always comes.
//!
//! A program that has more to say (MSG_MORE, TCP_CORK) has its writes corked on an idle stream,
//! too. They leave with the last, when there are [`CORKED`] bytes, or by [`Stream::push`].

use nic::Errno;

use crate::conn_data::{ConnData, Sge};
use crate::message::{MAX_BYTES, Message};
use crate::settings::{CONTROL_SLOTS, LOW_WATER, Settings};
use crate::stream::Stream;
use crate::verbs::{Mark, Payload, Place, Refused, Span, Verbs};

/// The first WRITE of a long write is short, so that the peer begins to read; each further one is
/// twice as long, up to this.
const FIRST: u32 = 1 << 14;
const LONGEST: u32 = 1 << 16;
/// Bytes of the longest write that is corked, and bytes that are corked at once, at most.
const SMALL: u32 = 1 << 11;
const CORKED: u32 = FIRST;
/// Messages under way from which on small writes are corked. A program that writes a request in a
/// few pieces does not wait for the peer's ACK between them.
const BUSY: u32 = 4;
/// Entries of our target list, as of librdmacm's.
pub(crate) const TARGETS: u32 = 2;

#[derive(Debug)]
pub(super) struct Sending {
    /// The number of the next data message, and of the first that may not be sent.
    seq: u16,
    until: u16,
    /// Receives of the peer.
    credits: u16,
    /// Bytes of each piece of the peer's ring.
    piece: u32,
    /// What is left of the pieces of the peer's ring, and which is next.
    targets: [Sge; TARGETS as usize],
    current: usize,
    /// Free entries of the send queue.
    entries: u32,
    all_entries: u32,
    /// Of the send buffer: bytes that are free, where the next go, and all.
    free: u32,
    at: u32,
    size: u32,
    /// The last bytes before `at`, which no message has yet.
    corked: u32,
    /// The program has more to say, which they wait for.
    awaits_more: bool,
}

impl Sending {
    pub(super) fn new(settings: &Settings, peer: &ConnData) -> Self {
        let entries = settings.send_queue - CONTROL_SLOTS;
        Self {
            seq: 0,
            until: peer.credits,
            credits: peer.credits,
            piece: peer.ring.length,
            targets: [peer.ring, Sge::default()],
            current: 0,
            entries,
            all_entries: entries,
            free: settings.send_buffer,
            at: 0,
            size: settings.send_buffer,
            corked: 0,
            awaits_more: false,
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// New credits, and perhaps entries of the target list. False where the peer grants more than
    /// it has.
    pub(super) fn on_credits(&mut self, until: u16, verbs: &mut impl Verbs) -> bool {
        if until.wrapping_sub(self.seq) > self.credits {
            return false;
        }
        self.until = until;
        // iWARP may have put a part of an entry there whose own message has not come.
        for (entry, target) in (0..).zip(&mut self.targets) {
            if target.length == 0
                && let Some(next) = verbs.take_target(entry, self.piece)
            {
                *target = next;
            }
        }
        true
    }

    pub(super) fn on_sent(&mut self, bytes: u32) {
        self.entries = (self.entries + 1).min(self.all_entries);
        self.free = (self.free + bytes).min(self.size);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.entries == self.all_entries
    }

    /// Entries of the send queue and a credit for a message.
    pub(super) fn has_credit(&self, entries: u32) -> bool {
        self.entries >= entries && self.seq != self.until
    }

    pub(super) fn take_credit(&mut self, entries: u32) {
        self.entries -= entries;
        self.seq = self.seq.wrapping_add(1);
    }

    pub(super) fn is_corked(&self) -> bool {
        self.corked > 0
    }

    /// Whether so many messages are under way that small writes wait. A message takes so many
    /// entries.
    fn is_busy(&self, entries: u32) -> bool {
        self.all_entries - self.entries >= BUSY * entries
    }

    fn has_room(&self) -> bool {
        self.free >= LOW_WATER.min(self.size)
    }

    /// Whether what is corked waits for more, of which there is room for some.
    fn waits_for_more(&self) -> bool {
        self.awaits_more && self.corked < CORKED && self.has_room()
    }

    /// Bytes that a message may carry now.
    fn message_room(&self, entries: u32) -> u32 {
        if self.has_credit(entries) { self.targets[self.current].length.min(MAX_BYTES) } else { 0 }
    }

    /// The next `length` bytes of the peer's ring, of which there are as many in the current piece.
    fn take_target(&mut self, length: u32) -> Place {
        let target = &mut self.targets[self.current];
        let place = Place { addr: target.addr, key: target.key };
        target.addr = target.addr.wrapping_add(length.into());
        target.length -= length;
        if target.length == 0 {
            self.current = (self.current + 1) % self.targets.len();
        }
        place
    }

    fn span(&self, at: u32, length: u32) -> Span {
        let first = length.min(self.size - at);
        Span { at, first, rest: length - first }
    }

    /// The next `length` bytes of the send buffer, of which as many are free.
    fn cork(&mut self, length: u32) -> Span {
        let span = self.span(self.at, length);
        self.free -= length;
        self.corked += length;
        self.at = (self.at + length) % self.size;
        span
    }

    /// The first `length` of the bytes that are corked.
    fn uncork(&mut self, length: u32) -> Span {
        let span = self.span((self.at + self.size - self.corked) % self.size, length);
        self.corked -= length;
        span
    }
}

/// Bytes of several pieces, one behind the other.
struct Parts<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first that were taken.
    taken: usize,
}

impl Parts<'_> {
    /// Copies the next bytes to the send buffer.
    fn copy(&mut self, verbs: &mut impl Verbs, mut at: u32, mut length: u32) {
        while length > 0 {
            let Some(part) = self.parts.first() else { return };
            let rest = &part[self.taken..];
            let n = rest.len().min(length as usize);
            verbs.fill(at, &rest[..n]);
            (at, length, self.taken) = (at + n as u32, length - n as u32, self.taken + n);
            if self.taken == part.len() {
                (self.parts, self.taken) = (&self.parts[1..], 0);
            }
        }
    }
}

impl Stream {
    /// Bytes that a message may carry now.
    fn message_room(&self) -> u32 {
        if self.mappings.is_told() { self.sending.message_room(self.entries()) } else { 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.message_room() > 0 && self.sending.has_room()
    }

    fn cork(&mut self, verbs: &mut impl Verbs, parts: &mut Parts<'_>, length: u32) {
        let span = self.sending.cork(length);
        parts.copy(verbs, span.at, span.first);
        parts.copy(verbs, 0, span.rest);
    }

    /// Sends what is corked, as far as it may leave.
    fn uncork(&mut self, verbs: &mut impl Verbs) -> Result<(), Refused> {
        loop {
            let length = self.sending.corked.min(self.message_room());
            if length == 0 {
                return Ok(());
            }
            let span = self.sending.uncork(length);
            let to = self.sending.take_target(length);
            self.sending.take_credit(self.entries());
            let mark = Mark { control: false, bytes: length };
            self.post_write(verbs, mark, to, Payload::Buffered(span), Message::Data(length))?;
        }
    }

    fn is_busy(&self) -> bool {
        !self.no_delay && self.sending.is_busy(self.entries())
    }

    /// Sends what is corked unless the queue is busy, or the program has more to say. The last
    /// bytes do not wait.
    pub(super) fn send_corked(&mut self, verbs: &mut impl Verbs) -> Result<(), Refused> {
        let waits = (self.is_busy() || self.sending.waits_for_more()) && !self.write_shut;
        if waits || self.peer_gone { Ok(()) } else { self.uncork(verbs) }
    }

    /// Whether bytes are corked because the program has more to say. Call [`Stream::push`] where it
    /// does not for long.
    pub fn awaits_more(&self) -> bool {
        self.sending.waits_for_more() && self.sending.is_corked()
    }

    /// Has what is corked wait for nothing more that the program says.
    pub fn push(&mut self, verbs: &mut impl Verbs) {
        self.sending.awaits_more = false;
        self.progress(verbs);
    }

    /// Takes as many bytes as may leave now, and small writes that may leave later; 0 where none
    /// may. `more`: what is written next is to leave with them (MSG_MORE, TCP_CORK).
    ///
    /// # Errors
    ///
    /// EPIPE where this end writes no more, or the peer has left; an error that the program was not
    /// told of.
    pub fn write(&mut self, verbs: &mut impl Verbs, parts: &[&[u8]], more: bool) -> Result<usize, Errno> {
        self.check_open()?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut parts = Parts { parts, taken: 0 };
        self.sending.awaits_more = more;
        let longest = if more { CORKED } else { SMALL };
        let small = u32::try_from(total).ok().filter(|&n| n <= longest);
        if let Some(length) = small.filter(|&n| self.may_cork(n)) {
            self.cork(verbs, &mut parts, length);
            if self.send_corked(verbs).is_err() {
                self.fail(Errno::ECONNRESET);
            }
            return Ok(total);
        }
        Ok(self.write_at_once(verbs, &mut parts, total))
    }

    /// Whether a write of so many bytes is corked.
    fn may_cork(&self, length: u32) -> bool {
        let fits = length <= self.sending.free && self.sending.corked + length <= CORKED;
        fits && (self.sending.awaits_more || self.is_busy() || !self.has_room())
    }

    /// Sends as many of `total` bytes as may leave, after or with what is corked; how many.
    fn write_at_once(&mut self, verbs: &mut impl Verbs, parts: &mut Parts<'_>, total: usize) -> usize {
        let (mut sent, mut longest) = (0, FIRST);
        let mut posted = if total > 0 && self.has_room() { Ok(()) } else { self.uncork(verbs) };
        while sent < total && posted.is_ok() && self.has_room() {
            let left = u32::try_from(total - sent).unwrap_or(u32::MAX);
            let length = left.min(longest).min(self.sending.free).min(self.message_room());
            longest = (longest * 2).min(LONGEST);
            self.cork(verbs, parts, length);
            posted = self.uncork(verbs);
            sent += length as usize;
        }
        if posted.is_err() {
            self.fail(Errno::ECONNRESET);
        }
        sent
    }

    /// What a write says of a stream that takes no bytes any more.
    fn check_open(&mut self) -> Result<(), Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.write_shut || self.is_over() { Err(Errno::EPIPE) } else { Ok(()) }
    }

    /// Sends bytes to a mapping of the peer's that `offset` lies in (riowrite), after all that was
    /// written; how many, 0 where none may leave now. `None` where there is no such mapping.
    ///
    /// # Errors
    ///
    /// As [`Stream::write`].
    pub fn write_mapped(
        &mut self,
        verbs: &mut impl Verbs,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Option<usize>, Errno> {
        self.check_open()?;
        let Some((to, room)) = self.find_mapping(verbs, offset) else { return Ok(None) };
        if self.uncork(verbs).is_err() {
            self.fail(Errno::ECONNRESET);
        }
        if self.broken || self.sending.is_corked() || !self.has_room() {
            return Ok(Some(0));
        }
        let most = bytes.len().min(LONGEST as usize) as u32;
        let length = most.min(room).min(self.sending.free);
        self.cork(verbs, &mut Parts { parts: &[bytes], taken: 0 }, length);
        let span = self.sending.uncork(length);
        self.sending.entries -= 1;
        let mark = Mark { control: false, bytes: length };
        if verbs.write(mark, to, Payload::Buffered(span), None).is_err() {
            self.fail(Errno::ECONNRESET);
        }
        Ok(Some(length as usize))
    }
}
