//! Adds what this process counts to the counters below /sys/class/infiniband
//! ([`crate::port_counters`]), a few times a second and when the process ends. A process does so
//! where `VERBENA_PORT_COUNTERS` names the directory, as it does for what `verbena run` starts.
//!
//! A thread of its own adds. The thread that ends the process only asks it to add once more: it may
//! hold any lock, and so waits for no other.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use local::rings::Passed;
use locks::{Mutex, Rank};
use nic::device::mishaps::Mishaps;
use nic::{Device, Transport};
use sys::file_size::without_signal;
use transport::iwarp::Way;

use super::{Instance, is_secure};
use crate::meter::{Meter, PortTraffic};
use crate::port_counters::{LIFESPAN_MS, PortFiles, VARIABLE, of_link};

/// How long the thread waits for other processes that add; what was not added is added later.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a process that ends waits for the thread.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks meanwhile.
const PAUSE: Duration = Duration::from_micros(50);
/// The link is looked at once in so many times.
const TURNS_PER_LINK: u32 = 4;
/// Bytes of the thread's stack.
const STACK: usize = 256 << 10;

/// What the thread does ([`Counting::phase`]).
const RUNS: u8 = 0;
const IS_ASKED: u8 = 1;
const HAS_ENDED: u8 = 2;

/// What this process adds, and has added.
#[derive(Debug)]
pub(super) struct Counting {
    meter: Arc<Meter>,
    ports: Mutex<Ports>,
    phase: AtomicU8,
    thread: ArcSwapOption<Thread>,
}

#[derive(Debug)]
struct Ports {
    all: Vec<Port>,
    /// What was added of that which no port is named for.
    of_process: Added,
}

/// A device's port.
#[derive(Debug)]
struct Port {
    files: PortFiles,
    device: Arc<Device>,
    added: Added,
}

