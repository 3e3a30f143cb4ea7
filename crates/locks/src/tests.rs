//! What debug builds notice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Condvar, Mutex, Rank, RwLock};

/// Whether taking a lock is refused.
fn refused<T>(take: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(take()))).is_err()
}

#[test]
fn a_rank_fits_a_bit() {
    assert!(Rank::ALL.len() <= 128);
    assert!(Rank::ALL.is_sorted());
}

#[test]
#[cfg(debug_assertions)]
fn a_lock_of_an_earlier_rank_is_refused_while_a_later_one_is_held() {
    let (qp, cq) = (Mutex::new(Rank::Qp, ()), Mutex::new(Rank::Cq, ()));
    let held = cq.lock();
    assert!(refused(|| qp.lock()));
    drop(held);
    let _qp = qp.lock();
    assert!(!refused(|| cq.lock()));
}

#[test]
#[cfg(debug_assertions)]
fn two_queue_pairs_are_never_held_at_once() {
    let (one, other) = (Mutex::new(Rank::Qp, ()), Mutex::new(Rank::Qp, ()));
    let _one = one.lock();
    assert!(refused(|| other.lock()));
}

#[test]
#[cfg(debug_assertions)]
fn a_thread_that_reads_does_not_read_again() {
    let qps = RwLock::new(Rank::Qps, ());
    let held = qps.read();
    assert!(refused(|| qps.read()));
    drop(held);
    assert!(!refused(|| qps.write()));
    let manager = Mutex::new(Rank::ConnectionManager, ());
    let _held = qps.write();
    assert!(refused(|| manager.lock()));
}

#[test]
fn a_lock_that_is_tried_waits_for_nobody_and_may_be_taken_in_any_order() {
    let (manager, qp) = (Mutex::new(Rank::ConnectionManager, 1), Mutex::new(Rank::Qp, 2));
    let groups = RwLock::new(Rank::MulticastGroups, 3);
    let _qp = qp.lock();
    assert!(qp.try_lock().is_none());
    let (manager, groups) = (manager.try_lock(), groups.try_read());
    assert_eq!((manager.map(|n| *n), groups.map(|n| *n)), (Some(1), Some(3)));
}

#[test]
#[cfg(debug_assertions)]
fn a_second_lock_of_a_rank_that_was_tried_leaves_the_first_one_noted() {
    let (one, other) = (Mutex::new(Rank::Qp, ()), Mutex::new(Rank::Qp, ()));
    let _one = one.lock();
    drop(other.try_lock());
    assert!(refused(|| other.lock()));
}

#[test]
fn what_a_panic_left_locked_is_taken_all_the_same() {
    let (queue, sockets) = (Mutex::new(Rank::Cq, 1), RwLock::new(Rank::TxSockets, 2));
    assert!(refused(|| {
        let (_queue, _sockets) = (queue.lock(), sockets.write());
        panic!("with both held");
    }));
    assert_eq!(*queue.lock(), 1);
    assert_eq!(queue.try_lock().map(|n| *n), Some(1));
    assert_eq!(*sockets.read(), 2);
    assert_eq!(*sockets.write(), 2);
    assert_eq!(queue.into_inner(), 1);
}

#[test]
fn each_thread_has_its_own() {
    let (qp, cq) = (Mutex::new(Rank::Qp, 0), Mutex::new(Rank::Cq, ()));
    let _cq = cq.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| *qp.lock() += 1);
    });
    assert_eq!(*qp.try_lock().expect("nobody holds it"), 1);
}

#[test]
fn a_thread_that_waits_to_be_notified_gives_the_mutex_back_and_takes_it_again() {
    let (count, changed) = (Mutex::new(Rank::Unacked, 0), Condvar::default());
    let earlier = Mutex::new(Rank::Instance, ());
    std::thread::scope(|scope| {
        let mut held = count.lock();
        // It gets the mutex only where the thread that waits has given it back.
        scope.spawn(|| {
            *count.lock() += 1;
            changed.notify_all();
        });
        while *held == 0 {
            held = changed.wait(held);
        }
        assert_eq!(*held, 1);
        assert!(count.try_lock().is_none());
        assert_eq!(refused(|| earlier.lock()), cfg!(debug_assertions));
        drop(held);
        assert!(!refused(|| earlier.lock()));
    });
}

#[test]
#[cfg(debug_assertions)]
fn nobody_waits_to_be_notified_with_another_lock_held() {
    let (count, changed) = (Mutex::new(Rank::Unacked, 0), Condvar::default());
    let earlier = Mutex::new(Rank::Instance, ());
    let _earlier = earlier.lock();
    assert!(refused(|| changed.wait(count.lock())));
    assert!(count.try_lock().is_some());
}

#[test]
fn threads_that_want_one_lock_have_it_one_at_a_time_and_none_is_forgotten() {
    let (count, changed) = (Mutex::new(Rank::Unacked, 0), Condvar::default());
    let (threads, rounds) = (8, if cfg!(miri) { 5 } else { 2_000 });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for round in 0..rounds {
                    let mut held = count.lock();
                    *held += 1;
                    // Held for longer than others look before they wait.
                    if round % 100 == 0 {
                        std::thread::yield_now();
                    }
                    drop(held);
                    changed.notify_all();
                }
            });
        }
        let mut held = count.lock();
        while *held < threads * rounds {
            held = changed.wait(held);
        }
    });
    assert_eq!(count.into_inner(), threads * rounds);
}
