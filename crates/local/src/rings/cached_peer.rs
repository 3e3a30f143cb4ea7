//! What a queue pair knows of its way to a process of this host, from one message or copy to the
//! next: nothing of it is looked up again where nothing has changed.

use std::sync::Arc;

use nic::Path;
use transport::op::Remote;

use super::tx_ring::TxRing;
use crate::env::Env;
use crate::peer_memory::{RemoteView, ends};

/// What a queue pair keeps of its way to a peer on this host. It is of one path.
pub(super) struct CachedPeer {
    pub(super) ring: Arc<TxRing>,
    /// Which of the ring's heads is of the path ([`TxRing::send_short`]).
    pub(super) head: u64,
    /// With which version of the interfaces the path was found to lead to this host, and a number
    /// for its ends.
    here: Option<(u64, u32)>,
    /// What the ring's reader exports.
    exports: CachedView,
}

/// What the reader of a ring exports, as it was after so many changes.
#[derive(Default)]
pub(super) struct CachedView {
    pub(super) changes: u64,
    pub(super) remote_view: Option<Arc<RemoteView>>,
}

impl CachedPeer {
    pub(super) fn by(ring: Arc<TxRing>) -> Self {
        Self { ring, head: 0, here: None, exports: CachedView::default() }
    }

    /// A number for the ends of the path, as the other process sees them ([`ends`]); `None` where
    /// it does not lead to this host any more.
    #[inline]
    pub(super) fn ends(&mut self, path: &Path, env: &impl Env) -> Option<u32> {
        let version = env.version();
        match self.here {
            Some((known, ends)) if known == version => Some(ends),
            _ => self.find_ends(path, version, env),
        }
    }

    #[cold]
    fn find_ends(&mut self, path: &Path, version: u64, env: &impl Env) -> Option<u32> {
        env.ends(path)?;
        Some(self.here.insert((version, ends(path))).1)
    }

    /// The ring, and what its reader exports.
    #[inline]
    pub(super) fn remote_view(&mut self) -> (&TxRing, Option<&RemoteView>) {
        if self.ring.changes() != self.exports.changes {
            self.exports = self.ring.cached_view();
        }
        (&self.ring, self.exports.remote_view.as_deref())
    }

    /// Whether what a peer names seems to lie in memory of the reader's that is mapped here, too.
    #[inline]
    pub(super) fn is_mapped(&self, path: &Path, remote: Remote) -> bool {
        if self.ring.changes() != self.exports.changes {
            return self.ring.is_mapped(path.dest_qpn, remote);
        }
        self.exports
            .remote_view
            .as_ref()
            .is_some_and(|remote_view| remote_view.is_mapped(path.dest_qpn, remote))
    }
}