/// Counters by the names of their files.
type Values = Vec<(&'static str, u64)>;

/// What was added to files so far.
#[derive(Debug, Default)]
struct Added(Values);

/// The directory of devices, where the environment names it, and a number of the files below it,
/// which is not 0.
pub(super) fn class() -> Option<(PathBuf, u64)> {
    let class = PathBuf::from(std::env::var_os(VARIABLE).filter(|class| !class.is_empty() && !is_secure())?);
    let devices = std::fs::read_dir(&class).ok()?.flatten();
    let views = devices.filter_map(|device| PortFiles::of(&class, device.file_name().to_str()?).view());
    let files = views.min().filter(|files| *files != 0)?;
    Some((class, files))
}

impl Counting {
    /// For the devices below `class`.
    pub(super) fn new(meter: Arc<Meter>, class: &Path, devices: Vec<Arc<Device>>) -> Self {
        let ports = devices.into_iter().map(|device| Port {
            files: PortFiles::of(class, &device.config.name),
            device,
            added: Added::default(),
        });
        let all = ports.filter(|port| port.files.view().is_some()).collect();
        Self {
            meter,
            ports: Mutex::new(Rank::PortCounters, Ports { all, of_process: Added::default() }),
            phase: AtomicU8::new(HAS_ENDED),
            thread: ArcSwapOption::empty(),
        }
    }

    /// A number of the view of the file system in which this process adds.
    pub(super) fn view(&self) -> Option<u64> {
        self.ports.try_lock()?.all.first()?.files.view()
    }

    /// Starts the thread. Where there is none to be had the counters stay as they are.
    pub(super) fn start(instance: &Arc<Instance>) {
        let Some(counting) = &instance.counting else { return };
        counting.phase.store(RUNS, Ordering::Release);
        let theirs = Arc::downgrade(instance);
        let named = thread::Builder::new().name("verbena-count".to_owned()).stack_size(STACK);
        match sys::thread::with_signals_blocked(|| named.spawn(move || go_on(&theirs))) {
            Ok(started) => counting.thread.store(Some(Arc::new(started.thread().clone()))),
            Err(_) => counting.phase.store(HAS_ENDED, Ordering::Release),
        }
    }

    /// Has the thread add once more, and waits until it has; 1 s at most.
    pub(super) fn finish(&self) {
        let until = Instant::now() + LAST_PATIENCE;
        let asked = self.phase.compare_exchange(RUNS, IS_ASKED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        while asked && self.phase.load(Ordering::Acquire) != HAS_ENDED && Instant::now() < until {
            self.thread.load().iter().for_each(|thread| thread.unpark());
            thread::sleep(PAUSE);
        }
    }

    fn add(&self, instance: &Instance, limit: Duration, with_link: bool) {
        let mut ports = self.ports.lock();
        self.meter.collect(instance.host.env());
        let Ports { all, of_process } = &mut *ports;
        let came = |port: &Port| self.meter.passed(port.device.config.interface).both.rcv.packets;
        let busiest = (0..all.len()).max_by_key(|at| all.get(*at).map_or(0, came));
        for (at, port) in all.iter_mut().enumerate() {
            let passed = self.meter.passed(port.device.config.interface);
            let of_port = of_port(&passed, &port.device);
            let mut more = port.added.less_than(&of_port);
            // What no port is named for counts at the one that most has come by.
            let of_all = if busiest == Some(at) { of_all(instance) } else { Values::new() };
            more.extend(of_process.less_than(&of_all));
            let interface = &port.device.config.interface_name;
            let link = if with_link { of_link(interface) } else { Values::new() };
            if more.is_empty() && link.is_empty() {
                continue;
            }
            if without_signal(|| port.files.add(&more, &link, limit)).is_ok() {
                port.added.are_at_least(&of_port);
                of_process.are_at_least(&of_all);
            }
        }
    }
}

/// The thread: adds until the instance is gone, or the process ends.
fn go_on(instance: &Weak<Instance>) {
    for turn in 0_u32.. {
        thread::park_timeout(Duration::from_millis(LIFESPAN_MS));
        let Some(instance) = instance.upgrade() else { return };
        let Some(counting) = &instance.counting else { return };
        let is_last = counting.phase.load(Ordering::Acquire) == IS_ASKED;
        let limit = if is_last { LAST_PATIENCE } else { PATIENCE };
        counting.add(&instance, limit, is_last || turn.is_multiple_of(TURNS_PER_LINK));
        if is_last {
            return counting.phase.store(HAS_ENDED, Ordering::Release);
        }
    }
}

impl Added {
    fn of(&self, name: &str) -> u64 {
        self.0.iter().find(|(added, _)| *added == name).map_or(0, |(_, n)| *n)
    }

    /// How much more there is now; a sum may be less than before for a moment.
    fn less_than(&self, now: &Values) -> Values {
        let more = now.iter().map(|(name, now)| (*name, now.saturating_sub(self.of(name))));
        more.filter(|(_, more)| *more > 0).collect()
    }

    /// So much was added.
    fn are_at_least(&mut self, now: &Values) {
        for &(name, now) in now {
            match self.0.iter_mut().find(|(added, _)| *added == name) {
                Some((_, added)) => *added = now.max(*added),
                None => self.0.push((name, now)),
            }
        }
    }
}

/// What a process counts at a port. Data are words of 32 bits (IBA 1.4 §16.1.3.5, PortXmitData).
/// FPDUs of streams are packets of the port.
fn of_port(passed: &PortTraffic, device: &Device) -> Values {
    // What passes the interface as packets is another device's.
    let of_streams = PortTraffic::default();
    let passed = if device.config.transport == Transport::Iwarp { &of_streams } else { passed };
    let carried = device.carried();
    let (xmit, rcv) = (plus(passed.both.xmit, &carried.sent), plus(passed.both.rcv, &carried.received));
    let Mishaps {
        retransmissions,
        rcvd_rnr_naks,
        sent_rnr_naks,
        rcvd_psn_naks,
        duplicates,
        early,
        retry_exceeded,
        rnr_retry_exceeded,
    } = device.mishaps();
    vec![
        ("counters/port_xmit_data", xmit.bytes / 4),
        ("counters/port_rcv_data", rcv.bytes / 4),
        ("counters/port_xmit_packets", xmit.packets),
        ("counters/port_rcv_packets", rcv.packets),
        ("counters/unicast_xmit_packets", xmit.packets.saturating_sub(passed.multicast_xmit)),
        ("counters/unicast_rcv_packets", rcv.packets.saturating_sub(passed.multicast_rcv)),
        ("counters/multicast_xmit_packets", passed.multicast_xmit),
        ("counters/multicast_rcv_packets", passed.multicast_rcv),
        ("counters/port_rcv_constraint_errors", device.counters.wrong_pkey.get()),
        ("hw_counters/sent_pkts", xmit.packets),
        ("hw_counters/rcvd_pkts", rcv.packets),
        ("hw_counters/rdma_sends", xmit.sends),
        ("hw_counters/rdma_recvs", rcv.sends + rcv.immediates),
        ("hw_counters/duplicate_request", duplicates),
        ("hw_counters/out_of_seq_request", early),
        ("hw_counters/rcvd_rnr_err", rcvd_rnr_naks),
        ("hw_counters/send_rnr_err", sent_rnr_naks),
        ("hw_counters/rcvd_seq_err", rcvd_psn_naks),
        ("hw_counters/retry_exceeded_err", retry_exceeded),
        ("hw_counters/retry_rnr_exceeded_err", rnr_retry_exceeded),
        ("hw_counters/completer_retry_err", retransmissions),
    ]
}

/// What passed as packets, and what streams carried.
fn plus(passed: Passed, carried: &Way) -> Passed {
    Passed {
        packets: passed.packets + carried.fpdus,
        bytes: passed.bytes + carried.bytes,
        sends: passed.sends + carried.sends,
        ..passed
    }
}

/// What a process counts, whichever the port.
fn of_all(instance: &Instance) -> Values {
    let counters = instance.host.env().counters();
    let host = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let node = &instance.node().counters;
    let bad = [&node.icrc, &node.malformed, &node.unknown_opcode].map(|counter| counter.get());
    let discards = host(&counters.packets_dropped_sending) + host(&counters.local.ring_drops);
    vec![
        ("counters/port_rcv_errors", host(&counters.receive_errors) + bad.iter().sum::<u64>()),
        ("counters/port_rcv_constraint_errors", node.wrong_pkey.get()),
        ("counters/port_xmit_discards", discards),
        ("counters/excessive_buffer_overrun_errors", host(&counters.overflow_drops)),
        ("counters/VL15_dropped", host(&counters.management_drops)),
        ("hw_counters/send_err", discards),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_added_once_and_a_sum_that_shrinks_adds_nothing() {
        let mut added = Added::default();
        for (now, more) in [(5, Some(5)), (5, None), (3, None), (7, Some(2))] {
            let now = vec![("a", now), ("b", 0)];
            assert_eq!(added.less_than(&now), more.map(|more| ("a", more)).into_iter().collect::<Vec<_>>());
            added.are_at_least(&now);
        }
    }
}
