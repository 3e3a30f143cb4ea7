//! What this process exports to those that write rings which it reads, as [`nic::LocalLink`] says.

use std::ops::Range;

use nic::peer_memory::{Grant, Region};
use wire::Qpn;

use crate::env::Env;
use crate::exportable::Coming;
use crate::rings::Rings;

impl<O: Send> Rings<O> {
    /// As [`nic::LocalLink::table`].
    pub fn table(&self) -> Option<u8> {
        self.exports.table()
    }

    /// As [`nic::LocalLink::publish`].
    pub fn publish(&self, table: u8, slot: u16, region: &Region) {
        self.exportable.export((table, slot), region, || self.exports.publish(table, slot, region));
    }

    /// As [`nic::LocalLink::withdraw`].
    pub fn withdraw(&self, table: u8, slot: u16, env: &impl Env) {
        self.exportable.forget((table, slot));
        if let Some(cleared) = self.exports.withdraw(table, slot) {
            self.wait_for(cleared, env);
        }
    }

    /// As [`nic::LocalLink::open`].
    pub fn open(&self, grant: &Grant<'_>) -> bool {
        self.exports.open(grant)
    }

    /// As [`nic::LocalLink::is_closed`].
    pub fn is_closed(&self, qpn: Qpn) -> bool {
        self.exports.close(qpn).is_none_or(|cleared| self.is_unused(cleared))
    }

    /// As [`nic::LocalLink::close`].
    pub fn close_queue_pair(&self, qpn: Qpn, wait: bool, env: &impl Env) {
        if let Some(cleared) = self.exports.close(qpn).filter(|_| wait) {
            self.wait_for(cleared, env);
        }
    }

    /// Whether a range of this process's memory is watched by userfaultfd(2), or about to be.
    pub fn is_late(&self, addr: u64, len: u64) -> bool {
        self.exportable.is_late(addr, len)
    }

    /// A range is about to be watched; until what is returned is dropped no region of it is
    /// exported.
    pub fn coming(&self, range: Range<u64>, env: &impl Env) -> Coming<'_> {
        self.exportable.coming(range, |(table, slot)| self.withdraw(table, slot, env))
    }
}
