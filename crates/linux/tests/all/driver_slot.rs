//! Threads that wait for an event and read the rings meanwhile.
#![expect(clippy::undocumented_unsafe_blocks, reason = "waits in frames of a test, which nobody cancels")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Recording, TIMEOUT, Told, V4, alone, batch, path, start_with, until_it_sleeps, wait};
use linux::Config;
use linux::eventfd::{self, Counter, Wait};
use nic::{Link, Platform, Signal};
use stack::env::{Claim, HandedOver};
use stack::{Env, Name};
use sys::thread::own_thread;
use sys::time::of_process;

/// A process that sends by a ring, one that reads, and what counts its packets. One has come.
fn pair() -> (Recording, Recording, Counter, Box<dyn Claim>) {
    pair_with(Counter::new().unwrap())
}

fn pair_with(counter: Counter) -> (Recording, Recording, Counter, Box<dyn Claim>) {
    let (sender, reader) = (start_with(Config::default()), start_with(Config::default()));
    let claim = reader.env().claim(Name::Block(0x123)).unwrap();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert!(reader.handler().packet().is_some());
    *reader.handler().counter.lock().unwrap() = Some(counter.clone());
    (sender, reader, counter, claim)
}

/// A thread of this name, and its number.
fn named<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> (std::thread::JoinHandle<T>, u32) {
    let (tell, number) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        tell.send(own_thread()).unwrap();
        f()
    });
    (thread.unwrap(), number.recv().unwrap())
}

/// Where packets are dispatched that are sent one by one, each when `ready` has returned.
fn dispatched_in(sender: &Recording, reader: &Recording, ready: impl Fn(), wanted: &str) {
    // By the time that the process has computed: on a busy machine it waits for a processor.
    let end = of_process() + TIMEOUT;
    // The other end learns how to wake a thread when the engine has told it so.
    let mut row = 0;
    while row < 10 {
        assert!(of_process() < end, "not {wanted}");
        ready();
        sender.env().send(&path(V4), &mut batch(1, &[64]));
        row = if reader.handler().packet().unwrap().thread == wanted { row + 1 } else { 0 };
    }
}

#[test]
fn a_thread_that_waits_takes_packets_itself_and_the_engine_takes_over_when_it_stops() {
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    static STOP: AtomicBool = AtomicBool::new(false);
    let (waiter, number) = {
        let (reader, counter) = (reader.clone(), counter.clone());
        named("waiter", move || {
            while !STOP.load(Ordering::Relaxed) {
                wait(&reader, &counter);
            }
        })
    };
    dispatched_in(&sender, &reader, || until_it_sleeps(number), "waiter");
    STOP.store(true, Ordering::Relaxed);
    sender.env().send(&path(V4), &mut batch(1, &[64]));
    waiter.join().unwrap();
    assert!(reader.handler().packet().is_some());
    dispatched_in(&sender, &reader, || (), "verbena");
}

#[test]
fn a_thread_is_woken_in_its_driver_slot_by_an_event_that_came_another_way() {
    let _alone = alone();
    let (_sender, reader, counter, _claim) = pair();
    for n in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| wait(&reader, &counter));
            // Before it drives, while it takes the slot, when it waits.
            std::thread::sleep(Duration::from_micros(n));
            counter.signal();
        });
    }
}

#[test]
fn nothing_is_lost_while_threads_wait_leave_poll_and_stay_away() {
    comes_and_goes(Counter::new().unwrap());
}

#[test]
fn nothing_is_lost_where_threads_look_for_a_moment_before_they_sleep() {
    comes_and_goes(Counter::of(eventfd::A_STEP).unwrap());
}

fn comes_and_goes(counter: Counter) {
    const PACKETS: u32 = 3000;
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair_with(counter);
    let taken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (reader, counter, taken) = (&reader, &counter, &taken);
            scope.spawn(move || {
                // As many turns for each as there are packets for it: a wait that is not woken
                // never ends.
                for n in 0..PACKETS / 3 {
                    match (n + thread) % 13 {
                        0 => (0..20).for_each(|_| _ = reader.poll()),
                        1 => std::thread::sleep(Duration::from_micros(300)),
                        2 => reader.end_polling(),
                        _ => {}
                    }
                    wait(reader, counter);
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 0..PACKETS {
            sender.env().send(&path(V4), &mut batch(n, &[64]));
            let end = Instant::now() + TIMEOUT;
            // Most find no thread awake.
            while n > 2 + taken.load(Ordering::Relaxed) {
                assert!(Instant::now() < end, "{} of {n} were told of", taken.load(Ordering::Relaxed));
                std::thread::yield_now();
            }
            if n % 500 == 0 {
                // Until the thread that drives is revoked.
                std::thread::sleep(Duration::from_millis(80));
            }
        }
    });
    for n in 0..PACKETS {
        assert_eq!(reader.handler().packet().unwrap().bytes[12], n as u8);
    }
}

/// Whether of 40 packets, each sent when a thread has taken the one before and looks for the next,
/// ten in a row wake no thread.
fn wakes_none(sender: &Recording, reader: &Recording, counter: &Counter) -> bool {
    let (taken, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                wait(reader, counter);
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (mut row, mut sent) = (0, 0);
        while row < 10 && sent < 40 {
            let before = support::counter(sender, "ring_wakes");
            sender.env().send(&path(V4), &mut batch(1, &[64]));
            sent += 1;
            let end = Instant::now() + TIMEOUT;
            while taken.load(Ordering::Relaxed) < sent {
                assert!(Instant::now() < end, "a packet is not told of");
                std::hint::spin_loop();
            }
            row = if support::counter(sender, "ring_wakes") == before { row + 1 } else { 0 };
        }
        stop.store(true, Ordering::Relaxed);
        sender.env().send(&path(V4), &mut batch(1, &[64]));
        row == 10
    })
}

