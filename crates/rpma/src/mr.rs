//! Memory: what of it peers may reach, and what they need to know for it (rpma_mr_reg(3),
//! rpma_mr_get_descriptor(3)). A descriptor is 21 bytes, numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | address of the first byte |
//! | 8..16 | length |
//! | 16..20 | the key |
//! | 20 | [`Usage`] |
//!
//! ```
//! use rpma::{FlushType, MrLocal, MrRemote, Peer, Usage};
//!
//! let peer = Peer::local("127.0.0.1".parse().unwrap())?;
//! let mr = MrLocal::zeroed(&peer, 4096, Usage::WRITE_DST | Usage::FLUSH_VISIBILITY)?;
//! let told = MrRemote::from_descriptor(&mr.descriptor())?;
//! assert_eq!((told.size(), told.has_flush(FlushType::Visibility)), (4096, true));
//! assert!(!told.has_flush(FlushType::Persistent));
//! # rpma::Result::Ok(())
//! ```

use std::fs::File;
use std::ops::{BitOr, Range};
use std::path::Path;
use std::sync::Arc;

use verbena::{Access, ErrorKind, Memory, Mr, Part, RemoteMemory, RemoteWrite, SharedSlice};

use crate::error::{Error, Result};
use crate::peer::Peer;

/// What memory is for (`RPMA_MR_USAGE_*`). Combined with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage(u8);

impl Usage {
    /// Peers read it.
    pub const READ_SRC: Self = Self(1 << 0);
    /// What is read from peers goes there.
    pub const READ_DST: Self = Self(1 << 1);
    /// What is written to peers comes from there.
    pub const WRITE_SRC: Self = Self(1 << 2);
    /// Peers write to it.
    pub const WRITE_DST: Self = Self(1 << 3);
    /// Peers flush it to where all see it.
    pub const FLUSH_VISIBILITY: Self = Self(1 << 4);
    /// Peers flush it to what survives a loss of power: only memory of [`MrLocal::open`] and
    /// [`MrLocal::map_file`].
    pub const FLUSH_PERSISTENT: Self = Self(1 << 5);
    /// Messages are sent from there.
    pub const SEND: Self = Self(1 << 6);
    /// Messages are received there.
    pub const RECV: Self = Self(1 << 7);

    /// From librpma.h's bits.
    ///
    /// # Errors
    ///
    /// `Inval` for none, or others.
    pub fn from_bits(bits: u32) -> Result<Self> {
        match u8::try_from(bits) {
            Ok(bits @ 1..) => Ok(Self(bits)),
            _ => Err(Error::Inval("no usage, or one that there is not")),
        }
    }
    /// librpma.h's bits.
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The rights that peers need: a READ may stand for a FLUSH. FLUSH itself only where the device
    /// has it.
    fn access(self, peer: &Peer) -> Access {
        let device = peer.pd().device();
        let can = |access| if device.supports(access) { access } else { Access::NONE };
        let rights = [
            (Self::READ_SRC, Access::REMOTE_READ),
            (Self::WRITE_DST, Access::REMOTE_WRITE),
            (Self::FLUSH_VISIBILITY, Access::REMOTE_READ | can(Access::FLUSH_GLOBAL)),
            (Self::FLUSH_PERSISTENT, Access::REMOTE_READ | can(Access::FLUSH_PERSISTENT)),
        ];
        let asked = rights.into_iter().filter(|(usage, _)| self.contains(*usage));
        asked.fold(Access::NONE, |all, (_, access)| all | access)
    }
}

