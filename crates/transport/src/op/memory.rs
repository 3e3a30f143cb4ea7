//! Memory as an engine sees it: what names it, what may be done to it, why it refuses. [`Memory`]
//! is implemented by the adapter's table of regions and windows, or by a test's few vectors.

use std::task::Poll;

use wire::Rkey;
use wire::icrc::Remainder;
use wire::run::Strided;

use super::{Payload, SharedBytes, ZeroCopy};
use crate::batch::Payloads;

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

/// A range of this side's memory as the peer names it, in a RETH or AtomicETH.
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
    /// The mapping that backs the region is gone or lost its rights.
    #[error("memory is not mapped any more")]
    Unmapped,
    /// The storage that backs the region failed: what was written may not be on it (FLUSH to
    /// persistence).
    #[error("the storage of the memory failed")]
    Storage,
    /// The memory is not there now, and a thread that touches it waits for another process or
    /// machine, perhaps for ever. It is being brought.
    #[error("memory is not there yet")]
    Absent,
    /// What the sender exports can not be copied from its memory: nothing is wrong with ours.
    #[error("what the sender exports is not reached")]
    Away,
}

/// Whether the last bytes of a copy are the end of the whole message: they become visible last,
/// after a release fence, because programs poll on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// More of the message follows.
    More,
    /// The copied bytes end the message.
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

/// How far a FLUSH shall push what was written, and of what (IBA annex A19); at least one of the
/// first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    /// All that look at the memory shall see it.
    pub global: bool,
    /// What was written shall survive a loss of power.
    pub persistent: bool,
    /// The FLUSH is of the whole region, whatever range is named.
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

