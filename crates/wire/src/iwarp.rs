//! Formats of iWARP: MPA over TCP (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040).
//!
//! A connection begins with an MPA request and an MPA reply. FPDUs follow in each direction, each
//! with one DDP segment:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | ULPDU length: of what follows, without padding and CRC |
//! | 2..16 or 2..20 | DDP and RDMAP header, tagged or untagged |
//! | then | payload |
//! | 0 to 3 | padding: the FPDU fills whole words |
//! | 4 | CRC-32C, least significant byte first |
//!
//! Markers (RFC 5044 §4.3) are not read and not written: no peer may send those that this side did
//! not ask for.
//!
//! TCP delivers any number of bytes at a time. So the parsers of a stream tell what is malformed
//! from what is not all there ([`Parsed`]).

pub mod crc;
pub mod ddp;
pub mod fpdu;
pub mod mpa;
pub mod rdmap;

/// What stands at the front of a stream that is not malformed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// All of it is there. More may follow, which was not looked at.
    Whole(T),
    /// At least so many bytes more are needed, 1 or more.
    Needs(usize),
}

impl<T> Parsed<T> {
    /// What the stream begins with, if all of it is there.
    pub fn whole(self) -> Option<T> {
        match self {
            Self::Whole(whole) => Some(whole),
            Self::Needs(_) => None,
        }
    }
}
