//! The end that writes.

use super::layout::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use super::layout::atomic::fence;
use super::layout::{
    ASLEEP, BODY, DONE, HEAD, LINE, Memory, SKIP, WakeTarget, Word, capacity, header, lines,
};
use super::words::{self, Filler};

/// Lines after which a writer begins again ([`Writer::begin_again`]).
const ENOUGH: usize = 128;

/// Like [`ENOUGH`], for short records ([`Writer::push_words`]), at first: so that few pages are
/// touched, and the caches of both processors hold them.
const SHORT_ENOUGH: usize = 1024;

/// Lines after the next record's first that are fetched before there is one: a message of 64 bytes
/// fills two, and a word of the third is made 0.
const AHEAD: usize = 2;

/// Writes records. There is one to a ring, and it starts with the memory all zero.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    capacity: usize,
    /// Lines written since the beginning.
    position: u64,
    /// Which line of the ring comes next.
    at: usize,
    /// How many of them the reader was done with when last looked at.
    done: u64,
    /// Lines after which short records begin again; twice as many each time that there was no room
    /// for one.
    enough: usize,
}

/// Why a record was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushError {
    /// There is no room for the record now.
    Full,
    /// The record is longer than half of the ring, so that there may never be room for it.
    TooLong,
    /// The reader says that it has read what was not written.
    Broken,
}

/// The place of a record.
struct Reserved {
    len: u32,
    lines: usize,
    /// The line after the record.
    next: usize,
}

impl<M: Memory> Writer<M> {
    /// The writing end of a ring in this memory; `None` where it is too small for one.
    pub fn new(memory: M) -> Option<Self> {
        let capacity = capacity(memory.len())?;
        Some(Self { memory, capacity, position: 0, at: 0, done: 0, enough: SHORT_ENOUGH })
    }

    /// Bytes of the longest record that is taken: half of the ring.
    #[inline]
    pub fn longest(&self) -> usize {
        self.capacity / 2 * super::layout::LINE_BYTES - super::layout::RECORD_HEADER
    }

    /// Writes one record, these parts one after the other, and publishes it. Nothing is written
    /// where it fails.
    ///
    /// # Errors
    ///
    /// See [`PushError`].
    #[inline]
    pub fn push(&mut self, parts: &[&[u8]]) -> Result<(), PushError> {
        let len = parts.iter().map(|part| part.len()).sum();
        let place = self.reserve(len)?;
        let mut filler = Filler::<M>::new(&self.line(self.at)[1..place.lines * LINE]);
        parts.iter().for_each(|part| filler.add(part));
        filler.finish();
        self.publish(&place);
        Ok(())
    }

    /// Before a record that comes alone: where the reader has read all, it goes to the front of the
    /// ring again, as a few lines that both have at hand serve better than new ones each time.
    /// Until the reader has come by there is less room.
    pub fn begin_again(&mut self) {
        if self.at >= ENOUGH {
            self.begin_unless_unread(0);
        }
    }

    /// The next record goes to the front of the ring, unless the reader has said of more than so
    /// many lines that it has not read them.
    #[cold]
    fn begin_unless_unread(&mut self, most: usize) {
        let done = self.memory[DONE].load(Acquire);
        let unread = self.position.checked_sub(done).filter(|_| done >= self.done);
        if unread.is_some_and(|lines| lines <= most as u64) {
            self.done = done;
            self.leave_rest_out();
        }
    }

    /// Writes one record of these words, each lowest byte first, and a few bytes after them. The
    /// same as [`Writer::push`], with less to look at.
    ///
    /// # Errors
    ///
    /// See [`PushError`].
    #[inline]
    pub fn push_words<const N: usize>(&mut self, head: [u64; N], bytes: &[u8]) -> Result<(), PushError> {
        // Where half of what lies before it was read, there is room for many.
        if self.at >= self.enough {
            self.begin_unless_unread(self.at / 2);
        }
        let place = self.reserve(size_of::<[u64; N]>() + bytes.len()).inspect_err(|why| {
            if *why == PushError::Full {
                self.enough = (self.enough * 2).min(self.capacity);
            }
        })?;
        let words = &self.line(self.at)[1..place.lines * LINE];
        let (front, body) = words.split_at(N.min(words.len()));
        let (near, far) = body.split_at((LINE - 1 - N).min(body.len()));
        let (near_bytes, far_bytes) = bytes.split_at(bytes.len().min(size_of_val(near)));
        // The line that the reader watches comes last and at once. Were another one waited for in
        // between, the reader would take it back, and it would have to come a second time.
        words::fill::<M>(far, far_bytes);
        words::fill::<M>(near, near_bytes);
        words::store(front, head.map(u64::to_le_bytes).as_slice());
        self.publish(&place);
        self.take_lines();
        Ok(())
    }

