//! The one instance of Verbena in a process: made by the first call that needs a device, never by
//! loading the library. C functions and Rust code that are linked into one program find the same
//! one, and with it one engine thread, one set of sockets and one connection manager a device.
//!
//! A forked child finds its parent's instance inert ([`Instance::is_ours`]) and makes its own. At
//! exit the instance says to the peers what a kernel would say for the process, then writes the
//! counters. After all else that runs at exit it leaves the port to the other processes.
//!
//! | file | what |
//! |---|---|
//! | this one | [`Instance`], and how it begins and ends |
//! | [`environment`] | the `VERBENA_*` variables that say what it is like |
//! | `counting` | what it adds to the counters below /sys/class/infiniband |
//! | `counters_file` | `VERBENA_COUNTERS`: what it counted, written at exit |
//! | `exit_heap` | memory for what is done at exit |

mod counters_file;
mod counting;
pub mod environment;
mod exit_heap;

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::capture::CaptureLink;
use ::capture::filter::Filter;
use local::Wish;
use locks::{Mutex, Rank};
use nic::{Device, Element, Errno, EventKind, Link};
use stack::Node;
use sys::per_process::PerProcess;

use crate::capture::{self, ToCollector};
use crate::fabric::PlaneLink;
use crate::faults::Faults;
use crate::inspected::Inspected;
use crate::meter::{Meter, MeterLink};
use crate::{Config, Host, LinuxEnv};
use counting::Counting;
pub use environment::is_secure;
pub use exit_heap::{ExitHeap, Leaving};

/// A host and its node, running.
#[derive(Debug)]
pub struct Instance {
    /// The host; the node is its input handler.
    pub host: Arc<Host<Node<LinuxEnv>>>,
    /// What captures packets, where anything does.
    recorder: Option<Arc<ToCollector>>,
    /// What adds to the counters below /sys/class/infiniband, where anything is to.
    counting: Option<Counting>,
    /// A panic was caught, whose leavings are not to be trusted, or there is no engine thread any
    /// more.
    fatal: AtomicBool,
}

impl Instance {
    /// The node: devices and rdma_cm identifiers.
    pub fn node(&self) -> &Arc<Node<LinuxEnv>> {
        self.host.handler()
    }

    /// Whether this process made it; false in a forked child.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.host.is_ours()
    }

    /// Whether new objects may be made on it.
    ///
    /// # Errors
    ///
    /// ENODEV in a forked child, EIO after a panic made the devices fatal ([`fail`]).
    pub fn check(&self) -> io::Result<()> {
        match () {
            () if !self.is_ours() => Err(Errno::ENODEV.into()),
            () if self.fatal.load(Ordering::Acquire) => Err(Errno::EIO.into()),
            () => Ok(()),
        }
    }

    /// A number of the view of the file system that this process shares with others whose traffic
    /// is counted with its own ([`crate::port_counters`]).
    pub(crate) fn view(&self) -> Option<u64> {
        self.counting.as_ref()?.view()
    }

    /// Opens the UDP port of a device before its first packet.
    ///
    /// # Errors
    ///
    /// EADDRINUSE where the port of all its addresses belongs to another user or to the kernel's
    /// rdma_rxe; EADDRNOTAVAIL, EMFILE and others of the system's; ENODEV in a forked child.
    pub fn attach(&self, device: &Device) -> io::Result<()> {
        self.node().attach(device).map_err(|e| e.errno().into())
    }

    /// Takes every queue pair to the error state and tells the programs (IBV_EVENT_DEVICE_FATAL).
    /// Nothing new is made.
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
}

/// A forked child makes its own, even where it was forked while another thread was making its
/// parent's. The child must not drop the parent's: the parent still uses it.
static CURRENT: PerProcess<Mutex<Option<Arc<Instance>>>> =
    PerProcess::new(|| Mutex::new(Rank::Instance, None));

