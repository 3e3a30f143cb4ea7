//! The operation: what a work request asks, what memory allows, how it completes. Shared by every way an operation
//! travels, so that checks, receive consumption and completion order exist once.

use std::ops::Range;
use std::task::Poll;

use arrayvec::ArrayVec;
use wire::roce::SendTail;
use wire::{Qpn, Rkey};

use crate::CongestionWindow;

/// A piece of local memory (`struct ibv_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address (or offset from a region's iova).
    pub addr: u64,
    /// Bytes; 0 means 0 here, the 2^31 rule of the verbs is applied at the border.
    pub length: u32,
    /// Local key.
    pub lkey: Rkey,
}

/// A range of a peer's wish in our memory: what a RETH or AtomicETH names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Key.
    pub rkey: Rkey,
}

/// Why memory refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No region or window of this protection domain has the key.
    #[error("no memory has this key")]
    Key,
    /// The range leaves the region.
    #[error("range leaves the memory region")]
    Range,
    /// The region does not grant this kind of access.
    #[error("memory region does not grant this access")]
    Rights,
    /// The mapping behind the region is gone or lost its rights.
    #[error("memory is not mapped any more")]
    Unmapped,
}

/// Whether the last bytes of a copy are the end of the whole message: they become visible last, after a release
/// fence, because programs poll on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// More of the message follows.
    More,
    /// These bytes end the message.
    End,
}

/// The access a peer asks for before the first byte moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Atomics.
    Atomic,
    /// FLUSH to global visibility.
    FlushGlobal,
    /// FLUSH to persistence.
    FlushPersistent,
}

/// An atomic operation on eight aligned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Store `swap` where the value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd(u64),
    /// Store (ATOMIC WRITE).
    Write(u64),
}

/// How far a FLUSH shall push what was written, and of what (IBA annex A19); at least one of the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    /// All that look at the memory shall see it.
    pub global: bool,
    /// It shall survive a loss of power.
    pub persistent: bool,
    /// Of the whole region, whatever range is named.
    pub whole: bool,
}

/// A window to be bound to a part of a region (IBA 1.4 §10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window, as the adapter names it.
    pub window: u64,
    /// The key it shall have.
    pub key: Rkey,
    /// Local key of the region.
    pub region: Rkey,
    /// First byte, as the region's users name it.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// `enum ibv_access_flags` bits that peers get.
    pub access: u32,
}

/// What is done without a packet, in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOp {
    /// Bind a window.
    Bind(Bind),
    /// Invalidate a window.
    Invalidate(Rkey),
}

