//! The end that reads.

use super::layout::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use super::layout::atomic::fence;
use super::layout::{
    ASLEEP, Broken, DONE, HEAD, LINE, Memory, SKIP, WakeTarget, Word, capacity, lines, mark, seems_empty,
};
use super::words::copy_out;

/// The writer is told what was read when it is more than so many lines, or than an eighth of the
/// ring.
const TOLD: u64 = 256;

/// Reads records. There is one to a ring.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    capacity: usize,
    /// Lines read since the beginning.
    position: u64,
    /// Which line of the ring comes next.
    at: usize,
    /// How many of them the writer was told of.
    told: u64,
}

/// A record that lies in the ring.
#[derive(Debug)]
pub struct Found {
    len: usize,
    at: usize,
    lines: usize,
}

impl Found {
    /// The record's length in bytes. They are there, whatever the writer says later.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a record may be empty, and nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A record that is looked at where it lies, and is left when this goes, by whatever way.
pub struct Held<'a, M: Memory> {
    reader: &'a mut Reader<M>,
    /// The record, until this goes.
    found: Option<Found>,
}

impl<M: Memory> Held<'_, M> {
    /// The record's words, as [`Reader::words`].
    #[inline]
    pub fn words(&self) -> &[Word] {
        self.found.as_ref().map_or(&[], |found| self.reader.words(found))
    }
}

impl<M: Memory> Drop for Held<'_, M> {
    fn drop(&mut self) {
        if let Some(found) = self.found.take() {
            self.reader.leave(found);
        }
    }
}

impl<M: Memory> Reader<M> {
    /// The reading end of a ring in this memory; `None` where it is too small for one.
    pub fn new(memory: M) -> Option<Self> {
        let capacity = capacity(memory.len())?;
        Some(Self { memory, capacity, position: 0, at: 0, told: 0 })
    }

    /// Whether nothing is there to read. What the last records took is the writer's again.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        let empty = seems_empty(&self.memory, self.watches());
        if empty && self.told != self.position {
            self.tell();
        }
        empty
    }

    /// The next record, which stays in the ring until [`Reader::leave`]; `None` where there is
    /// none.
    ///
    /// # Errors
    ///
    /// Where it is no record of this writer's.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Found>, Broken> {
        loop {
            let header = self.next().load(Acquire);
            if header == 0 {
                return Ok(None);
            }
            let (len, at) = ((header >> 32) as u32, self.at);
            if header as u32 != mark(self.position) {
                return Err(Broken);
            }
            if len == SKIP {
                // At the front of the ring nothing needs to be left out.
                if at == 0 {
                    return Err(Broken);
                }
                self.position += (self.capacity - at) as u64;
                self.at = 0;
                continue;
            }
            let len = len as usize;
            let lines = lines(len);
            if at + lines > self.capacity {
                return Err(Broken);
            }
            return Ok(Some(Found { len, at, lines }));
        }
    }

    /// The record's words, which the writer may change at any time; the last one may be of fewer
    /// bytes.
    #[inline]
    pub fn words(&self, found: &Found) -> &[Word] {
        &self.line(found.at)[1..found.lines * LINE]
    }

    /// Copies the front of a record out: as much of it as `to` takes.
    #[inline]
    pub fn copy_out(&self, found: &Found, to: &mut [u8]) {
        let len = found.len.min(to.len());
        copy_out::<M>(self.words(found), &mut to[..len]);
    }

    /// The record that was found last, until what is returned goes; then the reader goes on after
    /// it.
    pub fn hold(&mut self, found: Found) -> Held<'_, M> {
        Held { reader: self, found: Some(found) }
    }

    /// Goes on after the record that was found last.
    #[inline]
    pub fn leave(&mut self, found: Found) {
        self.position += found.lines as u64;
        self.at = if found.at + found.lines == self.capacity { 0 } else { found.at + found.lines };
        if self.position - self.told > TOLD.min(self.capacity as u64 / 8) {
            self.tell();
        }
    }

    /// Copies the next record to the front of `to`; how long it is, `None` where there is none.
    ///
    /// # Errors
    ///
    /// Where it is longer than `to`, or no record of this writer's.
    #[inline]
    pub fn pop(&mut self, to: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(found) = self.peek()? else { return Ok(None) };
        let len = found.len;
        if len > to.len() {
            return Err(Broken);
        }
        self.copy_out(&found, to);
        self.leave(found);
        Ok(Some(len))
    }

    /// Which word of the memory is that of the next record: not 0 where there is one.
    #[inline]
    pub fn watches(&self) -> usize {
        (HEAD + self.at) * LINE
    }

    /// Says that no thread looks any more, so that the writer wakes `wake_target`. False where
    /// there is something to read already, and then it is as if nothing had been said.
    pub fn sleep(&mut self, wake_target: WakeTarget) -> bool {
        // It says so already, since a time at which nothing was there, and a writer that wrote
        // since would have taken it back.
        let says_so = self.told == self.position && self.memory[ASLEEP].load(Acquire) == wake_target.word();
        if says_so && self.is_empty() {
            return true;
        }
        self.memory[ASLEEP].store(wake_target.word(), Relaxed);
        // See `Writer::must_wake`.
        fence(SeqCst);
        let sleeps = self.is_empty();
        if !sleeps {
            self.memory[ASLEEP].store(0, Relaxed);
        }
        sleeps
    }

    /// A thread looks from now on until [`Reader::sleep`]: the writer wakes none.
    pub fn stay_awake(&mut self) {
        // A line that the writer looks at with each record.
        if self.memory[ASLEEP].load(Relaxed) != 0 {
            self.memory[ASLEEP].store(0, Relaxed);
        }
    }

    /// The reader is done with what was read: the writer may have its lines again.
    #[inline]
    fn tell(&mut self) {
        self.memory[DONE].store(self.position, Release);
        self.told = self.position;
    }

    #[inline]
    fn next(&self) -> &Word {
        &self.line(self.at)[0]
    }

    #[inline]
    fn line(&self, at: usize) -> &[Word] {
        &self.memory[(HEAD + at) * LINE..]
    }
}
