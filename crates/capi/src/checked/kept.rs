//! The memory of destroyed objects. Where calls are checked it stays for a while, so that a call
//! that names the object is found, and reads no other object in its place.

use std::alloc::{Layout, dealloc};
use std::collections::VecDeque;
use std::ptr::with_exposed_provenance_mut;

use check::objects::Handle;

/// Destroyed objects whose memory stays.
const MOST: usize = 10_000;

/// The memory of destroyed objects, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<(Handle, Layout)>);

impl Kept {
    /// Keeps one more, and gives the memory of the oldest back, whose name is returned, where there
    /// are too many.
    pub(super) fn keep(&mut self, object: Handle, layout: Layout) -> Option<Handle> {
        self.0.push_back((object, layout));
        if self.0.len() <= MOST {
            return None;
        }
        let (oldest, layout) = self.0.pop_front()?;
        // SAFETY: from `Box::into_raw` of a type of this layout; its value was moved out.
        unsafe { dealloc(with_exposed_provenance_mut(oldest as usize), layout) };
        Some(oldest)
    }
}
