//! What may happen to a region between its registration and its end: it becomes another one
//! (ibv_rereg_mr(3)), or its pages are brought in before they are used (ibv_advise_mr(3)).

use std::sync::atomic::{AtomicU64, Ordering};

use transport::op::{Fault, Remote, Sge};
use wire::Rkey;

use super::copy::Place;
use super::late::LATE;
use super::pages::populate;
use super::rights::Access;
use super::table::{Mr, Table};
use super::view::Who;
use crate::error::Error;

/// Why memory can not be prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Advice {
    /// The key is no region's (ENOENT).
    #[error("no region has this key")]
    NoKey,
    /// The region is of another domain, or not to be written (EPERM).
    #[error("the region is of another domain or may not be written")]
    Forbidden,
    /// The region is not one of on-demand paging (EINVAL).
    #[error("the region was not registered for on-demand paging")]
    NotOnDemand,
    /// The range leaves the region, or is not mapped (EFAULT).
    #[error("the range leaves the region or is not mapped")]
    Fault,
}

impl Table {
    /// Changes what a region is (ibv_rereg_mr(3)): its domain, its place, its rights, each only
    /// where given. The key stays; accesses meanwhile fail. `Busy` while windows are bound to
    /// it; after an error it is what it was.
    ///
    /// # Safety
    ///
    /// Of the new place and rights, that of [`Table::register`]. The old place is as after
    /// [`Table::deregister`].
    pub unsafe fn reregister(
        &self,
        mr: Mr,
        pd: Option<u32>,
        place: Option<(u64, u64, u64)>,
        access: Option<u32>,
    ) -> Result<(), Error> {
        let slot = self.slot(mr.key.0 >> 16);
        let now = |field: &AtomicU64| field.load(Ordering::Relaxed);
        let check = || {
            if mr.key.0 == 0 || slot.key.load(Ordering::SeqCst) != mr.key.0 || !slot.is_region() {
                return Err(Error::hex("no memory region has the key", mr.key.0));
            }
            if slot.windows.load(Ordering::Relaxed) != 0 { Err(Error::Busy) } else { Ok(()) }
        };
        check()?;
        let (addr, len, iova) = place.unwrap_or((now(&slot.addr), now(&slot.len), now(&slot.iova)));
        let access = access.unwrap_or(slot.access.load(Ordering::Relaxed) & !LATE);
        let pd = pd.unwrap_or(slot.pd.load(Ordering::Relaxed));
        let backing = self.check_region(addr, len, iova, access)?;
        {
            let _binding = self.binding();
            check()?;
            slot.key.store(0, Ordering::SeqCst);
        }
        // From here on no other thread changes the slot, and no window is bound to it. A thread
        // that binds others does not wait for its neighbours.
        self.withdraw(mr.key.0 >> 16);
        self.wait_for_users(mr.key.0 >> 16);
        slot.describe(pd, addr, len, iova, access | self.lateness(addr, len));
        slot.backing.store(backing.into(), Ordering::Relaxed);
        // The thread that deregisters it takes back what was published.
        let _binding = self.binding();
        slot.key.store(mr.key.0, Ordering::SeqCst);
        self.publish(mr.key.0 >> 16);
        if access & Access::ON_DEMAND == 0 {
            self.list_large(mr, addr, len);
        }
        Ok(())
    }

    /// Brings a part of a region with `ON_DEMAND` in, to be written where `write` says so
    /// (ibv_advise_mr(3)).
    pub fn prefetch(&self, pd: u32, sge: Sge, write: bool) -> Result<(), Advice> {
        let right = if write { Access::LOCAL_WRITE } else { 0 };
        let range = Remote { addr: sge.addr, length: sge.length.into(), rkey: sge.lkey };
        let view = self.view(pd, 0);
        let place = view.with(range, Access::ON_DEMAND | right, Who::Us, Ok);
        match place.map_err(|fault| self.why_not(pd, sge.lkey, write, fault))? {
            Place::At(real) => populate(real, range.length, write).map_err(|_| Advice::Fault),
            Place::Null | Place::Late(_) => Ok(()),
        }
    }

    /// What is wrong with advice about this key.
    fn why_not(&self, pd: u32, key: Rkey, write: bool, fault: Fault) -> Advice {
        let slot = self.slot(key.0 >> 16);
        let access = slot.access.load(Ordering::Relaxed);
        match fault {
            _ if key.0 == 0 || slot.key.load(Ordering::SeqCst) != key.0 => Advice::NoKey,
            Fault::Key if slot.pd.load(Ordering::Relaxed) != pd => Advice::Forbidden,
            Fault::Rights if access & Access::ON_DEMAND == 0 => Advice::NotOnDemand,
            Fault::Rights if write => Advice::Forbidden,
            _ => Advice::Fault,
        }
    }
}
