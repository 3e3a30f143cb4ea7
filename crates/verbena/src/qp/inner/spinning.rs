//! A task that is about to wait for a message takes what arrives for a moment, in the thread that
//! polls it, as a C program's thread does that is about to block (`local::rings::adaptive_spin`).
//! An answer that is near then costs no switch of threads, where the engine thread would wake the
//! runtime's.
//!
//! The runtime has other tasks, too. So no task looks while another one was woken for a message and
//! has not run yet; what arrives for another task ends the moment; and a task that found what it
//! waits for again and again lets the others run.

#[cfg(feature = "software")]
use std::sync::atomic::AtomicI32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Context;

#[cfg(feature = "software")]
use local::rings::adaptive_spin::AdaptiveSpin;

use super::{QpInner, Queues};
use crate::exec;

/// How long a task looks for a message: its peer may be asleep, and is woken by its engine thread.
#[cfg(feature = "software")]
const MOMENT: std::time::Duration = std::time::Duration::from_micros(100);
/// So often in a row a task finds what it waits for; then others of its runtime run first.
const IN_A_ROW: u32 = 32;

/// Tasks that were woken for a message and have not looked for it yet. Below 0 where a forked child
/// looks for what its parent's task was woken for.
#[cfg(feature = "software")]
static WOKEN: sys::per_process::PerProcess<AtomicI32> =
    sys::per_process::PerProcess::new(|| AtomicI32::new(0));

/// Whether tasks that wait for messages of one queue pair look for a moment, and how often in a row
/// that was of use.
pub(super) struct TaskSpin {
    #[cfg(feature = "software")]
    adaptive: AdaptiveSpin,
    row: AtomicU32,
}

impl TaskSpin {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(feature = "software")]
            adaptive: AdaptiveSpin::new(MOMENT),
            row: AtomicU32::new(0),
        }
    }

    #[cfg(feature = "software")]
    fn note(&self, found: bool) {
        let row = if found { self.row.load(Ordering::Relaxed) + 1 } else { 0 };
        self.row.store(row, Ordering::Relaxed);
    }

    /// Whether it is the turn of other tasks, once.
    fn is_over(&self) -> bool {
        let is_over = self.row.load(Ordering::Relaxed) >= IN_A_ROW;
        if is_over {
            self.row.store(0, Ordering::Relaxed);
        }
        is_over
    }
}

impl QpInner {
    /// Whether a task that waits gains by taking what arrives itself, and no caller further up does
    /// it.
    pub(crate) fn task_polls(&self) -> bool {
        self.gains_by_polling() && !exec::polls()
    }

    /// For a task that is about to wait: takes what arrives for a moment, where that is likely to
    /// bring what `look` finds.
    pub(crate) fn spin<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        #[cfg(feature = "software")]
        if self.task_polls() && WOKEN.get().load(Ordering::Relaxed) <= 0 {
            return self.spin_now(look);
        }
        _ = look;
        None
    }

    #[cfg(feature = "software")]
    fn spin_now<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        use std::cell::{Cell, RefCell};

        let (look, found, seen) = (RefCell::new(look), RefCell::new(None), Cell::new(None));
        let woken = WOKEN.get();
        let has_event = || {
            self.catch_up();
            let news = Some(self.news());
            if found.borrow().is_none() && seen.replace(news) != news {
                let now = look.borrow_mut()();
                *found.borrow_mut() = now;
            }
            found.borrow().is_some() || woken.load(Ordering::Relaxed) > 0
        };
        self.stack().spin(&self.task_spin.adaptive, has_event);
        let found = found.into_inner();
        self.task_spin.note(found.is_some());
        found
    }

    /// Whether it is the turn of other tasks of the runtime: then this one is polled again after
    /// them.
    pub(crate) fn lets_others_run(&self, cx: &Context<'_>) -> bool {
        let is_over = self.task_spin.is_over();
        if is_over {
            nic::program::wake_now(cx);
        }
        is_over
    }

    /// A task waits for something else than a message: what comes from now on is the engine
    /// thread's to bring.
    pub(crate) fn sleeps(&self) {
        if self.task_polls() {
            self.stack().end_polling();
        }
    }
}

impl Queues {
    /// A task is woken for a message, for which it will look.
    pub(super) fn wakes_for_message(&mut self) {
        let counted = std::mem::replace(&mut self.woken, true);
        #[cfg(feature = "software")]
        if !counted {
            WOKEN.get().fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(not(feature = "software"))]
        let _ = counted;
    }
    /// The task looks, or never will.
    pub(super) fn looks(&mut self) {
        let counted = std::mem::replace(&mut self.woken, false);
        #[cfg(feature = "software")]
        if counted {
            WOKEN.get().fetch_sub(1, Ordering::Relaxed);
        }
        #[cfg(not(feature = "software"))]
        let _ = counted;
    }
}

#[cfg(all(test, feature = "software"))]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_finds_what_it_waits_for_again_and_again_lets_others_run() {
        let spin = TaskSpin::new();
        for _ in 0..3 {
            for _ in 0..IN_A_ROW {
                assert!(!spin.is_over());
                spin.note(true);
            }
            assert!(spin.is_over() && !spin.is_over());
        }
        (1..IN_A_ROW).for_each(|_| spin.note(true));
        spin.note(false);
        spin.note(true);
        assert!(!spin.is_over(), "it waited meanwhile, and others ran");
    }
}
