//! Buffers that no peer and no other handle sees come from a [`Pool`]: one slab, registered once,
//! cut into buffers of one size. Each buffer has a count of the pieces that there are of it
//! ([`Piece`]); with the last it is free again, or goes to the task that has waited longest.

#[cfg(all(test, feature = "sim"))]
mod census;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::{Context, Poll, Waker};

use locks::{Mutex, Rank};
use nic::limits::MAX_MESSAGE;
use nic::program::Kept;

use super::buf::RegBuf;
use super::chunk::Chunk;
use super::region::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Pd;

/// Alignment of each buffer, but for pools of smaller ones than that: a cache line.
const LINE: usize = 64;

/// A pool of registered buffers of one protection domain; a clone is the same pool. Registered
/// once, never for an operation. Its memory lives until the last clone and the last buffer are
/// gone.
#[derive(Clone)]
pub struct Pool(Arc<Slab>);

/// What the buffers of a pool share.
pub(super) struct Slab {
    pub region: Region,
    /// Bytes of a buffer.
    size: usize,
    /// Bytes from the beginning of a buffer to that of the next.
    stride: usize,
    /// Of each buffer, the pieces that there are; 0: it is free, or granted to a task that waits.
    pieces: Box<[AtomicUsize]>,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Buffers that are free; no task waits while there are any.
    buffers: Vec<u32>,
    waiting: VecDeque<(u64, Kept<Waker>)>,
    /// Buffers for tasks that waited and have not looked yet.
    granted: Vec<(u64, u32)>,
    /// Number of the next task that waits.
    next: u64,
}

impl Pool {
    /// `count` buffers of `size` bytes (at most 2^31), zeroed. Each begins at a multiple of 64
    /// bytes.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for no buffers, or such as no message can fill; `Exhausted` where there is no
    /// memory for them; `Forked`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let device = verbena::Provider::software()?.devices()?.remove(0);
    /// # let pd = device.pd()?;
    /// use verbena::Pool;
    ///
    /// let pool = Pool::new(&pd, 4096, 8)?;
    /// let buf = pool.copy(b"hello")?;
    /// assert_eq!((&buf[..], buf.capacity()), (&b"hello"[..], 4096));
    /// # Ok::<(), verbena::Error>(())
    /// ```
    pub fn new(pd: &Pd, size: usize, count: usize) -> Result<Self> {
        const CALL: &str = "Pool::new";
        if size == 0 || size as u64 > MAX_MESSAGE {
            return Err(Error::number(CALL, "size", size as u64, 1..=MAX_MESSAGE));
        }
        let buffers = u32::try_from(count).ok().filter(|count| *count > 0);
        let buffers =
            buffers.ok_or_else(|| Error::number(CALL, "count", count as u64, 1..=u32::MAX.into()))?;
        pd.stack().check(CALL)?;
        let stride = size.next_multiple_of(LINE);
        let bytes = stride.checked_mul(count).ok_or_else(|| Error::new(ErrorKind::Exhausted, CALL))?;
        let chunk = Arc::new(Chunk::zeroed(CALL, bytes)?);
        let access = nic::Access::LOCAL_WRITE | nic::Access::MW_BIND;
        // SAFETY: peers have no right to it but by a window, over a buffer of which there is no
        // handle meanwhile. The key is named by operations of this crate only, which own the
        // `RegBuf` or `RegBytes` whose bytes they name: see the module.
        let region = unsafe { Region::new(pd, &chunk, access) };
        let region = region.map_err(|e| Error::of_nic("ibv_reg_mr", e))?;
        let pieces = (0..count).map(|_| AtomicUsize::new(0)).collect();
        // The first is given first.
        let free = Free { buffers: (0..buffers).rev().collect(), ..Free::default() };
        let free = Mutex::new(Rank::FreeBuffers, free);
        Ok(Self(Arc::new(Slab { region, size, stride, pieces, free })))
    }

    /// A buffer, empty, with the pool's capacity. What it had in it before is still there, after
    /// its length; zeros at first.
    ///
    /// # Errors
    ///
    /// `Exhausted` where all are out; `Forked`.
    pub fn get(&self) -> Result<RegBuf> {
        self.0.region.pd().stack().check("Pool::get")?;
        let free = self.0.free.lock().buffers.pop();
        free.map(|index| self.buffer(index)).ok_or_else(|| Error::new(ErrorKind::Exhausted, "Pool::get"))
    }

    /// A buffer with a copy of these bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::get`]; `OutOfRange` where they are more than a buffer has.
    pub fn copy(&self, bytes: &[u8]) -> Result<RegBuf> {
        let mut buf = self.get()?;
        buf.extend_from_slice(bytes)?;
        Ok(buf)
    }

