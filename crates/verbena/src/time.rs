//! Time that a simulation can move: virtual in a task of a simulated host, that of the system
//! elsewhere, where it needs no runtime: one thread of the process wakes all sleepers.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nic::program::Kept;

use crate::error::{Error, ErrorKind, Result};
#[cfg(any(feature = "software", feature = "system"))]
use crate::sleepers::{self, Sleeper};

/// The time: in a simulation the virtual one, to be compared with others of that simulation only.
pub fn now() -> Instant {
    #[cfg(feature = "sim")]
    if let Some(now) = crate::sim::now() {
        return now;
    }
    Instant::now()
}

/// Sleeps for so long from this call on, not from the first poll. Dropping the future ends it.
pub fn sleep(time: Duration) -> Sleep {
    Sleep { until: now().checked_add(time), timer: None }
}

/// Sleeps until a time of [`now`]'s; not at all where that is over.
pub fn sleep_until(time: Instant) -> Sleep {
    Sleep { until: Some(time), timer: None }
}

/// What a future returns, if it does so in time. It is asked once even where `time` is zero, and
/// dropped when the time is over.
///
/// # Errors
///
/// `TimedOut`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use verbena::{ErrorKind, time};
///
/// let late = time::sleep(Duration::from_secs(60));
/// let result = verbena::block_on(time::timeout(Duration::from_millis(1), late));
/// assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
/// ```
pub async fn timeout<T>(time: Duration, future: impl Future<Output = T>) -> Result<T> {
    let mut sleep = sleep(time);
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut sleep).poll(cx).map(|()| Err(Error::new(ErrorKind::TimedOut, "time::timeout")))
    })
    .await
}

/// The future of [`sleep`].
#[derive(Debug)]
#[must_use = "it sleeps only while it is awaited"]
pub struct Sleep {
    /// `None`: later than time goes.
    until: Option<Instant>,
    timer: Option<Timer>,
}

#[derive(Debug)]
enum Timer {
    #[cfg(feature = "sim")]
    Virtual(crate::sim::Timer),
    #[cfg(any(feature = "software", feature = "system"))]
    Real(Sleeper),
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.until else { return Poll::Pending };
        if now() >= until {
            self.forget();
            return Poll::Ready(());
        }
        // Cloned before anything is changed: a panic of the clone leaves the timer as it is.
        let (kept, before) = (Kept::of(cx), self.timer.take());
        #[cfg(feature = "sim")]
        if crate::sim::is_running() {
            let before = if let Some(Timer::Virtual(before)) = before { Some(before) } else { None };
            self.timer = crate::sim::wake_at(until, before, kept).map(Timer::Virtual);
            return Poll::Pending;
        }
        #[cfg(any(feature = "software", feature = "system"))]
        {
            let before = if let Some(Timer::Real(before)) = before { Some(before) } else { None };
            self.timer = Some(Timer::Real(sleepers::wake_at(until, before, cx.waker(), kept)));
        }
        // No provider works outside of a simulation then, and no thread is kept for this.
        #[cfg(not(any(feature = "software", feature = "system")))]
        nic::program::wake_now(cx);
        Poll::Pending
    }
}

impl Sleep {
    fn forget(&mut self) {
        match self.timer.take() {
            #[cfg(feature = "sim")]
            Some(Timer::Virtual(timer)) => crate::sim::forget(&timer),
            #[cfg(any(feature = "software", feature = "system"))]
            Some(Timer::Real(sleeper)) => sleepers::forget(&sleeper),
            None => {}
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};
    use std::thread::Thread;

    use super::*;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn parked<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    #[test]
    fn outside_of_a_simulation_time_is_the_system_s() {
        let begun = Instant::now();
        let long = Duration::from_secs(3600);
        let mut threads = Vec::new();
        for ms in [30, 10, 20] {
            threads.push(std::thread::spawn(move || {
                parked(async {
                    sleep(Duration::from_millis(ms)).await;
                    let late = timeout(Duration::from_millis(ms), sleep(long)).await;
                    assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
                    assert_eq!(timeout(long, async { 7 }).await.unwrap(), 7);
                });
                begun.elapsed() >= Duration::from_millis(2 * ms)
            }));
        }
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        assert!(begun.elapsed() < long);
    }

    #[test]
    fn a_sleep_without_end_is_one_that_never_wakes() {
        let late = parked(timeout(Duration::from_millis(1), sleep(Duration::MAX)));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn futures_of_time_go_between_threads() {
        fn send(_: impl Send) {}
        send(sleep(Duration::ZERO));
        send(timeout(Duration::ZERO, async {}));
    }
}
