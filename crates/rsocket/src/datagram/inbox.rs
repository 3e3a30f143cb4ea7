//! Datagrams that have come, and that the program has not taken.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::datagram::queue_pair::{Filled, QueuePair};

/// What has come.
enum Arrived {
    /// By a queue pair: it lies in one of its places, behind a header of so many bytes.
    Placed { queue_pair: usize, filled: Filled, header: usize, from: SocketAddr },
    /// By UDP.
    Told { bytes: Vec<u8>, from: SocketAddr },
}

impl Arrived {
    fn len(&self) -> usize {
        match self {
            Self::Placed { filled, header, .. } => filled.len - header,
            Self::Told { bytes, .. } => bytes.len(),
        }
    }
}

/// A datagram that the program has got, or the end of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were copied.
    pub copied: usize,
    /// Bytes that it has.
    pub len: usize,
    /// The sender; `None` where this end receives no more.
    pub from: Option<SocketAddr>,
}

/// All of them, in the order in which they were found.
#[derive(Default)]
pub(super) struct Inbox {
    queue: VecDeque<Arrived>,
    /// How many of them came by UDP.
    told: usize,
    /// How many have ever come.
    pub(super) ever: u64,
}

impl Inbox {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// One that lies in a place of a queue pair, whose header is not longer than it.
    pub(super) fn add_placed(&mut self, queue_pair: usize, filled: Filled, header: usize, from: SocketAddr) {
        self.ever += 1;
        self.queue.push_back(Arrived::Placed { queue_pair, filled, header, from });
    }

    /// One that came by UDP; false where `most` of those are there already.
    pub(super) fn add_told(&mut self, bytes: &[u8], from: SocketAddr, most: usize) -> bool {
        let has_room = self.told < most;
        if has_room {
            (self.told, self.ever) = (self.told + 1, self.ever + 1);
            self.queue.push_back(Arrived::Told { bytes: bytes.to_vec(), from });
        }
        has_room
    }

    /// Copies the first one to the pieces, as far as it fits.
    pub(super) fn copy(&self, queue_pairs: &[QueuePair], pieces: &mut [&mut [u8]]) -> Option<Received> {
        let first = self.queue.front()?;
        let (len, mut copied) = (first.len(), 0);
        for piece in pieces {
            let n = piece.len().min(len - copied);
            match first {
                Arrived::Placed { queue_pair, filled, header, .. } => {
                    queue_pairs[*queue_pair].read(filled.slot, header + copied, &mut piece[..n]);
                }
                Arrived::Told { bytes, .. } => piece[..n].copy_from_slice(&bytes[copied..copied + n]),
            }
            copied += n;
        }
        let (Arrived::Placed { from, .. } | Arrived::Told { from, .. }) = first;
        Some(Received { copied, len, from: Some(*from) })
    }

    /// Drops the first one. Its place is free again.
    pub(super) fn pop(&mut self, queue_pairs: &mut [QueuePair]) {
        match self.queue.pop_front() {
            Some(Arrived::Placed { queue_pair, filled, .. }) => {
                queue_pairs[queue_pair].post_receive(filled.slot);
            }
            Some(Arrived::Told { .. }) => self.told -= 1,
            None => {}
        }
    }
}
