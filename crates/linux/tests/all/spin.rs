//! Threads that wait for an event and read the sockets for a moment before they sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::{LO, Recording, TIMEOUT, V4, alone, batch, path, start_with, wait};
use linux::Config;
use linux::eventfd::{self, Counter};
use nic::Link;
use stack::Env;

/// A host whose packets come to itself by the network, and what counts them.
fn host(moment: Duration) -> (Recording, Counter) {
    let host = start_with(Config { same_host: false, ..Config::default() });
    host.env().attach(LO).unwrap();
    let counter = Counter::of(moment).unwrap();
    *host.handler().counter.lock().unwrap() = Some(counter.clone());
    (host, counter)
}

/// Which thread dispatched a packet that is sent to a thread which waits for so long already.
fn dispatched_by(host: &Recording, counter: &Counter, waits: Duration) -> String {
    std::thread::scope(|scope| {
        let waiter = std::thread::Builder::new().name("waiter".to_owned());
        let waiter = waiter.spawn_scoped(scope, || wait(host, counter)).unwrap();
        std::thread::sleep(waits);
        host.env().send(&path(V4), &mut batch(1, &[64]));
        waiter.join().unwrap();
        host.handler().packet().unwrap().thread
    })
}

#[test]
fn a_thread_that_looks_for_a_moment_takes_a_packet_from_its_socket_itself() {
    let _alone = alone();
    let (host, counter) = host(Duration::from_secs(1));
    let end = Instant::now() + TIMEOUT;
    // The engine may be in the midst of the packet before.
    while dispatched_by(&host, &counter, Duration::from_millis(5)) != "waiter" {
        assert!(Instant::now() < end, "by the engine each time");
    }
}

#[test]
fn a_look_in_vain_gives_the_sockets_back_to_the_engine_at_once() {
    let _alone = alone();
    let (host, counter) = host(eventfd::A_STEP);
    let (end, mut row) = (Instant::now() + TIMEOUT, 0);
    // On a busy machine the thread may begin to look only when the packet comes.
    while row < 5 {
        assert!(Instant::now() < end, "by the thread again and again");
        let by_engine = dispatched_by(&host, &counter, Duration::from_millis(5)) == "verbena";
        row = if by_engine { row + 1 } else { 0 };
    }
}

#[test]
fn no_event_is_lost_while_threads_look_at_sockets_and_sleep() {
    const PACKETS: u32 = 3000;
    let _alone = alone();
    let (host, counter) = host(eventfd::A_WAKE);
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
        let end = Instant::now() + 6 * TIMEOUT;
        for n in 0..PACKETS {
            host.env().send(&path(V4), &mut batch(n, &[64]));
            while n > 2 + taken.load(Ordering::Relaxed) {
                assert!(Instant::now() < end, "{} of {n} were told of", taken.load(Ordering::Relaxed));
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), PACKETS);
}
