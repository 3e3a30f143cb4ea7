//! Protection domains (IBA 1.4 §10.2.3): what is registered in one is reached by the queue pairs of
//! that one only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use transport::Sge;
use wire::Rkey;

use super::rereg::Advice;
use super::table::Mr;
use super::window::{Mw, WindowType};
use crate::device::adapter::Adapter;
use crate::error::Error;
use crate::faults::Object;

/// A protection domain. Regions, queues and address handles keep it, and it keeps its device; it is
/// gone with the last of them.
#[derive(Debug)]
pub struct Pd {
    /// The device, as far as domains know it.
    pub device: Arc<Adapter>,
    pub(crate) id: u32,
}

impl Drop for Pd {
    fn drop(&mut self) {
        self.device.quotas.pds.give(1);
    }
}

impl Pd {
    /// A new one; see [`Device::alloc_pd`](crate::Device::alloc_pd).
    pub(crate) fn alloc(device: &Arc<Adapter>) -> Result<Self, Error> {
        device.allow(Object::Pd)?;
        device.quotas.pds.take(1)?;
        Ok(Self { device: device.clone(), id: device.next_pd.fetch_add(1, Ordering::Relaxed) })
    }
    /// Registers `len` bytes at `addr`, to be named by addresses from `iova` on, with rights
    /// `access` ([`Access`](super::Access) bits). See
    /// [`Table::register`](super::Table::register), also for the errors; safe code registers
    /// a [`Buffer`](super::buffer::Buffer).
    ///
    /// # Safety
    ///
    /// That of [`Table::register`](super::Table::register).
    pub unsafe fn register(&self, addr: u64, len: u64, iova: u64, access: u32) -> Result<Mr, Error> {
        self.device.allow(Object::Mr)?;
        // SAFETY: as the caller says.
        unsafe { self.device.memory.register(self.id, addr, len, iova, access, self.device.random()) }
    }
    /// The domain's number among those of the device in this process.
    pub fn number(&self) -> u32 {
        self.id
    }
    /// The region of this domain in a slot, and its length in bytes.
    pub fn region(&self, slot: u32) -> Option<(Mr, u64)> {
        self.device.memory.region(self.id, slot)
    }
    /// Takes a registration back, see [`Table::deregister`](super::Table::deregister).
    pub fn deregister(&self, mr: Mr) -> Result<(), Error> {
        self.device.memory.deregister(mr)
    }
    /// A region that holds nothing, see [`Table::register_null`](super::Table::register_null).
    pub fn register_null(&self) -> Result<Mr, Error> {
        self.device.memory.register_null(self.id, self.device.random())
    }
    /// Changes a region of the device; `pd` where it shall be in another domain. See
    /// [`Table::reregister`](super::Table::reregister).
    ///
    /// # Safety
    ///
    /// That of [`Table::reregister`](super::Table::reregister).
    pub unsafe fn reregister(
        &self,
        mr: Mr,
        pd: Option<&Self>,
        place: Option<(u64, u64, u64)>,
        access: Option<u32>,
    ) -> Result<(), Error> {
        // SAFETY: as the caller says.
        unsafe { self.device.memory.reregister(mr, pd.map(|p| p.id), place, access) }
    }
    /// See [`Table::prefetch`](super::Table::prefetch).
    pub fn prefetch(&self, sge: Sge, write: bool) -> Result<(), Advice> {
        self.device.memory.prefetch(self.id, sge, write)
    }
    /// A window that is not bound.
    pub fn alloc_window(&self, kind: WindowType) -> Result<Mw, Error> {
        self.device.allow(Object::Mw)?;
        self.device.memory.alloc_window(self.id, kind, self.device.random())
    }
    /// Gives a window back.
    pub fn free_window(&self, mw: Mw) -> Result<(), Error> {
        self.device.memory.free_window(mw)
    }
    /// A key for a window, not to be foreseen.
    pub fn window_key(&self, mw: Mw) -> Rkey {
        mw.key(self.device.random())
    }
}
