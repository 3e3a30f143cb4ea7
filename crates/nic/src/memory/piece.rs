//! A piece of memory, as system calls name it.

/// A piece of memory of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}
