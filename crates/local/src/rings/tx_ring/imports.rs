//! What the reader of a ring exports: its tables, its buffers that are mapped here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::fork::Fd;
use transport::op::Remote;
use wire::Qpn;

use super::TxRing;
use crate::arena::Theirs;
use crate::counters::{Counters, add};
use crate::env::Known;
use crate::memory::Part;
use crate::peer_memory::RemoteView;
use crate::rings::cached_peer::CachedView;

impl TxRing {
    /// The reader's memory can be reached from now on, by what it exports.
    ///
    /// # Errors
    ///
    /// Those of [`RemoteView::new`].
    pub(crate) fn import(&self, tables: &Fd, identity: Known, counters: &Counters) -> io::Result<()> {
        let theirs = self.theirs.lock().clone();
        let remote_view = RemoteView::new(self.owner.fd(), tables, identity, self.proof, theirs)?;
        add(&counters.peer_memory_refused, (!remote_view.is_there()).into());
        self.set_remote_view(Some(Arc::new(remote_view)));
        Ok(())
    }

    /// A buffer of the reader's may be mapped from now on, which lies in this memory. Called by the
    /// thread that calls [`TxRing::exports`].
    ///
    /// # Errors
    ///
    /// Those of [`Theirs::with`].
    pub(crate) fn import_buffer(&self, memory: &Fd, address: u64, writable: bool) -> io::Result<()> {
        let theirs = self.theirs.lock().with(memory, address, writable)?;
        self.map(theirs);
        Ok(())
    }

    /// The reader's buffer that it had at an address is gone.
    pub(crate) fn gone(&self, address: u64) {
        let theirs = self.theirs.lock().without(address);
        self.map(theirs);
    }

    fn map(&self, theirs: Theirs) {
        *self.theirs.lock() = theirs.clone();
        if let Some(remote_view) = self.remote_view.load_full() {
            self.set_remote_view(Some(Arc::new(remote_view.mapping(theirs))));
        }
    }

    pub(super) fn set_remote_view(&self, remote_view: Option<Arc<RemoteView>>) {
        self.remote_view.store(remote_view);
        self.remote_view_changes.fetch_add(1, Ordering::Release);
    }

    /// How often what the reader exports has changed.
    #[inline]
    pub(in crate::rings) fn changes(&self) -> u64 {
        self.remote_view_changes.load(Ordering::Acquire)
    }

    /// What the reader exports now: not older than it says.
    #[cold]
    pub(in crate::rings) fn cached_view(&self) -> CachedView {
        CachedView { changes: self.changes(), remote_view: self.remote_view.load_full() }
    }

    /// Where we say what we use of the reader's memory.
    #[inline]
    pub(in crate::rings) fn hazards(&self) -> &Part {
        &self.hazards
    }

    /// Whether the reader's memory can be reached.
    pub(crate) fn reaches(&self) -> bool {
        self.remote_view.load().as_ref().is_some_and(|remote_view| remote_view.is_there())
    }

    /// Whether what a peer names seems to lie in memory of the reader's that is mapped here, too.
    pub(crate) fn is_mapped(&self, qpn: Qpn, remote: Remote) -> bool {
        self.remote_view.load().as_ref().is_some_and(|remote_view| remote_view.is_mapped(qpn, remote))
    }
}
