//! Events that the program was handed and has not acknowledged: the destruction of an object waits for those about it
//! (ibv_get_async_event(3), ibv_get_cq_event(3), rdma_get_cm_event(3)).

use locks::{Condvar, Mutex, MutexGuard, Rank};

/// Events handed to the program and not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Unacked {
    count: Mutex<u32>,
    zero: Condvar,
}

impl Default for Unacked {
    fn default() -> Unacked {
        Unacked { count: Mutex::new(Rank::Unacked, 0), zero: Condvar::default() }
    }
}

impl Unacked {
    /// One more is handed out.
    pub fn hand_out(&self) {
        *self.count.lock() += 1;
    }

    /// The program acknowledges `n`.
    pub fn ack(&self, n: u32) {
        let mut count = self.count.lock();
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.zero.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            count = self.zero.wait(count);
        }
    }
}

/// Held while an event is taken and counted as handed out, and while an object is withdrawn: whoever destroys an object
/// either finds it handed out, and waits, or nobody hands it out any more.
#[derive(Debug)]
pub(crate) struct HandingOut(Mutex<()>);

impl HandingOut {
    /// For events of one kind: `rank` says which.
    pub const fn new(rank: Rank) -> HandingOut {
        HandingOut(Mutex::new(rank, ()))
    }

    /// Until the guard is dropped nobody else hands out or withdraws.
    pub fn begin(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}