/// What an engine may do to memory. Every call re-checks key, range and rights, in one protection domain.
pub trait Memory {
    /// Copies `dst.len()` bytes, starting `at` bytes into the concatenation of `sges`, out of local memory.
    fn gather(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<(), Fault>;
    /// Copies `src` to `at` bytes into the concatenation of `sges` (local write access).
    fn scatter(&self, sges: &[Sge], at: u64, src: &[u8], tail: Tail) -> Result<(), Fault>;
    /// Whether the peer may do this to the whole range; a length of 0 needs no valid key (IBA 1.4 §9.4).
    fn check(&self, range: Remote, access: Access) -> Result<(), Fault>;
    /// A peer's RDMA WRITE: copies `src` to `at` bytes into `to`.
    fn write(&self, to: Remote, at: u64, src: &[u8], tail: Tail) -> Result<(), Fault>;
    /// A peer's RDMA READ: copies from `at` bytes into `from`.
    fn read(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<(), Fault>;
    /// A peer's atomic on the 8 bytes at `at`; returns the value before.
    fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault>;
    /// A peer's FLUSH. `Pending` where it takes long: the range and its rights are good, and whoever gave the memory does
    /// the work and says so ([`Rc::flushed`](crate::Rc::flushed)).
    fn flush(&self, _range: Remote, _how: Flush) -> Poll<Result<(), Fault>> {
        Poll::Ready(Err(Fault::Rights))
    }
    /// Binds a window, which the memory of some engines does not have.
    fn bind(&self, _bind: &Bind) -> Result<(), Fault> {
        Err(Fault::Key)
    }
    /// Takes a key's rights back, on the wish of either side: that of a window bound on this queue pair.
    fn invalidate(&self, _key: Rkey) -> Result<(), Fault> {
        Err(Fault::Key)
    }
}

/// Longest message in bytes (IBA 1.4 §9.7: 2^31).
pub const MAX_MESSAGE: u64 = 1 << 31;
/// Largest number of scatter/gather elements of a work request.
pub const MAX_SGE: usize = 32;
/// Largest inline payload of a work request in bytes.
pub const MAX_INLINE: usize = 1024;

/// A scatter/gather list; short ones cost no allocation.
#[derive(Clone, Debug)]
pub enum SgeList {
    /// Up to four elements.
    Few(ArrayVec<Sge, 4>),
    /// More, at most [`MAX_SGE`].
    Many(Box<[Sge]>),
}

impl SgeList {
    /// The elements.
    pub fn as_slice(&self) -> &[Sge] {
        match self {
            SgeList::Few(v) => v,
            SgeList::Many(v) => v,
        }
    }
    /// Bytes in all, up to 32 * (2^32 - 1).
    pub fn len_bytes(&self) -> u64 {
        self.as_slice().iter().map(|s| u64::from(s.length)).sum()
    }
}

impl FromIterator<Sge> for SgeList {
    fn from_iter<T: IntoIterator<Item = Sge>>(iter: T) -> Self {
        let mut few = ArrayVec::new();
        let mut iter = iter.into_iter();
        for s in iter.by_ref() {
            if let Err(full) = few.try_push(s) {
                return SgeList::Many(few.into_iter().chain([full.element()]).chain(iter).collect());
            }
        }
        SgeList::Few(few)
    }
}

/// Where the bytes of a SEND or WRITE come from, and those of a READ or atomic go to.
#[derive(Clone, Debug)]
pub enum Data {
    /// Registered memory.
    Sges(SgeList),
    /// Bytes copied when the request was posted, at most 64.
    Inline(ArrayVec<u8, 64>),
    /// Bytes copied when the request was posted, at most [`MAX_INLINE`].
    InlineLong(Box<[u8]>),
}

impl Data {
    /// Copies of bytes at posting time.
    pub fn inline(bytes: &[u8]) -> Data {
        ArrayVec::try_from(bytes).map_or_else(|_| Data::InlineLong(bytes.into()), Data::Inline)
    }
    /// Bytes in all.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Data::Sges(l) => l.len_bytes(),
            Data::Inline(v) => v.len() as u64,
            Data::InlineLong(v) => v.len() as u64,
        }
    }
    /// Copies `dst.len()` bytes from byte `at` on.
    pub fn copy_out(&self, at: u64, dst: &mut [u8], memory: &impl Memory) -> Result<(), Fault> {
        if dst.is_empty() {
            return Ok(());
        }
        let inline = match self {
            Data::Sges(list) => return memory.gather(list.as_slice(), at, dst),
            Data::Inline(bytes) => bytes.as_slice(),
            Data::InlineLong(bytes) => bytes,
        };
        let rest = usize::try_from(at).ok().and_then(|at| inline.get(at..)).ok_or(Fault::Range)?;
        dst.copy_from_slice(rest.get(..dst.len()).ok_or(Fault::Range)?);
        Ok(())
    }
}

/// What a send work request does.
#[derive(Clone, Debug)]
pub enum SendOp {
    /// SEND, perhaps with immediate data or a key to invalidate.
    Send(SendTail),
    /// RDMA WRITE, perhaps with immediate data.
    Write {
        /// Where to.
        addr: u64,
        /// Its key.
        rkey: Rkey,
        /// Immediate data.
        immediate: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// Where from.
        addr: u64,
        /// Its key.
        rkey: Rkey,
    },
    /// COMPARE SWAP, FETCH ADD (result to the one 8-byte element) or ATOMIC WRITE.
    Atomic {
        /// Where.
        addr: u64,
        /// Its key.
        rkey: Rkey,
        /// What.
        op: AtomicOp,
    },
    /// FLUSH.
    Flush {
        /// Where.
        addr: u64,
        /// Its key.
        rkey: Rkey,
        /// Bytes.
        length: u32,
        /// How.
        how: Flush,
    },
    /// No packet at all.
    Local(LocalOp),
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The application's mark, returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Data.
    pub data: Data,
    /// A completion is wanted even when it succeeds.
    pub signaled: bool,
    /// The receiver's completion asks for an event.
    pub solicited: bool,
    /// Wait until READs and atomics posted before are complete (IBA 1.4 §10.8.3.3).
    pub fence: bool,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// The application's mark.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: SgeList,
}

impl RecvWr {
    /// Its completion, as far as the status alone says.
    pub fn completion(&self, status: Status, qpn: Qpn) -> Completion {
        Completion::new(self.wr_id, status, Completed::Receive, qpn)
    }
}

/// Status of a completion: `enum ibv_wc_status`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Status {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalEecOperation = 3,
    LocalProtection = 4,
    WrFlush = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    LocalRddViolation = 14,
    RemoteInvalidRdRequest = 15,
    RemoteAbort = 16,
    InvalidEecn = 17,
    InvalidEecState = 18,
    Fatal = 19,
    ResponseTimeout = 20,
    General = 21,
    Tm = 22,
    TmRendezvousIncomplete = 23,
}

/// What completed: `enum ibv_wc_opcode`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Completed {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Receive = 128,
    ReceiveWriteImmediate = 129,
    TmAdd = 130,
    TmDelete = 131,
    TmSync = 132,
    TmReceive = 133,
    TmNoTag = 134,
}

impl Completed {
    /// Whether it is the receive side's (the bit IBV_WC_RECV).
    pub fn is_receive(self) -> bool {
        self as u8 & Completed::Receive as u8 != 0
    }
}

