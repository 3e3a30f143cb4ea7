//! What a checker knows of each object. Objects are named by handles of the caller's choice, which
//! are not used again while the object is there.

use std::collections::VecDeque;

use crate::calls::{Direction, Program};
use crate::events::{Armed, Asked};
use crate::reads::PeerServes;

/// Names an object.
pub type Handle = u64;

/// A protection domain, or an XRC domain.
#[derive(Debug)]
pub struct Domain<S> {
    /// What it is.
    pub kind: &'static str,
    /// The call that made it.
    pub made: S,
}

/// A memory region.
#[derive(Debug)]
pub struct Region<S> {
    /// The protection domain it is in.
    pub domain: Handle,
    /// Where its first byte lies in the process; `None` where that is no memory of the program's.
    pub addr: Option<u64>,
    /// What requests call its first byte.
    pub named: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it has IBV_ACCESS_LOCAL_WRITE.
    pub is_writable: bool,
    /// The call that made it.
    pub made: S,
}

impl<S> Region<S> {
    /// Whether all bytes of a range are in it. Memory that is not the program's is not looked at.
    pub(crate) fn has(&self, addr: u64, len: u64) -> bool {
        if self.addr.is_none() {
            return true;
        }
        addr.checked_sub(self.named).is_some_and(|at| at <= self.len && len <= self.len - at)
    }

    /// Bytes between an address and the region.
    pub(crate) fn distance(&self, addr: u64) -> u64 {
        let last = self.named.saturating_add(self.len.saturating_sub(1));
        if addr < self.named { self.named - addr } else { addr.saturating_sub(last) }
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue<S> {
    /// Completions that it holds.
    pub depth: u32,
    /// Outstanding requests that complete into it.
    pub(crate) expected: u32,
    /// The completion channel that it tells of completions.
    pub channel: Option<Handle>,
    /// How it was armed, where no thread has polled it since.
    pub(crate) armed: Option<Armed<S>>,
    /// The thread that polled it last, and whether several have.
    pub(crate) polled_by: Option<u64>,
    pub(crate) polled_by_others: bool,
    /// Polls since a request that completes into it was posted, or a completion was taken.
    pub(crate) polls: u32,
    /// Events that it was asked for.
    pub(crate) asked: Asked<S>,
    /// The call that made it.
    pub made: S,
}

impl<S> CompletionQueue<S> {
    /// A queue for `depth` completions.
    pub fn new(depth: u32, made: S) -> Self {
        Self {
            depth,
            expected: 0,
            channel: None,
            armed: None,
            polled_by: None,
            polled_by_others: false,
            polls: 0,
            asked: Asked::default(),
            made,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair<S> {
    /// The queue pair's number.
    pub number: u32,
    /// The protection domain it is in.
    pub domain: Handle,
    /// Where sends complete.
    pub send_queue: Handle,
    /// Where receives complete.
    pub receive_queue: Handle,
    /// The shared receive queue that it takes receives from.
    pub shared: Option<Handle>,
    /// Sends that it was asked to hold.
    pub max_sends: u32,
    /// Receives that it was asked to hold.
    pub max_receives: u32,
    /// Elements of a send, and of a receive, that it was asked for.
    pub max_elements: (u32, u32),
    /// Whether it is for datagrams (UD).
    pub is_datagram: bool,
    /// Inline bytes that it was asked for.
    pub max_inline: u32,
    /// Whether it serves all shared receive queues for XRC, as an XRC target.
    pub is_target: bool,
    /// Whether each send gives a completion (`sq_sig_all`).
    pub all_signaled: bool,
    /// The call that made it.
    pub made: S,
    /// Whether a send has ever asked for a completion.
    pub(crate) has_signaled: bool,
    /// Outstanding sends, the oldest first.
    pub(crate) sends: VecDeque<Posted<S>>,
    /// Outstanding receives of its own.
    pub(crate) receives: VecDeque<Posted<S>>,
    pub(crate) peer_serves: PeerServes<S>,
}

impl<S> QueuePair<S> {
    /// A queue pair with nothing posted, of which the other fields are to be set.
    pub fn new(number: u32, made: S) -> Self {
        Self {
            number,
            domain: 0,
            send_queue: 0,
            receive_queue: 0,
            shared: None,
            max_sends: u32::MAX,
            max_receives: u32::MAX,
            max_elements: (u32::MAX, u32::MAX),
            is_datagram: false,
            max_inline: 0,
            is_target: false,
            all_signaled: false,
            made,
            has_signaled: false,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            peer_serves: PeerServes::default(),
        }
    }
}

/// A shared receive queue, or a receive work queue.
#[derive(Debug)]
pub struct SharedQueue<S> {
    /// What it is.
    pub kind: &'static str,
    /// Whether it executes its receives itself, as a work queue in state RDY: no queue pair has to.
    pub executes: bool,
    /// The protection domain it is in.
    pub domain: Handle,
    /// Where its receives complete, of a queue for XRC and a work queue; else that is the queue
    /// pair's.
    pub receive_queue: Option<Handle>,
    /// The call that made it.
    pub made: S,
    /// Outstanding receives.
    pub(crate) receives: VecDeque<Posted<S>>,
}

impl<S> SharedQueue<S> {
    /// A queue with nothing posted.
    pub fn new(domain: Handle, made: S) -> Self {
        let (kind, executes) = ("shared receive queue", false);
        Self { kind, executes, domain, receive_queue: None, made, receives: VecDeque::new() }
    }

    /// A receive work queue in state RESET, whose receives complete into a queue.
    pub fn work_queue(domain: Handle, receive_queue: Handle, made: S) -> Self {
        let (kind, receive_queue) = ("receive work queue", Some(receive_queue));
        Self { kind, receive_queue, ..Self::new(domain, made) }
    }
}

/// An identifier of rdma_cm.
#[derive(Debug)]
pub struct Identifier<S> {
    /// The event channel that the program has made for it.
    pub channel: Option<Handle>,
    /// The call that made it, or was handed its connection request.
    pub made: S,
}

/// An outstanding work request.
#[derive(Debug)]
pub(crate) struct Posted<S> {
    /// Tells it from all others.
    pub id: u64,
    /// The operation's name.
    pub name: &'static str,
    pub wr_id: u64,
    /// Whether it gives a completion where it succeeds.
    pub signaled: bool,
    /// What the adapter does with the memory.
    pub direction: Direction,
    /// Where in the peer's memory it begins, and the right that this needs.
    pub remote: Option<(u64, &'static str)>,
    /// The elements of its list, and their bytes.
    pub elements: u32,
    pub len: u64,
    pub pieces: Vec<Piece>,
    pub site: S,
}

/// A piece of memory of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The region's key.
    pub key: u32,
    /// Where the first byte lies in the process, and how many there are.
    pub addr: u64,
    pub len: u64,
    /// Tells the bytes that were there when the request was posted from others.
    pub digest: Option<u64>,
}

impl Piece {
    /// Whether its first or its last byte cannot be read any more.
    pub(crate) fn is_unmapped(&self, program: &dyn Program) -> bool {
        let last = self.addr.wrapping_add(self.len.saturating_sub(1));
        [self.addr, last].iter().any(|addr| program.digest(*addr, 1).is_none())
    }
}
