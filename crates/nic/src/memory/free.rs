//! The slots that no region or window has. A slot is half of a key, so which one comes next must
//! not be foreseen either.

use locks::{Mutex, MutexGuard, Rank};

use super::slot::SLOTS;
use crate::error::Error;

/// Slots free, in no order.
#[derive(Debug)]
pub(super) struct Free {
    /// None until the first is asked for: most devices that a process knows it never registers
    /// memory with.
    slots: Mutex<Option<Vec<u16>>>,
}

impl Default for Free {
    fn default() -> Self {
        Self { slots: Mutex::new(Rank::FreeSlots, None) }
    }
}

impl Free {
    /// Takes one of the free slots, each as likely as the others; the upper 16 bits of `random`
    /// choose.
    pub(super) fn take(&self, random: u32) -> Result<u32, Error> {
        let mut slots = self.lock();
        // Slot 0 stays free, so that no key is 0.
        let slots = slots.get_or_insert_with(|| (1..=(SLOTS - 1) as u16).collect());
        let chosen = ((random >> 16) as usize * slots.len()) >> 16;
        if slots.is_empty() {
            return Err(Error::Limit("memory regions and windows"));
        }
        Ok(slots.swap_remove(chosen).into())
    }

    /// How many slots are taken.
    pub(super) fn used(&self) -> u64 {
        self.lock().as_ref().map_or(0, |free| (SLOTS - 1 - free.len()) as u64)
    }

    /// A slot is free again.
    pub(super) fn give(&self, slot: u32) {
        if let Some(slots) = &mut *self.lock() {
            slots.push(slot as u16);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u16>>> {
        self.slots.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_but_0_is_given_once_and_any_may_be_first_or_last() {
        let step = 0x9e37_79b9_u32;
        let free = Free::default();
        let mut taken: Vec<u32> =
            (1..SLOTS as u32).map(|i| free.take(i.wrapping_mul(step)).unwrap()).collect();
        assert!(free.take(step).is_err());
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(1..SLOTS as u32));
        free.give(77);
        assert_eq!(free.take(u32::MAX).unwrap(), 77);
        assert_eq!(Free::default().take(0).unwrap(), 1);
        assert_eq!(Free::default().take(u32::MAX).unwrap(), SLOTS as u32 - 1);
    }
}
