//! The locks of a host, each with a rank, and the one order in which they are taken: [`Rank`].
//!
//! Internal to Verbena: it promises no stability.
//!
//! A thread that holds a lock takes only locks of later ranks, and never two of one rank: not two
//! queue pairs, not two completion queues. So no two threads can wait for each other. In builds
//! with debug assertions each thread knows what it holds, and a lock that is taken out of order
//! panics with both ranks and the place; so every test run checks the order. In release builds a
//! rank is nothing: a [`Mutex`] and a [`Condvar`] are a word each (`raw`), a [`RwLock`] is the
//! standard library's.
//!
//! A lock of a thread that panicked is taken all the same. The code that catches the panic (the
//! engine thread, the C functions) gives up the instance as a whole. Until then calls go on as far
//! as they can.
//!
//! | file | what |
//! |---|---|
//! | `rank` | the order |
//! | `mutex`, `rwlock` | the two kinds of lock |
//! | `condvar` | waiting until another thread changes what a mutex guards |
//! | `held` | what a thread holds; debug assertions only |
//! | `raw`, `futex` | what a mutex and a condition variable are made of; the only unsafe code |
//! | `model` | loom's in place of them |
//!
//! With `--cfg loom` a mutex is loom's model of one, for tests that try every order of the threads
//! (release builds: the models' threads are one thread of the system, which would hold the ranks of
//! all).

mod condvar;
mod futex;
#[cfg(debug_assertions)]
mod held;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(loom)]
mod model;
mod mutex;
mod rank;
mod raw;
mod rwlock;
#[cfg(test)]
mod tests;

#[cfg(loom)]
use model as lock;
#[cfg(not(loom))]
use raw as lock;

pub use condvar::Condvar;
pub use mutex::{Mutex, MutexGuard};
pub use rank::Rank;
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
