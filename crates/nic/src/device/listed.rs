//! Objects that a device lists and does not keep, so that an observer finds those without a queue
//! pair.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};

type Object = dyn Any + Send + Sync;

/// Objects of any kind, in the order in which they were made. What they are the list does not know,
/// because a device would know its queues then, which know the device.
pub(crate) struct Listed(Mutex<Vec<Weak<Object>>>);

impl Default for Listed {
    fn default() -> Self {
        Self(Mutex::new(Rank::Listed, Vec::new()))
    }
}

impl Debug for Listed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listed").finish_non_exhaustive()
    }
}

impl Listed {
    /// Lists one more. Before the list grows, it forgets those that are gone.
    pub(crate) fn add<T: Any + Send + Sync>(&self, object: &Arc<T>) {
        let object: Arc<Object> = object.clone();
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|listed| listed.strong_count() > 0);
            // Half of it stays free: else each call would look at all.
            let room = all.len() + 4;
            all.reserve(room);
        }
        all.push(Arc::downgrade(&object));
    }

    /// The objects of one kind that exist.
    pub(crate) fn all<T: Any + Send + Sync>(&self) -> Vec<Arc<T>> {
        // Dropped without the lock: the last share of an object may be among them.
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.into_iter().filter_map(|object| object.downcast().ok()).collect()
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
        listed.add(&Arc::new("of another kind"));
        (1..1000).for_each(|n| listed.add(&Arc::new(n)));
        assert_eq!(listed.all::<i32>(), [kept]);
        assert!(listed.0.lock().capacity() < 100);
    }
}
