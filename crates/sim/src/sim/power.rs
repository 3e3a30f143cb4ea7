//! Power of hosts, and their storage: files that outlive processes, flushes that take time, and
//! what is left when the power fails.

use std::time::Duration;

use nic::{Errno, Persist};

use super::{Sim, What};
use crate::clock::nanos;
use crate::env::{HostId, ProcessId};
use crate::storage::Mapped;

/// What a host's power did by itself ([`Faults::power_fail`](crate::Faults::power_fail)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// The power failed, and with it the host's processes.
    Failed(HostId),
    /// The power is back. The caller of the simulation starts processes.
    Back(HostId),
}

impl Sim {
    /// A file of a host, of so many zero bytes where there was none.
    pub fn open_file(&mut self, host: HostId, name: &str, len: usize) -> Mapped {
        self.shared.hosts()[host.0].storage.open(host, name, len)
    }

    /// What a loss of power would surely leave of a file.
    pub fn persistent(&self, host: HostId, name: &str) -> Option<Vec<u8>> {
        self.shared.hosts()[host.0].storage.persistent(name)
    }

    /// Begins to flush by a program of the host itself: how long that takes. [`Sim::end_flush`]
    /// when it is over.
    pub fn begin_flush(&mut self, host: HostId) -> Duration {
        self.shared.hosts()[host.0].storage.write_back();
        self.network.flush_time()
    }

    /// Makes these bytes persistent, as they are now.
    ///
    /// # Errors
    ///
    /// EIO where the storage fails; ENOMEM where the host has no file there, since its power has
    /// failed meanwhile.
    pub fn end_flush(&mut self, host: HostId, addr: u64, len: u64) -> Result<(), Errno> {
        self.shared.hosts()[host.0].storage.persist(addr, len)
    }

    /// The `nth` flush of a host from now on fails (1: the next).
    pub fn fail_flush(&mut self, host: HostId, nth: u64) {
        self.shared.hosts()[host.0].storage.fail(nth);
    }

    /// The power of a host fails: its processes are gone, and of what was not flushed any words may
    /// be.
    pub fn power_fail(&mut self, host: HostId) {
        self.flush();
        // Nothing more is said to their peers.
        self.shared.streams().silence(host);
        let processes = self.shared.hosts()[host.0].processes.clone();
        processes.into_iter().for_each(|process| self.kill(process));
        self.note("power failed", &[host.0 as u64]);
        self.shared.hosts()[host.0].storage.power_fail();
    }

    /// What the power of hosts did by itself since this was asked, oldest first.
    pub fn take_power(&mut self) -> Vec<Power> {
        std::mem::take(&mut self.power)
    }

    /// A packet is sent to a host: its power may fail, where it has something to lose and runs.
    pub(super) fn endanger(&mut self, host: HostId) {
        let at_risk = {
            let host = &self.shared.hosts()[host.0];
            !host.storage.is_empty() && !host.processes.is_empty()
        };
        if at_risk && self.network.power_fails() {
            self.schedule(Duration::ZERO, What::PowerFails(host));
        }
    }

    pub(super) fn power_fails(&mut self, host: HostId) {
        if self.shared.hosts()[host.0].processes.is_empty() {
            return;
        }
        self.power_fail(host);
        self.power.push(Power::Failed(host));
        let off = self.network.power_time();
        self.schedule(off, What::PowerIsBack(host));
    }

    pub(super) fn persist(&mut self, process: ProcessId, work: Persist) {
        let Some(node) = self.node(process) else { return };
        let time = self.begin_flush(node.env().host());
        self.schedule_at(
            self.shared.clock.nanos().saturating_add(nanos(time)),
            What::Flushed { process, work },
        );
    }

    /// A flush of a process that is gone has no effect.
    pub(super) fn flushed(&mut self, process: ProcessId, work: Persist) {
        if self.node(process).is_some() {
            self.note("flushed", &[process.0 as u64]);
            let clock = &self.shared.clock;
            work.run(|| clock.now());
        }
    }
}
