//! A future that is dropped at its n-th poll, and that is polled with another waker each time, of
//! which only the latest counts.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::time::timeout;

/// What happens between the last poll and the drop.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    /// Nothing.
    DirectOutcome,
    /// The future is woken, and dropped where it would be polled.
    WhenWoken,
    /// So much time passes.
    After(Duration),
}

/// Far longer than whatever a future may wait for here.
const LONG: Duration = Duration::from_secs(100);

/// The waker of one poll.
struct Turn {
    woken: AtomicBool,
    outer: Waker,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.outer.wake_by_ref();
    }
}

/// Polls a future `polls` times, each time when it was woken, and then drops it; `None` where it
/// was not ready by then.
///
/// # Panics
///
/// Where a wake-up is lost, and where a waker is kept that no future needs any more.
pub(super) async fn cut<F: Future>(what: &str, future: F, polls: u32, how: How) -> Option<F::Output> {
    let mut future = Some(Box::pin(future));
    let mut turns: Vec<Weak<Turn>> = Vec::new();
    let mut output = None;
    for poll in 1..=polls {
        let Some(living) = &mut future else { break };
        let (polled, turn) = once(living.as_mut()).await;
        turns.push(Arc::downgrade(&turn));
        if let Poll::Ready(ready) = polled {
            output = Some(ready);
            break;
        }
        match how {
            How::DirectOutcome if poll == polls => {}
            How::After(time) if poll == polls => crate::time::sleep(time).await,
            _ => woken(what, turn, living.as_mut()).await,
        }
    }
    drop(future.take());
    assert!(
        turns.iter().all(|turn| turn.strong_count() == 0),
        "{what}: a waker is kept after {polls} polls, {how:?}"
    );
    output
}

async fn once<F: Future>(mut future: Pin<&mut F>) -> (Poll<F::Output>, Arc<Turn>) {
    poll_fn(|cx| {
        let turn = Arc::new(Turn { woken: AtomicBool::new(false), outer: cx.waker().clone() });
        let polled = future.as_mut().poll(&mut Context::from_waker(&Waker::from(turn.clone())));
        Poll::Ready((polled, turn))
    })
    .await
}

/// Waits until the waker of this turn is called.
async fn woken<F: Future>(what: &str, turn: Arc<Turn>, future: Pin<&mut F>) {
    let called =
        poll_fn(|_| if turn.woken.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending });
    if timeout(LONG, called).await.is_err() {
        let (polled, _) = once(future).await;
        let why = if polled.is_ready() { "a wake-up was lost" } else { "nothing has happened for long" };
        panic!("{what}: {why}");
    }
}

/// Polls several until all are ready.
pub(super) async fn all<T>(
    futures: impl IntoIterator<Item = Pin<Box<dyn Future<Output = T> + '_>>>,
) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (future, None)).collect();
    poll_fn(|cx| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *output = Some(ready);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

/// What a future gives, which must come.
pub(super) async fn surely<T>(what: &str, future: impl Future<Output = T>) -> T {
    let future = pin!(future);
    timeout(LONG, future).await.unwrap_or_else(|_| panic!("{what}: nothing has happened for long"))
}
