//! What rsockets are due for without a call of the program, in a thread that begins with the
//! first: SO_KEEPALIVE sends a WRITE of no bytes after the time of TCP_KEEPIDLE, which fails where
//! the peer is gone, and ends the stream; bytes that wait for more (MSG_MORE, TCP_CORK) leave.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use rsocket::Socket;
use sys::per_process::PerProcess;

use crate::rsocket::object::Rsocket;

/// What an rsocket is due for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The peer is to hear of this end.
    KeepAlive,
    /// What waits for more is to leave.
    Push,
}

/// An rsocket, and when it is due.
struct Due {
    rsocket: Weak<Rsocket>,
    task: Task,
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
/// For how long bytes wait for more, as of TCP_CORK (tcp(7)).
const CORK: Duration = Duration::from_millis(200);

/// The rsocket is due for a task after `wait`, or not at all; false where no thread does it.
fn set(rsocket: &Arc<Rsocket>, task: Task, wait: Option<Duration>) -> bool {
    let mut service = SERVICE.get().lock();
    service.all.retain(|due| due.task != task || due.rsocket.as_ptr() != Arc::as_ptr(rsocket));
    let Some(wait) = wait else { return true };
    if service.thread.is_none() {
        let builder = std::thread::Builder::new().name("verbena-timers".to_owned());
        let begun = sys::thread::with_signals_blocked(|| builder.spawn(run));
        service.thread = begun.ok().map(|handle| handle.thread().clone());
    }
    let Some(thread) = service.thread.clone() else { return false };
    service.all.push(Due { rsocket: Arc::downgrade(rsocket), task, at: Instant::now() + wait });
    thread.unpark();
    true
}

/// The options of SO_KEEPALIVE have changed: the peer hears of this end after `idle`, or not at
/// all.
pub(super) fn keep_alive(rsocket: &Arc<Rsocket>, idle: Option<Duration>) {
    // Without a thread the option does nothing.
    set(rsocket, Task::KeepAlive, idle);
}

/// Bytes wait for more from now on.
pub(super) fn push_later(rsocket: &Arc<Rsocket>) {
    if !set(rsocket, Task::Push, Some(CORK)) {
        rsocket.push();
    }
}

fn run() {
    loop {
        let now = Instant::now();
        let (due, next) = {
            let mut service = SERVICE.get().lock();
            let all = std::mem::take(&mut service.all);
            let (due, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|due| due.at <= now);
            service.all = left;
            service.all.retain(|due| due.rsocket.strong_count() > 0);
            (due, service.all.iter().map(|due| due.at).min())
        };
        let is_idle = due.is_empty();
        // With no lock held: the last share of an rsocket may go here.
        for (rsocket, task) in due.iter().filter_map(|due| Some((due.rsocket.upgrade()?, due.task))) {
            match task {
                Task::KeepAlive => {
                    if let Some(idle) = rsocket.keep_alive() {
                        keep_alive(&rsocket, Some(idle));
                    }
                }
                Task::Push => rsocket.push(),
            }
        }
        if is_idle {
            let next = next.unwrap_or(now + LONGEST).min(now + LONGEST);
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
}

impl Rsocket {
    /// Says to the peer that this end is there; after what time again, where the option is set.
    fn keep_alive(&self) -> Option<Duration> {
        let idle = {
            let mut state = self.lock();
            if let Some((stream, qp)) = state.socket.as_mut().and_then(Socket::stream) {
                stream.keep_alive(qp);
            }
            state.settle(false);
            state.options.keep_alive()
        };
        self.instance.host.later().run();
        idle
    }

    /// What waits for more leaves.
    pub(super) fn push(&self) {
        {
            let mut state = self.lock();
            state.is_push_due = false;
            if let Some((stream, qp)) = state.socket.as_mut().and_then(Socket::stream) {
                stream.push(qp);
            }
            state.settle(false);
        }
        self.instance.host.later().run();
    }
}
