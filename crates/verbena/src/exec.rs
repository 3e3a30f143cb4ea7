//! Running futures without a runtime: [`block_on`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::provider::Stack;
#[cfg(feature = "system")]
use crate::qp::waited;

/// How long a thread that waits polls before it sleeps: far longer than a round trip within one machine or rack.
const POLL: Duration = Duration::from_micros(50);

/// Runs a future in this thread. While it waits the thread takes what arrives itself, for some 50 us; then it sleeps until it is woken.
/// Any future may run here, and what this crate gives may run on any executor.
///
/// # Panics
///
/// In a task of a simulated host: nothing would happen there while it blocks.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    match run(future, Some(POLL), None) {
        Some(output) => output,
        #[allow(clippy::unreachable, reason = "without a deadline it ends with its output")]
        None => unreachable!(),
    }
}

/// The same without ever giving the processor away.
pub(crate) fn spin_on<T>(future: impl Future<Output = T>) -> T {
    match run(future, None, None) {
        Some(output) => output,
        #[allow(clippy::unreachable, reason = "without a deadline it ends with its output")]
        None => unreachable!(),
    }
}

/// The same for so long.
pub(crate) fn block_on_for<T>(future: impl Future<Output = T>, time: Duration) -> Option<T> {
    run(future, Some(POLL), Instant::now().checked_add(time))
}

/// An error where this thread may not block until something arrives.
pub(crate) fn may_block(stack: &Stack, call: &'static str) -> Result<()> {
    #[cfg(feature = "sim")]
    let simulated = crate::sim::is_running();
    #[cfg(not(feature = "sim"))]
    let simulated = false;
    if stack.may_block() && !simulated {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::BlockingInSimulation, call))
    }
}

struct Sleeper {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

fn run<T>(future: impl Future<Output = T>, poll_for: Option<Duration>, until: Option<Instant>) -> Option<T> {
    #[cfg(feature = "sim")]
    assert!(!crate::sim::is_running(), "blocking on a simulated host: await it instead");
    let mut future = pin!(future);
    let sleeper = Arc::new(Sleeper { woken: AtomicBool::new(false), thread: std::thread::current() });
    let waker = Waker::from(sleeper.clone());
    let mut cx = Context::from_waker(&waker);
    let stack = polled_stack();
    loop {
        #[cfg(feature = "system")]
        let _noted = waited::Noted::begin();
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        #[cfg(feature = "system")]
        let polls = stack.is_some() || waited::any();
        #[cfg(not(feature = "system"))]
        let polls = stack.is_some();
        let began = Instant::now();
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        while !sleeper.woken.load(Ordering::Acquire) {
            if poll_for.is_some_and(|time| began.elapsed() >= time) || !polls && poll_for.is_some() {
                stack.iter().for_each(Stack::end_polling);
                sleep(&sleeper, until);
            }
            if is_over() {
                return None;
            }
            stack.iter().for_each(Stack::poll);
            #[cfg(feature = "system")]
            waited::poll();
        }
        sleeper.woken.store(false, Ordering::Release);
    }
}

/// Until it is woken.
fn sleep(sleeper: &Sleeper, until: Option<Instant>) {
    while !sleeper.woken.load(Ordering::Acquire) {
        match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => std::thread::park(),
            Some(Duration::ZERO) => return,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

/// The stack of this process, if it has one.
fn polled_stack() -> Option<Stack> {
    #[cfg(feature = "software")]
    return host::process::try_get().map(|instance| Stack::Ours(crate::provider::Ours::Software(instance)));
    #[cfg(not(feature = "software"))]
    None
}
