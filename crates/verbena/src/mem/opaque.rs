//! Memory that is not the processor's: on a device (ibv_alloc_dm(3)), or a dma-buf (ibv_reg_mr(3)),
//! such as a GPU's. Operations and peers reach it as any other [`Memory`]; there is no look at it.
//!
//! Over Verbena's own stack both are memory of the process: a block that counts against the
//! device's limit, and a mapping of the dma-buf.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use nic::memory::dm::{DeviceMemory, GRANULE, RegionOn};

use super::access::{Access, Opaque};
use super::chunk::{Chunk, PAGE};
use super::memory::Memory;
use super::shared::SharedSlice;
use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::{Adapter, Device};

/// What an opaque chunk stands for.
pub(super) enum Outside {
    /// Memory of a device of Verbena's own.
    Ours(Device, Block),
    /// Memory of a device of the machine's libraries.
    #[cfg(feature = "system")]
    System(Device, std::sync::Arc<rdma_core::DeviceMemory>),
    /// A dma-buf, from this offset on.
    DmaBuf(DmaBuf),
}

/// Words of the process that stand for memory of a device.
pub(super) struct Block {
    words: NonNull<AtomicU64>,
    len: usize,
    /// Keeps them.
    _on: RegionOn,
}

/// Bytes of a dma-buf.
pub(super) struct DmaBuf {
    file: File,
    offset: u64,
    len: usize,
    /// Where Verbena's own stack is to reach it.
    mapped: OnceLock<Mapping>,
}

/// A mapping of whole pages, unmapped when it is dropped.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; what is there is reached by adapters only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `DmaBuf::address` with this length; no registration leads there any
        // more, as those keep the chunk.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Outside {
    /// The rights that its registrations may have at most.
    pub(super) fn most(&self) -> Access {
        let plain = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        match self {
            Self::DmaBuf(_) => plain,
            _ => plain | Access::FLUSH_GLOBAL,
        }
    }
    /// The one device that it can be registered with.
    pub(super) fn device(&self) -> Option<&Device> {
        match self {
            Self::Ours(device, _) => Some(device),
            #[cfg(feature = "system")]
            Self::System(device, _) => Some(device),
            Self::DmaBuf(_) => None,
        }
    }
    /// Where it lies for Verbena's own stack, and what is to be asked for beside the rights.
    pub(super) fn address(&self) -> Result<(u64, u32), nic::Error> {
        match self {
            Self::Ours(_, block) => Ok((block.words.as_ptr().expose_provenance() as u64, 0)),
            #[cfg(feature = "system")]
            Self::System(..) => Err(nic::Error::Invalid("memory of another stack's device")),
            // Its pages are such that advice about them is not always taken.
            Self::DmaBuf(buf) => Ok((buf.address()?, nic::Access::ON_DEMAND)),
        }
    }
}

impl DmaBuf {
    fn address(&self) -> Result<u64, nic::Error> {
        let inside = (self.offset % PAGE as u64) as usize;
        if let Some(mapped) = self.mapped.get() {
            return Ok(mapped.start.as_ptr().expose_provenance() as u64 + inside as u64);
        }
        let from = i64::try_from(self.offset - inside as u64);
        let from = from.map_err(|_| nic::Error::System(nic::Errno::EINVAL))?;
        let len = self.len + inside;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping where the kernel finds room; the descriptor is open.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, self.file.as_raw_fd(), from) };
        if start == libc::MAP_FAILED {
            return Err(match nic::Errno::last() {
                nic::Errno::ENODEV => nic::Error::Unsupported("a descriptor that can not be mapped"),
                other => nic::Error::System(other),
            });
        }
        let start = NonNull::new(start.cast()).ok_or(nic::Error::Fault)?;
        // Another thread's may be there by now: then ours is unmapped.
        let mapped = self.mapped.get_or_init(|| Mapping { start, len });
        if mapped.start != start {
            drop(Mapping { start, len });
        }
        Ok(mapped.start.as_ptr().expose_provenance() as u64 + inside as u64)
    }
}

