//! Where RDMA comes from: [`Provider`], [`Device`], [`Pd`]. Objects hold what they stand on; none
//! has a lifetime, nor a type parameter for the provider: inside is a closed `enum` ([`Stack`]), a
//! predictable branch a call.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank};

use crate::error::{Error, ErrorKind, Result};
use crate::mem::FIRST_IOVA;

#[cfg(feature = "sim")]
pub(crate) use crate::stack::SimProcess;
#[cfg(feature = "system")]
use crate::stack::unsupported;
pub(crate) use crate::stack::{NodeChannel, NodeId, Ours, Stack, node};
use crate::thread_safe::ThreadSafe;

/// A provider: a handle, clones are the same one. Calls of the crate's root use
/// [`Provider::current`].
#[derive(Clone)]
pub struct Provider(ThreadSafe<Arc<ProviderInner>>);

struct ProviderInner {
    stack: Stack,
    /// Devices in use, so that each has one default domain.
    devices: Mutex<Vec<Weak<DeviceInner>>>,
    /// The last number of an identifier made by hand.
    ids: AtomicU64,
}

#[cfg(feature = "software")]
static SOFTWARE: sys::per_process::PerProcess<Mutex<Option<Provider>>> =
    sys::per_process::PerProcess::new(|| Mutex::new(Rank::Provider, None));

/// Providers over the machine's libraries, by their files.
#[cfg(feature = "system")]
static SYSTEMS: sys::per_process::PerProcess<Mutex<Vec<(rdma_core::Files, Provider)>>> =
    sys::per_process::PerProcess::new(|| Mutex::new(Rank::Provider, Vec::new()));
/// The process that has opened libraries: its children must not.
#[cfg(feature = "system")]
static OPENER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Whether this process has adapters by its own libraries: then memory is for those.
#[cfg(feature = "software")]
pub(crate) fn has_opened_libraries() -> bool {
    #[cfg(feature = "system")]
    return OPENER.load(Ordering::Relaxed) == std::process::id();
    #[cfg(not(feature = "system"))]
    false
}

impl Provider {
    /// The stack linked in: RoCE v2 over the sockets of this machine, with no adapter, no kernel
    /// module, no root. One a process, started at the first call; C code in the same process
    /// that uses Verbena's libibverbs shares it.
    ///
    /// # Errors
    ///
    /// `Exhausted` where the system has no descriptors, threads or memory for it.
    ///
    /// # Examples
    ///
    /// ```
    /// let provider = verbena::Provider::software()?;
    /// let device = provider.devices()?.remove(0);
    /// assert!(device.supports(verbena::Access::REMOTE_ATOMIC));
    /// # Ok::<(), verbena::Error>(())
    /// ```
    #[cfg(feature = "software")]
    pub fn software() -> Result<Self> {
        let mut software = SOFTWARE.get().lock();
        if let Some(provider) = &*software {
            return Ok(provider.clone());
        }
        let instance = linux::process::get().map_err(|e| Error::of_io("Provider::software", &e))?;
        let provider = Self::over(Stack::Ours(Ours::Software(ThreadSafe::new(instance))));
        *software = Some(provider.clone());
        Ok(provider)
    }

    /// This machine's rdma-core: libibverbs.so.1 and librdmacm.so.1 as the dynamic linker finds
    /// them, and with them its adapters, or the kernel's rdma_rxe. Opened at the first call;
    /// one a process. Nothing else of this crate needs the libraries.
    ///
    /// # Errors
    ///
    /// `ProviderMissing` where they are not there, or where what is there is Verbena itself, as
    /// under `verbena run`: the text says what was found where, and what to do. `NotFound`,
    /// `Unreachable` where the kernel has no rdma_cm. `Forked` in a child of a process that has
    /// opened them: they do not survive a fork.
    #[cfg(feature = "system")]
    pub fn system() -> Result<Self> {
        Self::system_over(rdma_core::Files::of_machine())
    }

