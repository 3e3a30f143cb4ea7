//! Every order of the threads that take a lock and give it back, wait and notify, on loom's models
//! of the atomics and of futex(2): `RUSTFLAGS="--cfg loom" cargo test --release -p verbena-locks
//! --lib --target-dir target/loom loom_tests`

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::raw::{Condvar, Lock};

/// A lock, threads that wait for a change, and what the lock guards: a thread that has not seen all
/// that was written under the lock before counts wrong.
#[derive(Default)]
struct Counted {
    lock: Lock,
    changed: Condvar,
    count: AtomicU32,
}

impl Counted {
    fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }
    fn add(&self) {
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }
}

fn explore(model: impl Fn(Arc<Counted>) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || model(Arc::default()));
}

#[test]
fn one_thread_at_a_time_has_the_lock_and_who_waits_gets_it() {
    explore(|counted| {
        let threads = [(); 2].map(|()| {
            let counted = counted.clone();
            thread::spawn(move || {
                counted.lock.wait_and_take();
                counted.add();
                counted.lock.give_back();
            })
        });
        counted.lock.wait_and_take();
        counted.add();
        counted.lock.give_back();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(counted.lock.take());
        assert_eq!(counted.count(), 3);
    });
}

#[test]
fn who_tries_has_it_or_does_not_wait() {
    explore(|counted| {
        let other = counted.clone();
        let thread = thread::spawn(move || {
            let taken = other.lock.take();
            if taken {
                other.add();
                other.lock.give_back();
            }
            u32::from(taken)
        });
        counted.lock.wait_and_take();
        counted.add();
        counted.lock.give_back();
        let others = thread.join().unwrap();
        counted.lock.wait_and_take();
        assert_eq!(counted.count(), 1 + others);
    });
}

#[test]
fn a_thread_that_waits_for_a_change_is_woken() {
    explore(|counted| {
        let other = counted.clone();
        let thread = thread::spawn(move || {
            other.lock.wait_and_take();
            other.add();
            other.lock.give_back();
            other.changed.notify_all();
        });
        counted.lock.wait_and_take();
        while counted.count() == 0 {
            let notified = counted.changed.notified();
            counted.lock.give_back();
            counted.changed.wait_behind(notified);
            counted.lock.wait_and_take();
        }
        thread.join().unwrap();
    });
}
