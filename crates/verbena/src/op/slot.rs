//! Entries of a send queue: where values live while they are in flight. The soundness of everything
//! else stands on it.
//!
//! A value moves into an entry when its request is posted, and out of it when the request is
//! complete: to its owner, which holds the [`Ticket`], or to the thread that drains the completion
//! queue, where the owner has gone. No value is dropped in here, since its `drop` may be the
//! program's code, and the entries lie under a lock; nor is a waker cloned, dropped or woken.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::task::Waker;

use nic::program::{self, Kept};

/// Bytes of a value that are kept without an allocation; larger ones are boxed.
const INLINE: usize = 40;

/// A value of any type, without allocation where it is small.
pub(crate) struct Keep {
    bytes: MaybeUninit<[u64; INLINE / 8]>,
    drop: unsafe fn(*mut u8),
}

/// Whether a `B` lies in place.
const fn fits<B>() -> bool {
    size_of::<B>() <= INLINE && align_of::<B>() <= 8
}

impl Keep {
    /// Keeps a value in a place. It is written there: made beside it and moved, its bytes would be
    /// waited for twice.
    #[inline]
    fn put<B: Send + 'static>(place: &mut Option<Self>, value: B) {
        let keep = place.insert(Self { bytes: MaybeUninit::uninit(), drop: drop_nothing });
        let at = keep.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: there is room for a B, or for a Box, and it is aligned.
        unsafe {
            match fits::<B>() {
                true => at.cast::<B>().write(value),
                false => at.cast::<Box<B>>().write(Box::new(value)),
            }
        }
        keep.drop = drop_as::<B>;
    }
    /// # Safety
    ///
    /// It was made from a `B`.
    unsafe fn take<B>(self) -> B {
        let mut this = ManuallyDrop::new(self);
        let at = this.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: as the caller says; no other code drops it any more.
        unsafe {
            match fits::<B>() {
                true => at.cast::<B>().read(),
                false => *at.cast::<Box<B>>().read(),
            }
        }
    }
}
/// Of a place without a value.
///
/// # Safety
///
/// It needs nothing.
unsafe fn drop_nothing(_: *mut u8) {}
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
        // Its owner has gone: the destructor's panic is not to end another's call.
        // SAFETY: it holds what `drop` was made for.
        program::call(|| unsafe { (self.drop)(self.bytes.as_mut_ptr().cast()) });
    }
}
// SAFETY: only `Send` values get in.
unsafe impl Send for Keep {}

enum State<R> {
    Free,
    /// The waker of the task that waits, if any.
    Flying(Option<Kept<Waker>>),
    /// The owner has gone.
    Abandoned,
    Done(R),
}

/// What a completion changes: often another thread's work, so it is small, and the values lie
/// elsewhere.
struct Entry<R> {
    generation: u32,
    state: State<R>,
}

