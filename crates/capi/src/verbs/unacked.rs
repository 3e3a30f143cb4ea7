//! Events that the program was handed and has not acknowledged: the destruction of an object waits
//! for those about it (ibv_get_async_event(3), ibv_get_cq_event(3), rdma_get_cm_event(3)).

use locks::{Condvar, Mutex, MutexGuard, Rank};

use crate::checked::taken::{self, Taken};

/// Events handed to the program and not acknowledged yet.
#[derive(Debug)]
pub(crate) struct Unacked {
    state: Mutex<State>,
    zero: Condvar,
}

#[derive(Debug, Default)]
struct State {
    count: u32,
    /// A thread waits until it is 0: to notify no thread is a system call all the same.
    awaited: bool,
    /// The call that was handed the last one, where calls are checked.
    taken: Option<Taken>,
}

impl Default for Unacked {
    fn default() -> Self {
        Self { state: Mutex::new(Rank::Unacked, State::default()), zero: Condvar::default() }
    }
}

impl Unacked {
    /// Counts one more event that is handed out.
    pub(crate) fn hand_out(&self) {
        let mut state = self.state.lock();
        state.count += 1;
        state.taken = Taken::here();
    }

    /// The program acknowledges `n`.
    pub(crate) fn ack(&self, n: u32) {
        let mut state = self.state.lock();
        let before = state.count;
        state.count = before.saturating_sub(n);
        if state.count == 0 && std::mem::take(&mut state.awaited) {
            self.zero.notify_all();
        }
        drop(state);
        if n > before {
            taken::too_many(n, before);
        }
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock();
        if state.count > 0
            && let Some(taken) = state.taken.take()
        {
            drop(state);
            taken.is_awaited();
            state = self.state.lock();
        }
        while state.count > 0 {
            state.awaited = true;
            state = self.zero.wait(state);
        }
    }
}

/// Held while an event is taken and counted as handed out, and while an object is withdrawn. So a
/// thread that destroys an object either finds it handed out, and waits, or no thread hands it out
/// any more.
#[derive(Debug)]
pub(crate) struct HandingOut(Mutex<()>);

impl HandingOut {
    /// For events of one kind: `rank` says which.
    pub(crate) const fn new(rank: Rank) -> Self {
        Self(Mutex::new(rank, ()))
    }

    /// Until the guard is dropped no other thread hands out or withdraws.
    pub(crate) fn begin(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}
