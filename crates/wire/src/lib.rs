//! Formats of RoCEv2, of the InfiniBand connection manager and of iWARP: parse and emit, nothing
//! else.
//!
//! Internal to Verbena: it promises no stability.
//!
//! One file a format, the table of its bytes at the top. What was parsed needs no second check, and
//! `parse(emit(x)) == x` for every value whose fields are in the ranges they document (of a field
//! narrower than its type the low bits are sent).
#![forbid(unsafe_code)]

pub mod address;
pub mod bth;
mod bytes;
pub mod grh;
pub mod icrc;
pub mod id;
pub mod iwarp;
pub mod lrh;
pub mod mad;
mod opcode;
pub mod roce;
pub mod run;
pub mod tm;

pub use address::{Address, Endpoint, LidAddress};
pub use id::{CommId, Gid, Guid, Mtu, Pkey, Psn, Qkey, Qpn, Rkey, ServiceId};

/// UDP port of RoCEv2 (IBA annex A17 §A17.3.1.1).
pub const ROCE_PORT: u16 = 4791;

/// Why bytes are not a packet. Every one is counted by its name and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the headers named so far need.
    #[error("packet is truncated")]
    Truncated,
    /// The BTH opcode names no operation this crate knows (IBA 1.4 table 38).
    #[error("unknown BTH opcode {0:#04x}")]
    Opcode(u8),
    /// BTH transport header version other than 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// The pad count is longer than the payload it pads, or padding where there is none.
    #[error("pad count {0} is longer than the payload")]
    Pad(u8),
    /// A length field that disagrees with the bytes that follow it.
    #[error("length field and packet disagree")]
    Length,
    /// A field holds a value its format does not allow.
    #[error("field {0} holds an illegal value")]
    Field(&'static str),
    /// The invariant CRC does not match (annex A17 §A17.3.3).
    #[error("invariant CRC does not match")]
    Icrc,
}
