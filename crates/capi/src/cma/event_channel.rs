//! What stands behind an event channel, and which channels there are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use locks::{Mutex, MutexGuard, Rank};
use rdma_core_abi::cma::rdma_event_channel;
use stack::EventChannel;

use crate::eventfd::{self, Counter};
use crate::ffi_guard::Errno;
use crate::instance::Instance;
use crate::verbs::unacked::HandingOut;
use sys::per_process::PerProcess;

/// What stands behind a channel.
pub(crate) struct Channel {
    pub node: Arc<EventChannel>,
    pub handing_out: HandingOut,
    pub instance: Arc<Instance>,
    fd: Counter,
    /// The channel was destroyed while a thread that asks it for an event would wait.
    destroyed_blocking: Arc<AtomicBool>,
}

thread_local! {
    /// The channel that this thread last had an event of: the address of its C structure, and
    /// whether it was destroyed.
    static LAST_READ: RefCell<Option<(usize, Arc<AtomicBool>)>> = const { RefCell::new(None) };
}

/// The channels there are, by the address of their C structure. Programs end (`rping` does) with
/// one thread waiting in `rdma_get_cm_event` while another destroys the channel: what that thread
/// does next must not touch what is gone.
static CHANNELS: PerProcess<Mutex<BTreeMap<usize, Arc<Channel>>>> =
    PerProcess::new(|| Mutex::new(Rank::EventChannels, BTreeMap::new()));

fn channels() -> MutexGuard<'static, BTreeMap<usize, Arc<Channel>>> {
    CHANNELS.get().lock()
}

impl Channel {
    /// What counts its events, and whose they are.
    pub(super) fn counter(&self) -> (Arc<Instance>, Counter) {
        (self.instance.clone(), self.fd.clone())
    }
}

/// The channel behind a C structure. EBADF where it was destroyed, or never one of this process.
pub(crate) fn find(channel: *mut rdma_event_channel) -> Result<Arc<Channel>, Errno> {
    channels().get(&channel.addr()).cloned().ok_or(Errno(libc::EBADF))
}

/// Makes a channel.
pub(crate) fn create(instance: &Arc<Instance>) -> Result<(*mut rdma_event_channel, Arc<Channel>), Errno> {
    let fd = Counter::of(eventfd::A_STEP)?;
    let c = Box::into_raw(Box::new(rdma_event_channel { fd: fd.fd() }));
    let channel = Arc::new(Channel {
        node: EventChannel::new(Box::new(fd.clone())),
        handing_out: HandingOut::new(Rank::HandingOutCmEvents),
        instance: instance.clone(),
        fd,
        destroyed_blocking: Arc::default(),
    });
    channels().insert(c.expose_provenance(), channel.clone());
    Ok((c, channel))
}

/// Frees a channel that has no user any more, if it is one of this process's.
pub(crate) fn free(channel: *mut rdma_event_channel) -> Option<Arc<Channel>> {
    let ours = channels().remove(&channel.addr())?;
    // The thread that destroys it knows that it is gone.
    let _ = LAST_READ.try_with(|last| last.borrow_mut().take_if(|(address, _)| *address == channel.addr()));
    ours.destroyed_blocking.store(!ours.fd.is_nonblocking(), Ordering::Relaxed);
    // SAFETY: made by `Box::into_raw` in `create`, and in the table until now.
    drop(unsafe { Box::from_raw(channel) });
    Some(ours)
}

/// Notes that this thread has taken an event from a channel.
pub(crate) fn read_by_this_thread(channel: *mut rdma_event_channel, ours: &Channel) {
    let _ = LAST_READ.try_with(|last| {
        let mut last = last.borrow_mut();
        if last.as_ref().is_none_or(|(_, destroyed)| !Arc::ptr_eq(destroyed, &ours.destroyed_blocking)) {
            *last = Some((channel.addr(), ours.destroyed_blocking.clone()));
        }
    });
}

/// This thread reads events from a channel that another thread has destroyed, and would have waited
/// a moment earlier.
pub(crate) fn came_too_late(channel: *mut rdma_event_channel) -> bool {
    let late = |last: &RefCell<Option<(usize, Arc<AtomicBool>)>>| {
        last.borrow().as_ref().is_some_and(|(address, destroyed)| {
            *address == channel.addr() && destroyed.load(Ordering::Relaxed)
        })
    };
    LAST_READ.try_with(late).unwrap_or(false)
}
