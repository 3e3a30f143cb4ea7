//! What stands behind an event channel, and which channels there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::cma::rdma_event_channel;
use node::EventChannel;

use crate::eventfd::Counter;
use crate::ffi_guard::Errno;
use crate::instance::Instance;
use crate::per_process::PerProcess;
use crate::verbs::unacked::HandingOut;

/// What stands behind a channel.
pub(crate) struct Channel {
    pub node: Arc<EventChannel>,
    pub handing_out: HandingOut,
    pub instance: Arc<Instance>,
    _fd: Counter,
}

/// The channels there are, by the address of their C structure. Programs end (`rping` does) with one thread waiting in
/// `rdma_get_cm_event` while another destroys the channel: what that thread does next must not touch what is gone.
static CHANNELS: PerProcess<Mutex<BTreeMap<usize, Arc<Channel>>>> = PerProcess::new();

fn channels() -> MutexGuard<'static, BTreeMap<usize, Arc<Channel>>> {
    CHANNELS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channel behind a C structure. EBADF where it was destroyed, or never one of this process.
pub(crate) fn find(channel: *mut rdma_event_channel) -> Result<Arc<Channel>, Errno> {
    channels().get(&channel.addr()).cloned().ok_or(Errno(libc::EBADF))
}

/// Makes a channel.
pub(crate) fn create(instance: &Arc<Instance>) -> Result<(*mut rdma_event_channel, Arc<Channel>), Errno> {
    let fd = Counter::new()?;
    let c = Box::into_raw(Box::new(rdma_event_channel { fd: fd.fd() }));
    let channel = Arc::new(Channel {
        node: EventChannel::new(Box::new(fd.clone())),
        handing_out: HandingOut::default(),
        instance: instance.clone(),
        _fd: fd,
    });
    channels().insert(c.expose_provenance(), channel.clone());
    Ok((c, channel))
}

/// Frees a channel that nobody is on any more, if it is one of this process's.
pub(crate) fn free(channel: *mut rdma_event_channel) -> Option<Arc<Channel>> {
    let ours = channels().remove(&channel.addr())?;
    // SAFETY: made by `Box::into_raw` in `create`, and in the table until now.
    drop(unsafe { Box::from_raw(channel) });
    Some(ours)
}
