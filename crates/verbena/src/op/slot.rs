//! Entries of a send queue: where values live while they are in flight. The soundness of everything else stands on it.
//!
//! A value moves into an entry when its request is posted, and out of it when the request is complete: to its owner, who holds the
//! [`Ticket`], or to whoever drains the completion queue, where the owner has gone. No value is dropped in here, since its `drop` may be
//! the program's code, and the entries lie behind a lock; nor is a waker cloned, dropped or woken.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::task::{Poll, Waker};

/// Bytes of a value that are kept without an allocation; larger ones are boxed.
const INLINE: usize = 40;

/// A value of any type, without allocation where it is small.
struct Keep {
    bytes: MaybeUninit<[u64; INLINE / 8]>,
    drop: unsafe fn(*mut u8),
}

/// Whether a `B` lies in place.
const fn fits<B>() -> bool {
    size_of::<B>() <= INLINE && align_of::<B>() <= 8
}

impl Keep {
    fn new<B: Send + 'static>(value: B) -> Keep {
        let mut keep = Keep { bytes: MaybeUninit::uninit(), drop: drop_as::<B> };
        let at = keep.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: there is room for a B, or for a Box, and it is aligned.
        unsafe {
            match fits::<B>() {
                true => at.cast::<B>().write(value),
                false => at.cast::<Box<B>>().write(Box::new(value)),
            }
        }
        keep
    }
    /// # Safety
    ///
    /// It was made from a `B`.
    unsafe fn take<B>(self) -> B {
        let mut this = ManuallyDrop::new(self);
        let at = this.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: as the caller says; nobody drops it any more.
        unsafe {
            match fits::<B>() {
                true => at.cast::<B>().read(),
                false => *at.cast::<Box<B>>().read(),
            }
        }
    }
}
/// # Safety
///
/// A `B`, or a box of one, lies there and is not used afterwards.
unsafe fn drop_as<B>(at: *mut u8) {
    // SAFETY: as the caller says.
    unsafe {
        match fits::<B>() {
            true => at.cast::<B>().drop_in_place(),
            false => at.cast::<Box<B>>().drop_in_place(),
        }
    }
}
impl Drop for Keep {
    fn drop(&mut self) {
        // SAFETY: it holds what `drop` was made for.
        unsafe { (self.drop)(self.bytes.as_mut_ptr().cast()) }
    }
}
// SAFETY: only `Send` values get in.
unsafe impl Send for Keep {}

enum State<R> {
    Free,
    /// Whoever waits, or nobody: the owner may have gone.
    Flying {
        keep: Keep,
        waker: Option<Waker>,
        abandoned: bool,
    },
    Done {
        keep: Keep,
        result: R,
    },
}

struct Entry<R> {
    generation: u32,
    state: State<R>,
}

/// What is left over, for the caller to do or drop when nothing is locked.
#[must_use = "the waker is to be woken, the value dropped, with no lock held"]
#[derive(Default)]
pub(crate) struct Left {
    pub waker: Option<Waker>,
    _value: Option<Keep>,
    _unused: Option<Waker>,
}

impl Left {
    /// Nothing is left.
    pub fn is_nothing(&self) -> bool {
        self.waker.is_none() && self._value.is_none() && self._unused.is_none()
    }
}

/// All entries of a queue.
pub(crate) struct Slots<R> {
    entries: Box<[Entry<R>]>,
    free: Vec<u32>,
}

/// An entry that somebody posted; the wr_id of its work request. Not `Clone`: one owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket<B> {
    pub wr_id: u64,
    _b: std::marker::PhantomData<fn() -> B>,
}

/// Generations take 31 bits of a wr_id: the highest is left to others.
const GENERATIONS: u32 = 0x7fff_ffff;

