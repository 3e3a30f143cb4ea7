//! Threads that read rings for a moment as those do that run tasks.
#![expect(clippy::undocumented_unsafe_blocks, reason = "waits in frames of a test, which nobody cancels")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::{self, Recording, TIMEOUT, V4, alone, batch, path, start_with, wait};
use linux::Config;
use linux::eventfd::{self, Counter};
use local::rings::adaptive_spin::AdaptiveSpin;
use nic::Link;
use stack::env::Claim;
use stack::{Env, Name};
use sys::time::of_process;

/// A process that sends by a ring, one that reads, and what counts its packets. One has come.
fn pair() -> (Recording, Recording, Counter, Box<dyn Claim>) {
    let (sender, reader) = (start_with(Config::default()), start_with(Config::default()));
    let claim = reader.env().claim(Name::Block(0x123)).unwrap();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert!(reader.handler().packet().is_some());
    let counter = Counter::new().unwrap();
    *reader.handler().counter.lock().unwrap() = Some(counter.clone());
    (sender, reader, counter, claim)
}

/// Takes an event as a task does: looks for a moment, then sleeps until another thread brings it.
fn take(reader: &Recording, spin: &AdaptiveSpin, counter: &Counter) {
    reader.spin_for_task(spin, || counter.has_events());
    assert!(unsafe { eventfd::wait(counter.fd()) });
    counter.taken();
}

#[test]
fn no_thread_is_woken_for_what_comes_while_a_task_looks_for_a_moment() {
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    let (taken, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Where other threads compute, one that has seen them hardly looks any more.
                let spin = AdaptiveSpin::new(Duration::from_secs(1));
                take(&reader, &spin, &counter);
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (end, mut row, mut sent) = (of_process() + TIMEOUT, 0, 0);
        while row < 10 {
            let before = support::counter(&sender, "ring_wakes");
            sender.env().send(&path(V4), &mut batch(1, &[64]));
            sent += 1;
            while taken.load(Ordering::Relaxed) < sent {
                assert!(of_process() < end, "a thread is woken again and again");
                std::hint::spin_loop();
            }
            row = if support::counter(&sender, "ring_wakes") == before { row + 1 } else { 0 };
        }
        stop.store(true, Ordering::Relaxed);
        sender.env().send(&path(V4), &mut batch(1, &[64]));
    });
}

#[test]
fn nothing_is_lost_while_tasks_look_beside_threads_that_wait_and_poll() {
    const PACKETS: u32 = 3000;
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    let taken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (reader, counter, taken) = (&reader, &counter, &taken);
            scope.spawn(move || {
                let spin = AdaptiveSpin::new(eventfd::A_STEP);
                // As many turns for each as there are packets for it: a wait that is not woken
                // never ends.
                for n in 0..PACKETS / 3 {
                    match (n / 50 + thread) % 4 {
                        0 => wait(reader, counter),
                        1 => {
                            (0..20).for_each(|_| _ = reader.poll());
                            take(reader, &spin, counter);
                        }
                        _ => take(reader, &spin, counter),
                    }
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 0..PACKETS {
            sender.env().send(&path(V4), &mut batch(n, &[64]));
            let end = Instant::now() + TIMEOUT;
            while n > 2 + taken.load(Ordering::Relaxed) {
                assert!(Instant::now() < end, "{} of {n} were told of", taken.load(Ordering::Relaxed));
                std::thread::yield_now();
            }
        }
    });
    for n in 0..PACKETS {
        assert_eq!(reader.handler().packet().unwrap().bytes[12], n as u8);
    }
}
