//! Devices and protection domains.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use nic::{Access, Error};
use rdma_core_abi::verbs::{
    _compat_ibv_port_attr, IBV_ATOMIC_NONE, IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_device_attr, ibv_gid,
    ibv_gid_entry, ibv_pd,
};

use crate::instance::System;
use crate::{extended, number, object};

/// A device, opened by the connection manager, for as long as the process lives.
pub struct Device {
    pub(crate) system: Arc<System>,
    context: NonNull<ibv_context>,
    name: String,
    /// READs and atomics that it serves at once, of one queue pair.
    pub(crate) max_responder: u8,
    /// READs and atomics that it starts at once, of one queue pair.
    pub(crate) max_initiator: u8,
    pub(crate) has_atomics: bool,
    mtu: u32,
    gids: i32,
    /// What it can beyond the first 32 bits.
    pub(crate) capabilities: u64,
}

// SAFETY: a context may be used by all threads at once (ibv_open_device(3), "thread safe" in
// rdma-core's Documentation/libibverbs.md).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// # Safety
    ///
    /// The context lives as long as the process.
    pub(crate) unsafe fn new(system: &Arc<System>, context: NonNull<ibv_context>) -> Result<Self, Error> {
        let (calls, raw) = (&system.calls, context.as_ptr());
        // SAFETY: the context lives; its device has a name that ends in NUL.
        let name = unsafe { CStr::from_ptr((calls.ibv_get_device_name)((*raw).device)) };
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: there is room for the attributes.
        number(unsafe { (calls.ibv_query_device)(raw, attr.as_mut_ptr()) })?;
        // SAFETY: numbers and arrays of them, written or zero.
        let attr = unsafe { attr.assume_init() };
        let mut port = _compat_ibv_port_attr::default();
        // SAFETY: there is room for the attributes of port 1.
        number(unsafe { (calls.ibv_query_port)(raw, 1, &raw mut port) })?;
        let at_once = |n: i32| u8::try_from(n.clamp(0, i32::from(nic::limits::MAX_RD_ATOMIC))).unwrap_or(0);
        Ok(Self {
            system: system.clone(),
            context,
            name: name.to_string_lossy().into_owned(),
            max_responder: at_once(attr.max_qp_rd_atom),
            max_initiator: at_once(attr.max_qp_init_rd_atom),
            has_atomics: attr.atomic_cap != IBV_ATOMIC_NONE,
            mtu: mtu(port.active_mtu),
            gids: port.gid_tbl_len,
            // SAFETY: the context lives.
            capabilities: unsafe { extended::capabilities(raw) },
        })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Largest payload of a packet of port 1, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }
    /// Whether port 1 has the GID of an address (RoCE: each address of the interface has one).
    pub fn bears(&self, address: IpAddr) -> bool {
        self.gid_index(address).is_some()
    }
    /// The index of that GID; where there are several, of RoCE v2's.
    pub(crate) fn gid_index(&self, address: IpAddr) -> Option<u8> {
        let wanted = crate::handle::gid(address);
        let calls = &self.system.calls;
        let has = |index: &i32| {
            let mut gid = ibv_gid { raw: [0; 16] };
            // SAFETY: the context lives; there is room for a GID.
            let known = unsafe { (calls.ibv_query_gid)(self.context(), 1, *index, &raw mut gid) } == 0;
            // SAFETY: any sixteen bytes are a GID.
            known && unsafe { gid.raw == wanted.raw }
        };
        let is_v2 = |index: &i32| {
            let Some(query) = calls._ibv_query_gid_ex else { return true };
            let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
            let (index, size) = (index.cast_unsigned(), size_of::<ibv_gid_entry>());
            // SAFETY: the context lives; there is room for so many bytes.
            let known = unsafe { query(self.context(), 1, index, entry.as_mut_ptr(), 0, size) } == 0;
            // SAFETY: numbers, written or zero.
            known && unsafe { entry.assume_init() }.gid_type == IBV_GID_TYPE_ROCE_V2
        };
        let borne = || (0..self.gids).filter(has);
        let index = borne().find(is_v2).or_else(|| borne().next())?;
        u8::try_from(index).ok()
    }
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }
    pub(crate) fn is_at(&self, context: NonNull<ibv_context>) -> bool {
        self.context == context
    }
    /// What of these rights of `enum ibv_access_flags` the device can give at all.
    pub fn possible(&self, access: u32) -> u32 {
        let without = |can: bool, right: u32| if can { 0 } else { right };
        let can = |capability: u64| self.capabilities & capability != 0;
        let missing = without(self.has_atomics, Access::REMOTE_ATOMIC)
            | without(can(extended::CAN_FLUSH_GLOBAL), Access::FLUSH_GLOBAL)
            | without(can(extended::CAN_FLUSH_PERSISTENT), Access::FLUSH_PERSISTENT);
        access & !missing
    }
    /// Whether the device can be asked for ATOMIC WRITE.
    pub fn has_atomic_write(&self) -> bool {
        self.capabilities & extended::CAN_WRITE_ATOMICALLY != 0
    }
}

/// `enum ibv_mtu` in bytes.
pub(crate) fn mtu(code: u32) -> u32 {
    128 << code.clamp(1, 5)
}

/// A protection domain.
pub struct Pd {
    pub(crate) device: Arc<Device>,
    raw: NonNull<ibv_pd>,
    number: u32,
}

// SAFETY: a domain may be used by all threads at once; only `drop` ends it.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// A new one.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn new(device: &Arc<Device>) -> Result<Self, Error> {
        // SAFETY: the context lives.
        let raw = object(unsafe { (device.system.calls.ibv_alloc_pd)(device.context()) })?;
        // SAFETY: just made.
        let number = unsafe { raw.as_ref() }.handle;
        Ok(Self { device: device.clone(), raw, number })
    }
    /// The number that the kernel knows it by, in this process.
    pub fn number(&self) -> u32 {
        self.number
    }
    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
    pub(crate) fn system(&self) -> &Arc<System> {
        &self.device.system
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        let system = self.system();
        // SAFETY: what was made in it kept it; it is not used any more.
        if system.is_ours() && unsafe { (system.calls.ibv_dealloc_pd)(self.raw()) } != 0 {
            system.leak();
        }
    }
}