#[test]
fn nobody_is_woken_for_what_comes_while_a_thread_looks_for_a_moment() {
    let _alone = alone();
    let (sender, reader, mut counter, _claim) = pair_with(Counter::of(eventfd::A_STEP).unwrap());
    let end = of_process() + TIMEOUT;
    // Where other threads compute, a thread hardly looks any more for a counter that has seen them.
    while !wakes_none(&sender, &reader, &counter) {
        assert!(of_process() < end, "a thread is woken again and again");
        counter = Counter::of(eventfd::A_STEP).unwrap();
        *reader.handler().counter.lock().unwrap() = Some(counter.clone());
    }
}

#[test]
fn who_takes_one_event_behind_the_other_has_no_engine_woken_which_looks_when_it_stays_away() {
    const TURNS: u32 = 2_000;
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair_with(Counter::of(eventfd::A_STEP).unwrap());
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..5 {
        TAKEN.store(0, Ordering::Relaxed);
        let (waiter, _) = {
            let (reader, counter) = (reader.clone(), counter.clone());
            named("waiter", move || {
                for _ in 0..TURNS {
                    wait(&reader, &counter);
                    TAKEN.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let by_engine = (0..TURNS)
            .filter(|&n| {
                sender.env().send(&path(V4), &mut batch(n, &[64]));
                let thread = reader.handler().packet().expect("it arrives").thread;
                while TAKEN.load(Ordering::Relaxed) <= n {
                    std::thread::yield_now();
                }
                thread == "verbena"
            })
            .count();
        waiter.join().unwrap();
        assert!(by_engine < TURNS as usize, "all by the engine");
        // It does not come back.
        for n in 0..3 {
            sender.env().send(&path(V4), &mut batch(n, &[64]));
            assert_eq!(reader.handler().packet().expect("the engine looks").thread, "verbena");
        }
        for _ in 0..3 {
            wait(&reader, &counter);
        }
    }
}

#[test]
fn a_wake_that_is_owed_is_paid_when_the_thread_gets_up_and_by_the_engine_where_it_stays() {
    let _alone = alone();
    let (sender, reader, _, _claim) = pair();
    let own = Counter::new().unwrap();
    let _own_claim = sender.env().claim(Name::Block(0x456)).unwrap();
    let back = nic::Path { dest_qpn: wire::Qpn::new(0x45_6001), ..path(V4) };
    reader.env().send(&back, &mut batch(0, &[64]));
    assert!(sender.handler().packet().is_some());
    let to_qp1 = nic::Path { dest_qpn: wire::Qpn::GSI, ..path(V4) };
    for gets_up in [true, false] {
        for n in 0..20 {
            assert!(matches!(sender.wait_as_driver(&own), Wait::InDriverSlot(_)));
            assert!(
                sender.env().hand_over(&[Name::Block(0x123)], &to_qp1, &mut batch(n, &[64]))
                    == HandedOver::Done
            );
            if gets_up {
                sender.release_driver(Some(&own), false);
            }
            assert_eq!(reader.handler().packet().expect("it arrives").bytes[12], n as u8);
            sender.release_driver(Some(&own), false);
        }
    }
}

#[test]
fn an_event_that_a_thread_brings_itself_it_has_taken() {
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    let end = Instant::now() + TIMEOUT;
    loop {
        sender.env().send(&path(V4), &mut batch(0, &[64]));
        match reader.wait_as_driver(&counter) {
            Wait::Over => break,
            Wait::InDriverSlot(_) => reader.release_driver(Some(&counter), false),
            // The engine was faster.
            Wait::AtCounter => {
                assert!(unsafe { eventfd::wait(counter.fd()) });
                counter.taken();
            }
        }
        assert!(Instant::now() < end);
    }
}

#[test]
fn a_thread_that_left_its_driver_slot_without_a_word_is_not_waited_for() {
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    let (left, _) = {
        let (reader, counter) = (reader.clone(), counter.clone());
        named("left", move || {
            let end = Instant::now() + TIMEOUT;
            loop {
                match reader.wait_as_driver(&counter) {
                    Wait::InDriverSlot(_) => break,
                    Wait::Over => {}
                    Wait::AtCounter => {
                        assert!(unsafe { eventfd::wait(counter.fd()) });
                        counter.taken();
                    }
                }
                assert!(Instant::now() < end);
            }
        })
    };
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    left.join().unwrap();
    let sent = Instant::now();
    for _ in 0..2 {
        sender.env().send(&path(V4), &mut batch(1, &[64]));
        assert!(reader.handler().packet().is_some());
    }
    assert!(sent.elapsed() < Duration::from_secs(2));
    // It is gone: another one may sit there.
    while counter_has(&counter) {
        assert!(unsafe { eventfd::wait(counter.fd()) });
        counter.taken();
    }
    let (waiter, number) = {
        let (reader, counter) = (reader.clone(), counter.clone());
        named("waiter", move || (0..30).for_each(|_| wait(&reader, &counter)))
    };
    let mut found = 0;
    for _ in 0..30 {
        until_it_sleeps(number);
        sender.env().send(&path(V4), &mut batch(1, &[64]));
        found += u32::from(reader.handler().packet().unwrap().thread == "waiter");
    }
    waiter.join().unwrap();
    assert!(found > 0);
}

fn counter_has(counter: &Counter) -> bool {
    let mut poll = libc::pollfd { fd: counter.fd(), events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn a_thread_that_is_woken_for_others_again_and_again_leaves_the_work_to_the_engine() {
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    let own = Counter::new().unwrap();
    let (waiter, number) = {
        let (reader, own) = (reader.clone(), own.clone());
        named("waiter", move || wait(&reader, &own))
    };
    let threads: Vec<String> = (0..60)
        .map(|n| {
            until_it_sleeps(number);
            sender.env().send(&path(V4), &mut batch(n, &[64]));
            reader.handler().packet().unwrap().thread
        })
        .collect();
    assert!(threads.iter().filter(|thread| *thread == "waiter").count() < 20, "{threads:?}");
    assert!(threads[40..].iter().all(|thread| thread == "verbena"), "{threads:?}");
    own.signal();
    waiter.join().unwrap();
    drop(counter);
}

#[test]
fn timers_are_served_while_a_thread_drives() {
    let _alone = alone();
    let (sender, reader, counter, _claim) = pair();
    let (waiter, _) = {
        let (reader, counter) = (reader.clone(), counter.clone());
        named("waiter", move || (0..50).for_each(|_| wait(&reader, &counter)))
    };
    let mut latest = Duration::ZERO;
    for _ in 0..50 {
        let due = Instant::now() + Duration::from_millis(3);
        *reader.handler().deadline.lock().unwrap() = Some(due);
        reader.env().wake_at(due);
        let expired = |told: &Told| match told {
            Told::Expired(at) => Some(*at),
            _ => None,
        };
        let at = reader.handler().find(expired).expect("nobody serves the timer");
        latest = latest.max(at.saturating_duration_since(due));
        sender.env().send(&path(V4), &mut batch(1, &[64]));
        assert!(reader.handler().packet().is_some());
    }
    waiter.join().unwrap();
    assert!(latest < Duration::from_secs(1), "{latest:?} late");
}

#[test]
fn nobody_drives_where_the_program_wants_no_waiting_or_there_is_nothing_to_read() {
    let _alone = alone();
    let (_sender, reader, counter, _claim) = pair();
    let nothing = start_with(Config::default());
    assert_eq!(nothing.wait_as_driver(&counter), Wait::AtCounter);
    assert!(matches!(reader.wait_as_driver(&counter), Wait::InDriverSlot(_)));
    // Another thread drives already.
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(reader.wait_as_driver(&counter), Wait::AtCounter));
    });
    reader.release_driver(Some(&counter), false);
    counter.signal();
    assert_eq!(reader.wait_as_driver(&counter), Wait::AtCounter, "there is an event");
    unsafe { libc::fcntl(counter.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert!(unsafe { eventfd::wait(counter.fd()) });
    counter.taken();
    assert_eq!(reader.wait_as_driver(&counter), Wait::AtCounter);
    // No thread has kept the driver slot, and the program may change its mind.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(reader.wait_as_driver(&counter), Wait::AtCounter);
            unsafe { libc::fcntl(counter.fd(), libc::F_SETFL, 0) };
            assert!(matches!(reader.wait_as_driver(&counter), Wait::InDriverSlot(_)));
            reader.release_driver(Some(&counter), false);
        });
    });
}