impl<R> Slots<R> {
    pub fn new(depth: u32) -> Slots<R> {
        let entries = (0..depth).map(|_| Entry { generation: 0, state: State::Free }).collect();
        Slots { entries, free: (0..depth).rev().collect() }
    }
    /// Entries that nothing has.
    pub fn room(&self) -> usize {
        self.free.len()
    }
    /// Requests that are not complete, or whose owner has not taken the result.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }
    /// Whether a request is under way.
    pub fn any_flying(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.state, State::Flying { .. }))
    }
    /// Takes an entry for a value about to be posted; the value back where there is none.
    pub fn put<B: Send + 'static>(&mut self, value: B) -> Result<Ticket<B>, B> {
        let Some(at) = self.free.pop() else { return Err(value) };
        let entry = &mut self.entries[at as usize];
        entry.state = State::Flying { keep: Keep::new(value), waker: None, abandoned: false };
        let wr_id = u64::from(entry.generation) << 32 | u64::from(at);
        Ok(Ticket { wr_id, _b: std::marker::PhantomData })
    }
    fn entry(&mut self, wr_id: u64) -> Option<&mut Entry<R>> {
        let entry = self.entries.get_mut(wr_id as u32 as usize)?;
        (u64::from(entry.generation) == wr_id >> 32).then_some(entry)
    }
    fn release(&mut self, wr_id: u64) {
        if let Some(entry) = self.entry(wr_id) {
            entry.generation = entry.generation.wrapping_add(1) & GENERATIONS;
            entry.state = State::Free;
            self.free.push(wr_id as u32);
        }
    }
    /// The value of a request that was not taken after all.
    ///
    /// # Safety
    ///
    /// The ticket is of this queue, and not used afterwards.
    pub unsafe fn take_back<B>(&mut self, ticket: &Ticket<B>) -> Option<B> {
        let entry = self.entry(ticket.wr_id)?;
        let (State::Flying { keep, .. } | State::Done { keep, .. }) =
            std::mem::replace(&mut entry.state, State::Free)
        else {
            return None;
        };
        self.release(ticket.wr_id);
        // SAFETY: of this queue, as the caller says: its type is that of the value; tickets are not copied.
        Some(unsafe { keep.take() })
    }
    /// A completion came. One of before, or of nothing, changes nothing.
    pub fn complete(&mut self, wr_id: u64, result: R) -> Left {
        let Some(entry) = self.entry(wr_id) else { return Left::default() };
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Flying { keep, waker, abandoned: false } => {
                entry.state = State::Done { keep, result };
                Left { waker, ..Left::default() }
            }
            State::Flying { keep, abandoned: true, .. } => {
                self.release(wr_id);
                Left { _value: Some(keep), ..Left::default() }
            }
            other => {
                entry.state = other;
                Left::default()
            }
        }
    }
    /// Completes all that is under way; the queue pair is no more.
    pub fn complete_all(&mut self, mut result: impl FnMut() -> R) -> Vec<Left> {
        let flying = |(at, entry): (usize, &Entry<R>)| {
            let wr_id = u64::from(entry.generation) << 32 | at as u64;
            matches!(entry.state, State::Flying { .. }).then_some(wr_id)
        };
        let ids: Vec<u64> = self.entries.iter().enumerate().filter_map(flying).collect();
        ids.into_iter().map(|wr_id| self.complete(wr_id, result())).collect()
    }
    /// Looks for the result; else leaves the waker, where there is one to leave. What is not needed of it, or of the one before, is
    /// left over.
    ///
    /// # Safety
    ///
    /// The ticket is of this queue (an `InFlight` holds both), or the value would be taken for one of another type. It is not used again
    /// once this was ready.
    pub unsafe fn poll<B>(&mut self, ticket: &Ticket<B>, new: Option<Waker>) -> (Poll<(R, B)>, Left) {
        let unused = |waker| Left { _unused: waker, ..Left::default() };
        let Some(entry) = self.entry(ticket.wr_id) else { return (Poll::Pending, unused(new)) };
        // Who only looks leaves the entry as it is.
        if new.is_none() && !matches!(entry.state, State::Done { .. }) {
            return (Poll::Pending, Left::default());
        }
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Done { keep, result } => {
                self.release(ticket.wr_id);
                // SAFETY: of this queue, as the caller says: its type is that of the value; tickets are not copied.
                (Poll::Ready((result, unsafe { keep.take() })), unused(new))
            }
            State::Flying { keep, abandoned, waker } => {
                let (waker, before) = if new.is_some() { (new, waker) } else { (waker, None) };
                entry.state = State::Flying { keep, waker, abandoned };
                (Poll::Pending, unused(before))
            }
            State::Free => (Poll::Pending, unused(new)),
        }
    }
    /// The owner is gone: the value stays until the completion.
    pub fn abandon<B>(&mut self, ticket: &Ticket<B>) -> Left {
        let Some(entry) = self.entry(ticket.wr_id) else { return Left::default() };
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Flying { keep, waker, .. } => {
                entry.state = State::Flying { keep, waker: None, abandoned: true };
                Left { _unused: waker, ..Left::default() }
            }
            State::Done { keep, .. } => {
                self.release(ticket.wr_id);
                Left { _value: Some(keep), ..Left::default() }
            }
            State::Free => Left::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn waker() -> Option<Waker> {
        Some(Waker::noop().clone())
    }

    #[test]
    fn a_value_comes_back_with_its_result() {
        let mut slots = Slots::new(2);
        let small = slots.put(Arc::new(7)).unwrap();
        let large = slots.put([9_u64; 100]).unwrap();
        assert!(slots.put(()).is_err(), "full");
        // SAFETY: a ticket of these slots; also below.
        assert!(unsafe { slots.poll(&small, waker()) }.0.is_pending());
        drop(slots.complete(large.wr_id, 'l'));
        drop(slots.complete(small.wr_id, 's'));
        // SAFETY: as above.
        assert_eq!(unsafe { slots.poll(&small, waker()) }.0, Poll::Ready(('s', Arc::new(7))));
        // SAFETY: as above.
        assert_eq!(unsafe { slots.poll(&large, waker()) }.0, Poll::Ready(('l', [9; 100])));
        assert_eq!(slots.in_use(), 0);
    }

    #[test]
    fn an_abandoned_value_lives_until_its_completion() {
        let (mut slots, value) = (Slots::new(1), Arc::new(()));
        let ticket = slots.put(value.clone()).unwrap();
        let wr_id = ticket.wr_id;
        drop(slots.abandon(&ticket));
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(slots.put(()).is_err(), "the entry is not free before");
        drop(slots.complete(wr_id, ()));
        assert_eq!((Arc::strong_count(&value), slots.in_use()), (1, 0));
        drop(slots.complete(wr_id, ()));
        assert_eq!(slots.in_use(), 0, "a completion of before changes nothing");
    }

    #[test]
    fn a_forgotten_ticket_keeps_the_value_until_the_queue_goes() {
        let (mut slots, value) = (Slots::<()>::new(1), Arc::new(()));
        let _ = ManuallyDrop::new(slots.put(value.clone()).unwrap());
        assert_eq!(Arc::strong_count(&value), 2);
        drop(slots);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn memory_of_a_buffer_fits_without_a_box() {
        assert!(fits::<crate::RegBuf>() && fits::<crate::RegBytes>());
        assert!(fits::<crate::Part<crate::RemoteWrite>>());
    }
}
