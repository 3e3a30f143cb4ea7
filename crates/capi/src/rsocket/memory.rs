//! Memory of rsockets: a buffer that processes of this host map where there is one, else memory of
//! the C library.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use local::arena;
use nic::{Error, Mr, Pd};
use rsocket::Memory;
use wire::Rkey;

/// Memory of less than this is not worth a descriptor of its own.
const MAPPED_FROM: usize = 1 << 14;
const PAGE: usize = 4096;

enum Bytes {
    Mapped(arena::Buffer),
    Heap(NonNull<u8>, Layout),
}

/// Registered bytes. Dropping them takes the registration back first.
pub(super) struct Region {
    bytes: Bytes,
    len: usize,
    pd: Arc<Pd>,
    mr: Mr,
}

// SAFETY: the bytes are the region's own, and all accesses are copies by raw pointers.
unsafe impl Send for Region {}

impl Bytes {
    fn new(len: usize) -> Option<Self> {
        if len >= MAPPED_FROM
            && let Some(buffer) = arena::take(len)
        {
            return Some(Self::Mapped(buffer));
        }
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: a layout of at least a byte.
        NonNull::new(unsafe { alloc_zeroed(layout) }).map(|at| Self::Heap(at, layout))
    }

    fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Mapped(buffer) => buffer.as_ptr(),
            Self::Heap(at, _) => at.as_ptr(),
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Self::Heap(at, layout) = self {
            // SAFETY: allocated with this layout; the owner has ended all that names it.
            unsafe { dealloc(at.as_ptr(), *layout) };
        }
    }
}

impl Region {
    pub(super) fn new(pd: &Arc<Pd>, len: usize, access: u32) -> Result<Self, Error> {
        let bytes = Bytes::new(len).ok_or(Error::Limit("memory"))?;
        let at = bytes.as_ptr().expose_provenance() as u64;
        // SAFETY: `drop` takes the registration back before the bytes go; only copies touch them.
        let mr = unsafe { pd.register(at, len as u64, at, access)? };
        Ok(Self { bytes, len, pd: pd.clone(), mr })
    }

    /// Where so many bytes lie from `at` on; `None` beyond the end.
    fn at(&self, at: usize, len: usize) -> Option<*mut u8> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: inside of the allocation.
        fits.then(|| unsafe { self.bytes.as_ptr().add(at) })
    }
}

impl Memory for Region {
    fn addr(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    fn key(&self) -> Rkey {
        self.mr.key
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.at(at, bytes.len()) {
            // SAFETY: as many bytes of ours, of which no reference exists. An adapter may read them
            // meanwhile, as with any DMA.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        if let Some(from) = self.at(at, bytes.len()) {
            // SAFETY: as above; a peer may write them meanwhile.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, bytes.len()) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Nothing binds a window to it, so it can be taken back.
        _ = self.pd.deregister(self.mr);
    }
}

/// Memory of the program, registered until this is dropped.
pub(super) struct Mapped {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) pd: Arc<Pd>,
    pub(super) mr: Mr,
    /// The peer was told of it.
    pub(super) told: bool,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Nothing binds a window to it, so it can be taken back.
        _ = self.pd.deregister(self.mr);
    }
}
