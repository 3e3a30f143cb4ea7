//! Memory at the other end of a ring: what its reader exports us, and copies.

use nic::Path;
use nic::peer_memory::Prepared;
use sys::fork::Fd;
use transport::op::{DirectOutcome, Remote};

use super::Rings;
use super::cached_peer::CachedPeer;
use crate::counters::add;
use crate::env::{Env, Known, NameOwner};

impl<O: Send> Rings<O> {
    /// The process at the end of this connection took our ring, and lets its memory be reached.
    pub fn import(&self, owner: &dyn NameOwner, tables: &Fd, identity: Known, env: &impl Env) {
        let exports = self.ring_over(owner).map(|ring| ring.import(tables, identity, env.counters()));
        add(&env.counters().peer_memory_refused, exports.is_some_and(|exports| exports.is_err()).into());
    }

    /// A buffer of the process at the end of this connection may be mapped, which has it at an
    /// address; whether it may be written to.
    pub fn import_buffer(
        &self,
        owner: &dyn NameOwner,
        memory: &Fd,
        (address, writable): (u64, bool),
        env: &impl Env,
    ) {
        let Some(ring) = self.ring_over(owner) else { return };
        match ring.import_buffer(memory, address, writable) {
            Ok(()) => add(&env.counters().buffers_mapped, 1),
            Err(_) => add(&env.counters().buffers_refused, 1),
        }
    }

    /// A buffer of the process at the end of this connection is gone.
    pub fn gone(&self, owner: &dyn NameOwner, address: u64) {
        if let Some(ring) = self.ring_over(owner) {
            ring.gone(address);
        }
    }

    /// Copies to or from the memory of a process of this host, or flushes it, as
    /// [`nic::LocalLink::copy`].
    pub fn copy(&self, prepared: &Prepared<'_>, cache: &mut nic::PathCache, env: &impl Env) -> DirectOutcome {
        let path = prepared.transfer().path;
        if !cache.is_known() && !self.find_peer(path, cache) {
            return DirectOutcome::Unavailable;
        }
        let Some(known) = cache.known_mut::<CachedPeer>() else { return DirectOutcome::Unavailable };
        let Some(ends) = known.ends(path, env) else { return DirectOutcome::Refused };
        let (ring, Some(remote_view)) = known.remote_view() else {
            // It has ended, or nothing is exported yet; where the system refuses copies the way is
            // good for messages all the same.
            cache.forget();
            return DirectOutcome::Unavailable;
        };
        remote_view.copy(ring.hazards(), prepared, ends)
    }

    /// Whether memory of the process at the end of a path is reached.
    pub fn reaches(&self, path: &Path) -> bool {
        self.known(path).is_some_and(|ring| ring.reaches())
    }

    /// Whether what a peer at the end of a path names seems to lie in memory that is mapped here,
    /// too.
    pub fn is_mapped(&self, path: &Path, remote: Remote, cache: &nic::PathCache) -> bool {
        cache.known::<CachedPeer>().map_or_else(
            || self.known(path).is_some_and(|ring| ring.is_mapped(path.dest_qpn, remote)),
            |known| known.is_mapped(path, remote),
        )
    }
}
