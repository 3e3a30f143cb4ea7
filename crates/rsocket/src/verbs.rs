//! What a stream asks of the queue pair under it: requests, receives, and the memory that they
//! name.

use crate::conn_data::Sge;

/// The queue pair does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Bytes of the send buffer: the first ones, and those that go on at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where the first begin.
    pub at: u32,
    /// How many these are.
    pub first: u32,
    /// How many go on at the beginning.
    pub rest: u32,
}

/// What a WRITE carries.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes of the send buffer.
    Buffered(Span),
    /// Other bytes, at most [`MAX_INLINE`], which the call copies.
    Inline(&'a [u8]),
}

/// Most bytes of an inline payload: an entry of the table of mappings.
pub const MAX_INLINE: usize = 24;

/// What a request was, which its completion brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The entry of the send queue was one of those for control messages.
    pub control: bool,
    /// So many bytes of the send buffer were under way.
    pub bytes: u32,
}

impl Mark {
    /// As a work request's mark.
    pub fn word(self) -> u64 {
        u64::from(self.control) << 32 | u64::from(self.bytes)
    }

    /// The mark of a work request.
    pub fn of_word(word: u64) -> Self {
        Self { control: word >> 32 != 0, bytes: word as u32 }
    }
}

/// Where a WRITE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address.
    pub addr: u64,
    /// Key.
    pub key: u32,
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As immediate data of WRITEs.
    Immediate,
    /// As SENDs behind the WRITEs: iWARP has no immediate data in WRITEs.
    Sends,
}

/// A queue pair with its memory: a send buffer, a receive ring, a target list and a table of
/// mappings, of which the peer writes the last three. Requests complete in order.
pub trait Verbs {
    /// Posts a WRITE, with a message as immediate data where there is one.
    ///
    /// # Errors
    ///
    /// The queue pair does not take it.
    fn write(
        &mut self,
        mark: Mark,
        to: Place,
        payload: Payload<'_>,
        message: Option<u32>,
    ) -> Result<(), Refused>;
    /// Posts a SEND of a message.
    ///
    /// # Errors
    ///
    /// As [`Verbs::write`].
    fn send(&mut self, mark: Mark, message: u32) -> Result<(), Refused>;
    /// Posts the receive of this number.
    ///
    /// # Errors
    ///
    /// As [`Verbs::write`].
    fn post_receive(&mut self, slot: u32) -> Result<(), Refused>;
    /// The message that a SEND has brought to a receive.
    fn received(&self, slot: u32) -> u32;
    /// Copies to the send buffer.
    fn fill(&mut self, at: u32, bytes: &[u8]);
    /// Copies from the receive ring.
    fn drain(&self, at: u32, bytes: &mut [u8]);
    /// Takes an entry of the target list that has this length, which is 0 from now on. `None` for
    /// another one, such as one of which a part has come.
    fn take_target(&mut self, entry: u32, length: u32) -> Option<Sge>;
    /// An entry of the table of mappings: the offset that it begins at, and the memory.
    fn mapping(&self, entry: u32) -> (u64, Sge);
    /// What the peer is told of our memory: the target list, and the whole ring.
    fn told(&self) -> (Sge, Sge);
}
