//! Memory at the other end of a ring: what its reader lends us, and copies.

use nic::Path;
use nic::reach::Piece;
use transport::op::{AtOnce, Remote};

use super::Rings;
use super::tx_ring::TxRing;
use crate::arena::Arena;
use crate::counters::add;
use crate::fork::Fd;
use crate::names::Bearer;
use crate::reach::{Known, Transfer, ends};
use crate::world::RealWorld;

impl Rings {
    /// The process at the end of this connection took our ring, and lets its memory be reached.
    pub(crate) fn lent(&self, bearer: &Bearer, tables: &Fd, guard: Known, world: &RealWorld) {
        let lent = self.ring_over(bearer).map(|ring| ring.lent(tables, guard, &world.counters));
        add(&world.counters.reach_refused, lent.is_some_and(|lent| lent.is_err()).into());
    }

    /// The process at the end of this connection took our ring, and some of its memory may be mapped.
    pub(crate) fn shown(&self, bearer: &Bearer, memory: &Fd, address: u64, world: &RealWorld) {
        let Some(ring) = self.ring_over(bearer) else { return };
        match ring.shown(memory, address) {
            Ok(()) => add(&world.counters.arenas_mapped, 1),
            Err(_) => add(&world.counters.arenas_refused, 1),
        }
    }

    /// Some memory of ours may be mapped from now on.
    pub(crate) fn show(&self, arena: &Arena) {
        self.rx.load().iter().for_each(|ring| ring.show(arena));
    }

    /// Copies to or from the memory of a process of this host, or flushes it, as [`nic::Reach::copy`].
    ///
    /// # Safety
    ///
    /// That of [`nic::Reach::copy`].
    pub(crate) unsafe fn copy(
        &self,
        transfer: &Transfer<'_>,
        pieces: &[Piece],
        way: &mut nic::Way,
        world: &RealWorld,
    ) -> AtOnce {
        let path = transfer.path;
        if way.is_by::<TxRing>().is_none() && !self.find_way(path, way) {
            return AtOnce::NoWay;
        }
        let version = world.interfaces.version();
        let ends = match way.here {
            Some((known, ends)) if known == version => ends,
            _ if world.interfaces.current().bearing(path.dest, path.interface).is_none() => {
                return AtOnce::Refused;
            }
            _ => way.here.insert((version, ends(path))).1,
        };
        let Some(ring) = way.is_by::<TxRing>() else { return AtOnce::NoWay };
        // SAFETY: as the caller says.
        let became = unsafe { ring.copy(transfer, ends, pieces) };
        // It has ended, or nothing is lent yet; where the system refuses copies the way is good for messages all the same.
        if became == AtOnce::NoWay && !ring.is_lent() {
            way.forget();
        }
        became
    }

    /// Whether memory of the process at the end of a path is reached.
    pub(crate) fn reaches(&self, path: &Path) -> bool {
        self.known(path).is_some_and(|ring| ring.reaches())
    }

    /// Whether what a peer at the end of a path names seems to lie in memory that is mapped here, too.
    pub(crate) fn is_near(&self, path: &Path, remote: Remote, way: &nic::Way) -> bool {
        way.is_by::<TxRing>().map_or_else(
            || self.known(path).is_some_and(|ring| ring.is_near(path.dest_qpn, remote)),
            |ring| ring.is_near(path.dest_qpn, remote),
        )
    }
}
