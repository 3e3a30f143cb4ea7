//! Tasks that wait for an event. A future leaves its waker, looks again, and is pending; both under
//! the lock under which the event is noted, so that no wake-up is lost. All are woken, because a
//! chosen one could be dropped before it looks. Wakers are cloned, called and dropped with no lock
//! held: they are the program's code ([`nic::program`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use locks::{Mutex, MutexGuard};
use nic::program::Kept;

/// What futures wait for: it lies under a lock, with the wakers of the futures that wait.
pub(crate) trait Awaited {
    /// The wakers of the futures that wait.
    fn waiters(&mut self) -> &mut Waiters;
}

/// Wakers of the futures that wait.
#[derive(Default)]
pub(crate) struct Waiters {
    next: u64,
    list: Vec<(u64, Kept<Waker>)>,
}

impl Waiters {
    /// The future with this key waits, a new one without; the waker that it left before is to be
    /// dropped by the caller, unlocked.
    pub(crate) fn leave(&mut self, key: &mut Option<u64>, waker: Kept<Waker>) -> Option<Kept<Waker>> {
        let known = key.and_then(|key| self.list.iter_mut().find(|(k, _)| *k == key));
        if let Some((_, old)) = known {
            return Some(std::mem::replace(old, waker));
        }
        self.list.push((self.next, waker));
        *key = Some(self.next);
        self.next += 1;
        None
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<Kept<Waker>> {
        let at = self.list.iter().position(|(k, _)| *k == key)?;
        Some(self.list.swap_remove(at).1)
    }

    /// Whether no future waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[cfg(all(test, feature = "sim"))]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// All of them, to be woken with no lock held.
    pub(crate) fn take(&mut self) -> Vec<Kept<Waker>> {
        std::mem::take(&mut self.list).into_iter().map(|(_, waker)| waker).collect()
    }
}

/// Whose lock that is.
pub(crate) trait Owner<S: Awaited>: AsRef<Mutex<S>> {
    /// Whether this process made it. In a forked child the lock may be held by a thread that is not
    /// there.
    fn is_ours(&self) -> bool;
}

/// A place among the futures that wait for what `owner` has under its lock, kept from poll to poll.
/// Dropping it leaves no waker.
pub(crate) struct Standing<O, S>
where
    O: Owner<S>,
    S: Awaited,
{
    owner: Arc<O>,
    key: Option<u64>,
    _state: std::marker::PhantomData<fn() -> S>,
}

impl<O, S> Standing<O, S>
where
    O: Owner<S>,
    S: Awaited,
{
    pub(crate) fn new(owner: &Arc<O>) -> Self {
        Self { owner: owner.clone(), key: None, _state: std::marker::PhantomData }
    }

    /// The owner of the lock.
    pub(crate) fn owner(&self) -> &Arc<O> {
        &self.owner
    }

    /// Ready when `look` finds something; else the waker is left.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        look: impl FnOnce(&mut S) -> Option<T>,
    ) -> Poll<T> {
        let waker = Kept::of(cx);
        let (found, _unlocked) = {
            let mut state: MutexGuard<'_, S> = (*self.owner).as_ref().lock();
            match look(&mut state) {
                Some(found) => {
                    let old = self.key.take().and_then(|key| state.waiters().remove(key));
                    (Poll::Ready(found), (old, Some(waker)))
                }
                None => (Poll::Pending, (state.waiters().leave(&mut self.key, waker), None)),
            }
        };
        found
    }
}

impl<O, S> Drop for Standing<O, S>
where
    O: Owner<S>,
    S: Awaited,
{
    fn drop(&mut self) {
        if let Some(key) = self.key.take().filter(|_| self.owner.is_ours()) {
            let removed = (*self.owner).as_ref().lock().waiters().remove(key);
            drop(removed);
        }
    }
}

/// Ready when `look` finds something. Dropping it leaves no waker.
pub(crate) struct Waiting<O, S, F>
where
    O: Owner<S>,
    S: Awaited,
{
    place: Standing<O, S>,
    look: F,
}

/// Waits until `look` finds something in what `owner` has under its lock.
pub(crate) fn until<T, O, S, F>(owner: &Arc<O>, look: F) -> Waiting<O, S, F>
where
    O: Owner<S>,
    S: Awaited,
    F: FnMut(&mut S) -> Option<T> + Unpin,
{
    Waiting { place: Standing::new(owner), look }
}

impl<T, O, S, F> Future for Waiting<O, S, F>
where
    O: Owner<S>,
    S: Awaited,
    F: FnMut(&mut S) -> Option<T> + Unpin,
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        this.place.poll(cx, &mut this.look)
    }
}
