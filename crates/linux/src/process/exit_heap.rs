//! A heap for what is done at exit. A signal handler may call `exit`, as qperf's does, and what it
//! has interrupted may be malloc(3): then the thread has the lock of the C library's heap, and
//! would wait for itself. So what a thread allocates while it does Verbena's part of `exit` comes
//! from memory of Verbena's own, and what it gives back meanwhile stays where it is: the process
//! ends.
//!
//! The shared object has this for its allocator. A Rust program chooses its own, and there the rule
//! stands that a signal handler ends a process by `_exit` (signal-safety(7)).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Bytes of it; they are there when they are used.
const BYTES: usize = 1 << 20;

/// The system's heap, but for a thread that does Verbena's part of `exit`.
#[derive(Clone, Copy, Debug)]
pub struct ExitHeap;

#[repr(align(4096))]
struct Memory(UnsafeCell<[MaybeUninit<u8>; BYTES]>);

// SAFETY: each byte is handed out once.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([MaybeUninit::zeroed(); BYTES]));
/// Bytes of the heap that were handed out, and more where more was asked for than there is.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// The thread that does Verbena's part of `exit`, or 0.
static LEAVING: AtomicI32 = AtomicI32::new(0);

/// While it lives this thread allocates from here.
#[derive(Debug)]
pub struct Leaving(());

impl Leaving {
    /// From now on this thread does Verbena's part of `exit`.
    pub fn begin() -> Self {
        LEAVING.store(own_thread(), Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        LEAVING.store(0, Ordering::Relaxed);
    }
}

fn own_thread() -> i32 {
    sys::thread::own_thread().cast_signed()
}

/// Whether it is this thread.
#[inline]
fn is_leaving() -> bool {
    let leaving = LEAVING.load(Ordering::Relaxed);
    leaving != 0 && leaving == own_thread()
}

/// A piece that was not handed out before, all zero; `None` where there is none left.
fn take(layout: Layout) -> Option<*mut u8> {
    // Its begin is aligned as any piece may be.
    let space = layout.size().checked_add(layout.align() - 1)?;
    let taken = TAKEN.try_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
        taken.checked_add(space).filter(|end| *end <= BYTES)
    });
    let begin = MEMORY.0.get().cast::<u8>();
    let at = taken.ok()?.next_multiple_of(layout.align());
    // SAFETY: at most `align - 1` bytes were added: the piece is inside.
    (layout.align() <= align_of::<Memory>()).then(|| unsafe { begin.add(at) })
}

/// A piece for this thread, where it leaves and there is one left.
#[inline]
fn own(layout: Layout) -> Option<*mut u8> {
    if is_leaving() { take(layout) } else { None }
}

/// Whether a piece came from here.
#[inline]
fn is_here(piece: *const u8) -> bool {
    (piece.addr()).wrapping_sub(MEMORY.0.get().addr()) < BYTES
}

// SAFETY: pieces of MEMORY are disjoint, aligned, and never handed out again; all others are the
// system's, and go back there or nowhere.
unsafe impl GlobalAlloc for ExitHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(piece) = own(layout) {
            return piece;
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(piece) = own(layout) {
            return piece;
        }
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if !is_here(piece) && !is_leaving() {
            // SAFETY: as the caller says: it is the system's.
            unsafe { System.dealloc(piece, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_here(piece) && !is_leaving() {
            // SAFETY: as the caller says: it is the system's.
            return unsafe { System.realloc(piece, layout, size) };
        }
        // SAFETY: the caller says that the size is good with this alignment.
        let larger = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !larger.is_null() {
            // SAFETY: two pieces, of so many bytes at least.
            unsafe { ptr::copy_nonoverlapping(piece, larger, layout.size().min(size)) };
        }
        larger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece of 24 bytes, each of which says the same.
    fn piece(byte: u8) -> *mut u8 {
        // SAFETY: a piece of 24 bytes.
        unsafe {
            let piece = ExitHeap.alloc(Layout::new::<[u64; 3]>());
            piece.write_bytes(byte, 24);
            piece
        }
    }

    #[test]
    fn only_who_leaves_allocates_here_and_nothing_is_handed_out_again() {
        let layout = Layout::new::<[u64; 3]>();
        let before = piece(1);
        assert!(!is_here(before), "nobody leaves");
        let leaving = Leaving::begin();
        let (first, second) = (piece(2), piece(3));
        assert!(is_here(first) && is_here(second) && first != second);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = piece(4);
                assert!(!is_here(other), "another thread");
                // SAFETY: the piece of just now.
                unsafe { ExitHeap.dealloc(other, layout) };
            });
        });
        // SAFETY: pieces of this layout; the one is not used again, the others are read with the
        // size that they have then.
        let (grown, moved) = unsafe {
            ExitHeap.dealloc(second, layout);
            (ExitHeap.realloc(first, layout, 4096), ExitHeap.realloc(before, layout, 48))
        };
        assert!(is_here(grown) && is_here(moved));
        // SAFETY: as above: what was there is there.
        unsafe { assert_eq!((grown.add(23).read(), moved.add(23).read()), (2, 1)) };
        let aligned = Layout::from_size_align(1, 256).unwrap();
        // SAFETY: its size is not 0.
        assert_eq!(unsafe { ExitHeap.alloc_zeroed(aligned) }.addr() % 256, 0);
        assert!(take(Layout::from_size_align(BYTES, 1).unwrap()).is_none(), "there is not so much left");
        assert!(is_here(piece(5)), "but this");
        drop(leaving);
        // SAFETY: a piece of this size, which is not used again: it stays where it is.
        unsafe { ExitHeap.dealloc(grown, Layout::from_size_align(4096, 8).unwrap()) };
        assert!(!is_here(piece(6)), "nobody leaves any more");
    }
}
