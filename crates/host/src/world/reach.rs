//! The way to processes of this host beside packets ([`nic::LocalLink`]).

use nic::link::Fill;
use nic::reach::{Copy, Grant, Prepared, Region, Regions};
use nic::{Path, Way};
use transport::Short;
use transport::op::{AtOnce, Bulk, Fault, Remote};
use wire::{Qpn, Rkey};

use super::RealWorld;
use crate::counters::add;
use crate::{names, rings};

impl nic::LocalLink for RealWorld {
    fn has_unread(&self, path: &Path) -> bool {
        self.rings.lies_unread(path)
    }

    fn max_fragment(&self) -> usize {
        self.rings.most_bulk()
    }

    fn send_fragment(
        &self,
        path: &Path,
        headers: &[u8],
        len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<Bulk, Fault> {
        let outcome = self.rings.send_bulk(path, (headers, len), fill, self)?;
        add(&self.counters.ring_pieces_sent, (outcome == Bulk::Sent).into());
        Ok(outcome)
    }

    #[inline]
    fn send_short(&self, path: &Path, short: &Short, bytes: &[u8], way: &mut Way) -> bool {
        self.rings.send_short(path, short, bytes, way, self)
    }

    fn table(&self, _: &Regions) -> Option<u8> {
        self.lent.table()
    }

    fn publish(&self, table: u8, slot: u16, region: &Region) {
        self.shown.show((table, slot), region, || self.lent.publish(table, slot, region));
    }

    fn withdraw(&self, table: u8, slot: u16) {
        self.shown.forget((table, slot));
        if let Some(cleared) = self.lent.withdraw(table, slot) {
            self.rings.wait_for(cleared, self);
        }
    }

    fn prepare(&self, path: &Path) {
        // What the peer lends comes by the ring to it, and answers go by it: so it is there before
        // the first request.
        self.rings.prepare(path.dest_qpn, self);
    }

    fn open(&self, grant: &Grant<'_>) -> bool {
        self.lent.open(grant)
    }

    fn named(&self, qpn: Qpn, key: Rkey, access: u32) {
        self.rings.named(&self.lent, qpn, access, key.0);
    }

    fn heard(&self, qpn: Qpn) -> bool {
        self.rings.heard(&self.lent, qpn)
    }

    fn told(&self, qpn: Qpn, key: Rkey) -> bool {
        self.rings.told(&self.lent, qpn, key.0)
    }

    fn is_closed(&self, qpn: Qpn) -> bool {
        self.lent.close(qpn).is_none_or(|cleared| self.rings.is_unused(cleared))
    }

    fn close(&self, qpn: Qpn, wait: bool) {
        if let Some(cleared) = self.lent.close(qpn).filter(|_| wait) {
            self.rings.wait_for(cleared, self);
        }
    }

    fn is_here(&self, path: &Path) -> bool {
        self.interfaces.current().bearing(path.dest, path.interface).is_some()
    }

    fn channel(&self, path: &Path) -> Option<(u16, u32)> {
        Some((names::block(path.dest_qpn), rings::ROOM))
    }

    fn reaches(&self, path: &Path) -> bool {
        self.rings.reaches(path)
    }

    fn is_near(&self, path: &Path, remote: Remote, way: &Way) -> bool {
        self.rings.is_near(path, remote, way)
    }

    fn copy(&self, prepared: &Prepared<'_>, way: &mut Way) -> AtOnce {
        let became = self.rings.copy(prepared, way, self);
        let counter = match prepared.transfer().what {
            Copy::Atomic(_) => &self.counters.atomics_at_once,
            Copy::Write => &self.counters.writes_at_once,
            Copy::Read => &self.counters.reads_at_once,
            Copy::Pull => &self.counters.pieces_pulled,
            Copy::Put => &self.counters.pieces_put,
            Copy::Flush(_) => &self.counters.flushes_at_once,
        };
        add(counter, (became == AtOnce::Done).into());
        became
    }
}
