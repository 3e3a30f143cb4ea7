//! Memory that peers reach: [`Memory`], its registrations ([`Mr`]), and parts of it for our own
//! operations ([`Part`]).

use std::fs::File;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use locks::{Mutex, Rank};

use super::access::{Access, Opaque, RemoteRead, RemoteWrite, Rights};
use super::chunk::Chunk;
use super::io_buf::{IoBuf, IoBufMut, SgeList};
use super::opaque::Outside;
use super::region::Region;
use super::shared::SharedSlice;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Pd;
use crate::remote::RemoteMemory;

/// Memory that peers reach. A handle; clones are the same memory. It is registered for each
/// protection domain it is used in, once ([`Memory::mr`]), because one listener may have
/// connections on many devices; it keeps these domains.
///
/// No peer reaches it before `mr` or [`Memory::mr_with`]: our own operations have a registration of
/// their own, without rights for peers.
pub struct Memory<R: Rights> {
    inner: Arc<Inner>,
    _r: PhantomData<R>,
}

struct Inner {
    registrations: Mutex<Vec<Registration>>,
    chunk: Arc<Chunk>,
}

/// What a domain has of it. Of each kind one at most.
struct Registration {
    what_for: For,
    region: Arc<Region>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// Our own operations. It lives as long as the memory.
    Us,
    /// Peers, with the default rights, until it is revoked.
    Peers,
}

impl<R: Rights> Clone for Memory<R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), _r: PhantomData }
    }
}

impl<R: Rights> Memory<R> {
    /// The bytes.
    pub(super) fn chunk(&self) -> &Arc<Chunk> {
        &self.inner.chunk
    }

    pub(super) fn over(chunk: Chunk) -> Self {
        let registrations = Mutex::new(Rank::Registrations, Vec::new());
        Self { inner: Arc::new(Inner { registrations, chunk: Arc::new(chunk) }), _r: PhantomData }
    }

    /// The memory's registration in a domain, with all rights of `R` that the device can give
    /// (FLUSH to persistence only where it is a mapped file); made at the first call, and kept
    /// until it is revoked or the memory is gone.
    ///
    /// # Errors
    ///
    /// `Exhausted` where the device has no more registrations; `Forked`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let device = verbena::Provider::software()?.devices()?.remove(0);
    /// # let pd = device.pd()?;
    /// use verbena::{Memory, RemoteMemory, RemoteWrite};
    ///
    /// let table = Memory::<RemoteWrite>::zeroed(4096)?;
    /// let mr = table.mr(&pd)?;
    /// // What the peer gets, in private data for example.
    /// let told = mr.remote().to_bytes();
    /// assert_eq!(RemoteMemory::from_bytes(&told)?.len(), 4096);
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn mr(&self, pd: &Pd) -> Result<Mr<R>> {
        Ok(Mr { region: self.region(pd, For::Peers)?, memory: self.clone() })
    }

