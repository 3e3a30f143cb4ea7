//! Regions that one queue pair uses again and again. To be counted in and out for each access costs
//! two locked instructions; a queue pair is locked while it copies anyhow. So the first one that
//! uses a region is noted in its slot, and is not counted. A thread that takes the region back
//! takes that queue pair's lock once. By then a step that has seen the key is over, and a later one
//! sees that there is none. All others are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use locks::{Mutex, Rank};

use super::slot::{Slot, kind};
use super::table::Table;
use super::view::View;

/// Above the numbers of queue pairs, which slots of windows bear in the same place.
const FIRST: u32 = 1 << 31;

/// A user of regions, as a queue pair, that uses memory only while it is locked.
pub trait PinningLock: std::fmt::Debug + Send + Sync {
    /// The number that [`Table::new_pinning_lock`] gave it.
    fn number(&self) -> u32;
    /// Waits until it is not locked.
    fn wait(&self);
    /// Itself.
    fn weak(&self) -> Weak<dyn PinningLock>;
}

/// The noted users of regions.
pub(super) struct LockPinned {
    next: AtomicU32,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// By the index of the slot.
    by_slot: BTreeMap<u32, Weak<dyn PinningLock>>,
    /// The slots of each, by its number.
    slots: BTreeSet<(u32, u32)>,
}

impl Default for LockPinned {
    fn default() -> Self {
        Self { next: AtomicU32::new(FIRST), noted: Mutex::new(Rank::LockPinned, Noted::default()) }
    }
}

impl Table {
    /// A number for one that will use regions; 0, which is never noted, where none is left.
    pub fn new_pinning_lock(&self) -> u32 {
        let next = |n: u32| n.checked_add(1);
        self.lock_pinned.next.try_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(0)
    }

    /// A user ends, and is locked now: others may take its places.
    pub fn forget_pinning_lock(&self, who: &dyn PinningLock) {
        let number = who.number();
        let mut noted = self.lock_pinned.noted.lock();
        let slots: Vec<u32> =
            noted.slots.range((number, 0)..=(number, u32::MAX)).map(|(_, slot)| *slot).collect();
        for index in slots {
            noted.slots.remove(&(number, index));
            let user = &self.slot(index).user;
            if user.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                noted.by_slot.remove(&index);
            }
        }
    }

    /// Waits until no user has the region of a slot, whose key is taken back. Then neither the
    /// noted one nor a counted one has it. No lock may be held.
    pub(super) fn wait_for_users(&self, index: u32) {
        let slot = self.slot(index);
        // A user that is noted from now on reads this, and so sees that there is no key.
        let number = slot.user.swap(0, Ordering::AcqRel);
        if number != 0 {
            let mut noted = self.lock_pinned.noted.lock();
            let pinning_lock = noted.by_slot.remove(&(index & 0xffff));
            noted.slots.remove(&(number, index & 0xffff));
            drop(noted);
            pinning_lock
                .and_then(|pinning_lock| pinning_lock.upgrade())
                .inspect(|pinning_lock| pinning_lock.wait());
        }
        slot.wait();
    }
}

