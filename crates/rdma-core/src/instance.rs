//! What one pair of libraries has in this process: [`System`].

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6};
use locks::{Mutex, Rank};
use nic::{DeferredWork, Error, QpType, Signal, Work};
use rdma_core_abi::cma::{
    RAI_PASSIVE, RDMA_PS_IB, rdma_addrinfo, rdma_cm_id, rdma_event_channel, rdma_port_space,
};
use rdma_core_abi::verbs::{IBV_QPT_UC, ibv_context};
use sys::per_process::PerProcess;

use crate::device::Device;
use crate::events::{Failed, Inbox};
use crate::id::Id;
use crate::libraries::{Calls, Files, OpenError};
use crate::reactor::{Reactor, Timer};
use crate::window::Names;
use crate::{minus_one, object};

/// Both libraries, opened, with the one event channel and the one thread that all objects over them
/// share.
pub struct System {
    pub(crate) calls: Calls,
    later: Arc<DeferredWork>,
    pub(crate) reactor: Reactor,
    pub(crate) channel: AtomicPtr<rdma_event_channel>,
    /// Held while the channel is read, so that events are told in order; and connections that could
    /// not be made, whose identifiers are told so when the timer is over.
    pub(crate) reading: Mutex<Vec<Failed>>,
    pub(crate) timer: Timer,
    pub(crate) ids: Mutex<HashMap<usize, Weak<Id>>>,
    devices: Mutex<Vec<Arc<Device>>>,
    /// What requests to bind windows name.
    pub(crate) names: Mutex<Names>,
    leaked: AtomicU64,
    /// The mark of the process that made the [`System`].
    process: &'static Process,
}

/// A mark whose address tells processes apart.
struct Process {
    _not_empty: u8,
}

static PROCESS: PerProcess<Process> = PerProcess::new(|| Process { _not_empty: 0 });

/// Has the event channel read when no lock is held.
struct Reads(Weak<System>);

impl Signal for Reads {
    fn signal(&self) {
        if let Some(system) = self.0.upgrade() {
            system.later.add(system.clone());
        }
    }
    fn take_back(&self) {}
}

impl Work for System {
    fn run(self: Arc<Self>) {
        self.read_events();
    }
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("System").field("leaked", &self.leaked()).finish_non_exhaustive()
    }
}

impl System {
    /// Opens the libraries and starts the thread.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; of what the libraries are asked first, errno: ENODEV or ENOENT where the
    /// kernel has no rdma_cm.
    pub fn open(files: &Files) -> Result<Arc<Self>, Failure> {
        let calls = Calls::open(files).map_err(Failure::Open)?;
        // Before anything is registered. A refusal says that the kernel keeps parent and child
        // apart itself, or that it is too late. SAFETY: no arguments.
        _ = unsafe { (calls.ibv_fork_init)() };
        // SAFETY: no arguments.
        let channel = object(unsafe { (calls.rdma_create_event_channel)() }).map_err(Failure::Call)?;
        // SAFETY: just made.
        let fd = unsafe { channel.as_ref() }.fd;
        crate::reactor::set_nonblocking(fd).map_err(Failure::Call)?;
        let later = Arc::new(DeferredWork::default());
        let reactor = Reactor::start(&later).map_err(Failure::Call)?;
        let system = Arc::new(Self {
            calls,
            later,
            reactor,
            channel: AtomicPtr::new(channel.as_ptr()),
            reading: Mutex::new(Rank::SystemEvents, Vec::new()),
            timer: Timer::new().map_err(Failure::Call)?,
            ids: Mutex::new(Rank::SystemIds, HashMap::new()),
            devices: Mutex::new(Rank::SystemDevices, Vec::new()),
            names: Mutex::new(Rank::SystemNames, Names::default()),
            leaked: AtomicU64::new(0),
            process: PROCESS.get(),
        });
        for fd in [fd, system.timer.fd()] {
            system.reactor.watch(fd, Arc::new(Reads(Arc::downgrade(&system)))).map_err(Failure::Call)?;
        }
        Ok(system)
    }