/// What a tag-matching queue says of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagInfo {
    /// The message's tag, where it was matched just now.
    pub tag: u64,
    /// The sender's own data, likewise.
    pub app_ctx: u32,
    /// A message was matched (IBV_WC_TM_MATCH).
    pub matched: bool,
    /// All data of a matched message have arrived (IBV_WC_TM_DATA_VALID).
    pub data_valid: bool,
    /// New tags are not matched before the program has synchronized (IBV_WC_TM_SYNC_REQ).
    pub sync_required: bool,
}

/// What a receive completion says of the network header of what came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkHeader {
    /// Nothing.
    #[default]
    None,
    /// That there was one, which the program does not get: on a connection. So rdma_rxe says it.
    Unseen,
    /// The first 40 bytes received are it, of a datagram over IPv4.
    V4,
    /// The same over IPv6.
    V6,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's mark.
    pub wr_id: u64,
    /// How it went.
    pub status: Status,
    /// What it was; in a flushed or failed one only the side (send or receive) is sure.
    pub opcode: Completed,
    /// Bytes received or read (0 for sends and writes).
    pub byte_len: u32,
    /// Immediate data or invalidated key of a receive.
    pub tail: SendTail,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender of a datagram.
    pub source_qp: Qpn,
    /// What a receive says of the network header.
    pub header: NetworkHeader,
    /// The sender asked for a solicited event, or the completion is an error: next-solicited arming fires.
    pub solicited: bool,
    /// Of a tag-matching queue.
    pub tm: TagInfo,
}

impl Completion {
    /// Of nothing: no bytes, no immediate data, no peer. Errors count as solicited.
    pub fn new(wr_id: u64, status: Status, opcode: Completed, qpn: Qpn) -> Completion {
        Completion {
            wr_id,
            status,
            opcode,
            byte_len: 0,
            tail: SendTail::None,
            qpn,
            source_qp: Qpn::default(),
            header: NetworkHeader::None,
            solicited: status != Status::Success,
            tm: TagInfo::default(),
        }
    }
}

/// Where a SEND goes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The receive that takes it.
    pub receive: RecvWr,
    /// What of the first packet's payload is delivered; of the others all is.
    pub part: Range<usize>,
    /// How it completes, where a tag-matching queue placed it.
    pub tagged: Option<Tagged>,
}

impl Place {
    /// The whole message, whose first packet bears `first`, in an ordinary receive.
    pub fn ordinary(receive: RecvWr, first: &[u8]) -> Place {
        Place { receive, part: 0..first.len(), tagged: None }
    }
}

/// How a message completes that a tag-matching queue placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Its completions' opcode.
    pub opcode: Completed,
    /// Status of the last of them, if all goes well.
    pub status: Status,
    /// What they say of the tag. A match is told of when the first packet has come, the rest with the last.
    pub info: TagInfo,
}

/// Which queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The send queue's CQ.
    Send,
    /// The receive queue's CQ.
    Receive,
}

/// What happens to a queue pair beside completions; each becomes an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The first packet arrived while still in RTR (IBV_EVENT_COMM_EST).
    CommunicationEstablished,
    /// A peer's request was illegal (IBV_EVENT_QP_REQ_ERR).
    RequestError,
    /// A peer's request violated access rights (IBV_EVENT_QP_ACCESS_ERR).
    AccessError,
    /// The queue pair can not go on (IBV_EVENT_QP_FATAL).
    Fatal,
}

/// What a queue pair's engine stands on; the adapter implements it for the length of one call.
pub trait Context {
    /// Memory of the queue pair's protection domain.
    fn memory(&self) -> &impl Memory;
    /// Memory that receives name: that of the SRQ's protection domain, where there is one.
    fn receive_memory(&self) -> &impl Memory {
        self.memory()
    }
    /// Takes the next posted receive, from the queue pair's own queue or its SRQ.
    fn take_receive(&mut self) -> Option<RecvWr>;
    /// Takes the receive for a SEND, whose first packet bears `first`; `whole`: it is the only one. At a tag-matching queue
    /// that decides where it goes.
    fn place(&mut self, first: &[u8], _whole: bool) -> Option<Place> {
        Some(Place::ordinary(self.take_receive()?, first))
    }
    /// Adds a completion to the send or receive CQ, in order.
    fn complete(&mut self, side: Side, completion: Completion);
    /// Raises an asynchronous event.
    fn event(&mut self, event: QpEvent);
    /// At an XRC target, the shared receive queue that a request names: from now on memory is that of its protection
    /// domain, receives come from it, and receive completions go to its CQ (IBA annex A14).
    ///
    /// # Errors
    ///
    /// The target's XRC domain has no such queue; then nothing of before is chosen any more.
    fn choose_srq(&mut self, _number: u32) -> Result<(), Fault> {
        Err(Fault::Key)
    }
    /// The congestion window of the path to the peer.
    fn window(&self) -> &CongestionWindow;
}