/// What is left over, for the caller to do or drop when nothing is locked.
#[must_use = "it is to be woken or dropped with no lock held"]
pub(crate) enum Left {
    /// To be woken.
    Woken(Kept<Waker>),
    /// To be dropped.
    Unused(#[expect(dead_code, reason = "it is dropped, and nothing else")] Kept<Waker>),
    /// A value to be dropped.
    Value(#[expect(dead_code, reason = "as above")] Keep),
}

/// All entries of a queue.
pub(crate) struct Slots<R> {
    entries: Box<[Entry<R>]>,
    /// The value of each entry that is not free.
    values: Box<[Option<Keep>]>,
    free: Vec<u32>,
    /// Entries under way with a waker, or without an owner.
    waited_for: usize,
}

/// An entry of a posted request; the wr_id of its work request. Not `Clone`: one owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket<B> {
    pub wr_id: u64,
    _b: std::marker::PhantomData<fn() -> B>,
}

/// Generations take 31 bits of a wr_id: the highest is left to others.
const GENERATIONS: u32 = 0x7fff_ffff;

impl<R> Slots<R> {
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            entries: (0..depth).map(|_| Entry { generation: 0, state: State::Free }).collect(),
            values: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waited_for: 0,
        }
    }
    /// Entries that nothing has.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }
    /// Requests that are not complete, or whose owner has not taken the result.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.entries.len() - self.free.len()
    }
    /// Whether a request is under way whose completion has more to do than to be there: there is a
    /// waker, or no owner will look.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waited_for > 0
    }
    /// Whether a request is under way.
    pub(crate) fn any_flying(&self) -> bool {
        self.entries.iter().any(Entry::is_flying)
    }
    /// Takes an entry for a value about to be posted; the value back where there is none.
    #[inline]
    pub(crate) fn put<B: Send + 'static>(&mut self, value: B) -> Result<Ticket<B>, B> {
        let Some(at) = self.free.pop() else { return Err(value) };
        let entry = &mut self.entries[at as usize];
        entry.state = State::Flying(None);
        Keep::put(&mut self.values[at as usize], value);
        let wr_id = u64::from(entry.generation) << 32 | u64::from(at);
        Ok(Ticket { wr_id, _b: std::marker::PhantomData })
    }
    #[inline]
    fn entry(&mut self, wr_id: u64) -> Option<&mut Entry<R>> {
        let entry = self.entries.get_mut(wr_id as u32 as usize)?;
        (u64::from(entry.generation) == wr_id >> 32).then_some(entry)
    }
    /// The entry, whose state was taken out, is free again; its value, for the caller.
    #[inline]
    fn release(&mut self, wr_id: u64) -> Option<Keep> {
        let entry = self.entry(wr_id)?;
        entry.generation = entry.generation.wrapping_add(1) & GENERATIONS;
        let at = wr_id as u32;
        self.free.push(at);
        self.values[at as usize].take()
    }
    /// The value of a request that was not taken after all.
    ///
    /// # Safety
    ///
    /// The ticket is of this queue, and not used afterwards.
    pub(crate) unsafe fn take_back<B>(&mut self, ticket: &Ticket<B>) -> Option<B> {
        self.entry(ticket.wr_id)?.state = State::Free;
        let keep = self.release(ticket.wr_id)?;
        // SAFETY: of this queue, as the caller says: its type is that of the value; tickets are not
        // copied.
        Some(unsafe { keep.take() })
    }
    /// A completion came. One of before, or of nothing, changes nothing.
    #[inline]
    pub(crate) fn complete(&mut self, wr_id: u64, result: R) -> Option<Left> {
        let entry = self.entry(wr_id)?;
        if !entry.is_flying() {
            return None;
        }
        // Replaced, not assigned: the compiler sees that nothing of the old state is to be dropped.
        if let State::Flying(waker) = std::mem::replace(&mut entry.state, State::Done(result)) {
            self.waited_for -= usize::from(waker.is_some());
            return waker.map(Left::Woken);
        }
        entry.state = State::Free;
        self.waited_for -= 1;
        self.release(wr_id).map(Left::Value)
    }
    /// Completes all that is under way; the queue pair is no more.
    pub(crate) fn complete_all(&mut self, mut result: impl FnMut() -> R) -> Vec<Left> {
        let flying = |(at, entry): (usize, &Entry<R>)| {
            entry.is_flying().then_some(u64::from(entry.generation) << 32 | at as u64)
        };
        let ids: Vec<u64> = self.entries.iter().enumerate().filter_map(flying).collect();
        ids.into_iter().filter_map(|wr_id| self.complete(wr_id, result())).collect()
    }
    /// The result and the value, where the request is complete.
    ///
    /// # Safety
    ///
    /// The ticket is of this queue (an `InFlight` holds both), or the value would be taken for one
    /// of another type. It is not used again once there was a result.
    #[inline]
    pub(crate) unsafe fn take<B>(&mut self, ticket: &Ticket<B>) -> Option<(R, B)> {
        let entry = self.entry(ticket.wr_id)?;
        if !matches!(entry.state, State::Done(_)) {
            return None;
        }
        let State::Done(result) = std::mem::replace(&mut entry.state, State::Free) else { return None };
        let keep = self.release(ticket.wr_id)?;
        // SAFETY: of this queue, as the caller says: its type is that of the value; tickets are not
        // copied.
        Some((result, unsafe { keep.take() }))
    }
    /// Leaves a waker until the request is complete; the one before.
    ///
    /// # Errors
    ///
    /// The waker, where nothing is waited for any more.
    pub(crate) fn leave<B>(
        &mut self,
        ticket: &Ticket<B>,
        new: Kept<Waker>,
    ) -> Result<Option<Kept<Waker>>, Kept<Waker>> {
        let Some(Entry { state: State::Flying(waker), .. }) = self.entry(ticket.wr_id) else {
            return Err(new);
        };
        let before = waker.replace(new);
        self.waited_for += usize::from(before.is_none());
        Ok(before)
    }
    /// The owner is gone: the value stays until the completion.
    pub(crate) fn abandon<B>(&mut self, ticket: &Ticket<B>) -> Option<Left> {
        let entry = self.entry(ticket.wr_id)?;
        match &mut entry.state {
            State::Flying(waker) => {
                let waker = waker.take();
                entry.state = State::Abandoned;
                self.waited_for += usize::from(waker.is_none());
                waker.map(Left::Unused)
            }
            State::Done(_) => {
                entry.state = State::Free;
                self.release(ticket.wr_id).map(Left::Value)
            }
            State::Free | State::Abandoned => None,
        }
    }
}

