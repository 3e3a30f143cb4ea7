//! Memory of other processes of this host, which WRITEs, READs and FLUSHes reach without them ([`nic::Reach`]).
//!
//! Who takes another process's ring ([`crate::rings`]) lends it in return what it needs to reach this one: tables of queue pairs and regions, to read, and
//! an address that proves who it is. The other one then looks a queue pair and a key up there, and copies by process_vm_writev(2) and process_vm_readv(2).
//! Meanwhile it says so in the memory of its ring: who takes a region or a queue pair back clears the entry, and waits for those
//! who say that they use it.
//!
//! Nobody waits for the dead: the connection to the name ends when its process has ended or runs another program, not before its last call, as each access
//! holds it. Nor for a process that is stopped: the page by which it knows us is taken away, so its calls that have not begun find
//! nothing, and a thread that is stopped is in no call. It gets another page, and sends packets until it has read so.
//!
//! | file | what |
//! |---|---|
//! | this one | both sides: lending, and reaching |
//! | `initiator` | looking up and copying, and who waits for that: the order of the steps |
//! | `borrower` | how long somebody is waited for who uses what is taken back |
//! | `tables` | what is lent |
//! | `hazards` | who uses what just now |
//! | `fences` | what keeps the steps of both in order |
//! | `guard` | calls that reach the right process or none; unsafe |
//! | `near` | copies to and from memory that is mapped here, too, without a call; unsafe |

mod borrower;
#[cfg(all(test, loom))]
mod every_order;
mod fences;
#[doc(hidden)]
pub mod fuzzed;
mod guard;
mod hazards;
mod initiator;
mod near;
mod tables;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use locks::{Mutex, Rank};
use nic::Path;
use nic::memory::Ended;
use nic::reach::{Copy, Grant, Piece, Prepared, Region, Transfer};
use ring::Word;
use transport::op::{AtOnce, Remote};
use wire::Qpn;

use crate::arena::Theirs;
use crate::fork::{self, Fd};
use crate::rings::memory::{Part, SharedMemory};
use crate::sys;
pub(crate) use borrower::{After, Borrower};
pub(crate) use guard::Known;
use guard::{Copied, Process};
pub(crate) use hazards::BYTES as HAZARD_BYTES;
use initiator::Request;
use near::Near;
use tables::Entry;

/// Processes that are remembered because they are not to be believed.
const REMEMBERED: usize = 16;
/// Pieces of a transfer at most.
const MOST_PIECES: usize = 8;

/// What this process lends to others.
pub(crate) struct Lent {
    memory: ArcSwapOption<Tables>,
    /// Held while it is made.
    making: Mutex<()>,
    tables: AtomicU8,
    /// Numbers of processes that kept us waiting for nothing, the last ones.
    distrusted: [AtomicI32; REMEMBERED],
    next: AtomicUsize,
}

/// Its tables, and the descriptor by which others map them.
pub(crate) struct Tables {
    memory: SharedMemory,
    pub(crate) fd: Fd,
}

impl Default for Lent {
    fn default() -> Lent {
        Lent {
            memory: ArcSwapOption::empty(),
            making: Mutex::new(Rank::LentTables, ()),
            tables: AtomicU8::new(0),
            distrusted: [const { AtomicI32::new(-1) }; REMEMBERED],
            next: AtomicUsize::new(0),
        }
    }
}

impl Lent {
    /// The tables; `None` where there are none to be had.
    pub(crate) fn tables(&self) -> Option<Arc<Tables>> {
        if let Some(tables) = &*self.memory.load() {
            return Some(tables.clone());
        }
        let _making = self.making.lock();
        if let Some(tables) = &*self.memory.load() {
            return Some(tables.clone());
        }
        let (memory, fd) = SharedMemory::create_read_only(tables::BYTES).ok()?;
        let tables = Arc::new(Tables { memory, fd });
        self.memory.store(Some(tables.clone()));
        Some(tables)
    }

    /// A process of this number is lent nothing any more, by whatever connection it comes.
    pub(crate) fn distrust(&self, pid: i32) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % REMEMBERED;
        self.distrusted[at].store(pid, Ordering::Relaxed);
    }

    /// Whether that was said of it.
    pub(crate) fn distrusts(&self, pid: i32) -> bool {
        self.distrusted.iter().any(|known| known.load(Ordering::Relaxed) == pid)
    }

    /// The number of a table of regions that nobody has.
    pub(crate) fn table(&self) -> Option<u8> {
        self.tables()?;
        let taken = self.tables.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < tables::TABLES).then_some(taken + 1)
        });
        taken.ok()
    }

    pub(crate) fn publish(&self, table: u8, slot: u16, region: &Region) {
        if let Some(lent) = self.tables() {
            tables::publish(&lent.memory, table, slot, region);
        }
    }

    /// Takes a region's entry back; what to wait for.
    pub(crate) fn withdraw(&self, table: u8, slot: u16) -> Option<Cleared> {
        let memory = &self.tables()?.memory;
        let entry = Entry::Region(table, slot);
        tables::clear(memory, entry).then_some(Cleared(entry))
    }

    /// Enters a queue pair, where it is not entered so already. False where it was entered otherwise: that is taken back, and to be waited for
    /// before this is called again.
    pub(crate) fn open(&self, grant: &Grant<'_>) -> bool {
        let Some(tables) = self.tables() else { return true };
        let memory = &tables.memory;
        if tables::is_open(memory, grant) {
            return true;
        }
        if tables::is_of(memory, grant.qpn) {
            self.close(grant.qpn);
            return false;
        }
        tables::open(memory, grant);
        true
    }

    /// Takes a queue pair's entry back, if it has one; what to wait for.
    pub(crate) fn close(&self, qpn: Qpn) -> Option<Cleared> {
        let memory = &self.tables()?.memory;
        let entry = tables::queue_pair(qpn);
        if tables::is_of(memory, qpn) {
            tables::clear(memory, entry);
        }
        Some(Cleared(entry))
    }
}

