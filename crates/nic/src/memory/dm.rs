//! Device memory (ibv_alloc_dm(3)): a buffer of the adapter's own, which programs reach by copies
//! and by regions on it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::adapter::Adapter;
use crate::error::{Error, in_range};
#[cfg(doc)]
use crate::limits;

/// Offsets and lengths of copies are multiples of this, as adapters want it.
pub const GRANULE: u64 = 4;
/// Strictest alignment of a buffer that is asked for, as a power of two: a page.
const MAX_LOG_ALIGN: u32 = 12;
/// Alignment of every buffer: atomics work on it, whatever was asked for.
const LEAST_ALIGN: usize = 64;

/// A buffer. Its bytes are given back when it is dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Adapter>,
    block: NonNull<u8>,
    layout: Layout,
    len: u64,
    regions: AtomicU32,
}

// SAFETY: the block is plain memory that is only touched by raw copies and through the table of
// regions.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; what races is the program's bytes, as with any memory that peers reach.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// `len` bytes of zeroes, aligned to 2^`log_align`.
    ///
    /// # Errors
    ///
    /// `Invalid` for no bytes, `OutOfRange` for an alignment beyond a page, `Limit` where the
    /// device has not so much left ([`limits::MAX_DM`]).
    pub fn alloc(device: &Arc<Adapter>, len: u64, log_align: u32) -> Result<Arc<Self>, Error> {
        if len == 0 {
            return Err(Error::Invalid("length is 0: device memory has bytes"));
        }
        in_range("log_align_req", log_align, 0_u32, MAX_LOG_ALIGN)?;
        let size = usize::try_from(len).map_err(|_| Error::Limit("device memory"))?;
        let layout = Layout::from_size_align(size, LEAST_ALIGN.max(1 << log_align))
            .map_err(|_| Error::Limit("device memory"))?;
        device.quotas.dm_bytes.take(len)?;
        // SAFETY: the layout is not empty.
        let Some(block) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            device.quotas.dm_bytes.give(len);
            return Err(Error::Limit("memory"));
        };
        let device = device.clone();
        Ok(Arc::new(Self { device, block, layout, len, regions: AtomicU32::new(0) }))
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is memory of this device.
    pub fn is_of(&self, device: &Arc<Adapter>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Whether regions lie on it.
    pub fn is_used(&self) -> bool {
        self.regions.load(Ordering::Acquire) > 0
    }

    /// Counts a region in, on the `len` bytes from `offset` on; with the address of their first.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for bytes beyond the end.
    pub fn region(self: &Arc<Self>, offset: u64, len: u64) -> Result<(RegionOn, u64), Error> {
        let at = self.range(offset, len)?;
        self.regions.fetch_add(1, Ordering::AcqRel);
        Ok((RegionOn(self.clone()), at as u64))
    }

    /// Copies `len` bytes from the program's memory to `offset`.
    ///
    /// # Errors
    ///
    /// `Value` for an offset or a length that is no multiple of [`GRANULE`], `OutOfRange` for bytes
    /// beyond the end.
    ///
    /// # Safety
    ///
    /// `from` can be read for `len` bytes.
    pub unsafe fn copy_in(&self, offset: u64, from: *const u8, len: u64) -> Result<(), Error> {
        let to = self.granules(offset, len)?;
        // SAFETY: the range was just checked; the source is the caller's, and may be anything it
        // can read.
        unsafe { std::ptr::copy(from, to, len as usize) };
        Ok(())
    }

    /// Copies `len` bytes at `offset` to the program's memory.
    ///
    /// # Errors
    ///
    /// As for [`DeviceMemory::copy_in`].
    ///
    /// # Safety
    ///
    /// `to` can be written for `len` bytes.
    pub unsafe fn copy_out(&self, offset: u64, to: *mut u8, len: u64) -> Result<(), Error> {
        let from = self.granules(offset, len)?;
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy(from, to, len as usize) };
        Ok(())
    }

    fn granules(&self, offset: u64, len: u64) -> Result<*mut u8, Error> {
        if let Some(odd) = [offset, len].into_iter().find(|bytes| !bytes.is_multiple_of(GRANULE)) {
            return Err(Error::number("device memory is copied in units of 4 bytes", odd));
        }
        self.range(offset, len)
    }

    fn range(&self, offset: u64, len: u64) -> Result<*mut u8, Error> {
        match offset.checked_add(len) {
            // SAFETY: the offset lies inside the block or just behind it.
            Some(end) if end <= self.len => Ok(unsafe { self.block.as_ptr().add(offset as usize) }),
            _ => {
                let value = offset.saturating_add(len);
                Err(Error::OutOfRange { what: "the end of the range", value, least: 0, most: self.len })
            }
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `alloc` with this layout; regions keep it alive by their `RegionOn`.
        unsafe { dealloc(self.block.as_ptr(), self.layout) };
        self.device.quotas.dm_bytes.give(self.len);
    }
}

/// A region on device memory: it keeps it, and counts itself out when dropped.
#[derive(Debug)]
pub struct RegionOn(Arc<DeviceMemory>);

impl Drop for RegionOn {
    fn drop(&mut self) {
        self.0.regions.fetch_sub(1, Ordering::AcqRel);
    }
}