    /// What waits until no lock is held.
    pub fn later(&self) -> &Arc<DeferredWork> {
        &self.later
    }
    /// Whether this process made it; false in a forked child, which must not use it.
    pub fn is_ours(&self) -> bool {
        std::ptr::eq(PROCESS.get(), self.process)
    }
    /// Objects that the libraries refused to destroy.
    pub fn leaked(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }
    pub(crate) fn leak(&self) {
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    /// The devices that the connection manager knows now.
    ///
    /// # Errors
    ///
    /// Errno of rdma_get_devices(3); ENODEV where there is none.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<Arc<Device>>, Error> {
        let mut count = 0;
        // SAFETY: `count` is written.
        let list = object(unsafe { (self.calls.rdma_get_devices)(&raw mut count) })?;
        // SAFETY: so many entries are there, all contexts that live as long as the library.
        let contexts =
            unsafe { std::slice::from_raw_parts(list.as_ptr(), usize::try_from(count).unwrap_or(0)) };
        let (mut devices, mut is_new) = (Vec::new(), false);
        for context in contexts.iter().filter_map(|context| NonNull::new(*context)) {
            let (device, new) = self.device_at(context)?;
            is_new |= new;
            devices.push(device);
        }
        // The list of a new device is kept: librdmacm counts the lists that have it.
        if !is_new {
            // SAFETY: it was got just now, and no thread has it any more.
            unsafe { (self.calls.rdma_free_devices)(list.as_ptr()) };
        }
        Ok(devices)
    }

    /// The device of a context of the connection manager's, and whether it was not known before.
    fn device_at(self: &Arc<Self>, context: NonNull<ibv_context>) -> Result<(Arc<Device>, bool), Error> {
        let mut devices = self.devices.lock();
        if let Some(known) = devices.iter().find(|known| known.is_at(context)) {
            return Ok((known.clone(), false));
        }
        // SAFETY: the caller's context lives as long as the library.
        let device = Arc::new(unsafe { Device::new(self, context)? });
        devices.push(device.clone());
        Ok((device, true))
    }

    /// The device that an identifier is bound to.
    ///
    /// # Safety
    ///
    /// The identifier lives.
    pub(crate) unsafe fn device_of(self: &Arc<Self>, id: *mut rdma_cm_id) -> Option<Arc<Device>> {
        // SAFETY: as the caller says.
        let context = NonNull::new(unsafe { (*id).verbs })?;
        Some(self.device_at(context).ok()?.0)
    }

    /// The device that bears an address of this machine.
    ///
    /// # Errors
    ///
    /// Those of [`System::devices`]; `Missing` where none does.
    pub fn device_with(self: &Arc<Self>, address: IpAddr) -> Result<Arc<Device>, Error> {
        if let Some(device) = self.devices()?.into_iter().find(|device| device.bears(address)) {
            return Ok(device);
        }
        // Where GIDs are not addresses: the connection manager knows.
        let id = Id::new(self, &Inbox::deaf(), QpType::Rc)?;
        id.bind((address, 0).into())?;
        id.device().ok_or(Error::Missing("a device with this address"))
    }

    /// A C identifier on the event channel, of this port space.
    pub(crate) fn create_id(&self, space: rdma_port_space) -> Result<NonNull<rdma_cm_id>, Error> {
        let mut id = std::ptr::null_mut();
        let channel = self.channel.load(Ordering::Relaxed);
        // SAFETY: the channel lives as long as the process; `id` is written on success.
        minus_one(unsafe { (self.calls.rdma_create_id)(channel, &raw mut id, std::ptr::null_mut(), space) })?;
        object(id)
    }

    /// Makes an identifier for unreliable connections, bound to an address: rdma_create_id(3) takes
    /// no type, rdma_create_ep(3) does, and makes one with a channel of its own.
    pub(crate) fn create_uc_id(&self, on: SocketAddr) -> Result<NonNull<rdma_cm_id>, Error> {
        let mut source = crate::sockaddr::to_c(on);
        // SAFETY: numbers and addresses: all zeros are one that says nothing.
        let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
        (info.ai_flags, info.ai_family) = (RAI_PASSIVE, if on.is_ipv4() { AF_INET } else { AF_INET6 });
        (info.ai_qp_type, info.ai_port_space) = (IBV_QPT_UC as c_int, RDMA_PS_IB as c_int);
        info.ai_src_len =
            if on.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() } as u32;
        info.ai_src_addr = (&raw mut source).cast();
        let mut id = std::ptr::null_mut();
        // SAFETY: the address is read, `id` is written on success; there are no queue pair and no
        // domain.
        minus_one(unsafe {
            (self.calls.rdma_create_ep)(
                &raw mut id,
                &raw mut info,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        })?;
        let id = object(id)?;
        let channel = self.channel.load(Ordering::Relaxed);
        // SAFETY: both live; nothing has happened to the identifier yet.
        let moved = minus_one(unsafe { (self.calls.rdma_migrate_id)(id.as_ptr(), channel) });
        moved.inspect_err(|_| {
            // SAFETY: it lives, and no other thread has it.
            if unsafe { (self.calls.rdma_destroy_id)(id.as_ptr()) } != 0 {
                self.leak();
            }
        })?;
        Ok(id)
    }
}

/// Why there is no [`System`].
#[derive(Clone, Debug)]
pub enum Failure {
    /// The libraries are not there, or not what they should be.
    Open(OpenError),
    /// The libraries, or the system, refused.
    Call(Error),
}
