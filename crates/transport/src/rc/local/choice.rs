//! The rule that chooses the way of a request to a process of the same host:
//!
//! | request | way |
//! |---|---|
//! | WRITE, READ or atomic in memory that both processes map | direct |
//! | FLUSH; WRITE or READ that is no part of a stream, up to [`MAX_DIRECT`] | direct |
//! | SEND of [`MIN_ZERO_COPY`] and more; WRITE or READ of that length that is not direct | zero copy |
//! | all others | fragments, or packets below [`MIN_FRAGMENT`](super::MIN_FRAGMENT) |
//!
//! A direct copy needs no thread of the peer, so its latency is that of one system call. Of
//! requests in a stream both processes move more bytes a second than one, if each has a processor:
//! through the ring, or from 64 KiB on by copies of a half each, from memory to memory.
//!
//! Direct and zero copy need the peer's memory within reach ([`LocalPath::reaches`]). Zero copy
//! also needs a message of one element. Both give way to fragments where they were refused
//! ([`Backoff`]).
//!
//! [`Backoff`]: super::backoff::Backoff

use crate::op::{Data, LocalPath, MAX_DIRECT, SendOp, SendWr};

/// Bytes of the shortest message of which both ends copy.
pub(super) const MIN_ZERO_COPY: u32 = 64 << 10;

/// The way of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::rc) enum CopyPath {
    /// Fragments through the ring, or packets.
    #[default]
    Fragments,
    /// Fragments whose bytes both ends copy from memory to memory.
    ZeroCopy,
}

/// Whether a request that becomes the oldest is to be executed in the peer's memory.
pub(super) fn is_direct(wr: &SendWr, local: &impl LocalPath) -> bool {
    match wr.op {
        SendOp::Flush { length, .. } => return length > 0,
        SendOp::Atomic { .. } => return local.is_mapped(wr),
        SendOp::Write { immediate: None, .. } | SendOp::Read { .. } => {}
        _ => return false,
    }
    let fits = (1..=MAX_DIRECT).contains(&wr.data.len_bytes());
    // The cheapest question comes first: most requests are alone.
    fits && (!local.is_stream(wr) || local.max_fragment() == 0 || local.is_mapped(wr))
}

/// Whether both ends are to copy a request that is not executed directly.
pub(super) fn is_zero_copy(wr: &SendWr, local: &impl LocalPath) -> bool {
    let (SendOp::Send(_) | SendOp::Write { .. } | SendOp::Read { .. }, Data::Sges(list)) = (&wr.op, &wr.data)
    else {
        return false;
    };
    let [sge] = list.as_slice() else { return false };
    sge.length >= min_zero_copy(local) && local.max_fragment() > 0 && local.reaches()
}

/// Bytes of the shortest message of which both ends copy.
pub(super) fn min_zero_copy(local: &impl LocalPath) -> u32 {
    local.min_zero_copy().unwrap_or(MIN_ZERO_COPY)
}