/// The instance of this process, made if there is none. It lives until the process ends.
///
/// # Errors
///
/// ENOMEM where the heap has no room for it; those of [`Host::start`].
pub fn get() -> io::Result<Arc<Instance>> {
    let mut current = CURRENT.get().lock();
    if let Some(instance) = &*current {
        return Ok(instance.clone());
    }
    let instance = Arc::new(start()?);
    // Where the socket cannot be had `verbena ps` does not see the process, and all else goes on.
    let _ = Inspected::listen(&instance);
    Counting::start(&instance);
    *current = Some(instance.clone());
    Ok(instance)
}

/// The instance of this process, if there is one and no thread is making another right now.
pub fn try_get() -> Option<Arc<Instance>> {
    CURRENT.get().try_lock()?.clone()
}

/// A panic was caught in a call or on the engine thread: what it left half changed is not to be
/// trusted. Or the engine thread ends, as it cannot wait. The instance, if there is one, becomes
/// fatal: its queue pairs flush, IBV_EVENT_DEVICE_FATAL is told, and [`Instance::check`] fails from
/// now on. Further calls do nothing. Call it with no lock of the instance held. A panic in here is
/// caught as well.
pub fn fail() {
    let _ = catch_unwind(|| {
        let current = CURRENT.get().lock().clone();
        current.iter().for_each(|instance| instance.fail());
    });
}

/// Whether the heap has so many bytes left. Rust ends the process where it gets no memory for
/// something small, so code that makes an object looks first. Another thread may take what was
/// found here: then that is the end all the same.
///
/// # Errors
///
/// ENOMEM.
pub fn room(bytes: usize) -> io::Result<()> {
    // SAFETY: an allocation of its own, given back at once; the compiler does not see that nothing
    // looks at it.
    unsafe {
        let found = std::hint::black_box(libc::malloc(bytes));
        if found.is_null() {
            return Err(Errno::ENOMEM.into());
        }
        libc::free(found);
    }
    Ok(())
}

/// Bytes of the heap for a host with many devices: tables of regions, the engine thread.
const ROOM: usize = 64 << 20;

fn start() -> io::Result<Instance> {
    room(ROOM)?;
    let config = environment::config();
    let faults = if is_secure() { None } else { Faults::from_environment() };
    let captured = if is_secure() { None } else { capture::from_environment() };
    let fabric = if is_secure() { None } else { environment::fabric() };
    // The fabric counts what passes its ports.
    let class = counting::class().filter(|_| fabric.is_none());
    let mut counted = None;
    let make = |env: Arc<LinuxEnv>| {
        let interfaces = env.interfaces();
        for spec in config.devices.iter().flatten() {
            if !spec.is_of_each() && !interfaces.iter().any(|i| i.name == spec.interface) {
                eprintln!(
                    "verbena: VERBENA_DEVICES: {}: there is no interface '{}'. {}",
                    spec.name,
                    spec.interface,
                    environment::SEE
                );
            }
        }
        counted = class.as_ref().map(|(_, files)| {
            env.rings.count_in(*files);
            Arc::new(Meter::new(&interfaces, *files))
        });
        let link = link_over(&env, captured.as_ref(), faults.as_ref(), counted.as_ref());
        let node = Node::on_link(env, link, &config, &interfaces);
        if let Some((recorder, _)) = &captured {
            for device in node.devices() {
                recorder.device(&device.config);
            }
        }
        node
    };
    let wish = local::wish().unwrap_or_else(|e| {
        eprintln!("verbena: {e}. {}", environment::SEE);
        Wish::default()
    });
    if wish == Wish::Ptracer {
        sys::thread::allow_any_tracer();
    }
    // What is captured, or meets faults, goes as packets.
    let same_host = wish != Wish::Off && captured.is_none() && faults.is_none();
    let large_pages = environment::large_pages();
    let (on_failure, on_port_in_use) = (fail as fn(), explain_port_in_use as fn(&str, &[IpAddr]));
    let config = Config { on_failure, on_port_in_use, same_host, fabric, large_pages, ..Config::default() };
    let host = Host::start(make, config)?;
    // A forked child inherits the function. No `Once`, which a child could inherit as taken; one
    // thread at a time is here.
    static AT_EXIT: AtomicBool = AtomicBool::new(false);
    if !AT_EXIT.load(Ordering::Relaxed) {
        // The linker leaves out what nothing refers to.
        std::hint::black_box(&AT_LAST);
        // SAFETY: a function that lives as long as the process: a shared object with this crate is
        // linked with -z nodelete.
        unsafe { libc::atexit(at_exit) };
        AT_EXIT.store(true, Ordering::Relaxed);
    }
    counters_file::remember();
    let recorder = captured.map(|(recorder, _)| recorder);
    let counting = counted
        .zip(class.map(|(class, _)| class))
        .map(|(meter, class)| Counting::new(meter, &class, host.handler().devices()));
    Ok(Instance { host, recorder, counting, fatal: AtomicBool::new(false) })
}

