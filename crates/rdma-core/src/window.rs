//! Memory windows of type 2 (ibv_alloc_mw(3)).

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};
use nic::Error;
use rdma_core_abi::verbs::{IBV_MW_TYPE_2, ibv_mr, ibv_mw};
use wire::Rkey;

use crate::device::Pd;
use crate::{number, object};

/// A window, bound or not.
pub struct Mw {
    pd: Arc<Pd>,
    name: u64,
    key: Rkey,
    raw: Mutex<Option<Raw>>,
}

struct Raw(NonNull<ibv_mw>);

// SAFETY: it may be used by all threads; the lock says that no thread gives it back meanwhile.
unsafe impl Send for Raw {}

/// What a request to bind may name, by its numbers.
#[derive(Default)]
pub(crate) struct Names {
    windows: HashMap<u64, Weak<Mw>>,
    /// Registrations that windows may be bound to, by their keys.
    regions: HashMap<u32, Region>,
}

struct Region(NonNull<ibv_mr>);

// SAFETY: an address, which is used only while it is among the names.
unsafe impl Send for Region {}

const GONE: Error = Error::Missing("the memory window");

static NAMES: AtomicU64 = AtomicU64::new(1);

impl Mw {
    /// A window that is not bound.
    ///
    /// # Errors
    ///
    /// `Unsupported` where the device has none; errno of ibv_alloc_mw(3).
    pub fn new(pd: &Arc<Pd>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context lives, and has the functions that verbs.h calls.
        let alloc = unsafe { (*pd.device.context()).ops.alloc_mw };
        let alloc = alloc.ok_or(Error::Unsupported("memory windows"))?;
        // SAFETY: the domain lives.
        let raw = object(unsafe { alloc(pd.raw(), IBV_MW_TYPE_2) })?;
        // SAFETY: just made.
        let key = unsafe { raw.as_ref() }.rkey;
        // The key's last byte is ours to choose, and another one with each binding
        // (ibv_inc_rkey(3)).
        let key = Rkey(key & !0xff | key.wrapping_add(1) & 0xff);
        let name = NAMES.fetch_add(1, Ordering::Relaxed);
        let mw =
            Arc::new(Self { pd: pd.clone(), name, key, raw: Mutex::new(Rank::SystemWindow, Some(Raw(raw))) });
        pd.system().names.lock().windows.insert(name, Arc::downgrade(&mw));
        Ok(mw)
    }

    /// By which a request to bind names it.
    pub fn name(&self) -> u64 {
        self.name
    }
    /// The key that peers have for it while it is bound.
    pub fn key(&self) -> Rkey {
        self.key
    }

    /// Gives the window back, and with it the right that it granted. Once: later calls do nothing.
    ///
    /// # Errors
    ///
    /// Errno of ibv_dealloc_mw: the right may still be there.
    pub fn free(&self) -> Result<(), Error> {
        let mut lock = self.raw.lock();
        let Some(Raw(raw)) = &*lock else { return Ok(()) };
        // SAFETY: it lives; its context has the functions that verbs.h calls.
        number(unsafe {
            let free = (*raw.as_ref().context).ops.dealloc_mw.ok_or(GONE)?;
            free(raw.as_ptr())
        })?;
        *lock = None;
        Ok(())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let system = self.pd.system();
        if system.is_ours() {
            system.names.lock().windows.remove(&self.name);
            if self.free().is_err() {
                system.leak();
            }
        }
    }
}

impl Names {
    pub(crate) fn add_region(&mut self, key: Rkey, region: NonNull<ibv_mr>) {
        self.regions.insert(key.0, Region(region));
    }
    /// Nothing where the key is another's.
    pub(crate) fn remove_region(&mut self, key: Rkey, region: *mut ibv_mr) {
        if self.regions.get(&key.0).is_some_and(|known| known.0.as_ptr() == region) {
            self.regions.remove(&key.0);
        }
    }
    /// The window of a name.
    pub(crate) fn window(&self, name: u64) -> Option<Arc<Mw>> {
        self.windows.get(&name)?.upgrade()
    }
    /// The registration of a local key; it lives as long as the names are borrowed.
    pub(crate) fn region(&self, key: Rkey) -> Option<NonNull<ibv_mr>> {
        self.regions.get(&key.0).map(|region| region.0)
    }
}

impl Mw {
    /// Has its C object used, which no thread gives back meanwhile.
    pub(crate) fn with<T>(&self, f: impl FnOnce(*mut ibv_mw) -> T) -> Option<T> {
        let lock = self.raw.lock();
        let Raw(raw) = lock.as_ref()?;
        Some(f(raw.as_ptr()))
    }
}
