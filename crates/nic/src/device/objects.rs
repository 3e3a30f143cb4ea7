//! How many objects of a device there are: tests ask, that nothing is left behind.

use crate::device::Device;
use crate::memory::RegionSnapshot;

/// Objects that exist in this process, by what a verbs user calls them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Queue pairs, QP1 not among them.
    pub qps: u64,
    /// Completion queues that were counted in
    /// ([`Adapter::take_cq`](crate::device::Adapter::take_cq)).
    pub cqs: u64,
    /// Protection domains.
    pub pds: u64,
    /// Memory regions and windows.
    pub regions: u64,
    /// Queue pairs that wait for a time.
    pub timers: u64,
}

impl Device {
    /// Hands each memory region that exists now to `each`, without its keys.
    pub fn each_region(&self, each: impl FnMut(RegionSnapshot)) {
        self.memory.each_region(each);
    }

    /// The objects that exist now.
    pub fn objects(&self) -> Objects {
        Objects {
            qps: self.qps.read().len() as u64,
            cqs: self.quotas.cqs.used(),
            pds: self.quotas.pds.used(),
            regions: self.memory.used(),
            timers: self.timers() as u64,
        }
    }
}