    /// Waits until one is given back, first come, first served. Dropping the future passes on what
    /// it was granted; forgetting it loses a buffer, as forgetting a buffer does.
    ///
    /// # Errors
    ///
    /// `Forked`.
    pub fn acquire(&self) -> impl Future<Output = Result<RegBuf>> + Send + '_ {
        Acquire { pool: self, number: None }
    }

    /// Bytes of a buffer.
    pub fn size(&self) -> usize {
        self.0.size
    }
    /// The pool's protection domain.
    pub fn pd(&self) -> &Pd {
        self.0.region.pd()
    }

    /// A buffer that was taken out of the free ones.
    fn buffer(&self, index: u32) -> RegBuf {
        self.0.count(index).store(1, Ordering::Relaxed);
        RegBuf::whole(Piece { slab: self.0.clone(), index, start: 0 }, self.0.size as u32)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} buffers of {} bytes)", self.0.pieces.len(), self.0.size)
    }
}

impl Slab {
    fn count(&self, index: u32) -> &AtomicUsize {
        &self.pieces[index as usize]
    }

    /// Bytes of a buffer.
    pub(super) fn size(&self) -> u32 {
        // 2^31 at most.
        self.size as u32
    }

    /// The last piece of a buffer is gone.
    fn give(&self, index: u32) {
        // In a forked child the lock may be held by a thread that is not there.
        if !self.region.pd().stack().is_ours() {
            return;
        }
        let waker = self.free.lock().give(index);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Free {
    /// Gives a buffer to the task that has waited longest, which is to be woken when the lock is
    /// released; else it is free.
    fn give(&mut self, index: u32) -> Option<Kept<Waker>> {
        match self.waiting.pop_front() {
            Some((number, waker)) => {
                self.granted.push((number, index));
                Some(waker)
            }
            None => {
                self.buffers.push(index);
                None
            }
        }
    }
    fn take_granted(&mut self, number: u64) -> Option<u32> {
        let at = self.granted.iter().position(|(to, _)| *to == number)?;
        Some(self.granted.swap_remove(at).1)
    }
}

/// A part of a buffer of a pool, from `start` on; its holder knows how long it is. It keeps the
/// buffer, and the slab.
pub(super) struct Piece {
    slab: Arc<Slab>,
    index: u32,
    start: u32,
}

impl Piece {
    /// One more piece of the same buffer, from another place on.
    pub(super) fn another(&self, start: u32) -> Self {
        // No overflow: each piece is also one of the slab's count, whose overflow ends the process.
        let slab = self.slab.clone();
        slab.count(self.index).fetch_add(1, Ordering::Relaxed);
        Self { slab, index: self.index, start }
    }
    /// Has the piece begin at another place of its buffer.
    pub(super) fn move_to(&mut self, start: u32) {
        self.start = start;
    }
    /// Where in its buffer it begins.
    pub(super) fn start(&self) -> u32 {
        self.start
    }
    pub(super) fn slab(&self) -> &Slab {
        &self.slab
    }
    /// Whether both are of one buffer.
    pub(super) fn same_buffer(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slab, &other.slab) && self.index == other.index
    }
    /// Whether there is no other piece of this buffer. It stays so while the caller shares this one
    /// with no other.
    pub(super) fn is_only(&self) -> bool {
        // Acquire: what the handles that are gone did with the bytes was before.
        self.slab.count(self.index).load(Ordering::Acquire) == 1
    }
    /// Where in the slab it begins.
    pub(super) fn offset(&self) -> usize {
        self.index as usize * self.slab.stride + self.start as usize
    }
    /// The first byte.
    pub(super) fn ptr(&self) -> *mut u8 {
        // Inside the chunk, or just after it.
        self.slab.region.chunk().ptr().wrapping_add(self.offset())
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // As an `Arc` ends: what was done with the bytes is before what the next owner does.
        if self.slab.count(self.index).fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.slab.give(self.index);
        }
    }
}

struct Acquire<'a> {
    pool: &'a Pool,
    /// The future's number, where it waits or has waited.
    number: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = Result<RegBuf>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<RegBuf>> {
        let slab = &self.pool.0;
        slab.region.pd().stack().check("Pool::acquire")?;
        // Cloned and dropped with no lock held: a waker may be the program's code.
        let mut waker = Kept::of(cx);
        let mut free = slab.free.lock();
        let found = match self.number {
            Some(number) => free.take_granted(number),
            None => free.buffers.pop(),
        };
        if found.is_none() {
            match free.waiting.iter_mut().find(|(number, _)| Some(*number) == self.number) {
                Some((_, old)) => std::mem::swap(old, &mut waker),
                None => {
                    let number = free.next;
                    free.next += 1;
                    free.waiting.push_back((number, waker));
                    drop(free);
                    self.number = Some(number);
                    return Poll::Pending;
                }
            }
        }
        drop(free);
        match found {
            Some(index) => {
                self.number = None;
                Poll::Ready(Ok(self.pool.buffer(index)))
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let (Some(number), slab) = (self.number, &self.pool.0) else { return };
        if !slab.region.pd().stack().is_ours() {
            return;
        }
        let mut free = slab.free.lock();
        let granted = free.take_granted(number);
        let next = granted.and_then(|index| free.give(index));
        let at = free.waiting.iter().position(|(waiting, _)| *waiting == number);
        let mine = at.and_then(|at| free.waiting.remove(at));
        drop(free);
        drop(mine);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
