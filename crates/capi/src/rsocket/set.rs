//! What an rsocket knows of a set of epoll(7) that has it, and what the set keeps of its members.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::epoll_event;
use linux::eventfd::Counter;
use locks::{Mutex, Rank};
use nic::Signal;

use crate::rsocket::object::{Rsocket, Watched};

/// A set of epoll(7).
pub(super) struct Set {
    /// The set's rsockets are kept here, and not in the kernel's set.
    pub(super) own: AtomicBool,
    pub(super) turn: AtomicU32,
    pub(super) state: Mutex<SetState>,
}

impl Default for Set {
    fn default() -> Self {
        let state = Mutex::new(Rank::RsocketSet, SetState::default());
        Self { own: AtomicBool::new(false), turn: AtomicU32::new(0), state }
    }
}

#[derive(Default)]
pub(super) struct SetState {
    pub(super) members: BTreeMap<c_int, Member>,
    /// Members that may be ready, each once.
    pub(super) touched: VecDeque<c_int>,
    /// The rsockets stay in the kernel's set: other sets or poll(2) look at that.
    pub(super) is_looked_at: bool,
    /// Counters of threads that sleep.
    pub(super) sleepers: Vec<Counter>,
}

pub(super) struct Member {
    pub(super) rsocket: Weak<Rsocket>,
    pub(super) event: epoll_event,
    /// The kernel's set got it, or was told of the last change.
    pub(super) of_kernel: bool,
    pub(super) is_touched: bool,
    /// The set was told of it once, and of nothing more (EPOLLONESHOT).
    pub(super) is_muted: bool,
    /// What an edge-triggered member was told of last.
    pub(super) told: Watched,
}

impl Set {
    /// Whether it keeps its rsockets itself.
    pub(super) fn is_own(&self) -> bool {
        self.own.load(Ordering::Relaxed)
    }

    /// A member may be ready. Called with the rsocket's lock held.
    pub(super) fn touch(&self, fd: c_int) {
        let mut state = self.state.lock();
        let Some(member) = state.members.get_mut(&fd) else { return };
        if !std::mem::replace(&mut member.is_touched, true) {
            state.touched.push_back(fd);
        }
        state.sleepers.drain(..).for_each(|sleeper| sleeper.signal());
    }

    /// The descriptor is closed. Called with the rsocket's lock held.
    pub(super) fn forget(&self, fd: c_int) {
        self.state.lock().members.remove(&fd);
    }
}
