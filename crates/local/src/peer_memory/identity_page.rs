//! A page by which a process is known, and copies that reach no other.
//!
//! process_vm_readv(2) and process_vm_writev(2) take the number of a process. That may be another
//! one's by the time of the call, or the process may run another program. So the process gives each
//! that may reach it a page at an address that no process can foresee. Each call begins with eight
//! bytes to or from there. A call keeps to one address space, goes on in order, and ends at the
//! first address that is not there. A page that is taken back ends all calls that have not begun.
//!
//! A number that a connection says may be that of a process which has nothing to do with it. So
//! before anything is written the page is read, as a whole, and has to say what came with the
//! ring and which ring and tables it is for ([`Proof`]): a process in between has no page of
//! another one to offer that speaks for tables of its own. And the page has to be where such pages
//! are ([`is_identity_page`]), where no process has anything else.
//!
//! Memory of the process that the other one maps ([`crate::arena`]) it copies without a call. What
//! the page says stands in a word that both map, too, while the page is there, and such a copy
//! looks at the word wherever it begins or goes on ([`nic::memory::copy_granted`]).

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use nic::Errno;
use nic::peer_memory::Piece;
use sys::fork;

use super::hazards;
use crate::env::Known;
use crate::memory::Part;

const PAGE: usize = 4096;
/// Most pages of a range that is looked at.
const MAX_PAGES: usize = 8;
/// Where in the page a writer leaves eight bytes: what is before it stays.
const WRITTEN: u64 = 64;
/// Tries to find a free address.
const TRIES: usize = 8;
/// Where such a page may be: far from what systems map by themselves, at page 2^32 to 2^33.
const FIRST: u64 = 1 << 44;
/// Elements of a list of pieces, with the identity page's.
const ELEMENTS: usize = 12;

/// A page of ours by which a process knows us.
#[derive(Debug)]
pub(crate) struct IdentityPage {
    page: NonNull<u8>,
    known: Known,
    /// Where the identity page says so to a process that maps our memory.
    hazards: Part,
    generation: u32,
}

// SAFETY: no thread looks at the page; its address is a number.
unsafe impl Send for IdentityPage {}
// SAFETY: as above.
unsafe impl Sync for IdentityPage {}

/// What the page says after its first word, for the process that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    /// The word that came with that process's ring.
    pub(crate) nonce: u64,
    /// The inode of the tables that are exported with the page.
    pub(crate) tables: u64,
    /// The inode of the ring's memory.
    pub(crate) ring: u64,
}

impl Proof {
    pub(super) fn words(self) -> [u64; 3] {
        [self.nonce, self.tables, self.ring]
    }
}

/// Whether a page at this address may be such a page.
fn is_identity_page(address: u64) -> bool {
    (FIRST..2 * FIRST).contains(&address) && address.is_multiple_of(PAGE as u64)
}

impl IdentityPage {
    /// A new page for the process that says in `hazards` what it uses, and reads this proof.
    pub(crate) fn new(hazards: &Part, proof: &Proof) -> io::Result<Self> {
        for _ in 0..TRIES {
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(|_| Errno::EAGAIN)?;
            let [low, says] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|n| random[at + n])));
            let address = FIRST + low % FIRST / PAGE as u64 * PAGE as u64;
            let Some(page) = map(address) else { continue };
            // SAFETY: the mapping that was just made. A forked child does not have it.
            unsafe { libc::madvise(page.as_ptr().cast(), PAGE, libc::MADV_DONTFORK) };
            let known = Known { address: page.as_ptr() as u64, says };
            let (hazards, generation) = (hazards.clone(), fork::generation());
            let identity = Self { page, known, hazards, generation };
            if known.address != address {
                continue;
            }
            // SAFETY: the page is ours, and writable; no other code knows it yet.
            unsafe {
                page.cast::<u64>().write(says);
                page.cast::<[u64; 3]>().byte_add(8).write(proof.words());
            }
            if let Some(granted) = hazards::granted(&identity.hazards) {
                granted.store(says, Ordering::Release);
            }
            return Ok(identity);
        }
        Err(Errno::ENOMEM.into())
    }

    pub(crate) fn known(&self) -> Known {
        self.known
    }
}

impl Drop for IdentityPage {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            if let Some(granted) = hazards::granted(&self.hazards) {
                // Unless the next one stands there already.
                let _ = granted.compare_exchange(self.known.says, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
            // SAFETY: the mapping that `new` made, of which there is no borrow.
            unsafe { libc::syscall(libc::SYS_munmap, self.page.as_ptr(), PAGE) };
        }
    }
}

