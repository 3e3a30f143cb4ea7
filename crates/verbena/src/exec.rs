//! Running futures without a runtime: [`block_on`].

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::provider::Stack;
use crate::qp::inner::QpInner;
#[cfg(feature = "system")]
use crate::qp::waited;
#[cfg(feature = "software")]
use crate::thread_safe::ThreadSafe;

/// How long a thread that waits polls at least before it sleeps: longer than most round trips
/// within one machine or rack.
const LEAST_POLL: Duration = Duration::from_micros(50);
/// How long a thread that waits polls at most: as long as the engine thread leaves it the sockets.
const MAX_POLL: Duration = Duration::from_micros(200);
/// So often a thread polls one queue pair between two looks at the clock; a poll takes a tenth of a
/// microsecond, or brings something.
const LOOKS_PER_CLOCK: u32 = 16;

thread_local! {
    /// How long this thread polls before it sleeps.
    static POLL: Cell<Duration> = const { Cell::new(MAX_POLL) };
    /// Whether this thread polls for what it waits for.
    static POLLS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in [`block_on`], and so takes what arrives anyway.
pub(crate) fn polls() -> bool {
    POLLS.get()
}

/// This thread polls until it is dropped.
struct Polls {
    before: bool,
}

impl Polls {
    fn begin() -> Self {
        Self { before: POLLS.replace(true) }
    }
}

impl Drop for Polls {
    fn drop(&mut self) {
        POLLS.set(self.before);
    }
}

/// How long a thread polls next time, after a sleep of so long. Where it was woken soon, polling a
/// little longer would have spared it two switches of threads, and its peer, which waits for it,
/// one sleep too: of two that sleep for that reason neither would stop again. Where it slept long
/// polling was for nothing.
fn next_poll(before: Duration, slept: Duration) -> Duration {
    if slept <= MAX_POLL { MAX_POLL } else { (before / 2).max(LEAST_POLL) }
}

/// What a thread does while it waits.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// The thread never gives the processor away.
    pub never_sleeps: bool,
    /// The thread waits no longer.
    pub until: Option<Instant>,
}

/// For as long as a thread polls before it sleeps: polls one queue pair, which need wake no thread
/// for that, until `look` finds something.
pub(crate) fn poll_on<T>(qp: &QpInner, how: How, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    if !qp.gains_by_polling() {
        return None;
    }
    let (began, mut seen) = (Instant::now(), None);
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            let news = qp.news();
            if seen.replace(news) != Some(news)
                && let Some(found) = look()
            {
                return Some(found);
            }
            qp.poll_now();
        }
        let is_over = how.until.is_some_and(|until| Instant::now() >= until);
        if is_over || (!how.never_sleeps && began.elapsed() >= POLL.get()) {
            return None;
        }
    }
}

/// Waits as [`block_on`] does; where this thread has polled in vain ([`poll_on`]) it sleeps first.
pub(crate) fn go_on<T>(future: impl Future<Output = T>, how: How, has_polled: bool) -> Option<T> {
    run(future, how, has_polled)
}

/// Runs a future in this thread. While it waits the thread takes what arrives itself, for 200 us,
/// or 50 us where it has waited longer than that several times; then it sleeps until it is woken.
/// Any future may run here, and what this crate gives may run on any executor.
///
/// # Panics
///
/// In a task of a simulated host: nothing would happen there while it blocks.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    ended(run(future, How::default(), false))
}

/// What there is of something that was waited for without a deadline.
pub(crate) fn ended<T>(output: Option<T>) -> T {
    match output {
        Some(output) => output,
        #[allow(clippy::unreachable, reason = "without a deadline it ends with its output")]
        None => unreachable!(),
    }
}

/// Like [`block_on`], for at most so long; `None` where it takes longer.
pub(crate) fn block_on_for<T>(future: impl Future<Output = T>, time: Duration) -> Option<T> {
    run(future, How { never_sleeps: false, until: Instant::now().checked_add(time) }, false)
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

/// `polled`: this thread has polled for as long as it does before a sleep.
fn run<T>(future: impl Future<Output = T>, how: How, mut polled: bool) -> Option<T> {
    #[cfg(feature = "sim")]
    assert!(!crate::sim::is_running(), "blocking on a simulated host: await it instead");
    let How { never_sleeps, until } = how;
    let mut future = pin!(future);
    let sleeper = Arc::new(Sleeper { woken: AtomicBool::new(false), thread: std::thread::current() });
    let waker = Waker::from(sleeper.clone());
    let mut cx = Context::from_waker(&waker);
    let mut stack = None;
    let _polls = Polls::begin();
    loop {
        #[cfg(feature = "system")]
        let _noted = waited::Noted::begin();
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        // The future itself may have begun it just now.
        stack = stack.or_else(polled_stack);
        #[cfg(feature = "system")]
        let polls = stack.is_some() || waited::any();
        #[cfg(not(feature = "system"))]
        let polls = stack.is_some();
        let began = Instant::now();
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        while !sleeper.woken.load(Ordering::Acquire) {
            if !never_sleeps && (!polls || polled || began.elapsed() >= POLL.get()) {
                stack.iter().for_each(Stack::end_polling);
                let asleep = Instant::now();
                sleep(&sleeper, until);
                POLL.set(next_poll(POLL.get(), asleep.elapsed()));
                polled = false;
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
    return linux::process::try_get()
        .map(|instance| Stack::Ours(crate::provider::Ours::Software(ThreadSafe::new(instance))));
    #[cfg(not(feature = "software"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_woken_soon_polls_longer_and_one_that_sleeps_long_less() {
        let (soon, long) = (Duration::from_micros(80), Duration::from_millis(5));
        assert_eq!(next_poll(LEAST_POLL, soon), MAX_POLL);
        assert_eq!(next_poll(MAX_POLL, soon), MAX_POLL);
        assert_eq!(next_poll(MAX_POLL, long), MAX_POLL / 2);
        assert_eq!(next_poll(LEAST_POLL, long), LEAST_POLL);
    }
}
