//! The end that reads.

use crate::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::atomic::fence;
use crate::words::copy_out;
use crate::{ASLEEP, Broken, DONE, HEAD, LINE, Memory, SKIP, Whom, Word, capacity, lines, mark};

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

impl<M: Memory> Reader<M> {
    /// The reading end of a ring in this memory; `None` where it is too small for one.
    pub fn new(memory: M) -> Option<Reader<M>> {
        let capacity = capacity(memory.len())?;
        Some(Reader { memory, capacity, position: 0, at: 0, told: 0 })
    }

    /// Whether nothing is there to read. What the last records took is the writer's again.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        let empty = self.next().load(Acquire) == 0;
        if empty && self.told != self.position {
            self.tell();
        }
        empty
    }

    /// Copies the next record to the front of `to`; how long it is, `None` where there is none.
    ///
    /// # Errors
    ///
    /// Where it is longer than `to`, or no record of this writer's.
    #[inline]
    pub fn pop(&mut self, to: &mut [u8]) -> Result<Option<usize>, Broken> {
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
            if len > to.len() || at + lines > self.capacity {
                return Err(Broken);
            }
            copy_out::<M>(&self.line(at)[1..lines * LINE], &mut to[..len]);
            self.position += lines as u64;
            self.at = if at + lines == self.capacity { 0 } else { at + lines };
            if self.position - self.told > self.capacity as u64 / 8 {
                self.tell();
            }
            return Ok(Some(len));
        }
    }

    /// Which word of the memory is that of the next record: not 0 where there is one.
    #[inline]
    pub fn watches(&self) -> usize {
        (HEAD + self.at) * LINE
    }

    /// Says that nobody looks any more, so that whoever writes wakes `whom`; false where there is something to read already,
    /// and then it is as if nothing had been said.
    pub fn sleep(&mut self, whom: Whom) -> bool {
        self.memory[ASLEEP].store(whom.word(), Relaxed);
        // See `Writer::must_wake`.
        fence(SeqCst);
        let sleeps = self.is_empty();
        if !sleeps {
            self.memory[ASLEEP].store(0, Relaxed);
        }
        sleeps
    }

    /// The bytes are copied: the writer may have their lines again.
    fn tell(&mut self) {
        self.memory[DONE].store(self.position, Release);
        self.told = self.position;
    }

    #[inline]
    fn next(&self) -> &Word {
        &self.line(self.at)[0]
    }

    fn line(&self, at: usize) -> &[Word] {
        &self.memory[(HEAD + at) * LINE..]
    }
}
