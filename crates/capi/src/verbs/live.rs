//! Which C objects exist, by address. Programs leave pointers to objects in structures that
//! librdmacm looks into later (`rdma_cm_id.qp` and `srq`), and destroy the objects first. Devices
//! are closed before what was made on them. A call that follows such a pointer asks here, and holds
//! the table until it has done with the object.

use std::collections::BTreeSet;

use locks::{Mutex, MutexGuard, Rank};

use sys::per_process::PerProcess;

/// The addresses of the objects of one kind that this process has made and not destroyed.
pub(crate) struct Live(PerProcess<Mutex<BTreeSet<usize>>>);

impl Live {
    pub(super) const fn new() -> Self {
        Self(PerProcess::new(|| Mutex::new(Rank::Objects, BTreeSet::new())))
    }

    /// An object is made.
    pub(super) fn enter<T>(&self, object: *mut T) {
        self.lock().insert(object.expose_provenance());
    }

    /// An object is about to be freed: each thread that looked at it has done so, and no thread
    /// finds it any more.
    pub(super) fn leave<T>(&self, object: *mut T) {
        self.lock().remove(&object.addr());
    }

    /// Runs `f` on an object while it can not be freed; `None` where there is no such object any
    /// more. `f` makes and destroys none of this kind.
    pub(super) fn with<T, R>(&self, object: *mut T, f: impl FnOnce(*mut T) -> R) -> Option<R> {
        let live = self.lock();
        live.contains(&object.addr()).then(|| f(object))
    }

    /// Whether it exists.
    pub(super) fn has<T>(&self, object: *mut T) -> bool {
        self.with(object, |_| ()).is_some()
    }

    /// Runs `f` on all objects while none can be freed.
    pub(super) fn each<T>(&self, f: impl FnMut(*mut T)) {
        self.lock().iter().map(|&at| std::ptr::with_exposed_provenance_mut::<T>(at)).for_each(f);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.0.get().lock()
    }
}