impl BitOr for Usage {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How far a FLUSH goes (`enum rpma_flush_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushType {
    /// What was written survives a loss of power.
    Persistent,
    /// What was written is seen by all on the peer's host.
    Visibility,
}

impl FlushType {
    fn usage(self) -> Usage {
        match self {
            Self::Persistent => Usage::FLUSH_PERSISTENT,
            Self::Visibility => Usage::FLUSH_VISIBILITY,
        }
    }
}

/// Registered memory of ours: a handle, clones are the same. The last one dropped takes the key
/// back (rpma_mr_dereg(3)): what peers still do fails, what is under way from here keeps its bytes.
#[derive(Clone, Debug)]
pub struct MrLocal {
    mr: Arc<Mr<RemoteWrite>>,
    usage: Usage,
}

impl MrLocal {
    /// Zeros.
    ///
    /// # Errors
    ///
    /// `Inval` for no bytes; `NoSupp` with [`Usage::FLUSH_PERSISTENT`]: what is in no file does not
    /// survive; `NoMem`, `Provider`.
    pub fn zeroed(peer: &Peer, size: usize, usage: Usage) -> Result<Self> {
        if size == 0 {
            return Err(Error::Inval("memory of no bytes"));
        }
        if usage.contains(Usage::FLUSH_PERSISTENT) {
            return Err(Error::NoSupp("persistence of memory that is in no file"));
        }
        Self::register(peer, &Memory::zeroed(size)?, usage)
    }

    /// Persistent memory by its name: a file of `size` bytes, made of zeros where there is none; on
    /// a simulated host one of its own, which outlives a loss of power as far as it was flushed
    /// (`verbena::Memory::open`).
    ///
    /// # Errors
    ///
    /// `Inval` for no bytes; `Provider` for a file of another size, or as the system says; `NoMem`.
    pub fn open(peer: &Peer, path: impl AsRef<Path>, size: usize, usage: Usage) -> Result<Self> {
        if size == 0 {
            return Err(Error::Inval("memory of no bytes"));
        }
        Self::register(peer, &Memory::open(path, size)?, usage)
    }

    /// All of a file, opened for reading and writing, mapped and shared: a FLUSH to persistence is
    /// complete when its bytes are on the file's storage.
    ///
    /// # Errors
    ///
    /// `NoSupp` with [`Usage::FLUSH_PERSISTENT`] for a file that ends with its processes, as
    /// memfd_create(2) makes; one of tmpfs outlives them, but not the machine. `Provider` for
    /// an empty one, or as mmap(2) says; `NoMem`.
    pub fn map_file(peer: &Peer, file: &File, usage: Usage) -> Result<Self> {
        let registered = Self::register(peer, &Memory::map_file(file)?, usage);
        registered.map_err(|error| match error {
            Error::Provider(why)
                if why.kind() == ErrorKind::WrongState && usage.contains(Usage::FLUSH_PERSISTENT) =>
            {
                Error::NoSupp("persistence of a file that ends with its processes")
            }
            other => other,
        })
    }

    fn register(peer: &Peer, memory: &Memory<RemoteWrite>, usage: Usage) -> Result<Self> {
        let mr = memory.mr_with(peer.pd(), usage.access(peer))?;
        Ok(Self { mr: Arc::new(mr), usage })
    }

    /// A part as source of [`Conn::write`](crate::Conn::write) or
    /// [`Conn::send`](crate::Conn::send).
    ///
    /// # Errors
    ///
    /// `Inval` where it is not inside, or the memory is for neither.
    pub fn source(&self, range: Range<usize>) -> Result<Part<RemoteWrite>> {
        self.part(range, Usage::WRITE_SRC | Usage::SEND)
    }
    /// A part as destination of [`Conn::read`](crate::Conn::read).
    ///
    /// # Errors
    ///
    /// `Inval` where it is not inside, or the memory is not for that.
    pub fn destination(&self, range: Range<usize>) -> Result<Part<RemoteWrite>> {
        self.part(range, Usage::READ_DST)
    }
    fn part(&self, range: Range<usize>, one_of: Usage) -> Result<Part<RemoteWrite>> {
        if !self.usage.meets(one_of) {
            return Err(Error::Inval("memory that was not registered for this use"));
        }
        self.mr.memory().part(range).map_err(|_| Error::Inval("a range that leaves the memory"))
    }

    /// The way to look at it: peers may write at any time, so there are no references.
    pub fn shared(&self) -> SharedSlice<'_> {
        self.mr.memory().shared()
    }
    /// The memory: what this process itself writes there it makes persistent by
    /// [`Memory::persist`].
    pub fn memory(&self) -> &Memory<RemoteWrite> {
        self.mr.memory()
    }
    /// Bytes.
    pub fn size(&self) -> usize {
        self.mr.memory().len()
    }
    /// What it is for.
    pub fn usage(&self) -> Usage {
        self.usage
    }
    /// For the peer: see the module. Any process that has it reaches the memory.
    pub fn descriptor(&self) -> [u8; MrRemote::DESCRIPTOR] {
        MrRemote { memory: self.mr.remote(), usage: self.usage }.descriptor()
    }
}

/// A peer's memory, as it described it. Plain data: what the peer did not grant fails there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrRemote {
    memory: RemoteMemory,
    usage: Usage,
}

impl MrRemote {
    /// Bytes of a descriptor.
    pub const DESCRIPTOR: usize = 21;

    /// From a descriptor; bytes after it are ignored. An attacker that can change it on its way has
    /// others' memory written: private data of connections is not protected
    /// (rpma_mr_remote_from_descriptor(3)).
    ///
    /// # Errors
    ///
    /// `Inval` for less bytes, or no usage.
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Self> {
        let short = || Error::Inval("a descriptor of less than 21 bytes");
        let (addr, rest) = descriptor.split_first_chunk().ok_or_else(short)?;
        let (len, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (key, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let usage = Usage::from_bits((*rest.first().ok_or_else(short)?).into())?;
        let (addr, len) = (u64::from_le_bytes(*addr), u64::from_le_bytes(*len));
        Ok(Self { memory: RemoteMemory::from_raw(addr, u32::from_le_bytes(*key), len), usage })
    }
    /// The descriptor that it came by.
    pub fn descriptor(&self) -> [u8; Self::DESCRIPTOR] {
        let mut bytes = [0; Self::DESCRIPTOR];
        bytes[..8].copy_from_slice(&self.memory.addr().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.memory.len().to_le_bytes());
        bytes[16..20].copy_from_slice(&self.memory.rkey().to_le_bytes());
        bytes[20] = self.usage.0;
        bytes
    }
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.memory.len()
    }
    /// What it is for.
    pub fn usage(&self) -> Usage {
        self.usage
    }
    /// Whether the memory can be flushed that far (rpma_mr_remote_get_flush_type(3)).
    pub fn has_flush(&self, how: FlushType) -> bool {
        self.usage.contains(how.usage())
    }
    /// `len` bytes from `at` on.
    pub(crate) fn slice(&self, at: u64, len: u64) -> Result<RemoteMemory> {
        let outside = || Error::Inval("a range that leaves the remote memory");
        let end = at.checked_add(len).ok_or_else(outside)?;
        self.memory.slice(at..end).map_err(|_| outside())
    }
    /// All from `at` on.
    pub(crate) fn from(&self, at: u64) -> Result<RemoteMemory> {
        self.slice(at, self.size().saturating_sub(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Debian's librpma 1.2.0 wrote it of 8192 bytes at 0x7f90aed7f000.
    #[test]
    fn a_descriptor_is_upstreams_byte_for_byte() {
        let theirs = [
            0x00, 0xf0, 0xd7, 0xae, 0x90, 0x7f, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0xc8, 0x0e, 0x78, 0x62, 0xff,
        ];
        let mr = MrRemote::from_descriptor(&theirs).unwrap();
        assert_eq!((mr.memory.addr(), mr.size()), (0x7f90_aed7_f000, 8192));
        assert_eq!((mr.memory.rkey(), mr.usage().bits()), (0x6278_0ec8, 0xff));
        assert_eq!(mr.descriptor(), theirs);
        let longer: Vec<u8> = theirs.into_iter().chain([1, 2, 3]).collect();
        assert_eq!(MrRemote::from_descriptor(&longer).unwrap(), mr);
        for short in 0..theirs.len() {
            assert!(matches!(MrRemote::from_descriptor(&theirs[..short]), Err(Error::Inval(_))));
        }
        let mut useless = theirs;
        useless[20] = 0;
        assert!(matches!(MrRemote::from_descriptor(&useless), Err(Error::Inval(_))));
    }

    #[test]
    fn a_range_of_a_peers_memory_does_not_wrap() {
        let mr = MrRemote { memory: RemoteMemory::from_raw(0, 1, 64), usage: Usage::WRITE_DST };
        assert!(mr.slice(64, 0).is_ok() && mr.slice(56, 8).is_ok());
        assert!(mr.slice(57, 8).is_err() && mr.slice(u64::MAX, 2).is_err() && mr.from(65).is_err());
    }
}
