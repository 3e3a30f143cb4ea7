//! Memory of other processes of this host, which WRITEs, READs and FLUSHes reach without them
//! ([`nic::LocalLink`]).
//!
//! A process that takes another one's ring ([`crate::rings`]) exports it tables of queue pairs and
//! regions, to read. The other one then looks a queue pair and a key up there, and copies by
//! process_vm_writev(2) and process_vm_readv(2), which the kernel allows or not; or by
//! instructions, where it maps the region's buffer ([`crate::arena`]). Meanwhile it says so in the
//! memory of its ring: a process that takes a region or a queue pair back clears the entry, and
//! waits for those that say that they use it.
//!
//! Tables are of one ring, and empty at first. A region comes in when the process at the other end
//! of the ring has named it by its key in a request that was executed, or was told of it by the
//! queue pair (`rings::exportable`). So a process learns of no key that it did not have, and
//! reaches nothing that its packets would not have reached. The tables of [`ExportTable`] itself,
//! which have all, are seen by this process alone.
//!
//! Which process it reaches an importer knows by a page of the exporter's, at an address that can
//! not be foreseen: the exporter repeats there a word that came with the ring, and says which ring
//! and which tables it means ([`identity::Proof`]). The importer reads all of that before it writes
//! anything.
//!
//! A dead process is not waited for: the connection to the name ends when its process has ended or
//! runs another program, not before its last call, as each access holds it. Nor is one that is
//! stopped: the page by which it knows us is taken away, so its calls that have not begun find
//! nothing, and a thread that is stopped is in no call. It gets another page, and sends packets
//! until it has read so.
//!
//! | file | what |
//! |---|---|
//! | this one | the importer's side |
//! | `export_table` | the exporter's: all that may be reached, and the tables of each ring |
//! | `initiator` | looking up and copying, and how the exporter waits for that: the order of the steps |
//! | `importer` | how long a process is waited for that uses what is taken back |
//! | `tables` | what is exported |
//! | `hazards` | what is in use just now, and by which thread |
//! | `fences` | what keeps the steps of both in order |
//! | `identity_page` | calls that reach the right process or none; unsafe |
//! | `present` | whether memory of another process is there, so that a copy waits for nothing; unsafe |
//! | `mapped` | copies to and from memory that is mapped here, too, without a call; unsafe |

mod export_table;
mod fences;
#[doc(hidden)]
pub mod fuzzed;
mod hazards;
mod identity_page;
mod importer;
mod initiator;
#[cfg(all(test, loom))]
mod loom_tests;
mod mapped;
mod present;
mod tables;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nic::Path;
use nic::memory::Ended;
use nic::peer_memory::{Copy, Piece, Prepared, Transfer};
use sys::fork::{self, Fd};
use transport::op::{DirectOutcome, Remote};
use wire::Qpn;

use crate::arena::{How, Theirs};
use crate::env::Known;
use crate::memory::{Part, SharedMemory};
use crate::ring::Word;
pub(crate) use export_table::{As, Cleared, ExportOutcome, ExportTable, Tables};
pub(crate) use hazards::BYTES as HAZARD_BYTES;
pub(crate) use identity_page::Proof;
pub(crate) use importer::{After, Importer};

use identity_page::{Copied, Process};
use initiator::Request;
use mapped::{MappedPeer, with_last_word};
use present::Pages;

/// Pieces of a transfer at most.
const MAX_PIECES: usize = 8;

/// A process that exports to us.
pub(crate) struct RemoteView {
    process: Process,
    pages: Arc<Pages>,
    tables: Arc<SharedMemory>,
    /// The exporter's buffers that are mapped here.
    theirs: Theirs,
    /// The system does not copy to and from the rest of it, or not any more.
    is_closed: AtomicBool,
    /// The exporter has taken back what it exported.
    is_over: AtomicBool,
}

impl RemoteView {
    /// The process that listens at the other end of a connection, which sent this, and whose
    /// buffers that are mapped here are `theirs`. `ring`: the inode of the ring's memory; `nonce`:
    /// what came with the ring. Where the process does not prove to be the one that took the ring
    /// its memory is reached only as far as it is mapped.
    ///
    /// # Errors
    ///
    /// EINVAL for tables that are not to be had so.
    pub(crate) fn new(
        connection: &Fd,
        tables_fd: &Fd,
        identity: Known,
        (ring, nonce): (u64, u64),
        theirs: Theirs,
    ) -> io::Result<Self> {
        let tables = SharedMemory::open_read_only(tables_fd, tables::BYTES)?;
        if tables.len() * size_of::<Word>() != tables::BYTES {
            return Err(nic::Errno::EINVAL.into());
        }
        let proof = Proof { nonce, tables: sys::inode(tables_fd)?, ring };
        let process = Process { pid: sys::peer_pid(connection)?, identity };
        let pages = Arc::new(Pages::of(process.pid));
        let is_peer_memory_reachable = process.pid > 0
            && sys::peer_lives(connection)
            && pages.are_there(identity.address, 1)
            && process.is_proven(&proof);
        let (is_closed, is_over) = (AtomicBool::new(!is_peer_memory_reachable), AtomicBool::new(false));
        Ok(Self { process, pages, tables: Arc::new(tables), theirs, is_closed, is_over })
    }

