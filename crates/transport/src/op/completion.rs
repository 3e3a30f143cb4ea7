//! Work completions: how a work request ended.

use wire::roce::SendTail;
use wire::{LidAddress, Qpn};

/// Status of a completion: `enum ibv_wc_status`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the header's")]
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
#[expect(missing_docs, reason = "the names are the header's")]
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
        self as u8 & Self::Receive as u8 != 0
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
    /// Says nothing of a network header.
    #[default]
    None,
    /// On a connection: the program does not get the header. rdma_rxe says that there was one.
    Unseen,
    /// The first 40 bytes received are it, of a datagram over IPv4.
    V4,
    /// The first 40 bytes received are it, of a datagram over IPv6.
    V6,
    /// The local routing header of an InfiniBand datagram: the LID and the service level that it
    /// came from, and the path bits of the LID that it came to. Where the address says so, the
    /// first 40 bytes received are the GRH; else they are as they were.
    Lrh(LidAddress),
}

impl NetworkHeader {
    /// Whether a completion says that there was a GRH, or what stands in for it (IBV_WC_GRH).
    #[inline]
    pub fn has_grh(self) -> bool {
        match self {
            Self::None => false,
            Self::Unseen | Self::V4 | Self::V6 => true,
            Self::Lrh(from) => from.has_grh(),
        }
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's mark.
    pub wr_id: u64,
    /// How it went.
    pub status: Status,
    /// What the request was; in a flushed or failed one only the side (send or receive) is sure.
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
    /// The sender asked for a solicited event, or the completion is an error: next-solicited arming
    /// fires.
    pub solicited: bool,
    /// What a tag-matching queue says of it.
    pub tm: TagInfo,
}

impl Completion {
    /// Of nothing: no bytes, no immediate data, no peer. Errors count as solicited.
    pub fn new(wr_id: u64, status: Status, opcode: Completed, qpn: Qpn) -> Self {
        Self {
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