impl<R> Entry<R> {
    fn is_flying(&self) -> bool {
        matches!(self.state, State::Flying(_) | State::Abandoned)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_comes_back_with_its_result() {
        let mut slots = Slots::new(2);
        let small = slots.put(Arc::new(7)).unwrap();
        let large = slots.put([9_u64; 100]).unwrap();
        assert!(slots.put(()).is_err(), "full");
        // SAFETY: a ticket of these slots; also below.
        assert!(unsafe { slots.take(&small) }.is_none());
        assert!(slots.complete(large.wr_id, 'l').is_none());
        assert!(slots.complete(small.wr_id, 's').is_none());
        // SAFETY: as above.
        assert_eq!(unsafe { slots.take(&small) }, Some(('s', Arc::new(7))));
        // SAFETY: as above.
        assert_eq!(unsafe { slots.take(&large) }, Some(('l', [9; 100])));
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
    fn a_waiter_is_left_over_once_and_so_is_a_waker_that_is_not_needed() {
        let waker = || Kept::new(Waker::noop().clone());
        let mut slots = Slots::new(1);
        let ticket = slots.put(()).unwrap();
        assert!(matches!(slots.leave(&ticket, waker()), Ok(None)));
        assert!(matches!(slots.leave(&ticket, waker()), Ok(Some(_))), "the one before");
        assert!(slots.is_waited_for());
        assert!(matches!(slots.complete(ticket.wr_id, ()), Some(Left::Woken(_))));
        assert!(!slots.is_waited_for());
        assert!(slots.leave(&ticket, waker()).is_err(), "it is complete");
        assert!(matches!(slots.abandon(&ticket), Some(Left::Value(_))));
        let next = slots.put(()).unwrap();
        assert!(slots.complete(ticket.wr_id, ()).is_none(), "a completion of before");
        assert!(matches!(slots.leave(&next, waker()), Ok(None)));
        assert!(matches!(slots.abandon(&next), Some(Left::Unused(_))), "nobody is woken for it any more");
        assert!(slots.is_waited_for(), "nobody will look");
        assert!(matches!(slots.complete(next.wr_id, ()), Some(Left::Value(_))));
        assert!(!slots.is_waited_for());
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
