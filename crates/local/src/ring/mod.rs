//! A ring of records in memory that two processes share: one writes, one reads, and neither trusts
//! the other.
//!
//! The memory is words of eight bytes, in lines of 64 bytes:
//!
//! | line | word | what | written by |
//! |---|---|---|---|
//! | 0 | 0 | how many lines the reader is done with, counted from the beginning | reader |
//! | 0 | 1 | not 0 where the reader sleeps: the writer of a record wakes it, and the number says which thread ([`WakeTarget`]) | reader; the writer takes it back |
//! | 1 | | nothing: what the reader writes and the first record do not share a line that a processor fetches with its neighbour | |
//! | 2 and on | | records | writer |
//!
//! A record begins with a line and lies in one piece: a word that says its length in bytes (upper
//! half), the number of its first line (31 bits of it) and 1 (one bit), then the bytes, then
//! whatever was there up to the next line. Length 2^32 - 1 is no record: the rest of the ring is
//! left out, because the next one would not lie in one piece, or because the reader has read enough
//! of it and the front of the ring will do.
//!
//! The reader watches the first word of the next record, so a message costs the two processors as
//! few lines as it fills. Before the writer publishes a record, it makes the first word of the next
//! one 0. So what lay there, bytes of an older record, is never taken for a record.
//!
//! What the other process writes is input, as a packet is: a reader looks at a record's length
//! once, and copies out what it looks at, or only copies (a long body); a number that can not be is
//! [`Broken`]. Words are read and written as atomics, so that nothing the other does is undefined
//! here.
//!
//! | file | what |
//! |---|---|
//! | `writer`, `reader` | the two ends |
//! | `layout` | how the ring lies in memory |
//! | `words` | bytes as words |
#![forbid(unsafe_code)]

mod layout;
mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, loom))]
mod wake_up;
mod words;
mod writer;

pub use layout::{BODY, Broken, Memory, WakeTarget, Word, memory_len, seems_empty};
pub use reader::{Found, Held, Reader};
pub use writer::{PushError, Writer};
