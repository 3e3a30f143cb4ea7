//! Small pages under regions become large ones after the registration, once a neighbour may reach
//! them. To move 256 MiB takes 80 ms, eight times as long as to register it. It is of no use to a
//! program that speaks by the network only.
//!
//! Regions that fill a large page are listed here. From the first queue pair on that lets a process
//! of this host reach memory, a thread goes through the list, a large page at a time, and ends with
//! it. Each page is moved while its region is counted in: a deregistration waits for one page at
//! most, and no page of memory is moved that the program has back.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use locks::{Mutex, Rank};

use super::pages::{self, LARGE};
use super::slot::{InFlight, Slots};
use crate::errno::Errno;

/// The regions of a table whose pages may be moved.
pub(super) struct Large {
    /// A neighbour may reach regions.
    has_neighbours: AtomicBool,
    list: Mutex<List>,
}

/// What a thread does.
type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct List {
    /// By their keys.
    regions: BTreeSet<u32>,
    /// A thread goes through them.
    in_hand: bool,
}

impl Default for Large {
    fn default() -> Self {
        Self { has_neighbours: AtomicBool::new(false), list: Mutex::new(Rank::LargePages, List::default()) }
    }
}

impl Large {
    /// A region is registered, whose pages are there; whether that is worth a thread
    /// ([`Large::move_pages`]).
    pub(super) fn list(&self, key: u32, addr: u64, len: u64) -> bool {
        let is_large = pages::inside(addr, len).is_some();
        if is_large {
            self.list.lock().regions.insert(key);
        }
        is_large && self.has_neighbours.load(Ordering::SeqCst)
    }

    /// A region is not listed any more.
    pub(super) fn unlist(&self, key: u32) {
        self.list.lock().regions.remove(&key);
    }

    /// A neighbour may reach regions from now on; whether that is new.
    pub(super) fn has_neighbours(&self) -> bool {
        !self.has_neighbours.load(Ordering::Relaxed) && !self.has_neighbours.swap(true, Ordering::SeqCst)
    }

    /// Has a thread go through the list, unless one does: `start` starts it.
    pub(super) fn move_pages(self: &Arc<Self>, slots: &Arc<Slots>, start: impl FnOnce(Work) -> bool) {
        {
            let mut list = self.list.lock();
            if list.in_hand || list.regions.is_empty() {
                return;
            }
            list.in_hand = true;
        }
        let (large, slots) = (self.clone(), slots.clone());
        if !start(Box::new(move || large.go_through(&slots))) {
            self.list.lock().in_hand = false;
        }
    }

    fn go_through(&self, slots: &Slots) {
        while let Some(key) = self.next() {
            let mut at = 0;
            while let Some(next) = move_page(slots, key, at) {
                at = next;
            }
        }
    }

    /// The next region of the list, which it leaves.
    fn next(&self) -> Option<u32> {
        let mut list = self.list.lock();
        let next = list.regions.pop_first();
        list.in_hand = next.is_some();
        next
    }
}

/// Moves the first large page of a region from an address on; the address after it. `None` where
/// there is no more, or it is of no use to go on.
fn move_page(slots: &Slots, key: u32, from: u64) -> Option<u64> {
    let slot = slots.get(key >> 16);
    let _here = InFlight::enter(&slot.in_flight);
    if slot.key.load(Ordering::SeqCst) != key || !slot.is_region() {
        return None;
    }
    let (addr, len) = (slot.addr.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
    let Range { start, end } = pages::inside(addr, len)?;
    let at = start.max(from);
    if at >= end {
        return None;
    }
    match pages::collapse(at) {
        Ok(()) | Err(Errno::EAGAIN | Errno::EBUSY) => Some(at + LARGE),
        // No memory, a kernel before 6.1, memory that is of no such kind or is not mapped any more.
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::{Access, Table};
    use super::*;
    use crate::link::{Persist, Platform};

    /// An environment with large pages, whose thread for what takes long runs when it is told to.
    #[derive(Default)]
    struct TestEnv(std::sync::Mutex<Vec<Box<dyn FnOnce() + Send>>>);

    impl Platform for TestEnv {
        fn wake_at(&self, _: Instant) {}
        fn fill_random(&self, _: &mut [u8]) {}
        fn persist(&self, _: Persist) {}
        fn large_pages(&self) -> bool {
            true
        }
        fn in_background(&self, work: Box<dyn FnOnce() + Send>) -> bool {
            self.0.lock().unwrap().push(work);
            true
        }
    }

    impl TestEnv {
        fn run(&self) -> usize {
            let work = std::mem::take(&mut *self.0.lock().unwrap());
            work.into_iter().map(|work| work()).count()
        }
    }

    /// Memory of two large pages, which is there in small ones; the first one's address.
    fn small_pages() -> u64 {
        let (len, rights) = (3 * LARGE as usize, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which the process keeps; all of it, to whose bytes there is no
        // reference.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            at.cast::<u8>().write_bytes(7, len);
            (at as u64).next_multiple_of(LARGE)
        }
    }

    /// Bytes in large pages from an address on (proc_pid_smaps(5)); a mapping begins there, for it
    /// has other advice. `None` where the system, as an emulated one, does not say.
    fn large_bytes(at: u64) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = smaps.split(&format!("{at:x}-")).nth(1)?;
        let line = mapping.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
    }

    #[test]
    fn small_pages_are_moved_behind_the_registration_once_a_neighbour_may_reach_them() {
        let at = small_pages();
        let env = Arc::new(TestEnv::default());
        let table = Table::of(env.clone());
        // SAFETY: atomics are not asked for: there is no reference to the bytes.
        let register = |at, len| unsafe { table.register(1, at, len, 0, Access::LOCAL_WRITE, 7) }.unwrap();
        let mr = register(at, 2 * LARGE);
        let asked = || pages::MOVED.with(std::cell::Cell::take);
        assert_eq!((asked(), env.run()), (0, 0), "not by the registration");
        table.has_neighbours();
        assert_eq!(asked(), 0, "nor by the thread that opens a queue pair");
        assert_eq!(env.run(), 1);
        assert!((1..=2).contains(&asked()));
        let moved = large_bytes(at);
        let is_refused = || [at, at + LARGE].into_iter().any(|at| pages::collapse(at).is_err());
        assert!(moved.is_none_or(|moved| moved == 2 * LARGE) || is_refused(), "{moved:?}");
        table.deregister(mr).unwrap();
        // SAFETY: as above.
        assert!((0..2 * LARGE).step_by(4096).all(|n| unsafe { ((at + n) as *const u8).read() } == 7));

        // From then on each one's, but no more of what is deregistered meanwhile, nor of what fills
        // none.
        let (gone, short) = (small_pages(), small_pages());
        let (gone_mr, short_mr) = (register(gone, LARGE), register(short + 4096, LARGE));
        table.deregister(gone_mr).unwrap();
        _ = (gone, asked());
        assert_eq!((env.run(), asked()), (1, 0));
        table.has_neighbours();
        assert_eq!(env.run(), 0, "there is nothing to do");
        table.deregister(short_mr).unwrap();
    }
}
