//! Tasks that sleep in real time, and the thread that wakes them: one a process, from the first
//! sleep on. A forked child has its own.

use std::collections::BTreeMap;
use std::task::Waker;
use std::thread::Thread;
use std::time::Instant;

use locks::{Mutex, Rank};
use nic::program::{self, Kept, wake_all};

/// A place among the sleepers.
#[derive(Debug)]
pub(crate) struct Sleeper {
    at: Instant,
    number: u64,
}

/// Wakes at a time; in place of the sleeper of before. `kept` is a clone of the waker.
pub(crate) fn wake_at(at: Instant, before: Option<Sleeper>, waker: &Waker, kept: Kept<Waker>) -> Sleeper {
    let sleepers = this_process();
    let number = {
        let mut state = sleepers.0.lock();
        let old = before.and_then(|sleeper| state.wakers.remove(&(sleeper.at, sleeper.number)));
        state.number += 1;
        let number = state.number;
        state.wakers.insert((at, number), kept);
        if state.thread.is_none() {
            let started = std::thread::Builder::new().name("verbena-time".to_owned()).spawn(wake_forever);
            state.thread = started.ok().map(|handle| handle.thread().clone());
        }
        let first = state.wakers.first_key_value().is_some_and(|(key, _)| *key == (at, number));
        let thread = state.thread.clone();
        drop(state);
        drop(old);
        match thread {
            Some(thread) if first => thread.unpark(),
            Some(_) => {}
            // The system has no thread for it: asking again and again is all that is left.
            None => program::call(|| waker.wake_by_ref()),
        }
        number
    };
    Sleeper { at, number }
}

/// Wakes no more.
pub(crate) fn forget(sleeper: &Sleeper) {
    let waker = this_process().0.lock().wakers.remove(&(sleeper.at, sleeper.number));
    drop(waker);
}

struct Sleepers(Mutex<State>);

#[derive(Default)]
struct State {
    wakers: BTreeMap<(Instant, u64), Kept<Waker>>,
    number: u64,
    thread: Option<Thread>,
}

static SLEEPERS: sys::per_process::PerProcess<Sleepers> =
    sys::per_process::PerProcess::new(|| Sleepers(Mutex::new(Rank::Sleepers, State::default())));

fn this_process() -> &'static Sleepers {
    SLEEPERS.get()
}

fn wake_forever() {
    let sleepers = this_process();
    loop {
        let now = Instant::now();
        let (due, next) = {
            let mut state = sleepers.0.lock();
            let later = state.wakers.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut state.wakers, later);
            (due, state.wakers.first_key_value().map(|((at, _), _)| *at))
        };
        // Nothing is locked: a waker may call anything.
        let none = due.is_empty();
        wake_all(due.into_values());
        match next {
            _ if !none => {}
            Some(at) => std::thread::park_timeout(at.saturating_duration_since(now)),
            None => std::thread::park(),
        }
    }
}