    /// Writes one record of a head, at most [`BODY`] bytes, and a body of `len` bytes that `fill`
    /// stores, from the first byte of its words on. No record is where it fails, or `fill`
    /// does.
    ///
    /// # Errors
    ///
    /// See [`PushError`]; or what `fill` says.
    pub fn push_with<E>(
        &mut self,
        head: &[u8],
        len: usize,
        fill: impl FnOnce(&[Word]) -> Result<(), E>,
    ) -> Result<Result<(), E>, PushError> {
        if head.len() > BODY {
            return Err(PushError::TooLong);
        }
        let place = self.reserve(BODY.saturating_add(len))?;
        let (front, body) = self.line(self.at)[1..place.lines * LINE].split_at(BODY / size_of::<Word>());
        if let Err(why) = fill(body) {
            return Ok(Err(why));
        }
        let mut filler = Filler::<M>::new(front);
        filler.add(head);
        filler.finish();
        self.publish(&place);
        Ok(Ok(()))
    }

    /// Makes sure of the place for a record of so many bytes, which is at the line that comes next
    /// then.
    #[inline(always)]
    fn reserve(&mut self, len: usize) -> Result<Reserved, PushError> {
        if len > self.longest() {
            return Err(PushError::TooLong);
        }
        let lines = lines(len);
        let skipped = if self.at + lines > self.capacity { self.capacity - self.at } else { 0 };
        // One line more: the word that is watched next.
        self.make_sure_of(skipped + lines + 1)?;
        if skipped > 0 {
            self.leave_rest_out();
        }
        let end = self.at + lines;
        let next = if end == self.capacity { 0 } else { end };
        self.line(next)[0].store(0, Relaxed);
        Ok(Reserved { len: len as u32, lines, next })
    }

    /// What comes next is at the front of the ring.
    fn leave_rest_out(&mut self) {
        self.line(0)[0].store(0, Relaxed);
        self.line(self.at)[0].store(header(SKIP, self.position), Release);
        self.position += (self.capacity - self.at) as u64;
        self.at = 0;
    }

    #[inline]
    fn publish(&mut self, place: &Reserved) {
        self.line(self.at)[0].store(header(place.len, self.position), Release);
        self.position += place.lines as u64;
        self.at = place.next;
    }

    /// Has the processor fetch the lines that the next short record takes beside its first, where
    /// they are known to be free, while the reader is busy with this one: else the next one
    /// would wait for them. Its first line is here already.
    #[inline]
    fn take_lines(&mut self) {
        let free = self.capacity - (self.position - self.done) as usize;
        if self.at + AHEAD < self.capacity && AHEAD < free {
            (1..=AHEAD).for_each(|line| self.line(self.at + line)[0].store(0, Relaxed));
        }
    }

    /// The thread to be woken now for what was written before, where the reader sleeps. Once for
    /// each time that it goes to sleep.
    #[inline(always)]
    pub fn must_wake(&self) -> Option<WakeTarget> {
        // The reader says that it sleeps, then looks for records; here a record is written, then
        // looked whether it sleeps.
        fence(SeqCst);
        let asleep = &self.memory[ASLEEP];
        if asleep.load(Relaxed) == 0 { None } else { WakeTarget::of(asleep.swap(0, AcqRel)) }
    }

    /// The thread that would be woken ([`Writer::must_wake`]).
    pub fn sleeper(&self) -> Option<WakeTarget> {
        fence(SeqCst);
        WakeTarget::of(self.memory[ASLEEP].load(Relaxed))
    }

    /// Whether the reader has not said that it read all. It says so before it sleeps, and from time
    /// to time.
    pub fn has_unread(&self) -> bool {
        self.memory[DONE].load(Acquire) != self.position
    }

    /// Looks at the reader's progress where what is known of it is not enough for so many lines.
    #[inline]
    fn make_sure_of(&mut self, lines: usize) -> Result<(), PushError> {
        let room = |done: u64| self.capacity - (self.position - done) as usize;
        if room(self.done) >= lines {
            return Ok(());
        }
        let done = self.memory[DONE].load(Acquire);
        if done < self.done || done > self.position {
            return Err(PushError::Broken);
        }
        self.done = done;
        if room(done) >= lines { Ok(()) } else { Err(PushError::Full) }
    }

    /// The words from the beginning of a line of records.
    #[inline]
    fn line(&self, at: usize) -> &[Word] {
        &self.memory[(HEAD + at) * LINE..]
    }
}
