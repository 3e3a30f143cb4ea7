//! Objects that a device lists and does not keep, so that an observer finds those without a queue
//! pair.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};

use crate::cq::Cq;
use crate::device::adapter::{Adapter, CqSlot};
use crate::srq::Srq;

/// Objects of one kind, in the order in which they were made.
pub(crate) struct Listed<T>(Mutex<Vec<Weak<T>>>);

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self(Mutex::new(Rank::Listed, Vec::new()))
    }
}

impl<T> Debug for Listed<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed").finish_non_exhaustive()
    }
}

impl<T> Listed<T> {
    /// Lists one more. Before the list grows, it forgets those that are gone.
    pub(crate) fn add(&self, object: &Arc<T>) {
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|listed| listed.strong_count() > 0);
            // Half of it stays free: else each call would look at all.
            let room = all.len() + 4;
            all.reserve(room);
        }
        all.push(Arc::downgrade(object));
    }

    fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl CqSlot {
    /// Lists the completion queue that it is counted for.
    pub fn list(&self, cq: &Arc<Cq>) {
        self.0.listed_cqs.add(cq);
    }
}

impl Adapter {
    /// Completion queues that exist, of those that were listed ([`CqSlot::list`]).
    pub fn cqs(&self) -> Vec<Arc<Cq>> {
        self.listed_cqs.all()
    }

    /// Shared receive queues that exist.
    pub fn srqs(&self) -> Vec<Arc<Srq>> {
        self.listed_srqs.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_not_listed_and_the_list_does_not_grow_for_it() {
        let listed = Listed::default();
        let kept = Arc::new(0);
        listed.add(&kept);
        (1..1000).for_each(|n| listed.add(&Arc::new(n)));
        assert_eq!(listed.all(), [kept]);
        assert!(listed.0.lock().capacity() < 100);
    }
}