/// Maps a page at an address where nothing is, or elsewhere where the system takes that for a hint.
/// By a call of our own, as it is unmapped: of a program under ThreadSanitizer the functions of the
/// C library are the sanitizer's, which knows no memory there, asks for page 0 in its place, and
/// ends a process that may have that.
fn map(address: u64) -> Option<NonNull<u8>> {
    // What the call takes is all as wide as an address.
    let rights = libc::c_long::from(libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::c_long::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
    let (no_file, offset): (libc::c_long, libc::c_long) = (-1, 0);
    // SAFETY: a new mapping, where none is.
    let page = unsafe { libc::syscall(libc::SYS_mmap, address, PAGE, rights, flags, no_file, offset) };
    // A failure is -1.
    NonNull::new(std::ptr::with_exposed_provenance_mut(usize::try_from(page).ok()?))
}

/// The outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// All bytes were copied.
    All,
    /// A part at most: some memory was not there.
    Part,
    /// Nothing: the process is not there, or may not be reached so.
    Nothing,
}

/// A process, and the page by which it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) identity: Known,
}

impl Process {
    /// Whether it is the process that this proof is for, and can be reached both ways.
    pub(crate) fn is_proven(&self, proof: &Proof) -> bool {
        if !is_identity_page(self.identity.address) {
            return false;
        }
        let mut said = [0_u64; 3];
        let piece = Piece { addr: (&raw mut said) as u64, len: 24 };
        let behind = Piece { addr: self.identity.address + 8, len: 24 };
        // SAFETY: three words of ours.
        let read = unsafe { self.read(&[piece], &[behind]) } == Copied::All;
        // SAFETY: ours; the kernel has written to them.
        let is_it = read && unsafe { (&raw const said).read_volatile() } == proof.words();
        // SAFETY: nothing but the page is written to.
        is_it && unsafe { self.write(&[], &[]) } == Copied::All
    }

    /// Whether a range of its memory is there and may be read: a byte of each of its pages. False,
    /// too, where they are more than a few.
    pub(crate) fn has(&self, addr: u64, len: u64) -> bool {
        let mut pages = ArrayVec::<Piece, MAX_PAGES>::new();
        let (mut at, end) = (addr, addr.saturating_add(len));
        while at < end {
            if pages.try_push(Piece { addr: at, len: 1 }).is_err() {
                return false;
            }
            at = (at | (PAGE as u64 - 1)).saturating_add(1);
        }
        let mut bytes = [0_u8; MAX_PAGES];
        let piece = Piece { addr: (&raw mut bytes) as u64, len: pages.len() as u64 };
        // SAFETY: as many bytes of ours as there are pages.
        unsafe { self.read(&[piece], &pages) == Copied::All }
    }

    /// Copies pieces of ours to ranges of its memory, one after the other, in order.
    ///
    /// # Safety
    ///
    /// The pieces may be read, where they are mapped.
    pub(crate) unsafe fn write(&self, pieces: &[Piece], to: &[Piece]) -> Copied {
        let mark = [self.identity.says; 1];
        let first = Piece { addr: (&raw const mark) as u64, len: 8 };
        let Some(ours) = elements(first, pieces) else { return Copied::Part };
        let Some(theirs) = elements(Piece { addr: self.identity.address + WRITTEN, len: 8 }, to) else {
            return Copied::Part;
        };
        // SAFETY: as the caller says; the kernel checks all addresses, and writes to no memory of
        // ours.
        let done = unsafe {
            libc::process_vm_writev(self.pid, ours.0.as_ptr(), ours.1, theirs.0.as_ptr(), theirs.1, 0)
        };
        copied(done, pieces)
    }

    /// Copies ranges of its memory, one after the other, to pieces of ours.
    ///
    /// # Safety
    ///
    /// The pieces may be written to, where they are mapped, and no code claims that their bytes do
    /// not change.
    pub(crate) unsafe fn read(&self, pieces: &[Piece], from: &[Piece]) -> Copied {
        let mut mark = 0_u64;
        let first = Piece { addr: (&raw mut mark) as u64, len: 8 };
        let Some(ours) = elements(first, pieces) else { return Copied::Part };
        let Some(theirs) = elements(Piece { addr: self.identity.address, len: 8 }, from) else {
            return Copied::Part;
        };
        // SAFETY: as the caller says; `mark` is ours.
        let done = unsafe {
            libc::process_vm_readv(self.pid, ours.0.as_ptr(), ours.1, theirs.0.as_ptr(), theirs.1, 0)
        };
        // SAFETY: ours; the kernel may have written to it.
        let mark = unsafe { (&raw const mark).read_volatile() };
        if mark == self.identity.says { copied(done, pieces) } else { Copied::Nothing }
    }
}

fn copied(done: isize, pieces: &[Piece]) -> Copied {
    let wanted = pieces.iter().map(|piece| piece.len).sum::<u64>() + 8;
    match done {
        _ if done == wanted as isize => Copied::All,
        8.. => Copied::Part,
        _ => Copied::Nothing,
    }
}

type Elements = ([libc::iovec; ELEMENTS], libc::c_ulong);

fn elements(first: Piece, pieces: &[Piece]) -> Option<Elements> {
    const NONE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut all = [NONE; ELEMENTS];
    let mut count = 0;
    for piece in std::iter::once(&first).chain(pieces) {
        *all.get_mut(count)? = libc::iovec { iov_base: piece.addr as *mut _, iov_len: piece.len as usize };
        count += 1;
    }
    Some((all, count as libc::c_ulong))
}