impl Device {
    /// Memory on the device: `len` bytes of zeros, or of whatever the adapter has there. It can be
    /// registered in domains of this device only.
    ///
    /// ```no_run
    /// # fn f(device: verbena::Device) -> verbena::Result<()> {
    /// let memory = device.alloc_memory(4096)?;
    /// memory.copy_from(0, b"what peers read: 4 n")?;
    /// let mr = memory.mr(&device.pd()?)?;
    /// println!("{:?}", mr.remote());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `OutOfRange` for no bytes; `Exhausted` where the device has not so much left; `Unsupported`
    /// where it has no memory for programs, as rdma_rxe; `Forked`.
    pub fn alloc_memory(&self, len: usize) -> Result<Memory<Opaque>> {
        const CALL: &str = "ibv_alloc_dm";
        let failed = |e| Error::of_nic(CALL, e);
        self.stack().check(CALL)?;
        let most = isize::MAX as u64 - 7;
        if len == 0 || len as u64 > most {
            return Err(Error::number(CALL, "length", len as u64, 1..=most));
        }
        let outside = match self.adapter() {
            Adapter::Ours(nic) => {
                // Copies of ours are of whole words.
                let words = len.next_multiple_of(8) as u64;
                let memory = DeviceMemory::alloc(nic, words, 0).map_err(failed)?;
                let (on, at) = memory.region(0, words).map_err(failed)?;
                let at = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize));
                let words = at.ok_or_else(|| Error::new(ErrorKind::Exhausted, CALL))?;
                Outside::Ours(self.clone(), Block { words, len, _on: on })
            }
            #[cfg(feature = "system")]
            Adapter::System(device) => {
                let memory = rdma_core::DeviceMemory::alloc(device, len).map_err(failed)?;
                Outside::System(self.clone(), memory)
            }
        };
        Ok(Memory::over(Chunk::outside(outside, len)))
    }
}

impl Memory<Opaque> {
    /// `len` bytes of a dma-buf from `offset` on; both ends may read and write it. Over Verbena's
    /// own stack whatever can be mapped for reading and writing will do, a memory
    /// file (memfd_create(2)) too; it is mapped when it is registered first.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for no bytes, or more than there are; what lseek(2) says of a descriptor that
    /// has no size. [`Memory::mr`] says `Unsupported` where the device takes no dma-bufs,
    /// `PermissionDenied` for a descriptor that can not be written.
    pub fn dmabuf(fd: OwnedFd, offset: u64, len: usize) -> Result<Self> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let mut file = File::from(fd);
        // A dma-buf tells its size so. The place may be shared with others that have the file.
        let before = file.stream_position().unwrap_or(0);
        let size = file.seek(SeekFrom::End(0)).map_err(|e| Error::of_io(CALL, &e))?;
        _ = file.seek(SeekFrom::Start(before));
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= size);
        if len == 0 || !fits || len > isize::MAX as usize - PAGE {
            return Err(Error::range(CALL, offset, len as u64, size));
        }
        let outside = Outside::DmaBuf(DmaBuf { file, offset, len, mapped: OnceLock::new() });
        Ok(Self::over(Chunk::outside(outside, len)))
    }

    /// Copies into memory of a device (ibv_memcpy_to_dm). What peers and operations do meanwhile is
    /// seen in words of eight bytes at best.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where `at` or the length is no multiple of 4, as adapters want it, or the bytes
    /// are not inside; `Unsupported` for a dma-buf; `Forked`.
    pub fn copy_from(&self, at: usize, from: &[u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_to_dm";
        self.check_copy(CALL, at, from.len())?;
        match self.chunk().as_outside() {
            Some(Outside::Ours(_, block)) => block.shared().copy_from(at, from),
            #[cfg(feature = "system")]
            Some(Outside::System(_, memory)) => {
                memory.copy_in(at as u64, from).map_err(|e| Error::of_nic(CALL, e))
            }
            _ => Err(no_copies(CALL)),
        }
    }

    /// Copies out of memory of a device (ibv_memcpy_from_dm).
    ///
    /// # Errors
    ///
    /// Those of [`Memory::copy_from`].
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_from_dm";
        self.check_copy(CALL, at, to.len())?;
        match self.chunk().as_outside() {
            Some(Outside::Ours(_, block)) => block.shared().copy_to(at, to),
            #[cfg(feature = "system")]
            Some(Outside::System(_, memory)) => {
                memory.copy_out(at as u64, to).map_err(|e| Error::of_nic(CALL, e))
            }
            _ => Err(no_copies(CALL)),
        }
    }

    fn check_copy(&self, call: &'static str, at: usize, len: usize) -> Result<()> {
        if let Some(device) = self.chunk().as_outside().and_then(Outside::device) {
            device.stack().check(call)?;
        }
        let granules = [at as u64, len as u64].iter().all(|bytes| bytes.is_multiple_of(GRANULE));
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        if granules && inside {
            return Ok(());
        }
        Err(Error::range(call, at as u64, len as u64, self.len() as u64))
    }
}

impl Block {
    fn shared(&self) -> SharedSlice<'_> {
        // SAFETY: aligned, and there is room for the last word, as it was allocated; the region on
        // it keeps it; and all that this process ever does to such memory are atomic accesses of
        // such words.
        let words = unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len.div_ceil(8)) };
        SharedSlice::new(words, self.len)
    }
}

fn no_copies(call: &'static str) -> Error {
    let text = "a dma-buf: copy by what made it".to_owned();
    Error::new(ErrorKind::Unsupported, call).with(Value::Text(text))
}

#[cfg(feature = "system")]
impl DmaBuf {
    /// The descriptor, and where in it the bytes begin.
    pub(super) fn place(&self) -> (std::os::fd::RawFd, u64) {
        (self.file.as_raw_fd(), self.offset)
    }
}
