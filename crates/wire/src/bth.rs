//! Base transport header and the extension headers (IBA 1.4 §9.2 to §9.3, annexes A17, A19).
//!
//! BTH, 12 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | opcode |
//! | 1 | solicited event, migration request, pad count (2 bits), version (4 bits) |
//! | 2..4 | partition key |
//! | 4 | FECN, BECN, reserved (masked in the ICRC: "resv8a") |
//! | 5..8 | destination QP |
//! | 8 | acknowledge request, reserved (7 bits) |
//! | 9..12 | PSN |

use crate::{Pkey, Psn, Qkey, Qpn, Rkey};

/// What every packet carries, apart from its opcode (see [`crate::roce::Op`]) and pad count (from the payload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bth {
    /// The receiver's completion asks for an event.
    pub solicited: bool,
    /// Path migration state "migrated"; rxe and adapters send 0 or 1, nobody checks.
    pub migration: bool,
    /// Partition.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header, 16 bytes: virtual address, key, length (IBA 1.4 §9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes, at most 2^31.
    pub length: u32,
}

/// Datagram extended transport header, 8 bytes (IBA 1.4 §9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub source_qp: Qpn,
}

/// ACK extended transport header, 4 bytes (IBA 1.4 §9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// The syndrome byte of an AETH (IBA 1.4 tables 43, 45, 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK with a credit count code, 0 to 31 (31: no end-to-end credits).
    Ack {
        /// The five credit bits.
        credits: u8,
    },
    /// RNR NAK with a timer code, 0 to 31.
    RnrNak {
        /// Index into the table of RNR NAK timers.
        timer: u8,
    },
    /// NAK with its code.
    Nak(NakCode),
}

/// NAK codes (IBA 1.4 table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// PSN sequence error.
    PsnSequence = 0,
    /// Invalid request.
    InvalidRequest = 1,
    /// Remote access error.
    RemoteAccess = 2,
    /// Remote operational error.
    RemoteOperational = 3,
    /// Invalid RD request.
    InvalidRdRequest = 4,
}

/// Atomic extended transport header, 28 bytes (IBA 1.4 §9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address at the responder.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Value to swap in, or to add.
    pub swap_or_add: u64,
    /// Value to compare with; reserved for FETCH ADD.
    pub compare: u64,
}

/// Flush extended transport header, 4 bytes (IBA annex A19): placement type and selectivity level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type bits: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity: 0 a range, 1 the whole memory region.
    pub selectivity: u8,
}

/// XRC extended transport header, 4 bytes (annex A14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Number of the shared receive queue.
    pub srq: u32,
}