    /// A copy of this exporter, whose buffers that are mapped here are `theirs` now.
    pub(crate) fn mapping(&self, theirs: Theirs) -> Self {
        let same = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::Relaxed));
        Self {
            process: self.process,
            pages: self.pages.clone(),
            tables: self.tables.clone(),
            theirs,
            is_closed: same(&self.is_closed),
            is_over: same(&self.is_over),
        }
    }

    /// Whether the system lets us reach it, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed) && !self.pages.is_left_alone()
    }

    /// Whether what a peer names seems to lie in memory that is mapped here, too.
    pub(crate) fn is_mapped(&self, qpn: Qpn, remote: Remote) -> bool {
        !self.is_over.load(Ordering::Relaxed)
            && tables::hint(&self.tables, qpn, remote)
                .is_some_and(|at| self.theirs.at(at, remote.length, How::Read).is_some())
    }

    /// Copies or flushes, as [`nic::LocalLink::copy`]. `hazards`: where we say what we use. `ends`:
    /// of the path ([`ends`]).
    pub(crate) fn copy(&self, hazards: &Part, prepared: &Prepared<'_>, ends: u32) -> DirectOutcome {
        let transfer = prepared.transfer();
        let &Transfer { path, from, remote, ref what, .. } = transfer;
        if !tables::seems_exported(&self.tables, path.dest_qpn, remote.rkey)
            || !self.is_there() && !self.is_mapped(path.dest_qpn, remote)
        {
            return DirectOutcome::Unavailable;
        }
        if prepared.pieces().len() > MAX_PIECES {
            return DirectOutcome::Refused;
        }
        let request = Request { qpn: path.dest_qpn, from, ends, remote, asks: transfer.asks(), what };
        let done = initiator::reach(hazards, &self.tables, this_thread(), &request, |at| {
            match self.copy_mapped(hazards, prepared, at) {
                Some(Ok(())) => return true,
                Some(Err(Ended::TakenBack)) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    return false;
                }
                Some(Err(Ended::Fault)) => return false,
                Some(Err(Ended::Unable)) | None if !self.is_there() => return false,
                Some(Err(Ended::Unable)) | None => {}
            }
            let touched = if matches!(what, Copy::Flush(how) if !how.persistent) { 0 } else { remote.length };
            if !self.pages.are_there(self.process.identity.address, 1) || !self.pages.are_there(at, touched) {
                return false;
            }
            let copied = self.copy_far(prepared, at);
            if copied == Copied::Nothing {
                self.is_closed.store(true, Ordering::Relaxed);
            }
            copied == Copied::All
        });
        if done { DirectOutcome::Done } else { DirectOutcome::Refused }
    }

    /// Copies by our own instructions, where the bytes are mapped here, too.
    #[inline]
    fn copy_mapped(&self, hazards: &Part, prepared: &Prepared<'_>, at: u64) -> Option<Result<(), Ended>> {
        let transfer = prepared.transfer();
        if matches!(transfer.what, Copy::Flush(how) if how.persistent) {
            return None;
        }
        let mapped = MappedPeer::new(&self.theirs, hazards::granted(hazards)?, self.process.identity.says);
        mapped.copy(prepared, at)
    }

    /// Copies by the system.
    fn copy_far(&self, prepared: &Prepared<'_>, at: u64) -> Copied {
        let (pieces, Transfer { remote, what, .. }) = (prepared.pieces(), *prepared.transfer());
        let len = remote.length;
        match what {
            Copy::Read | Copy::Pull => {
                let range = Piece { addr: at, len };
                // SAFETY: the pieces may be written to, as `Prepared` says.
                unsafe { self.process.read(pieces, &[range]) }
            }
            Copy::Write | Copy::Put => {
                let (body, tail) = with_last_word(at, len);
                let ranges = if body.len == 0 { &[tail][..] } else { &[body, tail][..] };
                // SAFETY: the pieces may be read, as `Prepared` says.
                unsafe { self.process.write(pieces, ranges) }
            }
            // The system changes nothing at once.
            Copy::Atomic(_) => Copied::Part,
            // What was written to it is visible; for the rest the memory has only to be there, as
            // it has for msync(2).
            Copy::Flush(how) => {
                let is_there = self.process.has(at, if how.persistent { len } else { 0 });
                if is_there { Copied::All } else { Copied::Part }
            }
        }
    }
}

/// A number for the ends of a path to another process, as that one sees them.
pub(crate) fn ends(path: &Path) -> u32 {
    tables::ends(path.dest, path.source)
}

thread_local! {
    static THREAD: Cell<(u32, u32)> = const { Cell::new((0, u32::MAX)) };
}

/// The number of this thread, as the system calls it.
fn this_thread() -> u32 {
    let (number, generation) = THREAD.get();
    if generation == fork::generation() && number != 0 {
        return number;
    }
    let number = sys::thread::own_thread();
    THREAD.set((number, fork::generation()));
    number
}
