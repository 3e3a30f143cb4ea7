//! The memory of destroyed objects. Where calls are checked it stays for a while, so that a call
//! that names the object is found, and reads no other object in its place.

use std::alloc::{Layout, dealloc};
use std::collections::VecDeque;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Weak;

use check::objects::Handle;

/// Memory of a destroyed object.
#[derive(Debug)]
pub(super) enum Memory {
    /// From `Box::into_raw` of a type of this layout; its value was moved out.
    Owned(Layout),
    /// Counted, without its value once the last share is gone.
    Counted { _share: Weak<dyn Send + Sync> },
}

/// Destroyed objects whose memory stays.
const MOST: usize = 10_000;

/// The memory of destroyed objects, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<(Handle, Memory)>);

impl Kept {
    /// Keeps one more, and gives the memory of the oldest back, whose name is returned, where there
    /// are too many.
    pub(super) fn keep(&mut self, object: Handle, memory: Memory) -> Option<Handle> {
        self.0.push_back((object, memory));
        if self.0.len() <= MOST {
            return None;
        }
        let (oldest, memory) = self.0.pop_front()?;
        if let Memory::Owned(layout) = memory {
            // SAFETY: as `Memory` says.
            unsafe { dealloc(with_exposed_provenance_mut(oldest as usize), layout) };
        }
        Some(oldest)
    }
}
