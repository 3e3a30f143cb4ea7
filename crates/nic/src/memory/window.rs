//! Memory windows (IBA 1.4 §10.6.7.2): keys of their own for parts of regions, bound and taken back
//! while queue pairs run.
//!
//! A window is a slot like a region's. While it is bound it has the region's memory, rights of its
//! own, and counts at the region, which can not be deregistered meanwhile. A window of type 2 is
//! good only on the queue pair that bound it (type 2B), and its user chooses the low 8 bits of its
//! key.

use std::sync::atomic::Ordering;

use locks::MutexGuard;
use transport::op::{Bind, Fault};
use wire::Rkey;

use super::late::LATE;
use super::rights::Access;
use super::slot::{Slot, kind};
use super::table::Table;
use super::view::View;
use crate::error::Error;

/// How a window is bound: `enum ibv_mw_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WindowType {
    /// By `ibv_bind_mw`, which chooses the key, again and again.
    One = 1,
    /// By a work request, with a key of the user's, once until it is invalidated.
    Two = 2,
}

/// A window; unbound and given back with [`Table::free_window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mw {
    slot: u32,
    serial: u32,
    /// How it is bound.
    pub kind: WindowType,
}

impl Mw {
    /// A key for it.
    pub fn key(&self, random: u32) -> Rkey {
        Rkey(self.slot << 16 | random & 0xffff)
    }
    /// The window's name in a [`Bind`].
    pub fn name(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }
}

/// What a peer may be granted; LOCAL_WRITE says nothing about peers and is let pass.
const GRANTED: u32 = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;

impl Table {
    /// A window that is not bound; `random` makes its slot unpredictable.
    pub fn alloc_window(&self, pd: u32, kind: WindowType, random: u32) -> Result<Mw, Error> {
        let index = self.free.take(random)?;
        let slot = self.slot(index);
        let _binding = self.binding();
        // Tells this window from those that had the slot before.
        let serial = slot.serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        slot.pd.store(pd, Ordering::Relaxed);
        slot.kind.store(kind as u32, Ordering::Relaxed);
        Ok(Mw { slot: index, serial, kind })
    }

    /// Gives a window back; binds of it that are still queued will fail.
    pub fn free_window(&self, mw: Mw) -> Result<(), Error> {
        let slot = self.slot(mw.slot);
        {
            let _binding = self.binding();
            if slot.serial.load(Ordering::Relaxed) != mw.serial || !is_window(slot) {
                return Err(Error::hex("there is no such memory window", mw.name()));
            }
            self.unbind(slot);
            slot.kind.store(kind::REGION, Ordering::Relaxed);
            slot.serial.fetch_add(1, Ordering::Relaxed);
        }
        self.free.give(mw.slot);
        Ok(())
    }

    /// Held while windows are bound or unbound and while regions are found free of windows.
    pub(super) fn binding(&self) -> MutexGuard<'_, ()> {
        self.binding.lock()
    }

    /// Takes a window's key back and waits until no copy uses it; `binding` is held.
    fn unbind(&self, window: &Slot) {
        if window.key.swap(0, Ordering::SeqCst) == 0 {
            return;
        }
        window.wait();
        self.slot(window.region.load(Ordering::Relaxed)).windows.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_window(slot: &Slot) -> bool {
    matches!(slot.kind.load(Ordering::Relaxed), kind::WINDOW_1 | kind::WINDOW_2)
}

impl View<'_> {
    /// Binds a window of the queue pair's domain to a part of a region of that domain.
    pub(super) fn bind_window(&self, bind: &Bind) -> Result<(), Fault> {
        let table = self.table;
        let (index, serial) = ((bind.window & 0xffff) as u32, (bind.window >> 32) as u32);
        let window = table.slot(index);
        let _binding = table.binding();
        let ours = is_window(window)
            && window.serial.load(Ordering::Relaxed) == serial
            && window.pd.load(Ordering::Relaxed) == self.pd;
        if !ours || bind.key.0 >> 16 != index {
            return Err(Fault::Key);
        }
        let second = window.kind.load(Ordering::Relaxed) == kind::WINDOW_2;
        // A window of type 2 is bound only when it is free (IBA 1.4 §10.6.7.2.6).
        if second && window.key.load(Ordering::Relaxed) != 0 {
            return Err(Fault::Rights);
        }
        if bind.length == 0 && !second {
            table.unbind(window);
            return Ok(());
        }
        let (region, access, at) = self.bindable(bind)?;
        table.unbind(window);
        let slot = table.slot(region);
        slot.windows.fetch_add(1, Ordering::Relaxed);
        window.region.store(region, Ordering::Relaxed);
        window.user.store(if second { self.qpn } else { 0 }, Ordering::Relaxed);
        window.access.store(access, Ordering::Relaxed);
        // No overflow: it lies inside the region.
        window.addr.store(slot.addr.load(Ordering::Relaxed) + at, Ordering::Relaxed);
        window.len.store(bind.length, Ordering::Relaxed);
        let zero_based = bind.access & Access::ZERO_BASED != 0;
        window.iova.store(if zero_based { 0 } else { bind.addr }, Ordering::Relaxed);
        window.key.store(bind.key.0, Ordering::SeqCst);
        Ok(())
    }

    /// The region's slot, the window's rights, and where in the region it begins; `binding` is
    /// held.
    fn bindable(&self, bind: &Bind) -> Result<(u32, u32, u64), Fault> {
        let index = bind.region.0 >> 16;
        let slot = self.table.slot(index);
        let is_region = slot.kind.load(Ordering::Relaxed) == kind::REGION;
        let key = slot.key.load(Ordering::SeqCst);
        if !is_region || key == 0 || key != bind.region.0 || slot.pd.load(Ordering::Relaxed) != self.pd {
            return Err(Fault::Key);
        }
        let rights = slot.access.load(Ordering::Relaxed);
        let changes = bind.access & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) != 0;
        if bind.access & !(GRANTED | Access::ZERO_BASED | Access::LOCAL_WRITE) != 0
            || rights & Access::MW_BIND == 0
            || rights & Access::ZERO_BASED != 0
            || (changes && rights & Access::LOCAL_WRITE == 0)
        {
            return Err(Fault::Rights);
        }
        let at = bind.addr.checked_sub(slot.iova.load(Ordering::Relaxed)).ok_or(Fault::Range)?;
        let end = at.checked_add(bind.length).ok_or(Fault::Range)?;
        if end > slot.len.load(Ordering::Relaxed) {
            return Err(Fault::Range);
        }
        Ok((index, bind.access & GRANTED | rights & LATE, at))
    }

    /// Invalidates a window of type 2 that was bound on this queue pair.
    pub(super) fn invalidate_window(&self, key: Rkey) -> Result<(), Fault> {
        let window = self.table.slot(key.0 >> 16);
        let _binding = self.table.binding();
        let ours = window.kind.load(Ordering::Relaxed) == kind::WINDOW_2
            && key.0 != 0
            && window.key.load(Ordering::SeqCst) == key.0
            && window.pd.load(Ordering::Relaxed) == self.pd
            && window.user.load(Ordering::Relaxed) == self.qpn;
        if !ours {
            return Err(Fault::Key);
        }
        self.table.unbind(window);
        Ok(())
    }
}
