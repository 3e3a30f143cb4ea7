//! What comes to our ring: data messages, the bytes that they tell of, and credits for the next.

use std::collections::VecDeque;

use nic::Errno;

use crate::conn_data::{ConnData, SGE_LEN, Sge};
use crate::message::Message;
use crate::settings::Settings;
use crate::stream::Stream;
use crate::verbs::{Mark, Payload, Place, Refused, Verbs};

#[derive(Debug)]
pub(super) struct Receiving {
    /// Bytes of each data message that was not read whole.
    messages: VecDeque<u32>,
    bytes: u64,
    /// Bytes that came since the connection was made.
    received: u64,
    /// Messages that the peer may have sent: as many as receives.
    most: u16,
    /// Where the next byte lies in the ring.
    at: u32,
    size: u32,
    /// Bytes that the peer may still write, and bytes that were read and not offered again.
    offered: u32,
    read: u32,
    /// Where the half begins that is offered next.
    next_half: u32,
    /// Messages that were read, and from which number on the peer is told of that.
    seq: u16,
    tell_at: u16,
    /// The peer's target list, and its entry that is next.
    list: Sge,
    next_entry: u32,
    swapped: bool,
    /// Entries of our table of mappings.
    mappings: u16,
}

impl Receiving {
    pub(super) fn new(settings: &Settings, peer: &ConnData) -> Self {
        let half = settings.receive_buffer / 2;
        Self {
            messages: VecDeque::new(),
            bytes: 0,
            received: 0,
            most: settings.receive_queue as u16,
            at: 0,
            size: settings.receive_buffer,
            offered: half,
            read: half,
            next_half: half,
            seq: 0,
            tell_at: settings.receive_queue as u16 / 2,
            list: peer.target_list,
            next_entry: 1,
            swapped: peer.big_endian != cfg!(target_endian = "big"),
            mappings: settings.mappings,
        }
    }

    /// Data has come. False where it is more than the peer may have sent.
    pub(super) fn on_data(&mut self, bytes: u32) -> bool {
        if bytes > self.offered || self.messages.len() >= self.most.into() {
            return false;
        }
        if bytes == 0 {
            self.seq = self.seq.wrapping_add(1);
            return true;
        }
        self.offered -= bytes;
        self.bytes += u64::from(bytes);
        self.received += u64::from(bytes);
        self.messages.push_back(bytes);
        true
    }

    /// An entry of our table of mappings was written. False where there is none of this number.
    pub(super) fn on_mapping(&mut self, entry: u32) -> bool {
        // The peer has spent a credit on it.
        self.seq = self.seq.wrapping_add(1);
        entry < self.mappings.into()
    }

    pub(super) fn has_data(&self) -> bool {
        !self.messages.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Has all that came count as read.
    pub(super) fn discard(&mut self) {
        while let Some(&n) = self.messages.front() {
            self.take(n);
        }
    }

    /// The next `n` bytes were read, of which the first message has as many.
    fn take(&mut self, n: u32) {
        self.at = (self.at + n) % self.size;
        self.read += n;
        self.bytes -= u64::from(n);
        if let Some(first) = self.messages.front_mut() {
            *first -= n;
            if *first == 0 {
                self.messages.pop_front();
                self.seq = self.seq.wrapping_add(1);
            }
        }
    }

    /// Copies bytes from `at` on, around the end of the ring.
    fn copy(&self, verbs: &impl Verbs, at: u32, to: &mut [u8]) {
        let first = to.len().min((self.size - at) as usize);
        let (first, rest) = to.split_at_mut(first);
        verbs.drain(at, first);
        if !rest.is_empty() {
            verbs.drain(0, rest);
        }
    }

    /// Copies what there is, as far as there is room, and leaves it there; how much.
    fn peek(&self, verbs: &impl Verbs, parts: &mut [&mut [u8]]) -> usize {
        let (mut at, mut left, mut copied) = (self.at, self.bytes, 0);
        for part in parts {
            let n = (part.len() as u64).min(left) as usize;
            self.copy(verbs, at, &mut part[..n]);
            at = (at + n as u32) % self.size;
            (left, copied) = (left - n as u64, copied + n);
        }
        copied
    }

    /// Has `n` bytes that were copied count as read.
    fn consume(&mut self, mut n: usize) {
        while n > 0 {
            let Some(&first) = self.messages.front() else { return };
            let now = first.min(u32::try_from(n).unwrap_or(u32::MAX));
            self.take(now);
            n -= now as usize;
        }
    }

    /// Whether the peer is to be told of credits, and whether of a half of the ring.
    fn due(&self) -> (bool, bool) {
        let half = self.read >= self.size / 2;
        (half || self.seq.wrapping_sub(self.tell_at) < 1 << 15, half)
    }

    /// Offers the next half: the bytes for the peer's target list, and where they go.
    fn offer(&mut self, ring: Sge) -> ([u8; SGE_LEN], Place) {
        let half = self.size / 2;
        let entry = Sge { addr: ring.addr + u64::from(self.next_half), key: ring.key, length: half };
        let at = self.list.addr + u64::from(self.next_entry) * SGE_LEN as u64;
        let place = Place { addr: at, key: self.list.key };
        self.offered += half;
        self.read -= half;
        self.next_half = (self.next_half + half) % self.size;
        self.next_entry = (self.next_entry + 1) % self.list.length;
        (entry.memory(self.swapped), place)
    }
}

impl Stream {
    /// Reads what there is, as far as there is room; `peek` leaves it there. `None` where nothing
    /// has come, and something may; 0 at the end.
    ///
    /// # Errors
    ///
    /// An error that the program was not told of, once all that came before it was read.
    pub fn read(
        &mut self,
        verbs: &impl Verbs,
        parts: &mut [&mut [u8]],
        peek: bool,
    ) -> Result<Option<usize>, Errno> {
        if self.receiving.has_data() {
            let n = self.receiving.peek(verbs, parts);
            if !peek {
                self.receiving.consume(n);
            }
            return Ok(Some(n));
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let ended = self.peer_shut || self.read_shut || self.is_over();
        Ok(ended.then_some(0))
    }

    /// Reads nothing of `n` bytes, and has them count as read.
    pub fn skip(&mut self, n: usize) {
        self.receiving.consume(n);
    }

    /// Tells the peer of what was read, when that is half of the ring or of the credits.
    pub(super) fn give_credits(&mut self, verbs: &mut impl Verbs) -> Result<(), Refused> {
        while !self.peer_gone && self.control_free >= self.entries() {
            let (due, half) = self.receiving.due();
            if !due {
                break;
            }
            let until = self.receiving.seq.wrapping_add(self.receiving.most);
            self.receiving.tell_at = self.receiving.seq.wrapping_add(self.receiving.most / 2);
            let mark = Mark { control: true, bytes: 0 };
            if half {
                self.control_free -= self.entries();
                let (entry, to) = self.receiving.offer(verbs.told().1);
                self.post_write(verbs, mark, to, Payload::Inline(&entry), Message::Credits(until))?;
            } else {
                self.control_free -= 1;
                self.post_message(verbs, mark, Message::Credits(until))?;
            }
        }
        Ok(())
    }
}
