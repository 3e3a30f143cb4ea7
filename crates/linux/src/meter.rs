//! What passes the ports of this process, for the counters below /sys/class/infiniband
//! ([`crate::port_counters`]): packets, bytes and messages each way.
//!
//! A link over that of the environment counts (`link`), in a process that is asked to. So no other
//! process pays for it. What goes to a process of this host the sender counts for both ends: a copy
//! shows nothing to the target. It tells the other end by the ring between the two
//! ([`local::Rings::tell_traffic`]).
//!
//! A queue pair has a count of its own for each way by memory, which it adds to under its lock: no
//! locked instruction, which would keep a short message from leaving at once. [`Meter::collect`]
//! adds all up.

mod link;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use local::rings::{Ledger, Passed, Traffic, block};
use locks::{Rank, RwLock};
use nic::Path;
use stack::Interface;
use wire::Address;

use crate::env::LinuxEnv;
pub(crate) use link::MeterLink;

/// What went one way so far; any thread may read it at any time.
#[derive(Debug, Default)]
struct Way {
    packets: AtomicU64,
    bytes: AtomicU64,
    sends: AtomicU64,
    immediates: AtomicU64,
}

impl Way {
    /// Counts more; any thread may do so.
    fn add(&self, more: Passed) {
        self.packets.fetch_add(more.packets, Relaxed);
        self.bytes.fetch_add(more.bytes, Relaxed);
        // A locked instruction costs more than a comparison, and most packets end no message.
        if more.sends > 0 {
            self.sends.fetch_add(more.sends, Relaxed);
        }
        if more.immediates > 0 {
            self.immediates.fetch_add(more.immediates, Relaxed);
        }
    }

    /// Counts more; no other thread does meanwhile.
    #[inline]
    fn add_alone(&self, more: Passed) {
        let add = |to: &AtomicU64, n: u64| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        add(&self.packets, more.packets);
        add(&self.bytes, more.bytes);
        add(&self.sends, more.sends);
        add(&self.immediates, more.immediates);
    }

    fn read(&self) -> Passed {
        let [packets, bytes, sends, immediates] =
            [&self.packets, &self.bytes, &self.sends, &self.immediates].map(|n| n.load(Relaxed));
        Passed { packets, bytes, sends, immediates }
    }
}

/// What passes a port.
#[derive(Debug, Default)]
struct PortMeter {
    xmit: Way,
    rcv: Way,
    multicast_xmit: AtomicU64,
    multicast_rcv: AtomicU64,
}

/// What passes on a path to a process of this host.
#[derive(Debug)]
struct PathMeter {
    path: Path,
    /// What the process at its end is told by.
    ledger: Option<Ledger>,
    xmit: Way,
    rcv: Way,
}

impl PathMeter {
    fn of(path: &Path, env: &LinuxEnv) -> Arc<Self> {
        let ledger = env.rings.ledger(path);
        Arc::new(Self { path: *path, ledger, xmit: Way::default(), rcv: Way::default() })
    }

    fn read(&self) -> Traffic {
        Traffic { xmit: self.xmit.read(), rcv: self.rcv.read() }
    }
}

/// What has passed a port so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortTraffic {
    pub(crate) both: Traffic,
    /// Packets to multicast groups among what left.
    pub(crate) multicast_xmit: u64,
    /// Packets to multicast groups among what came.
    pub(crate) multicast_rcv: u64,
}

/// The paths by memory, by what is on them.
#[derive(Default)]
struct Paths {
    /// Each with what of it was added to the port and told to the peer.
    all: Vec<(Arc<PathMeter>, Traffic)>,
    /// Counts that queue pairs share: by our interface, the peer's address and process.
    shared: BTreeMap<(u32, Address, u16), Arc<PathMeter>>,
}

/// Shared counts that are kept for processes that may come back.
const MAX_SHARED: usize = 1024;

