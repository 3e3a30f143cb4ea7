//! Work requests: what a program posts to a send or receive queue.

use arrayvec::ArrayVec;
use wire::icrc::Remainder;
use wire::roce::SendTail;
use wire::{Qpn, Rkey};

use super::{AtomicOp, Completed, Completion, Fault, Flush, LocalOp, Memory, Sge, Status};
use crate::batch::Payloads;

/// Longest message in bytes (IBA 1.4 §9.7: 2^31).
pub const MAX_MESSAGE: u64 = 1 << 31;
/// Largest number of scatter/gather elements of a work request.
pub const MAX_SGE: usize = 32;
/// Largest inline payload of a work request in bytes.
pub const MAX_INLINE: usize = 1024;

/// A scatter/gather list; short ones cost no allocation.
#[derive(Debug)]
pub enum SgeList {
    /// Up to four elements.
    Few(ArrayVec<Sge, 4>),
    /// More, at most [`MAX_SGE`].
    Many(Box<[Sge]>),
}

impl SgeList {
    /// The list of most requests: one element.
    #[inline]
    pub fn one(sge: Sge) -> Self {
        let mut few = ArrayVec::new();
        few.push(sge);
        Self::Few(few)
    }
    /// The elements.
    #[inline]
    pub fn as_slice(&self) -> &[Sge] {
        match self {
            Self::Few(v) => v,
            Self::Many(v) => v,
        }
    }
    /// Bytes in all, up to 32 * (2^32 - 1).
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        match self.as_slice() {
            // Most lists: no loop, which the compiler would make ready for many.
            [one] => one.length.into(),
            list => list.iter().map(|s| u64::from(s.length)).sum(),
        }
    }
}

impl Clone for SgeList {
    #[inline]
    fn clone(&self) -> Self {
        Self::from(self.as_slice())
    }
}

impl From<&[Sge]> for SgeList {
    #[inline]
    fn from(list: &[Sge]) -> Self {
        match list {
            // Most lists: no call, and no loop.
            &[one] => Self::one(one),
            _ => ArrayVec::try_from(list).map_or_else(|_| Self::Many(list.into()), SgeList::Few),
        }
    }
}

impl FromIterator<Sge> for SgeList {
    fn from_iter<T: IntoIterator<Item = Sge>>(iter: T) -> Self {
        let mut few = ArrayVec::new();
        let mut iter = iter.into_iter();
        for s in iter.by_ref() {
            if let Err(full) = few.try_push(s) {
                return Self::Many(few.into_iter().chain([full.element()]).chain(iter).collect());
            }
        }
        Self::Few(few)
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
    pub fn inline(bytes: &[u8]) -> Self {
        ArrayVec::try_from(bytes).map_or_else(|_| Self::InlineLong(bytes.into()), Data::Inline)
    }
    /// Takes the data. What stays in their place is of no use any more.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Sges(SgeList::Few(ArrayVec::new())))
    }
    /// Bytes in all.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Sges(l) => l.len_bytes(),
            Self::Inline(v) => v.len() as u64,
            Self::InlineLong(v) => v.len() as u64,
        }
    }
    /// Copies `dst.len()` bytes from byte `at` on; what they add to an ICRC, where that is known.
    pub fn copy_out(
        &self,
        at: u64,
        dst: &mut [u8],
        memory: &impl Memory,
    ) -> Result<Option<Remainder>, Fault> {
        if dst.is_empty() {
            return Ok(None);
        }
        let inline = match self {
            Self::Sges(list) => return memory.gather_for_icrc(list.as_slice(), at, dst),
            Self::Inline(bytes) => bytes.as_slice(),
            Self::InlineLong(bytes) => bytes,
        };
        let rest = usize::try_from(at).ok().and_then(|at| inline.get(at..)).ok_or(Fault::Range)?;
        dst.copy_from_slice(rest.get(..dst.len()).ok_or(Fault::Range)?);
        Ok(None)
    }
}

impl Data {
    /// Like [`Data::copy_out`], for the payloads of several packets.
    pub(crate) fn copy_run_out(
        &self,
        at: u64,
        dst: &mut Payloads<'_>,
        memory: &impl Memory,
    ) -> Result<(), Fault> {
        if let Self::Sges(list) = self {
            return memory.gather_run(list.as_slice(), at, dst);
        }
        let mut at = at;
        dst.iter_mut().try_for_each(|(payload, _)| {
            self.copy_out(at, payload, memory)?;
            at += payload.len() as u64;
            Ok(())
        })
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
        /// Key of the peer's memory.
        rkey: Rkey,
        /// Immediate data.
        immediate: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// Where from.
        addr: u64,
        /// Key of the peer's memory.
        rkey: Rkey,
    },
    /// COMPARE SWAP, FETCH ADD (result to the one 8-byte element) or ATOMIC WRITE.
    Atomic {
        /// Where.
        addr: u64,
        /// Key of the peer's memory.
        rkey: Rkey,
        /// What.
        op: AtomicOp,
    },
    /// FLUSH.
    Flush {
        /// Where.
        addr: u64,
        /// Key of the peer's memory.
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

impl SendWr {
    /// Takes the request. What stays in its place is of no use any more.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Self {
        let op = std::mem::replace(&mut self.op, SendOp::Send(SendTail::None));
        Self { op, data: self.data.take(), ..*self }
    }
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
    /// The receive's completion, as far as the status alone says.
    pub fn completion(&self, status: Status, qpn: Qpn) -> Completion {
        Completion::new(self.wr_id, status, Completed::Receive, qpn)
    }
}
