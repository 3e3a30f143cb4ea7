//! Completion queues, each with a completion channel of its own.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use locks::{Mutex, Rank};
use nic::{Error, Signal};
use rdma_core_abi::verbs::{ibv_comp_channel, ibv_cq, ibv_wc};
use transport::op::Completion;

use crate::device::Device;
use crate::reactor::{Watch, set_nonblocking};
use crate::{number, object, wr};

/// Completions taken at once.
const BATCH: usize = 32;

/// A completion queue. Queue pairs that have it keep it.
pub struct Cq {
    device: Arc<Device>,
    raw: Mutex<Option<Raw>>,
}

struct Raw {
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    watch: Option<Watch>,
    /// The channel will tell of the next completion.
    armed: bool,
}

// SAFETY: the objects may be used by all threads; the lock says that no thread destroys them
// meanwhile.
unsafe impl Send for Raw {}

impl Cq {
    /// A queue of at least so many entries; `signal` is called, with no lock held, when a
    /// completion has come after [`Cq::arm`].
    ///
    /// # Errors
    ///
    /// Errno of ibv_create_comp_channel(3), ibv_create_cq(3): EINVAL for more entries than the
    /// device has.
    pub fn new(
        device: &Arc<Device>,
        entries: u32,
        signal: Arc<dyn Signal + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        let (system, context) = (&device.system, device.context());
        let calls = &system.calls;
        // SAFETY: the context lives.
        let channel = object(unsafe { (calls.ibv_create_comp_channel)(context) })?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: context and channel live; the queue has no context of its own.
        let cq = unsafe { (calls.ibv_create_cq)(context, entries, null_mut(), channel.as_ptr(), 0) };
        let cq = object(cq).inspect_err(|_| {
            // SAFETY: it lives, and is not used afterwards.
            if unsafe { (calls.ibv_destroy_comp_channel)(channel.as_ptr()) } != 0 {
                system.leak();
            }
        })?;
        let raw = Raw { cq, channel, watch: None, armed: false };
        let made = Arc::new(Self { device: device.clone(), raw: Mutex::new(Rank::SystemCq, Some(raw)) });
        // SAFETY: just made.
        let fd = unsafe { channel.as_ref() }.fd;
        set_nonblocking(fd)?;
        let watch = system.reactor.watch(fd, signal)?;
        if let Some(raw) = &mut *made.raw.lock() {
            raw.watch = Some(watch);
        }
        Ok(made)
    }

    /// At least so many entries from now on.
    ///
    /// # Errors
    ///
    /// Errno of ibv_resize_cq(3).
    pub fn grow(&self, entries: u32) -> Result<(), Error> {
        let lock = self.raw.lock();
        let raw = lock.as_ref().ok_or(GONE)?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: the queue lives.
        unsafe {
            if raw.cq.as_ref().cqe >= entries {
                return Ok(());
            }
            number((self.device.system.calls.ibv_resize_cq)(raw.cq.as_ptr(), entries))
        }
    }

    /// Has it used by the call that makes a queue pair.
    pub(crate) fn with<T>(&self, make: impl FnOnce(*mut ibv_cq) -> Result<T, Error>) -> Result<T, Error> {
        let lock = self.raw.lock();
        make(lock.as_ref().ok_or(GONE)?.cq.as_ptr())
    }

    /// Takes up to `most` completions; how many there were.
    pub fn poll(&self, most: usize, mut take: impl FnMut(Completion)) -> usize {
        let mut batch = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let count = {
            let lock = self.raw.lock();
            let Some(raw) = &*lock else { return 0 };
            // SAFETY: the queue lives; its context has the functions that verbs.h calls; there is
            // room for so many.
            let count = unsafe {
                let Some(poll) = (*raw.cq.as_ref().context).ops.poll_cq else { return 0 };
                poll(raw.cq.as_ptr(), most.min(BATCH) as i32, batch.as_mut_ptr().cast())
            };
            usize::try_from(count).unwrap_or(0)
        };
        for wc in batch.iter().take(count) {
            // SAFETY: written, as the count says.
            take(wr::completion(unsafe { wc.assume_init_ref() }));
        }
        count
    }

    /// Takes what the channel tells: it may tell again when it is armed.
    pub fn clear(&self) {
        let mut lock = self.raw.lock();
        let Some(raw) = lock.as_mut() else { return };
        let calls = &self.device.system.calls;
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel lives, and does not block; its one queue lives, whose events are
        // acknowledged at once, so that destroying it waits for no thread.
        unsafe {
            while (calls.ibv_get_cq_event)(raw.channel.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                (calls.ibv_ack_cq_events)(cq, 1);
                raw.armed = false;
            }
        }
    }

    /// The channel tells of the next completion. True where some may have come before: then clear
    /// and look once more.
    pub fn arm(&self) -> bool {
        let mut lock = self.raw.lock();
        let Some(raw) = lock.as_mut().filter(|raw| !raw.armed) else { return false };
        // SAFETY: the queue lives; its context has the functions that verbs.h calls.
        raw.armed = unsafe {
            let notify = (*raw.cq.as_ref().context).ops.req_notify_cq;
            notify.is_some_and(|notify| notify(raw.cq.as_ptr(), 0) == 0)
        };
        raw.armed
    }

    /// Destroys the queue, which tells of nothing any more: no queue pair has it. Once: later calls
    /// do nothing.
    pub fn destroy(&self) {
        let system = &self.device.system;
        if !system.is_ours() {
            return;
        }
        let Some(mut raw) = self.raw.lock().take() else { return };
        if let Some(watch) = raw.watch.take() {
            system.reactor.forget(watch);
        }
        // SAFETY: both live, and no other thread has them any more. The channel stays where its
        // queue does.
        unsafe {
            if (system.calls.ibv_destroy_cq)(raw.cq.as_ptr()) != 0
                || (system.calls.ibv_destroy_comp_channel)(raw.channel.as_ptr()) != 0
            {
                system.leak();
            }
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.destroy();
    }
}

const GONE: Error = Error::Missing("the completion queue");