impl View<'_> {
    /// Whether it need not be counted in: it is noted in the slot, perhaps since now. Ask for the
    /// key after that.
    #[inline(always)]
    pub(super) fn is_lock_pinned(&self, index: u32, slot: &Slot, key: u32) -> bool {
        let Some(lock) = self.lock else { return false };
        match slot.user.load(Ordering::Acquire) {
            0 => self.becomes_lock_pinned(lock, index, slot, key),
            user => user == self.number && slot.kind.load(Ordering::Relaxed) == kind::REGION,
        }
    }

    #[cold]
    fn becomes_lock_pinned(&self, lock: &dyn PinningLock, index: u32, slot: &Slot, key: u32) -> bool {
        let is_region = slot.kind.load(Ordering::Relaxed) == kind::REGION;
        if self.number == 0 || key == 0 || slot.key.load(Ordering::Acquire) != key || !is_region {
            return false;
        }
        // No user is waited for: any lock may be held here.
        let Some(mut noted) = self.table.lock_pinned.noted.try_lock() else { return false };
        // In this order: a thread that takes the region back, and reads which user is noted in the
        // slot, finds it here.
        let index = index & 0xffff;
        let before = noted.by_slot.insert(index, lock.weak());
        let is_first =
            slot.user.compare_exchange(0, self.number, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        match before {
            _ if is_first => _ = noted.slots.insert((self.number, index)),
            Some(before) => _ = noted.by_slot.insert(index, before),
            None => _ = noted.by_slot.remove(&index),
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use locks::MutexGuard;
    use transport::{Memory, Sge};

    use super::super::{Access, Mr};
    use super::*;

    #[derive(Debug)]
    struct User {
        me: Weak<Self>,
        number: u32,
        lock: Mutex<()>,
    }

    impl User {
        fn new(table: &Table) -> Arc<Self> {
            let (number, lock) = (table.new_pinning_lock(), Mutex::new(Rank::Qp, ()));
            Arc::new_cyclic(|me| Self { me: me.clone(), number, lock })
        }
        /// A byte of a region, and the lock that is held since it was read.
        fn read<'a>(&'a self, table: &Table, mr: Mr) -> Option<(u8, MutexGuard<'a, ()>)> {
            let held = self.lock.lock();
            let mut byte = [0];
            let sge = Sge { addr: 0, length: 1, lkey: mr.key };
            table.view(1, 0).pinned_by(self).get(&sge, &mut byte).ok()?;
            Some((byte[0], held))
        }
    }

    impl PinningLock for User {
        fn number(&self) -> u32 {
            self.number
        }
        fn wait(&self) {
            drop(self.lock.lock());
        }
        fn weak(&self) -> Weak<dyn PinningLock> {
            self.me.clone()
        }
    }

    static BYTE: AtomicU32 = AtomicU32::new(7);

    fn region(table: &Table) -> Mr {
        let at = BYTE.as_ptr().expose_provenance() as u64;
        // SAFETY: atomics that live for ever.
        unsafe { table.register(1, at, 4, 0, Access::LOCAL_WRITE, 0x1234_5678) }.unwrap()
    }

    fn counted(table: &Table, mr: Mr) -> u32 {
        table.slot(mr.key.0 >> 16).in_flight.load(Ordering::SeqCst)
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the other thread gets as far as it can")]
    fn deregistration_waits_for_the_step_of_a_thread_that_uses_the_region_again_and_again() {
        let table = Table::new();
        let (mr, one, other) = (region(&table), User::new(&table), User::new(&table));
        let (byte, held) = one.read(&table, mr).unwrap();
        assert_eq!((byte, counted(&table, mr)), (7, 0));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.deregister(mr).unwrap();
                assert!(is_over.load(Ordering::SeqCst));
            });
            std::thread::sleep(Duration::from_millis(50));
            is_over.store(true, Ordering::SeqCst);
            drop(held);
        });
        assert!(one.read(&table, mr).is_none() && other.read(&table, mr).is_none());
    }

    #[test]
    fn the_first_one_is_noted_until_it_ends_and_then_the_next_is() {
        let table = Table::new();
        let (mr, one, other) = (region(&table), User::new(&table), User::new(&table));
        let user = || table.slot(mr.key.0 >> 16).user.load(Ordering::SeqCst);
        for who in [&one, &other, &one] {
            assert_eq!(who.read(&table, mr).map(|(byte, _)| byte), Some(7));
            assert_eq!(user(), one.number);
        }
        table.forget_pinning_lock(&*other);
        assert_eq!(user(), one.number);
        {
            let _locked = one.lock.lock();
            table.forget_pinning_lock(&*one);
        }
        assert_eq!(user(), 0);
        assert!(other.read(&table, mr).is_some() && user() == other.number);
        table.deregister(mr).unwrap();
        assert_eq!(user(), 0);
        let noted = table.lock_pinned.noted.lock();
        assert!(noted.by_slot.is_empty() && noted.slots.is_empty());
    }

    #[test]
    fn regions_that_come_and_go_while_they_are_used_are_used_or_not_there() {
        let table = Table::new();
        let users = [User::new(&table), User::new(&table)];
        let (current, ends) = (AtomicU32::new(region(&table).key.0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for user in &users {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        let mr = Mr { key: wire::Rkey(current.load(Ordering::SeqCst)) };
                        assert!(user.read(&table, mr).is_none_or(|(byte, _)| byte == 7));
                    }
                });
            }
            for _ in 0..2_000 {
                let before = Mr { key: wire::Rkey(current.load(Ordering::SeqCst)) };
                table.deregister(before).unwrap();
                assert!(users.iter().all(|user| user.read(&table, before).is_none()));
                current.store(region(&table).key.0, Ordering::SeqCst);
            }
            ends.store(true, Ordering::Relaxed);
        });
    }
}
