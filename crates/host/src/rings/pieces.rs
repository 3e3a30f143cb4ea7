//! What goes by a ring in another form than packets: short messages, and several packets of a message as one piece.

use nic::Path;
use nic::link::Fill;
use transport::Short;
use transport::op::{Bulk, Fault};

use crate::counters::add;
use crate::names::block;
use crate::rings::{Rings, Way};
use crate::world::RealWorld;

/// Bytes of the longest piece: long enough for a processor's string instruction, and many of them in a ring.
const LONGEST_PIECE: usize = 64 << 10;

impl Rings {
    /// Sends a short message to a process of this host; false where it has to be a packet.
    #[inline]
    pub(crate) fn send_short(&self, path: &Path, short: &Short, bytes: &[u8], world: &RealWorld) -> bool {
        let (block, version) = (block(path.dest_qpn), world.interfaces.version());
        let sent = match self.tx.read().get(&block) {
            Some(Way::Ring(ring)) => ring.send_short(path, version, short, bytes, &world.counters),
            _ => false,
        };
        if sent {
            add(&world.counters.ring_messages_sent, 1);
        }
        sent
    }

    /// Bytes of the longest piece that [`Rings::send_bulk`] takes.
    pub(crate) fn most_bulk(&self) -> usize {
        if self.enabled { LONGEST_PIECE } else { 0 }
    }

    /// Sends several packets as one piece, of these headers and so many bytes, to a process of this host.
    ///
    /// # Errors
    ///
    /// Those of `fill`.
    pub(crate) fn send_bulk(
        &self,
        path: &Path,
        piece: (&[u8], usize),
        fill: &mut Fill<'_>,
        world: &RealWorld,
    ) -> Result<Bulk, Fault> {
        let (block, version) = (block(path.dest_qpn), world.interfaces.version());
        match self.tx.read().get(&block) {
            Some(Way::Ring(ring)) => ring.send_bulk(path, version, piece, fill, &world.counters),
            _ => Ok(Bulk::NoWay),
        }
    }
}
