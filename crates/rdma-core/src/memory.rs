//! Registrations of memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use nic::{Access, Error};
use rdma_core_abi::verbs::ibv_mr;
use transport::op::Sge;
use wire::Rkey;

use crate::device::Pd;
use crate::device_memory::DeviceMemory;
use crate::{number, object};

/// A registration.
pub struct Mr {
    pd: Arc<Pd>,
    /// NULL once it has ended.
    raw: AtomicPtr<ibv_mr>,
    lkey: Rkey,
    rkey: Rkey,
    iova: u64,
    /// Where it is a device's memory.
    _on: Option<Arc<DeviceMemory>>,
}

impl Mr {
    /// Registers `len` bytes from `at` on, with rights of `enum ibv_access_flags`; they count from
    /// `iova` on where the library can do that, from `at` otherwise. None at all need no key.
    ///
    /// # Safety
    ///
    /// The bytes stay until it has ended, and from now until then a peer that names the key reads
    /// them and, as `access` says, writes them.
    ///
    /// # Errors
    ///
    /// Errno of ibv_reg_mr(3).
    pub unsafe fn register(pd: &Arc<Pd>, at: u64, len: u64, iova: u64, access: u32) -> Result<Self, Error> {
        if len == 0 {
            let none = Rkey::default();
            let raw = AtomicPtr::new(null_mut());
            return Ok(Self { pd: pd.clone(), raw, lkey: none, rkey: none, iova, _on: None });
        }
        let (calls, addr) = (&pd.system().calls, std::ptr::with_exposed_provenance_mut(at as usize));
        let (made, iova) = match calls.ibv_reg_mr_iova2 {
            // SAFETY: the domain lives; of the bytes the caller says it.
            Some(register) => (unsafe { register(pd.raw(), addr, len as usize, iova, access) }, iova),
            // SAFETY: as above.
            None => (unsafe { (calls.ibv_reg_mr)(pd.raw(), addr, len as usize, access as c_int) }, at),
        };
        // SAFETY: just made.
        let mr = unsafe { Self::of(pd, object(made)?, iova, None) };
        if access & Access::MW_BIND != 0
            && let Some(raw) = NonNull::new(mr.raw.load(Ordering::Relaxed))
        {
            pd.system().names.lock().add_region(mr.lkey, raw);
        }
        Ok(mr)
    }

    /// Keeps one that was just made.
    ///
    /// # Safety
    ///
    /// It lives, and no other thread ends it.
    pub(crate) unsafe fn of(
        pd: &Arc<Pd>,
        raw: NonNull<ibv_mr>,
        iova: u64,
        on: Option<Arc<DeviceMemory>>,
    ) -> Self {
        // SAFETY: as the caller says.
        let mr = unsafe { raw.as_ref() };
        let (lkey, rkey) = (Rkey(mr.lkey), Rkey(mr.rkey));
        Self { pd: pd.clone(), raw: AtomicPtr::new(raw.as_ptr()), lkey, rkey, iova, _on: on }
    }

    /// The key by which our own work requests name it.
    pub fn lkey(&self) -> Rkey {
        self.lkey
    }
    /// The key by which peers name it.
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }
    /// The address of the first byte, as work requests and peers name it.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// The key dies now. Once: later calls do nothing.
    ///
    /// # Errors
    ///
    /// Errno of ibv_dereg_mr(3): the bytes may still be reached, for ever.
    pub fn deregister(&self) -> Result<(), Error> {
        let raw = self.raw.swap(null_mut(), Ordering::AcqRel);
        if raw.is_null() {
            return Ok(());
        }
        let system = self.pd.system();
        system.names.lock().remove_region(self.lkey, raw);
        // SAFETY: it lives, and is not used again.
        let ended = number(unsafe { (system.calls.ibv_dereg_mr)(raw) });
        if ended.is_err() {
            system.leak();
        }
        ended
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.pd.system().is_ours() {
            _ = self.deregister();
        }
    }
}

/// Registered numbers of 64 bits that no other thread has: what atomics bring back. In pages of
/// their own, which a forked child does not have.
pub struct Words {
    mr: Mr,
    at: NonNull<u64>,
    layout: Layout,
}

// SAFETY: memory of its own, of which numbers are copied out.
unsafe impl Send for Words {}
// SAFETY: as above; nothing writes but the adapter.
unsafe impl Sync for Words {}

impl Words {
    /// Registers so many zeros, at least one.
    ///
    /// # Errors
    ///
    /// ENOMEM; those of [`Mr::register`].
    pub fn new(pd: &Arc<Pd>, count: usize) -> Result<Self, Error> {
        let none = || Error::Limit("memory");
        let pages =
            count.max(1).checked_mul(8).and_then(|n| n.checked_next_multiple_of(4096)).ok_or_else(none)?;
        let layout = Layout::from_size_align(pages, 4096).map_err(|_| none())?;
        // SAFETY: the layout has at least a page.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<u64>()).ok_or_else(none)?;
        let address = at.as_ptr().expose_provenance() as u64;
        // SAFETY: the bytes are freed in `drop`, when the registration has ended; they are copied
        // out by volatile reads only.
        match unsafe { Mr::register(pd, address, pages as u64, address, Access::LOCAL_WRITE) } {
            Ok(mr) => Ok(Self { mr, at, layout }),
            Err(e) => {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(at.as_ptr().cast(), layout) };
                Err(e)
            }
        }
    }
    fn place(&self, index: usize) -> usize {
        index.min(self.layout.size() / 8 - 1)
    }
    /// The element for the word of an index; beyond the last, that of the last.
    pub fn sge(&self, index: usize) -> Sge {
        Sge { addr: self.mr.iova() + self.place(index) as u64 * 8, length: 8, lkey: self.mr.lkey() }
    }
    /// The word.
    pub fn read(&self, index: usize) -> u64 {
        // SAFETY: it is inside, and aligned; the adapter has written it before its completion came.
        unsafe { self.at.add(self.place(index)).read_volatile() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if self.mr.pd.system().is_ours() && self.mr.deregister().is_ok() {
            // SAFETY: allocated in `new` with this layout; no key leads there any more.
            unsafe { dealloc(self.at.as_ptr().cast(), self.layout) };
        }
    }
}