/// All that this process counts of its traffic.
pub(crate) struct Meter {
    /// By the index of the interface: those that there were when the process began. Others have no
    /// device.
    ports: BTreeMap<u32, PortMeter>,
    paths: RwLock<Paths>,
    /// A number of the files in which all is added up, which is not 0.
    files: u64,
}

impl Meter {
    pub(crate) fn new(interfaces: &[Interface], files: u64) -> Self {
        let ports = interfaces.iter().map(|interface| (interface.index, PortMeter::default()));
        Self { ports: ports.collect(), paths: RwLock::new(Rank::Meters, Paths::default()), files }
    }

    /// A count for a path of one queue pair, which adds to it alone.
    #[cold]
    fn own(&self, path: &Path, env: &LinuxEnv) -> Arc<PathMeter> {
        let meter = PathMeter::of(path, env);
        self.paths.write().all.push((meter.clone(), Traffic::default()));
        meter
    }

    /// Counts by what queue pairs share for the path to a process.
    fn by_shared(&self, path: &Path, env: &LinuxEnv, count: impl Fn(&PathMeter)) {
        let key = (path.interface, path.dest, block(path.dest_qpn));
        if let Some(meter) = self.paths.read().shared.get(&key) {
            return count(meter);
        }
        self.share(key, path, env);
        self.paths.read().shared.get(&key).into_iter().for_each(|meter| count(meter));
    }

    #[cold]
    fn share(&self, key: (u32, Address, u16), path: &Path, env: &LinuxEnv) {
        let meter = PathMeter::of(path, env);
        let mut paths = self.paths.write();
        if !paths.shared.contains_key(&key) {
            paths.all.push((meter.clone(), Traffic::default()));
            paths.shared.insert(key, meter);
        }
    }

    fn port(&self, interface: u32) -> Option<&PortMeter> {
        self.ports.get(&interface)
    }

    /// Adds up what has passed since the last call, and tells other processes of this host what has
    /// passed at their ends. Not called by two threads at once.
    pub(crate) fn collect(&self, env: &LinuxEnv) {
        let mut passed: Vec<(Arc<PathMeter>, Traffic)> = Vec::new();
        {
            let mut paths = self.paths.write();
            if paths.shared.len() > MAX_SHARED {
                paths.shared.clear();
            }
            paths.all.retain_mut(|(meter, seen)| {
                // Asked first: what a queue pair has added before it let go is read then.
                let is_last = Arc::strong_count(meter) == 1;
                let now = meter.read();
                let more = now.since(*seen);
                *seen = now;
                if more != Traffic::default() {
                    passed.push((meter.clone(), more));
                }
                !is_last
            });
        }
        for (meter, more) in passed {
            self.add(meter.path.interface, more);
            let (Some(ends), Some(ledger)) = (local::Env::ends(env, &meter.path), &meter.ledger) else {
                continue;
            };
            // Where both ends count in the same files this one adds for both: the other one may
            // have ended.
            match ledger.files() == self.files {
                true => self.add(ends.interface, more.mirrored()),
                false => ledger.tell(ends.interface, more.mirrored()),
            }
        }
        env.rings.take_traffic(|interface, more| self.add(interface, more));
    }

    fn add(&self, interface: u32, more: Traffic) {
        if let Some(port) = self.port(interface) {
            port.xmit.add(more.xmit);
            port.rcv.add(more.rcv);
        }
    }

    /// What has passed the port of an interface, as far as it is added up.
    pub(crate) fn passed(&self, interface: u32) -> PortTraffic {
        self.port(interface).map_or_else(PortTraffic::default, |port| PortTraffic {
            both: Traffic { xmit: port.xmit.read(), rcv: port.rcv.read() },
            multicast_xmit: port.multicast_xmit.load(Relaxed),
            multicast_rcv: port.multicast_rcv.load(Relaxed),
        })
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("ports", &self.ports).finish_non_exhaustive()
    }
}
