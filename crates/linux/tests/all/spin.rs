//! Threads that wait for an event and read the sockets for a moment before they sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::{LO, Recording, TIMEOUT, V4, alone, batch, path, start_with, until_it_sleeps, wait};
use linux::Config;
use linux::eventfd::{self, Counter};
use nic::Link;
use stack::Env;
use sys::thread::own_thread;
use sys::time::of_process;

/// A host whose packets come to itself by the network.
fn host() -> Recording {
    let host = start_with(Config { same_host: false, ..Config::default() });
    host.env().attach(LO).unwrap();
    host
}

/// What counts a host's packets from now on, and what a thread that waits looks for so long.
fn counter(host: &Recording, moment: Duration) -> Counter {
    let counter = Counter::of(moment).unwrap();
    *host.handler().counter.lock().unwrap() = Some(counter.clone());
    counter
}

/// Which thread dispatched a packet that is sent when `ready` has returned, which is told the
/// number of a thread that waits.
fn dispatched_by(host: &Recording, counter: &Counter, ready: impl FnOnce(u32)) -> String {
    std::thread::scope(|scope| {
        let (tell, number) = mpsc::channel();
        let waiter = std::thread::Builder::new().name("waiter".to_owned());
        let waiter = waiter.spawn_scoped(scope, move || {
            tell.send(own_thread()).unwrap();
            wait(host, counter);
        });
        ready(number.recv().unwrap());
        host.env().send(&path(V4), &mut batch(1, &[64]));
        waiter.unwrap().join().unwrap();
        host.handler().packet().unwrap().thread
    })
}

#[test]
fn a_thread_that_looks_for_a_moment_takes_a_packet_from_its_socket_itself() {
    let _alone = alone();
    let host = host();
    let end = of_process() + TIMEOUT;
    // The engine may be in the midst of the packet before. Where other threads compute, a thread
    // gives its look up, and hardly looks again for that counter: each try has a new one.
    let pauses = [5, 1, 0].map(Duration::from_millis);
    let mut tries = pauses.iter().cycle().map(|pause| {
        let counter = counter(&host, Duration::from_secs(1));
        dispatched_by(&host, &counter, |_| std::thread::sleep(*pause))
    });
    while tries.next().unwrap() != "waiter" {
        assert!(of_process() < end, "by the engine each time");
    }
}

#[test]
fn a_look_in_vain_gives_the_sockets_back_to_the_engine_at_once() {
    let _alone = alone();
    let host = host();
    let counter = counter(&host, eventfd::A_STEP);
    let (end, mut row) = (of_process() + TIMEOUT, 0);
    // A thread that sleeps may wait for a lock, and look later.
    while row < 5 {
        assert!(of_process() < end, "by the thread again and again");
        let by_engine = dispatched_by(&host, &counter, until_it_sleeps) == "verbena";
        row = if by_engine { row + 1 } else { 0 };
    }
}

#[test]
fn no_event_is_lost_while_threads_look_at_sockets_and_sleep() {
    const PACKETS: u32 = 3000;
    let _alone = alone();
    let host = host();
    let counter = counter(&host, eventfd::A_WAKE);
    let taken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (host, counter, taken) = (&host, &counter, &taken);
            scope.spawn(move || {
                // As many turns for each as there are packets for it: a wait that is not woken
                // never ends.
                for n in 0..PACKETS / 3 {
                    match (n + thread) % 13 {
                        0 => (0..20).for_each(|_| _ = host.poll()),
                        1 => std::thread::sleep(Duration::from_micros(300)),
                        2 => host.end_polling(),
                        _ => {}
                    }
                    wait(host, counter);
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 0..PACKETS {
            host.env().send(&path(V4), &mut batch(n, &[64]));
            let end = Instant::now() + TIMEOUT;
            while n > 2 + taken.load(Ordering::Relaxed) {
                assert!(Instant::now() < end, "{} of {n} were told of", taken.load(Ordering::Relaxed));
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), PACKETS);
}