    /// A registration with these rights alone, for peers that get a key of their own; revoked when
    /// it is dropped.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for rights that `R` does not have: no peer may write to what is seen as
    /// `&[u8]`. `WrongState` for FLUSH to persistence where it is no mapped file. Those of
    /// [`Memory::mr`].
    pub fn mr_with(&self, pd: &Pd, access: Access) -> Result<Mr<R>> {
        let most = R::MAX.and(self.inner.chunk.most());
        if !most.contains(access) {
            let (is, most) = (access.bits().into(), most.bits().into());
            return Err(Error::number("ibv_reg_mr", "access", is, 0..=most));
        }
        pd.stack().check("ibv_reg_mr")?;
        self.check_domain(pd)?;
        let region = self.register(pd, access.registered()).map_err(|e| Error::of_nic("ibv_reg_mr", e))?;
        Ok(Mr { region: Arc::new(region), memory: self.clone() })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.chunk.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part, as source or, where peers may write, as destination of operations. Parts may
    /// overlap: no code has a reference to what may change.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where it is not inside.
    pub fn part(&self, range: Range<usize>) -> Result<Part<R>> {
        if range.start > range.end || range.end > self.len() {
            let len = range.end.saturating_sub(range.start);
            return Err(Error::range("Memory::part", range.start as u64, len as u64, self.len() as u64));
        }
        Ok(Part { memory: self.clone(), range })
    }

    /// The registration that a domain has, made where there is none.
    fn region(&self, pd: &Pd, what_for: For) -> Result<Arc<Region>> {
        const CALL: &str = "ibv_reg_mr";
        pd.stack().check(CALL)?;
        self.check_domain(pd)?;
        let mut registrations = self.inner.registrations.lock();
        let mut all = registrations.iter();
        if let Some(known) = all.find(|known| known.what_for == what_for && known.region.pd() == pd) {
            return Ok(known.region.clone());
        }
        let is_file = self.inner.chunk.is_file();
        // What the device can not give is not asked for by default.
        let possible = |access: Access| pd.device().possible(access.registered());
        let few = possible(R::MAX.and(self.inner.chunk.most()).without(Access::FLUSH_PERSISTENT));
        let region = match what_for {
            For::Us => self.register(pd, R::LOCAL),
            // Not each file has a storage: one in memory has none.
            For::Peers if is_file => self.register(pd, possible(R::MAX)).or_else(|error| match error {
                nic::Error::Value { .. } => self.register(pd, few),
                other => Err(other),
            }),
            For::Peers => self.register(pd, few),
        };
        let region = Arc::new(region.map_err(|e| Error::of_nic(CALL, e))?);
        registrations.push(Registration { what_for, region: region.clone() });
        Ok(region)
    }

    /// A device's memory is for its own domains; `WrongDomain`.
    fn check_domain(&self, pd: &Pd) -> Result<()> {
        let whose = self.inner.chunk.as_outside().and_then(Outside::device);
        if whose.is_none_or(|device| device == pd.device()) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::WrongDomain, "ibv_reg_mr"))
    }

    /// `access` is no more than `R` has.
    fn register(&self, pd: &Pd, access: u32) -> Result<Region, nic::Error> {
        // SAFETY: frozen memory is registered without a right to write, by a peer or by us. To
        // other memory there are no references but to atomics.
        unsafe { Region::new(pd, &self.inner.chunk, access) }
    }
}

impl<R: Rights> std::fmt::Debug for Memory<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.len())
    }
}

impl Memory<RemoteRead> {
    /// A copy of these bytes, unchangeable. What peers may read can not be written by us either:
    /// ```compile_fail,E0594
    /// fn f(mut mem: verbena::Memory<verbena::RemoteRead>) {
    ///     mem[0] = 1;
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `Exhausted` where there is no memory for them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let chunk = Chunk::zeroed("Memory::from_bytes", bytes.len())?;
        // SAFETY: so many bytes are there, and no other handle has the chunk yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), chunk.ptr(), bytes.len()) };
        Ok(Self::over(chunk))
    }
}

impl Deref for Memory<RemoteRead> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: these bytes of a chunk that the handle keeps are initialised and never change.
        unsafe { std::slice::from_raw_parts(self.inner.chunk.ptr(), self.len()) }
    }
}

impl Memory<RemoteWrite> {
    /// Zeros. There is no `&[u8]` of it, ever:
    /// ```compile_fail,E0308
    /// fn f(mem: &verbena::Memory<verbena::RemoteWrite>) -> &[u8] {
    ///     mem
    /// }
    /// ```
    ///
    /// Over software it is memory that processes of this host map, too, where the system lets them:
    /// they write and read it, where they may, without a system call. A forked child has the
    /// same bytes, not a copy of them.
    ///
    /// # Errors
    ///
    /// `Exhausted` where there is no memory for so many.
    pub fn zeroed(len: usize) -> Result<Self> {
        Ok(Self::over(Chunk::zeroed_for_peers("Memory::zeroed", len)?))
    }

    /// All of a file, opened for reading and writing, mapped and shared with all processes that map
    /// it: what peers FLUSH to persistence is msynced. A file that is cut shorter meanwhile ends
    /// the process where it looks at what is gone (SIGBUS); peers get an error.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for an empty file; `PermissionDenied`, `Exhausted` or what else mmap(2) says.
    pub fn map_file(file: &File) -> Result<Self> {
        Ok(Self::over(Chunk::map("Memory::map_file", file)?))
    }

    /// Memory of the program's own: `len` bytes from `at` on, both multiples of eight.
    ///
    /// # Safety
    ///
    /// The bytes are initialised and mapped for reading and writing, and stay so until `done` is
    /// called, when the last handle, part and operation is gone; `done` is never called where a
    /// copy might still be under way. Meanwhile Rust code touches them only by atomic accesses
    /// of eight aligned bytes, or by others that can not race with those of this crate, of its
    /// peers and adapter; and has no reference to them but to atomics.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where `at` or `len` is no multiple of eight, or `at` is 0; `done` is not called
    /// then.
    pub unsafe fn from_raw(at: *mut u8, len: usize, done: impl FnOnce() + Send + 'static) -> Result<Self> {
        const CALL: &str = "Memory::from_raw";
        let number = |name, is: usize| Error::number(CALL, name, is as u64, 8..=isize::MAX as u64 - 7);
        let start = NonNull::new(at).filter(|at| at.cast::<u64>().is_aligned());
        let start = start.ok_or_else(|| number("at", at.addr()))?;
        if !len.is_multiple_of(8) || len > isize::MAX as usize {
            return Err(number("len", len));
        }
        // SAFETY: as the caller says.
        Ok(Self::over(unsafe { Chunk::of_program(start, len, Box::new(done)) }))
    }

