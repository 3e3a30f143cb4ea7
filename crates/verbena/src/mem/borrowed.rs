//! Bytes that a [`scope`](crate::QueuePair::scope) has borrowed, registered for one operation.

use std::ptr::NonNull;
use std::sync::Arc;

use super::chunk::Chunk;
use super::io_buf::{IoBuf, IoBufMut, SgeList};
use super::region::Region;
use crate::error::{Error, Result};
use crate::provider::Pd;

/// A registration of borrowed bytes. It has no lifetime: the scope that borrowed them ends after
/// it.
pub(crate) struct Borrowed {
    /// The registration; none where there are no bytes.
    region: Option<Region>,
    /// Whether an operation may write them.
    exclusive: bool,
    /// Given up after the registration: the scope counts what is registered.
    _scope: Arc<()>,
}

impl Borrowed {
    /// For operations that read the bytes.
    ///
    /// # Safety
    ///
    /// The bytes stay borrowed until the value is gone, and until any operation that has it is
    /// complete.
    pub(crate) unsafe fn shared(pd: &Pd, bytes: &[u8], scope: &Arc<()>) -> Result<Self> {
        // SAFETY: as the caller says; without a right to write.
        unsafe { Self::new(pd, NonNull::from(bytes), false, scope) }
    }

    /// For operations that write them.
    ///
    /// # Safety
    ///
    /// The same; and they are borrowed exclusively.
    pub(crate) unsafe fn exclusive(pd: &Pd, bytes: &mut [u8], scope: &Arc<()>) -> Result<Self> {
        // SAFETY: as the caller says.
        unsafe { Self::new(pd, NonNull::from(bytes), true, scope) }
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn new(pd: &Pd, bytes: NonNull<[u8]>, exclusive: bool, scope: &Arc<()>) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self { region: None, exclusive, _scope: scope.clone() });
        }
        // SAFETY: the bytes are there as long as the value, as the caller says.
        let chunk = Arc::new(unsafe { Chunk::borrowed(bytes.cast(), bytes.len()) });
        let access = if exclusive { nic::Access::LOCAL_WRITE } else { 0 };
        // SAFETY: peers have no right to it. The key is known to the operation that has the value
        // alone; what it writes is borrowed exclusively, and nothing writes what is not.
        let region = unsafe { Region::new(pd, &chunk, access) };
        let region = region.map_err(|e| Error::of_nic("ibv_reg_mr", e))?;
        Ok(Self { region: Some(region), exclusive, _scope: scope.clone() })
    }

    fn pieces(&self, list: &mut SgeList) {
        if let Some(region) = &self.region {
            list.add(region, 0, region.chunk().len());
        }
    }
}

// SAFETY: where the bytes are does not depend on where the value is; they stay as long as it, as
// the caller of the constructor said. No code has a `&mut` to them meanwhile but the scope, which
// does not use it.
unsafe impl IoBuf for Borrowed {
    fn gather(&self, list: &mut SgeList) {
        self.pieces(list);
    }
}

// SAFETY: as above. Those that are not borrowed exclusively have no room, and are registered
// without a right to write.
unsafe impl IoBufMut for Borrowed {
    fn gather_mut(&self, list: &mut SgeList) {
        if self.exclusive {
            self.pieces(list);
        }
    }
    fn capacity_bytes(&self) -> usize {
        self.region.as_ref().map_or(0, |region| if self.exclusive { region.chunk().len() } else { 0 })
    }
    fn set_filled(&mut self, _len: usize) {}
}
