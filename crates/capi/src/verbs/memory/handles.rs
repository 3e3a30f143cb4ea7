//! What the handles of protection domains and of device memory name, for `ibv_import_pd` and
//! `ibv_import_dm`. They are good in the process that has the objects: there is no kernel between
//! processes that would hold them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};
use nic::memory::dm::DeviceMemory;

use crate::ffi_guard::Errno;
use sys::per_process::PerProcess;

/// What handles name: device and number.
type Known<T> = PerProcess<Mutex<BTreeMap<(usize, u32), Weak<T>>>>;

static DOMAINS: Known<nic::Pd> = PerProcess::new(nothing_known);
static DEVICE_MEMORY: Known<DeviceMemory> = PerProcess::new(nothing_known);

fn nothing_known<T>() -> Mutex<BTreeMap<(usize, u32), Weak<T>>> {
    Mutex::new(Rank::Handles, BTreeMap::new())
}

fn remember<T: Send + Sync>(known: &Known<T>, device: &Arc<nic::Adapter>, handle: u32, object: &Arc<T>) {
    let mut known = known.get().lock();
    // What is gone is swept out each time the number has doubled: a step for each object made, not
    // one for each known.
    if known.len().is_power_of_two() {
        known.retain(|_, object| object.strong_count() > 0);
    }
    known.insert((Arc::as_ptr(device) as usize, handle), Arc::downgrade(object));
}

fn recall<T: Send + Sync>(
    known: &Known<T>,
    device: &Arc<nic::Adapter>,
    handle: u32,
) -> Result<Arc<T>, Errno> {
    let known = known.get().lock();
    known.get(&(Arc::as_ptr(device) as usize, handle)).and_then(Weak::upgrade).ok_or(Errno(libc::ENOENT))
}

/// A domain can be imported from now on; its handle.
pub(crate) fn remember_domain(pd: &Arc<nic::Pd>) -> u32 {
    remember(&DOMAINS, &pd.device, pd.number(), pd);
    pd.number()
}

/// Device memory can be imported from now on, by `handle`.
pub(crate) fn remember_dm(device: &Arc<nic::Adapter>, handle: u32, dm: &Arc<DeviceMemory>) {
    remember(&DEVICE_MEMORY, device, handle, dm);
}

/// The domain of a handle. ENOENT where this process has none.
pub(crate) fn recall_domain(device: &Arc<nic::Adapter>, handle: u32) -> Result<Arc<nic::Pd>, Errno> {
    recall(&DOMAINS, device, handle)
}

/// The device memory of a handle. ENOENT where this process has none.
pub(crate) fn recall_dm(device: &Arc<nic::Adapter>, handle: u32) -> Result<Arc<DeviceMemory>, Errno> {
    recall(&DEVICE_MEMORY, device, handle)
}
