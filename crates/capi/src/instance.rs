//! The one instance of Verbena in a process: made at the first call that needs a device, never by loading the library. A
//! forked child finds its parent's inert and makes its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use host::{Host, RealWorld};
use nic::{Device, Element, EventKind};
use node::{DeviceSpec, Node};

use crate::counters;
use crate::ffi_guard::{self, Errno};
use crate::per_process::PerProcess;

/// A host and its node, running.
pub(crate) struct Instance {
    pub host: Arc<Host<Node<RealWorld>>>,
    /// The user has been told why a port could not be opened.
    explained: AtomicBool,
    /// A panic was caught: what it left behind is not to be trusted.
    fatal: AtomicBool,
}

impl Instance {
    pub fn node(&self) -> &Arc<Node<RealWorld>> {
        self.host.guest()
    }

    /// Whether this process made it; false in a forked child.
    pub fn is_ours(&self) -> bool {
        self.host.is_ours()
    }

    /// Whether new objects may be made: ENODEV in a forked child, EIO after the device became fatal.
    pub fn check(&self) -> Result<(), Errno> {
        match () {
            () if !self.is_ours() => Err(Errno(libc::ENODEV)),
            () if self.fatal.load(Ordering::Acquire) => Err(Errno(libc::EIO)),
            () => Ok(()),
        }
    }

    /// Takes every queue pair to the error state and tells the programs (IBV_EVENT_DEVICE_FATAL). Nothing new is made.
    fn fail(&self) {
        if self.fatal.swap(true, Ordering::AcqRel) || !self.is_ours() {
            return;
        }
        let now = Instant::now();
        for device in self.node().devices() {
            device.announce(EventKind::DeviceFatal, Element::Device);
            device.qps().iter().for_each(|qp| qp.fail(now));
        }
    }

    /// Opens the UDP port of a device before its first packet. The one failure that a user can mend is explained.
    pub fn attach(&self, device: &Device) -> Result<(), Errno> {
        self.node().attach(device).map_err(|e| {
            if e.errno() == libc::EADDRINUSE && !self.explained.swap(true, Ordering::Relaxed) {
                eprintln!(
                    "verbena: UDP port 4791 of {} belongs to another user or to the kernel's rdma_rxe; \
                     use an address or interface of its own (VERBENA_DEVICES=name=roce:interface)",
                    device.config.interface_name
                );
            }
            Errno(e.errno())
        })
    }
}

/// A forked child makes its own, even where it was forked while another thread was making its parent's. What that holds is
/// not the child's to end.
static CURRENT: PerProcess<Mutex<Option<Arc<Instance>>>> = PerProcess::new();

/// The instance of this process, made if there is none.
pub(crate) fn get() -> Result<Arc<Instance>, Errno> {
    let mut current = CURRENT.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = &*current {
        return Ok(instance.clone());
    }
    let instance = Arc::new(start()?);
    *current = Some(instance.clone());
    Ok(instance)
}

/// The instance of this process, if there is one and nobody is making another right now.
pub(crate) fn try_get() -> Option<Arc<Instance>> {
    CURRENT.get().try_lock().ok()?.clone()
}

/// How long a process that ends takes at most to hand on what it has sent to others of its host.
const LAST_SWEEP: Duration = Duration::from_millis(20);

/// Runs in `exit`, while other threads go on and may hold any lock: it waits for none.
extern "C" fn at_exit() {
    ffi_guard::nothing(|| {
        // With the heap at its end nothing can be said, and the process shall end as it wished to.
        if let (Some(instance), Ok(())) = (try_get(), ffi_guard::room(ffi_guard::ROOM)) {
            instance.node().on_exit(Instant::now());
            instance.host.drain_at_exit(LAST_SWEEP);
            counters::write(&instance);
        }
    });
}

/// Of the heap, for a host with many devices: tables of regions, the engine thread.
const ROOM: usize = 64 << 20;

fn start() -> Result<Instance, Errno> {
    ffi_guard::room(ROOM)?;
    ffi_guard::after_panic(|| {
        let current = CURRENT.get().lock().unwrap_or_else(PoisonError::into_inner).clone();
        current.iter().for_each(|instance| instance.fail());
    });
    let mut config = node::Config { devices: configured(), ..node::Config::default() };
    if let Some(total) = cm_timeout() {
        (config.timing.request.total, config.timing.reply.total) = (total, total);
    }
    let config = config;
    let make = |world: Arc<RealWorld>| {
        let interfaces = world.interfaces();
        for spec in config.devices.iter().flatten() {
            if !interfaces.iter().any(|i| i.name == spec.interface) {
                eprintln!(
                    "verbena: VERBENA_DEVICES: {}: there is no interface '{}'",
                    spec.name, spec.interface
                );
            }
        }
        Node::new(world, &config, &interfaces)
    };
    let host = Host::start(make, host::Config { on_panic: ffi_guard::panicked, ..host::Config::default() })?;
    // A forked child inherits the function. No `Once`, which a child could inherit as taken; one thread at a time is here.
    static AT_EXIT: AtomicBool = AtomicBool::new(false);
    if !AT_EXIT.load(Ordering::Relaxed) {
        // SAFETY: a function that lives as long as the process: the object is linked with -z nodelete.
        unsafe { libc::atexit(at_exit) };
        AT_EXIT.store(true, Ordering::Relaxed);
    }
    counters::remember_file();
    Ok(Instance { host, explained: AtomicBool::new(false), fatal: AtomicBool::new(false) })
}

/// The devices that VERBENA_DEVICES asks for: all (`None`) where it is not set, none where it is wrong.
fn configured() -> Option<Vec<DeviceSpec>> {
    let text = std::env::var_os("VERBENA_DEVICES")?;
    Some(node::devices::parse(&text.to_string_lossy()).unwrap_or_else(|e| {
        eprintln!("verbena: {e}");
        Vec::new()
    }))
}

/// For how long a connection request, or an answer to one, is repeated that nobody answers: VERBENA_CM_TIMEOUT, in seconds.
fn cm_timeout() -> Option<Duration> {
    let text = std::env::var_os("VERBENA_CM_TIMEOUT")?;
    let seconds = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
    let total = seconds.filter(|s| (0.1..=3_600.0).contains(s)).map(Duration::from_secs_f64);
    if total.is_none() {
        eprintln!(
            "verbena: VERBENA_CM_TIMEOUT: '{}' is not a number from 0.1 to 3600",
            text.to_string_lossy()
        );
    }
    total
}

impl From<nic::Error> for Errno {
    fn from(e: nic::Error) -> Errno {
        Errno(e.errno())
    }
}
