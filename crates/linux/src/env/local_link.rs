//! The way to processes of this host beside packets ([`nic::LocalLink`]).

use nic::link::Fill;
use nic::peer_memory::{Copy, Grant, Prepared, Region, Regions};
use nic::{Path, PathCache};
use transport::Short;
use transport::op::{DirectOutcome, Fault, FragmentOutcome, Remote};
use wire::{Qpn, Rkey};

use super::LinuxEnv;
use crate::counters::add;

/// The methods of [`nic::LocalLink`] that a link over the environment's passes on: all but those
/// that send or copy.
macro_rules! pass_on_local {
    () => {
        fn max_fragment(&self) -> usize {
            self.env.max_fragment()
        }
        fn table(&self, regions: &Regions) -> Option<u8> {
            self.env.table(regions)
        }
        fn publish(&self, table: u8, slot: u16, region: &Region) {
            self.env.publish(table, slot, region);
        }
        fn withdraw(&self, table: u8, slot: u16) {
            self.env.withdraw(table, slot);
        }
        fn prepare(&self, path: &Path) {
            self.env.prepare(path);
        }
        fn open(&self, grant: &Grant<'_>) -> bool {
            LocalLink::open(&*self.env, grant)
        }
        fn close(&self, qpn: Qpn, wait: bool) {
            LocalLink::close(&*self.env, qpn, wait);
        }
        fn is_closed(&self, qpn: Qpn) -> bool {
            self.env.is_closed(qpn)
        }
        fn named(&self, qpn: Qpn, key: Rkey, access: u32) {
            self.env.named(qpn, key, access);
        }
        fn has_received(&self, qpn: Qpn) -> bool {
            self.env.has_received(qpn)
        }
        fn told(&self, qpn: Qpn, key: Rkey) -> bool {
            self.env.told(qpn, key)
        }
        fn is_local(&self, path: &Path) -> bool {
            self.env.is_local(path)
        }
        fn carries(&self, path: &Path) -> bool {
            self.env.carries(path)
        }
        fn channel(&self, path: &Path) -> Option<(u16, u32)> {
            self.env.channel(path)
        }
        fn reaches(&self, path: &Path) -> bool {
            self.env.reaches(path)
        }
        fn is_mapped(&self, path: &Path, remote: Remote, cache: &PathCache) -> bool {
            self.env.is_mapped(path, remote, cache)
        }
        fn shares_from(&self) -> Option<u32> {
            self.env.shares_from()
        }
    };
}
pub(crate) use pass_on_local;

impl nic::LocalLink for LinuxEnv {
    fn max_fragment(&self) -> usize {
        self.rings.max_fragment()
    }

    fn send_fragment(
        &self,
        path: &Path,
        headers: &[u8],
        len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<FragmentOutcome, Fault> {
        let outcome = self.rings.send_fragment(path, (headers, len), fill, self)?;
        add(&self.counters.local.ring_fragments_sent, (outcome == FragmentOutcome::Sent).into());
        Ok(outcome)
    }

    #[inline]
    fn send_short(&self, path: &Path, short: &Short, bytes: &[u8], cache: &mut PathCache) -> bool {
        self.rings.send_short(path, short, bytes, cache, self)
    }

    fn table(&self, _: &Regions) -> Option<u8> {
        self.rings.table()
    }

    fn publish(&self, table: u8, slot: u16, region: &Region) {
        self.rings.publish(table, slot, region);
    }

    fn withdraw(&self, table: u8, slot: u16) {
        self.rings.withdraw(table, slot, self);
    }

    fn prepare(&self, path: &Path) {
        // What the peer exports comes by the ring to it, and answers go by it: so it is there
        // before the first request.
        self.rings.prepare(path.dest_qpn, self);
    }

    fn open(&self, grant: &Grant<'_>) -> bool {
        self.rings.open(grant)
    }

    fn named(&self, qpn: Qpn, key: Rkey, access: u32) {
        self.rings.named(qpn, access, key.0);
    }

    fn has_received(&self, qpn: Qpn) -> bool {
        self.rings.has_received(qpn)
    }

    fn told(&self, qpn: Qpn, key: Rkey) -> bool {
        self.rings.told(qpn, key.0)
    }

    fn is_closed(&self, qpn: Qpn) -> bool {
        self.rings.is_closed(qpn)
    }

    fn close(&self, qpn: Qpn, wait: bool) {
        self.rings.close_queue_pair(qpn, wait, self);
    }

    fn is_local(&self, path: &Path) -> bool {
        self.leads_here(path) && (self.fabric.is_none() || !self.is_shown_packets(path))
    }

    fn carries(&self, path: &Path) -> bool {
        self.is_local(path) && self.rings.carries(path)
    }

    fn channel(&self, path: &Path) -> Option<(u16, u32)> {
        Some((local::rings::block(path.dest_qpn), local::rings::ROOM))
    }

    fn reaches(&self, path: &Path) -> bool {
        self.rings.reaches(path)
    }

    fn is_mapped(&self, path: &Path, remote: Remote, cache: &PathCache) -> bool {
        self.rings.is_mapped(path, remote, cache)
    }

    fn copy(&self, prepared: &Prepared<'_>, cache: &mut PathCache) -> DirectOutcome {
        let outcome = self.rings.copy(prepared, cache, self);
        let counter = match prepared.transfer().what {
            Copy::Atomic(_) => &self.counters.local.direct_atomics,
            Copy::Write => &self.counters.local.direct_writes,
            Copy::Read => &self.counters.local.direct_reads,
            Copy::Pull => &self.counters.local.fragments_fetched,
            Copy::Put => &self.counters.local.fragments_put,
            Copy::Flush(_) => &self.counters.local.direct_flushes,
        };
        add(counter, (outcome == DirectOutcome::Done).into());
        outcome
    }
}
