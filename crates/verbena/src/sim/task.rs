//! A task: a future, what to wake for it, and what comes of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use locks::{Mutex, Rank};
use nic::program::{Kept, wake_all};

/// A future as the executor keeps it.
pub(super) type Body = Pin<Box<dyn Future<Output = ()>>>;

/// A task as the executor keeps it.
pub(super) struct Slot {
    /// The place of its process in the list; `None`: it runs on no host, as the test function does.
    pub process: Option<usize>,
    pub spawned_at: &'static Location<'static>,
    /// The future; not there while it is polled.
    pub body: Option<Body>,
    pub waker: Arc<TaskWaker>,
}

/// Tasks that are awake, in the order in which they were woken.
pub(super) struct Woken(Mutex<VecDeque<u64>>);

impl Default for Woken {
    fn default() -> Self {
        Self(Mutex::new(Rank::Woken, VecDeque::new()))
    }
}

impl Woken {
    pub(super) fn pop(&self) -> Option<u64> {
        self.0.lock().pop_front()
    }
}

/// Wakes a task. Wakers are `Send`, so this works from any thread, though other threads have no
/// part in a simulation.
pub(super) struct TaskWaker {
    pub number: u64,
    awake: AtomicBool,
    woken: Arc<Woken>,
}

impl TaskWaker {
    pub(super) fn new(number: u64, woken: Arc<Woken>) -> Arc<Self> {
        Arc::new(Self { number, awake: AtomicBool::new(false), woken })
    }
    /// Notes that the task is about to be polled: from now on a wake counts again.
    pub(super) fn sleeps(&self) {
        self.awake.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.woken.0.lock().push_back(self.number);
        }
    }
}

/// A task of a simulation. It runs whether this handle is kept or not; awaiting it gives what it
/// returned.
///
/// # Panics
///
/// Awaiting a task whose host was killed meanwhile panics, as nothing else would ever happen;
/// [`Task::outcome`] does not.
pub struct Task<T> {
    result: Rc<RefCell<Joint<T>>>,
    spawned_at: &'static Location<'static>,
}

/// What a task and the task that awaits it share.
struct Joint<T> {
    end: Option<End<T>>,
    waiter: Option<Kept<Waker>>,
}

enum End<T> {
    Returned(T),
    Killed,
}

/// The task's half of it.
struct Ending<T>(Rc<RefCell<Joint<T>>>);

impl<T: 'static> Task<T> {
    /// A future, so wrapped that its end is told.
    pub(super) fn new(
        spawned_at: &'static Location<'static>,
        future: impl Future<Output = T> + 'static,
    ) -> (Self, Body) {
        let result = Rc::new(RefCell::new(Joint { end: None, waiter: None }));
        let ending = Ending(result.clone());
        let body = Box::pin(async move {
            let value = future.await;
            ending.set(End::Returned(value));
        });
        (Self { result, spawned_at }, body)
    }
}

impl<T> Task<T> {
    /// Whether the task has returned, or was killed.
    pub fn is_finished(&self) -> bool {
        // The task's half is gone then.
        Rc::strong_count(&self.result) == 1
    }

    /// What it returns; `None` where its host is killed before.
    ///
    /// # Examples
    ///
    /// ```
    /// # macro_rules! run {
    /// #     (#[verbena::test($($args:tt)*)]
    /// #     async fn $name:ident($a:ident: Host, $b:ident: Host) $body:block) => {
    /// #         async fn $name($a: Host, $b: Host) $body
    /// #         let (args, hosts) = (stringify!($($args)*), [stringify!($a), stringify!($b)]);
    /// #         verbena::sim::run_seeds("", stringify!($name), args, &hosts, |hosts| {
    /// #             Box::pin($name(hosts[0].clone(), hosts[1].clone()))
    /// #         });
    /// #     };
    /// # }
    /// use std::time::Duration;
    /// use verbena::sim::Host;
    /// # run! {
    /// #[verbena::test(seeds = 1)]
    /// async fn a_killed_task_returns_nothing(left: Host, right: Host) {
    ///     let task = left.spawn(verbena::time::sleep(Duration::from_secs(1)));
    ///     left.kill();
    ///     assert!(task.is_finished() && task.outcome().await.is_none());
    ///     # drop(right);
    /// }
    /// # }
    /// ```
    pub async fn outcome(self) -> Option<T> {
        match std::future::poll_fn(|cx| self.poll_end(cx)).await {
            End::Returned(value) => Some(value),
            End::Killed => None,
        }
    }

    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<End<T>> {
        // Cloned and dropped with nothing borrowed: it may be the program's code.
        let waker = Kept::of(cx);
        let mut joint = self.result.borrow_mut();
        let (end, _unused) = match joint.end.take() {
            Some(end) => (Poll::Ready(end), Some(waker)),
            None => (Poll::Pending, joint.waiter.replace(waker)),
        };
        drop(joint);
        end
    }
}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.poll_end(cx).map(|end| match end {
            End::Returned(value) => value,
            End::Killed => {
                panic!("the task spawned at {} is awaited, but its host was killed", self.spawned_at)
            }
        })
    }
}

impl<T> Drop for Task<T> {
    /// Forgets the waker: the task that waited does so no more.
    fn drop(&mut self) {
        let waiter = self.result.borrow_mut().waiter.take();
        drop(waiter);
    }
}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task(spawned at {})", self.spawned_at)
    }
}

impl<T> Ending<T> {
    fn set(&self, end: End<T>) {
        let waiter = {
            let mut joint = self.0.borrow_mut();
            joint.end = Some(end);
            joint.waiter.take()
        };
        wake_all(waiter);
    }
}

impl<T> Drop for Ending<T> {
    /// After a value it changes nothing, also where that was fetched already: no task looks twice.
    fn drop(&mut self) {
        if self.0.borrow().end.is_none() {
            self.set(End::Killed);
        }
    }
}