/// What an engine may do to memory. Every call re-checks key, range and rights, in one protection
/// domain.
pub trait Memory {
    /// Copies `dst.len()` bytes, starting `at` bytes into the concatenation of `sges`, out of local
    /// memory.
    fn gather(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<(), Fault>;
    /// Like [`Memory::gather`]; and what the bytes add to an ICRC, where the memory finds that out
    /// on the way.
    fn gather_for_icrc(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<Option<Remainder>, Fault> {
        self.gather(sges, at, dst).map(|()| None)
    }
    /// Like [`Memory::gather_for_icrc`], for the payloads of several packets.
    fn gather_run(&self, sges: &[Sge], at: u64, dst: &mut Payloads<'_>) -> Result<(), Fault> {
        let mut at = at;
        dst.iter_mut().try_for_each(|(payload, remainder)| {
            *remainder = self.gather_for_icrc(sges, at, payload)?;
            at += payload.len() as u64;
            Ok(())
        })
    }
    /// Copies the first `dst.len()` bytes of one element out of local memory.
    #[inline]
    fn get(&self, from: &Sge, dst: &mut [u8]) -> Result<(), Fault> {
        self.gather(std::slice::from_ref(from), 0, dst)
    }
    /// Like [`Memory::gather`], to memory that two processes share.
    fn gather_shared(&self, sges: &[Sge], at: u64, dst: SharedBytes<'_>) -> Result<(), Fault> {
        let mut bytes = vec![0; dst.len()];
        self.gather(sges, at, &mut bytes)?;
        dst.store(&bytes);
        Ok(())
    }
    /// Copies `src` to `at` bytes into the concatenation of `sges` (local write access).
    fn scatter(&self, sges: &[Sge], at: u64, src: &[u8], tail: Tail) -> Result<(), Fault>;
    /// Like [`Memory::scatter`], of several pieces.
    fn scatter_strided(&self, sges: &[Sge], at: u64, src: Strided<'_>, tail: Tail) -> Result<(), Fault> {
        each_piece(at, src, tail, |at, piece, tail| self.scatter(sges, at, piece, tail))
    }
    /// Like [`Memory::scatter`], from memory that two processes share.
    fn scatter_shared(&self, sges: &[Sge], at: u64, src: SharedBytes<'_>, tail: Tail) -> Result<(), Fault> {
        self.scatter(sges, at, &src.to_vec(), tail)
    }
    /// Like [`Memory::scatter`], from wherever the bytes are.
    #[inline]
    fn scatter_payload(&self, sges: &[Sge], at: u64, src: Payload<'_>, tail: Tail) -> Result<(), Fault> {
        match src {
            Payload::Own(bytes) => self.scatter(sges, at, bytes, tail),
            Payload::Strided(pieces) => self.scatter_strided(sges, at, pieces, tail),
            Payload::Shared(bytes) => self.scatter_shared(sges, at, bytes, tail),
            Payload::ZeroCopy(ZeroCopy::Exported(from)) => self.scatter_exported(sges, at, from, tail),
            Payload::ZeroCopy(ZeroCopy::Placed(_)) => Ok(()),
        }
    }
    /// Like [`Memory::scatter`], from memory of the sender's, a process of this host.
    fn scatter_exported(&self, _sges: &[Sge], _at: u64, _from: Remote, _tail: Tail) -> Result<(), Fault> {
        Err(Fault::Away)
    }
    /// Whether the peer may do this to the whole range; a length of 0 needs no valid key (IBA 1.4
    /// §9.4).
    fn check(&self, range: Remote, access: Access) -> Result<(), Fault>;
    /// A peer's RDMA WRITE: copies `src` to `at` bytes into `to`.
    fn write(&self, to: Remote, at: u64, src: &[u8], tail: Tail) -> Result<(), Fault>;
    /// Like [`Memory::write`], of several pieces.
    fn write_strided(&self, to: Remote, at: u64, src: Strided<'_>, tail: Tail) -> Result<(), Fault> {
        each_piece(at, src, tail, |at, piece, tail| self.write(to, at, piece, tail))
    }
    /// Like [`Memory::write`], from memory that two processes share.
    fn write_shared(&self, to: Remote, at: u64, src: SharedBytes<'_>, tail: Tail) -> Result<(), Fault> {
        self.write(to, at, &src.to_vec(), tail)
    }
    /// Like [`Memory::write`], from wherever the bytes are.
    #[inline]
    fn write_payload(&self, to: Remote, at: u64, src: Payload<'_>, tail: Tail) -> Result<(), Fault> {
        match src {
            Payload::Own(bytes) => self.write(to, at, bytes, tail),
            Payload::Strided(pieces) => self.write_strided(to, at, pieces, tail),
            Payload::Shared(bytes) => self.write_shared(to, at, bytes, tail),
            Payload::ZeroCopy(ZeroCopy::Exported(from)) => self.write_exported(to, at, from, tail),
            Payload::ZeroCopy(ZeroCopy::Placed(_)) => Ok(()),
        }
    }
    /// Like [`Memory::write`], from memory of the peer's, a process of this host.
    fn write_exported(&self, _to: Remote, _at: u64, _from: Remote, _tail: Tail) -> Result<(), Fault> {
        Err(Fault::Away)
    }
    /// A peer's RDMA READ: copies from `at` bytes into `from`.
    fn read(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<(), Fault>;
    /// Like [`Memory::read`], to memory that two processes share.
    fn read_shared(&self, from: Remote, at: u64, dst: SharedBytes<'_>) -> Result<(), Fault> {
        let mut bytes = vec![0; dst.len()];
        self.read(from, at, &mut bytes)?;
        dst.store(&bytes);
        Ok(())
    }
    /// Like [`Memory::read`]; and what the bytes add to an ICRC, where the memory finds that out on
    /// the way.
    fn read_for_icrc(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<Option<Remainder>, Fault> {
        self.read(from, at, dst).map(|()| None)
    }
    /// Like [`Memory::read_for_icrc`], for the payloads of several packets.
    fn read_run(&self, from: Remote, at: u64, dst: &mut Payloads<'_>) -> Result<(), Fault> {
        let mut at = at;
        dst.iter_mut().try_for_each(|(payload, remainder)| {
            *remainder = self.read_for_icrc(from, at, payload)?;
            at += payload.len() as u64;
            Ok(())
        })
    }
    /// A peer's atomic on the 8 bytes at `at`; returns the value before.
    fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault>;
    /// A peer's FLUSH. `Pending` where it takes long: the range and its rights are good, and the
    /// owner of the memory does the work and says so ([`Rc::flushed`](crate::Rc::flushed)).
    fn flush(&self, _range: Remote, _how: Flush) -> Poll<Result<(), Fault>> {
        Poll::Ready(Err(Fault::Rights))
    }
    /// Binds a window, which the memory of some engines does not have.
    fn bind(&self, _bind: &Bind) -> Result<(), Fault> {
        Err(Fault::Key)
    }
    /// Takes a key's rights back, on the wish of either side: that of a window bound on this queue
    /// pair.
    fn invalidate(&self, _key: Rkey) -> Result<(), Fault> {
        Err(Fault::Key)
    }
}

/// Copies pieces one after the other by `copy`, which is told where each goes.
fn each_piece(
    at: u64,
    src: Strided<'_>,
    tail: Tail,
    mut copy: impl FnMut(u64, &[u8], Tail) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut at, mut left) = (at, src.pieces().len());
    src.pieces().try_for_each(|piece| {
        left -= 1;
        copy(at, piece, if left == 0 { tail } else { Tail::More })?;
        at += piece.len() as u64;
        Ok(())
    })
}
