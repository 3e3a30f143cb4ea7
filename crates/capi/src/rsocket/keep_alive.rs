//! SO_KEEPALIVE: a thread that sends a WRITE of no bytes on each rsocket that has it, after the
//! time of TCP_KEEPIDLE. Where the peer is gone that fails, and ends the stream. The thread begins
//! with the first such rsocket.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use sys::per_process::PerProcess;

use crate::rsocket::object::Rsocket;

/// An rsocket, and when it is due.
struct Due {
    rsocket: Weak<Rsocket>,
    at: Instant,
}

#[derive(Default)]
struct Service {
    thread: Option<std::thread::Thread>,
    all: Vec<Due>,
}

static SERVICE: PerProcess<Mutex<Service>> =
    PerProcess::new(|| Mutex::new(Rank::Rsockets, Service::default()));

/// How long the thread sleeps at most.
const LONGEST: Duration = Duration::from_secs(3600);

/// The rsocket's options have changed: it is due after `idle`, or not at all.
pub(super) fn set(rsocket: &Arc<Rsocket>, idle: Option<Duration>) {
    let mut service = SERVICE.get().lock();
    service.all.retain(|due| due.rsocket.as_ptr() != Arc::as_ptr(rsocket));
    let Some(idle) = idle else { return };
    service.all.push(Due { rsocket: Arc::downgrade(rsocket), at: Instant::now() + idle });
    match &service.thread {
        Some(thread) => thread.unpark(),
        None => {
            let builder = std::thread::Builder::new().name("verbena-keep".to_owned());
            // Without a thread the option does nothing.
            let begun = sys::thread::with_signals_blocked(|| builder.spawn(run));
            service.thread = begun.ok().map(|handle| handle.thread().clone());
        }
    }
}

fn run() {
    loop {
        let now = Instant::now();
        let (due, next) = {
            let mut service = SERVICE.get().lock();
            let mut due = Vec::new();
            service.all.retain(|entry| entry.rsocket.strong_count() > 0);
            for entry in service.all.iter_mut().filter(|entry| entry.at <= now) {
                entry.at = now + LONGEST;
                due.extend(entry.rsocket.upgrade());
            }
            (due, service.all.iter().map(|entry| entry.at).min())
        };
        // With no lock held: the last share of an rsocket may go here.
        for rsocket in due {
            if let Some(idle) = rsocket.keep_alive() {
                set(&rsocket, Some(idle));
            }
        }
        let next = next.unwrap_or(now + LONGEST).min(now + LONGEST);
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
    }
}
