//! Where RDMA comes from: [`Provider`], [`Device`], [`Pd`]. Objects hold what they stand on; none has a lifetime, nor a type parameter
//! for the provider: inside is a closed `enum` ([`Stack`]), a predictable branch a call. Queue pairs, queues and memory are the
//! same objects of `nic` whatever the world below.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Instant;

use locks::{Mutex, Rank};
use nic::Later;

use crate::error::{Error, ErrorKind, Result};
use crate::mem::FIRST_IOVA;

/// The stack below.
#[derive(Clone)]
pub(crate) enum Stack {
    /// Verbena's own.
    Ours(Ours),
}

/// Verbena's own stack, over either world.
#[derive(Clone)]
pub(crate) enum Ours {
    /// This process's host, over sockets.
    #[cfg(feature = "software")]
    Software(Arc<host::process::Instance>),
    /// A process of a simulated host.
    #[cfg(feature = "sim")]
    Sim(Arc<SimProcess>),
}

/// A process of a simulated host.
#[cfg(feature = "sim")]
pub(crate) struct SimProcess {
    pub node: Arc<node::Node<sim::SimWorld>>,
    /// Run by the executor, after each step of the simulation and each task.
    pub later: Arc<Later>,
}

/// Calls the node of [`Ours`], whatever its world: `node!(ours, node => node.disconnect(&id))`.
macro_rules! node {
    ($ours:expr, $node:ident => $call:expr) => {
        match $ours {
            #[cfg(feature = "software")]
            $crate::provider::Ours::Software(instance) => {
                let $node = instance.node();
                $call
            }
            #[cfg(feature = "sim")]
            $crate::provider::Ours::Sim(process) => {
                let $node = &process.node;
                $call
            }
        }
    };
}
pub(crate) use node;

impl Stack {
    /// Verbena's own, for what no other stack does in this crate.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    #[allow(clippy::unnecessary_wraps, reason = "not all stacks are")]
    pub fn ours(&self) -> Result<&Ours> {
        match self {
            Stack::Ours(ours) => Ok(ours),
        }
    }
    /// The time as timers know it.
    pub fn now(&self) -> Instant {
        match self {
            Stack::Ours(ours) => ours.now(),
        }
    }
    /// What waits until no lock is held.
    pub fn later(&self) -> &Arc<Later> {
        match self {
            Stack::Ours(ours) => ours.later(),
        }
    }
    /// Takes what has arrived, in this thread. Nothing in a simulation: there the executor lets things arrive.
    pub fn poll(&self) {
        match self {
            #[cfg(feature = "software")]
            Stack::Ours(Ours::Software(instance)) => _ = instance.host.poll(),
            #[cfg(feature = "sim")]
            Stack::Ours(Ours::Sim(_)) => {}
        }
    }
    /// This thread polls no more for now: the engine thread takes what arrives.
    pub fn end_polling(&self) {
        match self {
            #[cfg(feature = "software")]
            Stack::Ours(Ours::Software(instance)) => instance.host.end_polling(),
            #[cfg(feature = "sim")]
            Stack::Ours(Ours::Sim(_)) => {}
        }
    }
    /// Whether this process made it: not so in a forked child.
    pub fn is_ours(&self) -> bool {
        match self {
            #[cfg(feature = "software")]
            Stack::Ours(Ours::Software(instance)) => instance.is_ours(),
            #[cfg(feature = "sim")]
            Stack::Ours(Ours::Sim(_)) => true,
        }
    }
    /// `Forked` in a child of the process that made it.
    pub fn check(&self, call: &'static str) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(Error::new(ErrorKind::Forked, call)) }
    }
    /// Whether a thread may block until something arrives.
    pub fn may_block(&self) -> bool {
        #[cfg(feature = "sim")]
        if matches!(self, Stack::Ours(Ours::Sim(_))) {
            return false;
        }
        true
    }
    fn same(&self, other: &Stack) -> bool {
        match (self, other) {
            #[cfg(feature = "software")]
            (Stack::Ours(Ours::Software(a)), Stack::Ours(Ours::Software(b))) => Arc::ptr_eq(a, b),
            #[cfg(feature = "sim")]
            (Stack::Ours(Ours::Sim(a)), Stack::Ours(Ours::Sim(b))) => Arc::ptr_eq(a, b),
            #[cfg(all(feature = "software", feature = "sim"))]
            _ => false,
        }
    }
}