    /// The way to look at it. It can not outlive the memory:
    /// ```compile_fail,E0505
    /// fn f(mem: verbena::Memory<verbena::RemoteWrite>) -> verbena::Result<u64> {
    ///     let view = mem.shared();
    ///     drop(mem);
    ///     view.load(0)
    /// }
    /// ```
    pub fn shared(&self) -> SharedSlice<'_> {
        let (at, len) = (self.inner.chunk.ptr().cast::<AtomicU64>(), self.len());
        // SAFETY: aligned; after the last byte there is room for its word; and all that this
        // process ever does to such memory are atomic accesses of such words.
        SharedSlice::new(unsafe { std::slice::from_raw_parts(at, len.div_ceil(8)) }, len)
    }
}

/// A registration: the memory in one protection domain.
pub struct Mr<R: Rights> {
    region: Arc<Region>,
    memory: Memory<R>,
}

impl<R: Rights> Mr<R> {
    /// What a peer needs to reach it. The address is good with the key only: it is not where the
    /// memory lies in this process.
    pub fn remote(&self) -> RemoteMemory {
        let len = self.memory.len() as u64;
        RemoteMemory::from_raw(self.region.iova(), self.region.key().0, len)
    }
    /// The memory.
    pub fn memory(&self) -> &Memory<R> {
        &self.memory
    }
    /// The registration's protection domain.
    pub fn pd(&self) -> &Pd {
        self.region.pd()
    }
    /// The key dies now, for all that [`Memory::mr`] gave for this domain: what peers still do
    /// fails with a remote access error. Our own operations go on. The next `mr` gives a new
    /// key.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn revoke(self) -> Result<Memory<R>> {
        // In a forked child the lock may be held by a thread that is not there.
        self.pd().stack().check("ibv_dereg_mr")?;
        let gone = {
            let mut registrations = self.memory.inner.registrations.lock();
            let at = registrations.iter().position(|known| Arc::ptr_eq(&known.region, &self.region));
            at.map(|at| registrations.swap_remove(at))
        };
        drop(gone);
        self.region.end()?;
        Ok(self.memory)
    }
}

impl<R: Rights> std::fmt::Debug for Mr<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mr({:?})", self.remote())
    }
}

/// A part of a [`Memory`].
pub struct Part<R: Rights> {
    memory: Memory<R>,
    /// Inside the memory.
    range: Range<usize>,
}

impl<R: Rights> Part<R> {
    /// The memory it is a part of.
    pub fn memory(&self) -> &Memory<R> {
        &self.memory
    }
    /// Where in the memory it is. What is read into it may have cut it shorter.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
    fn pieces(&self, list: &mut SgeList) {
        match self.memory.region(list.pd(), For::Us) {
            Ok(region) => list.add(&region, self.range.start, self.range.len()),
            Err(error) => list.fail(error),
        }
    }
}

impl<R: Rights> Clone for Part<R> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), range: self.range.clone() }
    }
}

impl<R: Rights> std::fmt::Debug for Part<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({:?} of {} bytes)", self.range, self.memory.len())
    }
}

// SAFETY: the bytes lie in the memory, which the part keeps, with its registrations for us. Of none
// is there ever a `&mut`.
unsafe impl<R: Rights> IoBuf for Part<R> {
    fn gather(&self, list: &mut SgeList) {
        self.pieces(list);
    }
}

macro_rules! changing {
    ($($rights:ty),*) => {$(
        // SAFETY: as above; and of memory that peers write, or that is not the processor's, no code
        // ever has a reference but to atomics.
        unsafe impl IoBufMut for Part<$rights> {
            fn gather_mut(&self, list: &mut SgeList) {
                self.pieces(list);
            }
            fn capacity_bytes(&self) -> usize {
                self.range.len()
            }
            fn set_filled(&mut self, len: usize) {
                self.range.end = self.range.end.min(self.range.start.saturating_add(len));
            }
        }
    )*};
}
changing!(RemoteWrite, Opaque);