/// The environment's link, with what decorates it: what leads through a fabric, what captures, what
/// loses, and what counts.
fn link_over(
    env: &Arc<LinuxEnv>,
    captured: Option<&(Arc<ToCollector>, Filter)>,
    faults: Option<&Faults>,
    counted: Option<&Arc<Meter>>,
) -> Arc<dyn Link> {
    let mut link: Arc<dyn Link> = match &env.fabric {
        Some(fabric) => Arc::new(PlaneLink::new(env.clone(), fabric.clone())),
        None => env.clone(),
    };
    if let Some((recorder, filter)) = captured {
        link = Arc::new(CaptureLink::new(link, recorder.clone(), filter.clone()));
    }
    if let Some(faults) = faults {
        link = faults.over(link, env.clone());
    }
    let Some(meter) = counted else { return link };
    let decorated = (captured.is_some() || faults.is_some()).then_some(link);
    Arc::new(MeterLink::new(env.clone(), decorated, meter.clone()))
}

/// Names the addresses on standard error, since a user can mend that.
fn explain_port_in_use(interface: &str, addresses: &[IpAddr]) {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    eprintln!(
        "verbena: UDP port 4791 of {} ({interface}) belongs to another user or to the kernel's rdma_rxe, so no \
         packet for it arrives here. Use another interface (VERBENA_DEVICES=name=roce:interface) or a network \
         namespace. See the guide, Troubleshooting, \"Address already in use\"",
        addresses.join(", ")
    );
}

/// How long a process that ends takes at most to hand on what it has sent to others of its host.
const LAST_SWEEP: Duration = Duration::from_millis(20);
/// How long a process that ends takes at most to hand its last packets to the collector.
const LAST_RECORDS: Duration = Duration::from_secs(2);
/// Bytes of the heap for what is done at exit.
const EXIT_ROOM: usize = 1 << 16;

/// Whether there is so much for it.
fn has_exit_room() -> bool {
    std::hint::black_box(Vec::<u8>::new()).try_reserve_exact(EXIT_ROOM).is_ok()
}

/// Runs in `exit`, while other threads go on and may hold any lock: it waits for none.
extern "C" fn at_exit() {
    let leave = || {
        let _leaving = Leaving::begin();
        // With the heap at its end nothing can be said, and the process shall end as it wished to.
        if let (Some(instance), true) = (try_get(), has_exit_room()) {
            instance.node().on_exit(Instant::now());
            instance.host.drain_at_exit(LAST_SWEEP);
            instance.counting.iter().for_each(Counting::finish);
            counters_file::write(&instance);
            if let Some(recorder) = &instance.recorder {
                recorder.flush(LAST_RECORDS);
            }
        }
    };
    if catch_unwind(AssertUnwindSafe(leave)).is_err() {
        fail();
    }
}

/// Runs after the exit handlers of the program and the destructors of the objects that use this
/// one. They may use a queue pair still, and then need the port.
extern "C" fn at_last() {
    let leave = || {
        let _leaving = Leaving::begin();
        if let (Some(instance), true) = (try_get(), has_exit_room()) {
            instance.host.leave_port(LAST_SWEEP);
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(leave));
}

// SAFETY: the section holds functions of this type, which the dynamic linker calls at exit (ELF
// gABI, "Initialization and Termination Functions"); this one lives as long as the process.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_LAST: extern "C" fn() = at_last;