/// An entry that was taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleared(Entry);

/// A process that lends to us.
pub(crate) struct Lender {
    process: Process,
    tables: Arc<SharedMemory>,
    /// Its memory that we map.
    theirs: Option<Arc<Theirs>>,
    /// The system does not copy to and from the rest of it, or not any more.
    is_closed: AtomicBool,
    /// What it lent it has taken back.
    is_over: AtomicBool,
}

impl Lender {
    /// The process that listens at the other end of a connection, which sent this, and of whose memory we map `theirs`.
    ///
    /// # Errors
    ///
    /// EINVAL for memory that is not to be had so.
    pub(crate) fn new(
        connection: &Fd,
        tables: &Fd,
        guard: Known,
        theirs: Option<Arc<Theirs>>,
    ) -> io::Result<Lender> {
        let tables = SharedMemory::open_read_only(tables, tables::BYTES)?;
        if tables.len() * size_of::<Word>() != tables::BYTES {
            return Err(nic::Errno::EINVAL.into());
        }
        let process = Process { pid: sys::peer_pid(connection)?, guard };
        let is_reached = process.pid > 0 && process.is_reached();
        let (is_closed, is_over) = (AtomicBool::new(!is_reached), AtomicBool::new(false));
        Ok(Lender { process, tables: Arc::new(tables), theirs, is_closed, is_over })
    }

    /// The same, of whose memory we map `theirs`, too.
    pub(crate) fn mapping(&self, theirs: Arc<Theirs>) -> Lender {
        let same = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::Relaxed));
        Lender {
            process: self.process,
            tables: self.tables.clone(),
            theirs: Some(theirs),
            is_closed: same(&self.is_closed),
            is_over: same(&self.is_over),
        }
    }

    /// Whether the system lets us reach it, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether what a peer names seems to lie in memory that is mapped here, too.
    pub(crate) fn is_near(&self, qpn: Qpn, remote: Remote) -> bool {
        self.theirs.as_ref().filter(|_| !self.is_over.load(Ordering::Relaxed)).is_some_and(|theirs| {
            tables::hint(&self.tables, qpn, remote).is_some_and(|at| theirs.at(at, remote.length).is_some())
        })
    }

    /// Copies or flushes, as [`nic::Reach::copy`]. `hazards`: where we say what we use. `ends`: of the path ([`ends`]).
    pub(crate) fn copy(&self, hazards: &Part, prepared: &Prepared<'_>, ends: u32) -> AtOnce {
        let &Transfer { path, from, remote, ref what } = prepared.transfer();
        if !self.is_there() && !self.is_near(path.dest_qpn, remote) {
            return AtOnce::NoWay;
        }
        if prepared.pieces().len() > MOST_PIECES {
            return AtOnce::Refused;
        }
        let request = Request { qpn: path.dest_qpn, from, ends, remote, what };
        let done = initiator::reach(hazards, &self.tables, this_thread(), &request, |at| {
            match self.copy_near(hazards, prepared, at) {
                Some(Ok(())) => return true,
                Some(Err(Ended::TakenBack)) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    return false;
                }
                Some(Err(Ended::Fault)) => return false,
                Some(Err(Ended::Unable)) | None if !self.is_there() => return false,
                Some(Err(Ended::Unable)) | None => {}
            }
            let copied = self.copy_far(prepared, at);
            if copied == Copied::Nothing {
                self.is_closed.store(true, Ordering::Relaxed);
            }
            copied == Copied::All
        });
        if done { AtOnce::Done } else { AtOnce::Refused }
    }

    /// By our own instructions, where the bytes are mapped here, too.
    #[inline]
    fn copy_near(&self, hazards: &Part, prepared: &Prepared<'_>, at: u64) -> Option<Result<(), Ended>> {
        let transfer = prepared.transfer();
        if matches!(transfer.what, Copy::Flush(how) if how.persistent) {
            return None;
        }
        let near = Near::new(self.theirs.as_deref()?, hazards::granted(hazards)?, self.process.guard.says);
        near.copy(prepared, at)
    }

    /// By the system.
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
            // What was written to it is visible; for the rest the memory has only to be there, as it has for msync(2).
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

/// A range and its last word: from the last multiple of eight below its end.
fn with_last_word(at: u64, len: u64) -> (Piece, Piece) {
    let end = at.saturating_add(len);
    let last = (end.saturating_sub(1) & !7).max(at);
    (Piece { addr: at, len: last - at }, Piece { addr: last, len: end - last })
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