    /// Like [`Provider::system`], over libraries of these files, which may be Verbena's own: its
    /// one object, libverbena_rdma.so, is both. One a process for each pair of names.
    ///
    /// # Errors
    ///
    /// Those of [`Provider::system`], but for Verbena itself.
    #[cfg(feature = "system")]
    pub fn system_from(
        libibverbs: impl Into<std::path::PathBuf>,
        librdmacm: impl Into<std::path::PathBuf>,
    ) -> Result<Self> {
        let (ibverbs, rdmacm) = (libibverbs.into(), librdmacm.into());
        Self::system_over(rdma_core::Files { ibverbs, rdmacm, may_be_ours: true })
    }

    #[cfg(feature = "system")]
    fn system_over(files: rdma_core::Files) -> Result<Self> {
        const CALL: &str = "Provider::system";
        let me = std::process::id();
        // Set once, and kept by children.
        let opener = match OPENER.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => me,
            Err(opener) => opener,
        };
        if opener != me {
            return Err(Error::new(ErrorKind::Forked, CALL));
        }
        let mut opened = SYSTEMS.get().lock();
        if let Some((_, provider)) = opened.iter().find(|(known, _)| *known == files) {
            return Ok(provider.clone());
        }
        let system = rdma_core::System::open(&files).map_err(|failure| match failure {
            rdma_core::instance::Failure::Open(why) => {
                Error::new(ErrorKind::ProviderMissing, CALL).with(crate::Value::Text(why.to_string()))
            }
            rdma_core::instance::Failure::Call(why) => {
                let text =
                    format!("the libraries are there, but say {why}: is the kernel's rdma_ucm loaded?");
                Error::of_nic(CALL, why).with(crate::Value::Text(text))
            }
        })?;
        let provider = Self::over(Stack::System(ThreadSafe::new(system)));
        opened.push((files, provider.clone()));
        Ok(provider)
    }

    /// In a task of a simulated host, that host's; else [`Provider::software`].
    ///
    /// # Errors
    ///
    /// Those of [`Provider::software`]; `WrongState` in a simulation's test function itself, which
    /// runs on no host; `ProviderMissing` outside of simulations where the feature `software` is
    /// off, also with the feature `system`.
    pub fn current() -> Result<Self> {
        #[cfg(feature = "sim")]
        if let Some(provider) = crate::sim::current_provider() {
            return Ok(provider);
        } else if crate::sim::is_running() {
            // Not the software: a test would leave its simulation without a word.
            let text = "a simulation's code that belongs to no host; see sim::Host::spawn".to_owned();
            return Err(Error::new(ErrorKind::WrongState, "Provider::current").with(crate::Value::Text(text)));
        }
        #[cfg(feature = "software")]
        return Self::software();
        #[cfg(not(feature = "software"))]
        {
            let text = "the feature `software` is off: builders take the provider, by `.provider()`";
            let text = crate::Value::Text(text.to_owned());
            Err(Error::new(ErrorKind::ProviderMissing, "Provider::current").with(text))
        }
    }

    /// Blocks until a future of this provider's objects is ready, polling in this thread for 50 to
    /// 200 us and sleeping then.
    ///
    /// # Errors
    ///
    /// `BlockingInSimulation` on simulated hosts, where nothing would happen meanwhile; the future
    /// is dropped then.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        crate::exec::may_block(self.stack(), "Provider::wait")?;
        Ok(crate::exec::block_on(future))
    }

    pub(crate) fn over(stack: Stack) -> Self {
        let devices = Mutex::new(Rank::UsedDevices, Vec::new());
        Self(ThreadSafe::new(Arc::new(ProviderInner { stack, devices, ids: AtomicU64::new(0) })))
    }

    /// A number that is another one each time, from 1 on.
    pub(crate) fn next_id_number(&self) -> u64 {
        self.0.ids.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn stack(&self) -> &Stack {
        &self.0.stack
    }

    /// The provider's devices.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn devices(&self) -> Result<Vec<Device>> {
        self.stack().check("ibv_get_device_list")?;
        match self.stack() {
            Stack::Ours(ours) => {
                let device = |nic| self.device(Adapter::Ours(nic));
                node!(ours, node => Ok(node.devices().into_iter().map(device).collect()))
            }
            #[cfg(feature = "system")]
            Stack::System(system) => {
                let devices = system.devices().map_err(|e| Error::of_nic("rdma_get_devices", e))?;
                Ok(devices.into_iter().map(|device| self.device(Adapter::System(device))).collect())
            }
        }
    }

    /// The device that bears an address of ours.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forked`.
    pub fn device_of(&self, address: IpAddr) -> Result<Device> {
        let not_there = || Error::new(ErrorKind::NotFound, "Provider::device_of");
        match self.stack() {
            Stack::Ours(ours) => {
                self.stack().check("Provider::device_of")?;
                let bears = |nic: &Arc<nic::Device>| nic.port().gids.index_of(address).is_some();
                node!(ours, node => {
                    let nic = node.devices().into_iter().find(bears).ok_or_else(not_there)?;
                    Ok(self.device(Adapter::Ours(nic)))
                })
            }
            #[cfg(feature = "system")]
            Stack::System(system) => {
                self.stack().check("Provider::device_of")?;
                let device = system.device_with(address).map_err(|_| not_there())?;
                Ok(self.device(Adapter::System(device)))
            }
        }
    }

    pub(crate) fn device(&self, adapter: Adapter) -> Device {
        let mut devices = self.0.devices.lock();
        devices.retain(|known| known.strong_count() > 0);
        let known = devices.iter().filter_map(Weak::upgrade).find(|known| known.adapter.same(&adapter));
        Device(ThreadSafe::new(known.unwrap_or_else(|| {
            let default_pd = Mutex::new(Rank::DefaultPd, Weak::new());
            let new = Arc::new(DeviceInner { provider: self.clone(), adapter, default_pd });
            devices.push(Arc::downgrade(&new));
            new
        })))
    }
}

impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        self.stack().same(other.stack())
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.stack() {
            Stack::Ours(ours) => write!(f, "Provider({})", ours.name()),
            #[cfg(feature = "system")]
            Stack::System(system) => write!(f, "Provider({:?})", **system),
        }
    }
}

/// A device: a handle, clones are the same one.
#[derive(Clone)]
pub struct Device(ThreadSafe<Arc<DeviceInner>>);

/// What a device is in the stack below.
pub(crate) enum Adapter {
    Ours(Arc<nic::Device>),
    #[cfg(feature = "system")]
    System(Arc<rdma_core::Device>),
}

impl Adapter {
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ours(a), Self::Ours(b)) => Arc::ptr_eq(a, b),
            #[cfg(feature = "system")]
            (Self::System(a), Self::System(b)) => Arc::ptr_eq(a, b),
            #[cfg(feature = "system")]
            _ => false,
        }
    }
}

struct DeviceInner {
    provider: Provider,
    adapter: Adapter,
    /// The domain of callers that ask for none in particular; it goes with its last user.
    default_pd: Mutex<Weak<PdInner>>,
}

impl Device {
    /// The device's name, such as `rxe_eth0`.
    pub fn name(&self) -> &str {
        match &self.0.adapter {
            Adapter::Ours(nic) => &nic.config.name,
            #[cfg(feature = "system")]
            Adapter::System(device) => device.name(),
        }
    }
    /// The protection domain that connections get which are not given one. It is the same for as
    /// long as any handle of it exists.
    ///
    /// # Errors
    ///
    /// `Exhausted`, `Forked`.
    pub fn pd(&self) -> Result<Pd> {
        let mut default = self.0.default_pd.lock();
        if let Some(pd) = default.upgrade() {
            return Ok(Pd(ThreadSafe::new(pd)));
        }
        let pd = self.new_pd()?;
        *default = Arc::downgrade(&pd.0);
        Ok(pd)
    }
    /// A protection domain of its own.
    ///
    /// # Errors
    ///
    /// `Exhausted`, `Forked`.
    pub fn new_pd(&self) -> Result<Pd> {
        self.stack().check("ibv_alloc_pd")?;
        let domain = match &self.0.adapter {
            Adapter::Ours(nic) => {
                Domain::Ours(Arc::new(nic.alloc_pd().map_err(|e| Error::of_nic("ibv_alloc_pd", e))?))
            }
            #[cfg(feature = "system")]
            Adapter::System(device) => {
                let pd = rdma_core::Pd::new(device).map_err(|e| Error::of_nic("ibv_alloc_pd", e))?;
                Domain::System(Arc::new(pd))
            }
        };
        let inner = PdInner { device: self.clone(), domain, next_iova: AtomicU64::new(FIRST_IOVA) };
        Ok(Pd(ThreadSafe::new(Arc::new(inner))))
    }
    /// The device's provider.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.0.adapter
    }
    /// Verbena's own.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a device of another stack.
    #[allow(clippy::unnecessary_wraps, reason = "not all devices are")]
    pub(crate) fn nic(&self) -> Result<&Arc<nic::Device>> {
        match &self.0.adapter {
            Adapter::Ours(nic) => Ok(nic),
            #[cfg(feature = "system")]
            Adapter::System(_) => Err(unsupported()),
        }
    }
    /// Largest payload of a packet on its link, in bytes.
    pub(crate) fn mtu(&self) -> u32 {
        match &self.0.adapter {
            Adapter::Ours(nic) => nic.port().mtu.bytes() as u32,
            #[cfg(feature = "system")]
            Adapter::System(device) => device.mtu(),
        }
    }
    /// What of these rights of `enum ibv_access_flags` the device can give.
    pub(crate) fn possible(&self, access: u32) -> u32 {
        match &self.0.adapter {
            Adapter::Ours(_) => access,
            #[cfg(feature = "system")]
            Adapter::System(device) => device.possible(access),
        }
    }
    /// Whether its registrations can have all of these rights: not every adapter has FLUSH.
    pub fn supports(&self, access: crate::Access) -> bool {
        let registered = access.registered();
        self.possible(registered) == registered
    }
    /// Whether its queue pairs have ATOMIC WRITE.
    pub fn has_atomic_write(&self) -> bool {
        match &self.0.adapter {
            Adapter::Ours(_) => true,
            #[cfg(feature = "system")]
            Adapter::System(device) => device.has_atomic_write(),
        }
    }
    pub(crate) fn stack(&self) -> &Stack {
        self.0.provider.stack()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// A protection domain: memory and queue pairs that go together. A handle, clones are the same one.
#[derive(Clone)]
pub struct Pd(ThreadSafe<Arc<PdInner>>);

/// What a domain is in the stack below.
pub(crate) enum Domain {
    Ours(Arc<nic::Pd>),
    #[cfg(feature = "system")]
    System(Arc<rdma_core::Pd>),
}

struct PdInner {
    device: Device,
    domain: Domain,
    /// The address that the next registration begins at.
    next_iova: AtomicU64,
}

impl Pd {
    /// The domain's device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }
    pub(crate) fn domain(&self) -> &Domain {
        &self.0.domain
    }
    /// Verbena's own.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a domain of another stack.
    #[allow(clippy::unnecessary_wraps, reason = "not all domains are")]
    pub(crate) fn nic(&self) -> Result<&Arc<nic::Pd>> {
        match &self.0.domain {
            Domain::Ours(nic) => Ok(nic),
            #[cfg(feature = "system")]
            Domain::System(_) => Err(unsupported()),
        }
    }
    pub(crate) fn next_iova(&self) -> &AtomicU64 {
        &self.0.next_iova
    }
    pub(crate) fn stack(&self) -> &Stack {
        self.0.device.stack()
    }
}

impl PartialEq for Pd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0.domain {
            Domain::Ours(nic) => write!(f, "Pd({} of {})", nic.number(), self.device().name()),
            #[cfg(feature = "system")]
            Domain::System(pd) => write!(f, "Pd({} of {})", pd.number(), self.device().name()),
        }
    }
}
