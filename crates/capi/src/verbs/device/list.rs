//! The device list (ibv_get_device_list(3), ibv_get_device_name(3), ibv_get_device_guid(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

use locks::{Mutex, Rank};
use nic::Transport;
use rdma_core_abi::verbs::{IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_device};

use crate::ffi_guard::{self, Errno};
use crate::instance::{self, Instance};
use sys::per_process::PerProcess;

/// A device as C sees it, and what it stands for. Never freed: programs keep pointers beyond
/// `ibv_free_device_list`, and a process has a handful.
#[repr(C)]
pub(crate) struct Device {
    c: UnsafeCell<ibv_device>,
    pub nic: Arc<nic::Device>,
    pub instance: Arc<Instance>,
}

impl Device {
    /// # Safety
    ///
    /// `device` came from [`ibv_get_device_list`].
    pub(crate) unsafe fn of<'a>(device: *mut ibv_device) -> &'a Self {
        // SAFETY: the C part is the first field, and devices are never freed.
        unsafe { &*device.cast::<Self>() }
    }
}

/// The devices of the instance, made once. A parent's stay: a forked child may still hold pointers
/// to them.
static LIST: PerProcess<Mutex<Option<Vec<usize>>>> = PerProcess::new(|| Mutex::new(Rank::DeviceList, None));

/// All devices of this process.
pub(crate) fn all() -> Result<Vec<*mut ibv_device>, Errno> {
    let instance = instance::get()?;
    let mut list = LIST.get().lock();
    let devices = list.get_or_insert_with(|| {
        let devices = instance.node().devices().into_iter().enumerate();
        devices.map(|(i, d)| make(&instance, i, d)).collect()
    });
    Ok(devices.iter().map(|&d| std::ptr::with_exposed_provenance_mut::<ibv_device>(d)).collect())
}

/// The device of this process that a device is: itself, or in a forked child the one that has its
/// name.
///
/// # Safety
///
/// As for [`Device::of`].
pub(crate) unsafe fn of_this_process(device: *mut ibv_device) -> Result<*mut ibv_device, Errno> {
    // SAFETY: as the caller says.
    let listed = unsafe { Device::of(device) };
    if listed.instance.is_ours() {
        return Ok(device);
    }
    // SAFETY: devices of our own list.
    let same = |d: &*mut ibv_device| unsafe { Device::of(*d) }.nic.config.name == listed.nic.config.name;
    all()?.into_iter().find(same).ok_or(Errno(libc::ENODEV))
}

fn make(instance: &Arc<Instance>, index: usize, nic: Arc<nic::Device>) -> usize {
    // SAFETY: every field of the C structure is an integer, an array of them or a nullable function
    // pointer.
    let mut c: ibv_device = unsafe { std::mem::zeroed() };
    (c.node_type, c.transport_type) = match nic.config.transport {
        Transport::Roce | Transport::Ib => (IBV_NODE_CA, IBV_TRANSPORT_IB),
        Transport::Iwarp => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
    };
    copy(&nic.config.name, &mut c.name);
    copy(&format!("uverbs{index}"), &mut c.dev_name);
    copy(&format!("/sys/class/infiniband_verbs/uverbs{index}"), &mut c.dev_path);
    copy(&format!("/sys/class/infiniband/{}", nic.config.name), &mut c.ibdev_path);
    Box::into_raw(Box::new(Device { c: c.into(), nic, instance: instance.clone() })).expose_provenance()
}

fn copy(text: &str, to: &mut [c_char]) {
    // The last byte stays zero.
    for (t, b) in to.iter_mut().rev().skip(1).rev().zip(text.bytes()) {
        *t = c_char::from_ne_bytes([b]);
    }
}

/// ibv_get_device_list(3): a NULL-terminated array, to be freed by [`ibv_free_device_list`]. errno:
/// what the system refused. A device that was removed is not listed. Unlike rdma-core: the loopback
/// device is the last.
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    ffi_guard::or_null(|| {
        let mut devices = all().inspect_err(|_| {
            if !num_devices.is_null() {
                // SAFETY: the caller's integer.
                unsafe { *num_devices = 0 };
            }
        })?;
        // SAFETY: devices of our list.
        devices.retain(|device| unsafe { Device::of(*device) }.nic.is_there());
        if !num_devices.is_null() {
            // SAFETY: the caller's integer.
            unsafe { *num_devices = devices.len() as c_int };
        }
        let bytes = (devices.len() + 1) * size_of::<*mut ibv_device>();
        // SAFETY: plain allocation, of at least one pointer.
        let list = unsafe { libc::calloc(1, bytes) }.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (i, device) in devices.into_iter().enumerate() {
            // SAFETY: inside the array just made.
            unsafe { list.add(i).write(device) };
        }
        Ok(list)
    })
}

/// `ibv_free_device_list`, ibv_get_device_list(3): opened devices stay valid.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: from `ibv_get_device_list`, or NULL.
    unsafe { libc::free(list.cast()) }
}

/// ibv_get_device_name(3).
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of ours, by the man page's contract.
    unsafe { (&raw const (*device).name).cast() }
}

/// ibv_get_device_guid(3): in network byte order.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: a device of ours, by the man page's contract.
    unsafe { Device::of(device) }.nic.config.guid.0.to_be()
}

/// ibv_get_device_index(3): the interface's number, unique among the devices of this host and
/// transport. The kernel numbers RDMA devices by themselves.
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: a device of ours, by the man page's contract.
    unsafe { Device::of(device) }.nic.config.interface as c_int
}
