//! What goes by a ring in another form than packets: short messages, and several packets of a
//! message as one fragment.

use nic::Path;
use nic::link::Fill;
use transport::Short;
use transport::op::{Fault, FragmentOutcome};

use crate::env::Env;
use crate::rings::block;
use crate::rings::cached_peer::CachedPeer;
use crate::rings::{PeerChannel, Rings};

/// Bytes of the longest fragment: long enough for a processor's string instruction, and many of
/// them in a ring.
const MAX_FRAGMENT: usize = 64 << 10;

impl<O: Send> Rings<O> {
    /// Sends a short message to a process of this host; false where it has to be a packet. `cache`
    /// is of those before.
    #[inline]
    pub fn send_short(
        &self,
        path: &Path,
        short: &Short,
        bytes: &[u8],
        cache: &mut nic::PathCache,
        env: &impl Env,
    ) -> bool {
        if !cache.is_known() && !self.find_peer(path, cache) {
            return false;
        }
        let Some(CachedPeer { ring, head, .. }) = cache.known_mut() else { return false };
        let sent = ring.send_short((path, head), env.version(), short, bytes, env.counters());
        if !sent {
            cache.forget();
        }
        sent
    }

    /// Finds the ring to the process at the end of a path, where there is one.
    #[cold]
    pub(super) fn find_peer(&self, path: &Path, cache: &mut nic::PathCache) -> bool {
        let ring = self.known(path);
        let is_there = ring.is_some();
        ring.into_iter().for_each(|ring| cache.know(CachedPeer::by(ring)));
        is_there
    }

    /// Bytes of the longest fragment that [`Rings::send_fragment`] takes.
    pub fn max_fragment(&self) -> usize {
        if self.enabled { MAX_FRAGMENT } else { 0 }
    }

    /// Sends several packets as one fragment, of these headers and so many bytes, to a process of
    /// this host.
    ///
    /// # Errors
    ///
    /// Those of `fill`.
    pub fn send_fragment(
        &self,
        path: &Path,
        fragment: (&[u8], usize),
        fill: &mut Fill<'_>,
        env: &impl Env,
    ) -> Result<FragmentOutcome, Fault> {
        let (block, version) = (block(path.dest_qpn), env.version());
        match self.tx.read().get(&block) {
            Some(PeerChannel::Ring(ring)) => {
                ring.send_fragment(path, version, fragment, fill, env.counters())
            }
            _ => Ok(FragmentOutcome::Unavailable),
        }
    }
}