impl Ours {
    fn now(&self) -> Instant {
        match self {
            #[cfg(feature = "software")]
            Ours::Software(_) => Instant::now(),
            #[cfg(feature = "sim")]
            Ours::Sim(process) => node::World::now(&**process.node.world()),
        }
    }
    fn later(&self) -> &Arc<Later> {
        match self {
            #[cfg(feature = "software")]
            Ours::Software(instance) => instance.host.later(),
            #[cfg(feature = "sim")]
            Ours::Sim(process) => &process.later,
        }
    }
}

/// A provider: a handle, clones are the same one. Calls of the crate's root use [`Provider::current`].
#[derive(Clone)]
pub struct Provider(Arc<ProviderInner>);

struct ProviderInner {
    stack: Stack,
    /// Devices in use, so that each has one default domain.
    devices: Mutex<Vec<Weak<DeviceInner>>>,
}

#[cfg(feature = "software")]
static SOFTWARE: host::per_process::PerProcess<Mutex<Option<Provider>>> =
    host::per_process::PerProcess::new(|| Mutex::new(Rank::Provider, None));

impl Provider {
    /// The stack linked in: RoCE v2 over the sockets of this machine, with no adapter, no kernel module, no root. One a process, started
    /// at the first call; C code in the same process that uses Verbena's libibverbs shares it.
    ///
    /// # Errors
    ///
    /// `Exhausted` where the system has no descriptors, threads or memory for it.
    #[cfg(feature = "software")]
    pub fn software() -> Result<Provider> {
        let mut software = SOFTWARE.get().lock();
        if let Some(provider) = &*software {
            return Ok(provider.clone());
        }
        let instance = host::process::get().map_err(|e| Error::of_io("Provider::software", &e))?;
        let provider = Provider::over(Stack::Ours(Ours::Software(instance)));
        *software = Some(provider.clone());
        Ok(provider)
    }

    /// In a task of a simulated host, that host's; else [`Provider::software`].
    ///
    /// # Errors
    ///
    /// Those of [`Provider::software`]; `WrongState` in a simulation's test function itself, which runs on no host.
    pub fn current() -> Result<Provider> {
        #[cfg(feature = "sim")]
        if let Some(provider) = crate::sim::current_provider() {
            return Ok(provider);
        } else if crate::sim::is_running() {
            // Not the software: a test would leave its simulation without a word.
            let text = "a simulation's code that belongs to no host; see sim::Host::spawn".to_owned();
            return Err(Error::new(ErrorKind::WrongState, "Provider::current").with(crate::Value::Text(text)));
        }
        #[cfg(feature = "software")]
        return Provider::software();
        #[cfg(not(feature = "software"))]
        Err(Error::new(ErrorKind::ProviderMissing, "Provider::current"))
    }

    pub(crate) fn over(stack: Stack) -> Provider {
        Provider(Arc::new(ProviderInner { stack, devices: Mutex::new(Rank::UsedDevices, Vec::new()) }))
    }

    pub(crate) fn stack(&self) -> &Stack {
        &self.0.stack
    }

    /// Its devices.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn devices(&self) -> Result<Vec<Device>> {
        self.stack().check("ibv_get_device_list")?;
        match self.stack() {
            Stack::Ours(ours) => {
                let devices = node!(ours, node => node.devices());
                Ok(devices.into_iter().map(|nic| self.device(Adapter::Ours(nic))).collect())
            }
        }
    }

    /// The device that bears an address of ours.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Forked`.
    pub fn device_of(&self, address: IpAddr) -> Result<Device> {
        let bears = |device: &Device| device.0.adapter.bears(address);
        let not_there = || Error::new(ErrorKind::NotFound, "Provider::device_of");
        self.devices()?.into_iter().find(bears).ok_or_else(not_there)
    }

    pub(crate) fn device(&self, adapter: Adapter) -> Device {
        let mut devices = self.0.devices.lock();
        devices.retain(|known| known.strong_count() > 0);
        let known = devices.iter().filter_map(Weak::upgrade).find(|known| known.adapter.same(&adapter));
        Device(known.unwrap_or_else(|| {
            let default_pd = Mutex::new(Rank::DefaultPd, Weak::new());
            let new = Arc::new(DeviceInner { provider: self.clone(), adapter, default_pd });
            devices.push(Arc::downgrade(&new));
            new
        }))
    }
}

impl PartialEq for Provider {
    fn eq(&self, other: &Provider) -> bool {
        self.stack().same(other.stack())
    }
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.stack() {
            #[cfg(feature = "software")]
            Stack::Ours(Ours::Software(_)) => f.write_str("Provider(software)"),
            #[cfg(feature = "sim")]
            Stack::Ours(Ours::Sim(_)) => f.write_str("Provider(sim)"),
        }
    }
}

/// A device: a handle, clones are the same one.
#[derive(Clone)]
pub struct Device(Arc<DeviceInner>);

/// What stands behind a device.
pub(crate) enum Adapter {
    Ours(Arc<nic::Device>),
}

impl Adapter {
    fn bears(&self, address: IpAddr) -> bool {
        match self {
            Adapter::Ours(nic) => nic.port().gids.index_of(address).is_some(),
        }
    }
    fn same(&self, other: &Adapter) -> bool {
        match (self, other) {
            (Adapter::Ours(a), Adapter::Ours(b)) => Arc::ptr_eq(a, b),
        }
    }
}

struct DeviceInner {
    provider: Provider,
    adapter: Adapter,
    /// The domain of whoever asks for none in particular; it goes with its last user.
    default_pd: Mutex<Weak<PdInner>>,
}

impl Device {
    /// Its name, such as `rxe_eth0`.
    pub fn name(&self) -> &str {
        match &self.0.adapter {
            Adapter::Ours(nic) => &nic.config.name,
        }
    }
    /// The protection domain that connections get which are not given one. It is the same for as long as anybody holds it.
    ///
    /// # Errors
    ///
    /// `Exhausted`, `Forked`.
    pub fn pd(&self) -> Result<Pd> {
        let mut default = self.0.default_pd.lock();
        if let Some(pd) = default.upgrade() {
            return Ok(Pd(pd));
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
        };
        Ok(Pd(Arc::new(PdInner { device: self.clone(), domain, next_iova: AtomicU64::new(FIRST_IOVA) })))
    }
    /// Its provider.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
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
        }
    }
    /// Largest payload of a packet on its link, in bytes.
    pub(crate) fn mtu(&self) -> u32 {
        match &self.0.adapter {
            Adapter::Ours(nic) => nic.port().mtu.bytes() as u32,
        }
    }
    pub(crate) fn stack(&self) -> &Stack {
        self.0.provider.stack()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
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
pub struct Pd(Arc<PdInner>);

/// What stands behind a domain.
pub(crate) enum Domain {
    Ours(Arc<nic::Pd>),
}

struct PdInner {
    device: Device,
    domain: Domain,
    /// The address that the next registration begins at.
    next_iova: AtomicU64,
}

impl Pd {
    /// Its device.
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
    fn eq(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0.domain {
            Domain::Ours(nic) => write!(f, "Pd({} of {})", nic.number(), self.device().name()),
        }
    }
}
