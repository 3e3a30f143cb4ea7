//! The driver slot belongs to one thread of the program, which waits for an event and drives the
//! rings meanwhile: what comes by a ring wakes it, and not the engine that then wakes it.
//!
//! | thread | what it does |
//! |---|---|
//! | the thread | takes the slot, reads what is there, looks for a moment whether more comes (`adaptive_spin`), says in each ring that it is to be woken ([`WakeTarget::AppThread`]), looks for its event, and waits by a plain readv(2) |
//! | a local peer | writes to the other end of that socket, which it was given with its ring |
//! | another thread that has an event for it | does the same (`linux::eventfd::Counter`) |
//! | the engine | does all else as ever. Where the thread did nothing for a turn ([`Watch`]) the engine takes the rings back |
//!
//! A thread that has an event leaves, and the engine reads the rings, which it has to be woken for.
//! Where threads come and leave all the time, as in a server with many clients, one is back before
//! the engine would have done anything. Then no thread is woken, and the engine looks a moment
//! later whether it is.
//!
//! So no process needs to know whether the thread still waits. One that was cancelled, runs a
//! handler or left it by longjmp(3) costs what comes a few tenths of a second at most, once. One
//! that waits for long is revoked, so that an idle process is not woken again and again to look
//! after it. Where the system refuses two connected sockets there is no driver slot: threads wait
//! at their counters, and the engine does the work. A socket and no eventfd: what a local peer does
//! to its end changes nothing at ours, but that it may hang up. Then no thread drives here any
//! more.
//!
//! ```text
//!             take                 Watch: it did nothing for a turn
//!    free ------------> taken ------------------------------------> revoked
//!     ^ ^ ^             | | ^ ^                                        |  |
//!     | | |             | | | +---- take: the same thread, or that ----+  |
//!     | | +--- leave ---+ | |       one is gone                           |
//!     | |                 | | take                                        |
//!     | |  leaves_for_a_  v |                                             |
//!     | |  moment, leave  expected back                                   |
//!     | |                 |                                               |
//!     | +-- after 1 ms ---+                                               |
//!     +------------------ leave: it knows that it was revoked ------------+
//!
//!    any state --- close: the socket is of no use ---> closed
//! ```
//!
//! | state | fields of [`DriverSlot`] | woken by what comes |
//! |---|---|---|
//! | free | `who` is 0 | the engine |
//! | taken | `who` is the thread | the thread |
//! | expected back | `who` is 0, `back_by` is to come | no thread: the engine looks at `back_by` |
//! | revoked | `who` is the thread and `REVOKED` | the engine |
//! | closed | `who` is `CLOSED` | the engine |
//!
//! A thread that left the driver slot without a word takes it again as if it were free.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::fork::Fd;
use sys::refused::is_refused;
use sys::thread;

use crate::ring::WakeTarget;

/// For how long a thread may sit and do nothing, at first.
const TURN_NANOS: u64 = 25_000_000;
/// For how long a thread may sit and do nothing at most, where it did something each time the
/// engine looked. The engine looks first no later than this after the thread took the slot, and
/// counts from then on.
pub const LOOK_NANOS: u64 = 4 * TURN_NANOS;
/// How often a thread may be woken in a row with no event of its own. From then on the work is for
/// others, and the engine does it better. Also a signal that comes while the thread works, and not
/// while it waits, interrupts nothing.
const MAX_IN_VAIN: u32 = 16;
/// A thread that leaves with an event so often, each time so soon after the time before, is back in
/// a moment, as a rule. A time that was not soon takes half of those that were, of which no more
/// than so many count. Others may have had the processor meanwhile.
const OFTEN: u32 = 4;
const MAX_COUNTED: u32 = 16;
const SOON_NANOS: u64 = 500_000;
/// How long no thread reads the rings after one left so, at most.
const MOMENT_NANOS: u64 = 1_000_000;
/// Added to the number of a thread: it was revoked, and may not know. No other thread reads the
/// socket until it does, or is gone.
const REVOKED: u64 = 1 << 32;
/// Instead of a thread's number: no thread drives here any more.
const CLOSED: u64 = REVOKED;

/// The driver slot belongs to one thread of the program, which waits for an event and drives the
/// rings meanwhile.
pub struct DriverSlot {
    /// Where the thread that drives reads, and the other end; `None` where the system refuses them.
    ends: Option<(Fd, Fd)>,
    /// The number of the thread that drives, 0 for none.
    who: AtomicU64,
    /// How often a thread did something here; runs over.
    turns: AtomicU32,
    /// How often a thread did something here since it took the slot.
    since: AtomicU32,
    /// When a thread last left with an event, and how often it was soon.
    left_at: AtomicU64,
    soon: AtomicU32,
    /// Until when no other thread reads the rings, as it is back by then; 0 where one does.
    back_by: AtomicU64,
}

impl DriverSlot {
    /// # Errors
    ///
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> io::Result<Self> {
        let ends = match sys::socket_pair() {
            Err(error) if is_refused(&error) => None,
            made => Some(made?),
        };
        let (zero, none) = (|| AtomicU64::new(0), || AtomicU32::new(0));
        Ok(Self {
            who: AtomicU64::new(if ends.is_some() { 0 } else { CLOSED }),
            ends,
            turns: none(),
            since: none(),
            left_at: zero(),
            soon: none(),
            back_by: zero(),
        })
    }

    /// Where the thread that drives waits; -1 where there is no driver slot.
    pub fn waits(&self) -> RawFd {
        self.ends.as_ref().map_or(-1, |(waits, _)| waits.as_raw_fd())
    }

    /// What wakes that thread.
    pub(crate) fn wake_fd(&self) -> Option<&Fd> {
        self.ends.as_ref().map(|(_, wake_fd)| wake_fd)
    }

    /// Wakes the thread that drives.
    pub fn ring(&self) {
        self.wake_fd().map(sys::wake);
    }

    /// Which of the two is to be woken by what comes: the thread that drives, or the engine.
    pub(crate) fn wake_target(&self) -> WakeTarget {
        match self.who.load(Ordering::SeqCst) {
            0 | REVOKED.. => WakeTarget::Engine,
            _ => WakeTarget::AppThread,
        }
    }

    /// Whether a thread drives here.
    pub fn is_taken(&self) -> bool {
        self.wake_target() == WakeTarget::AppThread
    }

    /// The calling thread takes the slot; false where it may not.
    pub fn take(&self) -> bool {
        let me = u64::from(thread::own_thread());
        let who = self.who.load(Ordering::SeqCst);
        let free = match who {
            0 => true,
            1..REVOKED => who == me,
            CLOSED => false,
            // It left without a word, and is back, or gone.
            _ => {
                let number = who & !REVOKED;
                number == me || !thread::is_there(number as u32)
            }
        };
        let is_driver =
            free && self.who.compare_exchange(who, me, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_driver {
            self.since.store(0, Ordering::Relaxed);
            self.back_by.store(0, Ordering::SeqCst);
        }
        is_driver
    }

    /// The calling thread leaves with an event, at this time. Returns until when no other thread
    /// needs to read the rings, as threads here are back by then. It says so to the engine. `None`:
    /// the engine reads them from now on.
    pub fn leaves_for_a_moment(&self, now: u64) -> Option<u64> {
        let is_soon = now.saturating_sub(self.left_at.swap(now, Ordering::Relaxed)) < SOON_NANOS;
        let before = self.soon.load(Ordering::Relaxed);
        let soon = if is_soon { MAX_COUNTED.min(before + 1) } else { before / 2 };
        self.soon.store(soon, Ordering::Relaxed);
        let back_by = (soon >= OFTEN).then_some(now + MOMENT_NANOS)?;
        self.back_by.store(back_by, Ordering::SeqCst);
        Some(back_by)
    }

    /// A thread that was expected back does not come; false where none was.
    pub fn stays_away(&self) -> bool {
        self.back_by.load(Ordering::Relaxed) != 0 && self.back_by.swap(0, Ordering::SeqCst) != 0
    }

    /// For the engine: until when a thread is expected back, which reads the rings then.
    pub fn expects(&self, now: u64) -> Option<u64> {
        match self.back_by.load(Ordering::SeqCst) {
            0 => None,
            back_by if back_by > now => Some(back_by),
            over => {
                _ = self.back_by.compare_exchange(over, 0, Ordering::SeqCst, Ordering::SeqCst);
                None
            }
        }
    }

    /// The calling thread drives here.
    pub(crate) fn is_mine(&self) -> bool {
        self.who.load(Ordering::Relaxed) == u64::from(thread::own_thread())
    }

    /// The calling thread still drives here, and does something; false where it has to leave.
    pub fn goes_on(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.who.load(Ordering::SeqCst) == u64::from(thread::own_thread())
            && self.since.fetch_add(1, Ordering::Relaxed) <= MAX_IN_VAIN
    }

    /// The calling thread drives no more; true where it was to be woken until now.
    pub fn leave(&self) -> bool {
        let me = u64::from(thread::own_thread());
        let free = |who| self.who.compare_exchange(who, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let sat = free(me);
        if !sat {
            // It knows now that it was revoked.
            free(REVOKED | me);
        }
        sat
    }

    /// The socket is of no use any more.
    pub fn close(&self) {
        self.who.store(CLOSED, Ordering::SeqCst);
    }

    /// The thread that drives shall wait elsewhere. The engine has to be woken from now on, which
    /// is said in the rings afterwards.
    fn revoke(&self) {
        let who = self.who.load(Ordering::SeqCst);
        if who & REVOKED == 0
            && who != 0
            && self.who.compare_exchange(who, who | REVOKED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            self.ring();
        }
    }
}

/// The engine's watch over the driver slot, that no thread drives there and does nothing.
#[derive(Default)]
pub struct Watch {
    /// How often a thread had done something.
    turns: u32,
    /// For how long no thread needs to do more, and until when; 0 where none drives.
    turn: u64,
    end: u64,
}

impl Watch {
    /// Sends away a thread that did nothing for a turn; when to look again. Each look takes the
    /// processor from a thread that works. So they become rarer while something is done all the
    /// time, and go on where no thread drives just now.
    pub fn look(&mut self, driver_slot: &DriverSlot, now: u64) -> Option<u64> {
        let (turns, is_driver) =
            (driver_slot.turns.load(Ordering::Relaxed), driver_slot.wake_target() == WakeTarget::AppThread);
        if turns != self.turns || (is_driver && self.end == 0) {
            self.turns = turns;
            self.turn = (2 * self.turn).clamp(TURN_NANOS, LOOK_NANOS);
            self.end = now + self.turn;
        } else if now >= self.end {
            if is_driver {
                driver_slot.revoke();
            }
            (self.turn, self.end) = (0, 0);
        }
        (self.end > 0).then_some(self.end)
    }

    /// Whether a thread drives whose turn was not over at the last look: it reads the rings.
    pub fn leaves_it_to(&self, driver_slot: &DriverSlot) -> bool {
        self.end > 0 && driver_slot.wake_target() == WakeTarget::AppThread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(f).join().unwrap())
    }

    #[test]
    fn one_thread_drives_and_the_engine_is_woken_where_none_does() {
        let driver_slot = DriverSlot::new().unwrap();
        assert_eq!(driver_slot.wake_target(), WakeTarget::Engine);
        assert!(driver_slot.take() && driver_slot.goes_on());
        assert_eq!(driver_slot.wake_target(), WakeTarget::AppThread);
        assert!(!elsewhere(|| driver_slot.take() || driver_slot.goes_on() || driver_slot.leave()));
        assert!(driver_slot.leave() && !driver_slot.leave());
        assert!(elsewhere(|| driver_slot.take() && driver_slot.leave()));
        assert_eq!(driver_slot.wake_target(), WakeTarget::Engine);
    }

    #[test]
    fn who_does_nothing_for_a_turn_is_sent_away_and_turns_become_longer_while_something_is_done() {
        let (driver_slot, mut watch) = (DriverSlot::new().unwrap(), Watch::default());
        assert_eq!(watch.look(&driver_slot, 0), None, "nobody drives");
        assert!(driver_slot.take());
        assert!(!watch.leaves_it_to(&driver_slot));
        let mut now = 1;
        assert_eq!(watch.look(&driver_slot, now), Some(now + TURN_NANOS));
        assert!(watch.leaves_it_to(&driver_slot));
        for longer in [2, 4, 4] {
            assert!(driver_slot.goes_on());
            now += TURN_NANOS;
            assert_eq!(watch.look(&driver_slot, now), Some(now + longer * TURN_NANOS));
        }
        // It is elsewhere when the engine looks, and back.
        assert!(driver_slot.goes_on() && driver_slot.leave());
        assert_eq!(watch.look(&driver_slot, now), Some(now + LOOK_NANOS));
        assert!(!watch.leaves_it_to(&driver_slot) && driver_slot.take() && watch.leaves_it_to(&driver_slot));
        assert_eq!(watch.look(&driver_slot, now + 1), Some(now + LOOK_NANOS));
        now += LOOK_NANOS;
        assert_eq!(
            (watch.look(&driver_slot, now), driver_slot.wake_target()),
            (None, WakeTarget::Engine),
            "revoked"
        );
        assert!(!watch.leaves_it_to(&driver_slot) && !driver_slot.leave());
        assert!(driver_slot.take() && driver_slot.goes_on() && driver_slot.leave());
        assert_eq!(watch.look(&driver_slot, now), Some(now + TURN_NANOS), "short again");
        assert_eq!(watch.look(&driver_slot, now + TURN_NANOS), None, "and nobody is there");
    }

    #[test]
    fn who_was_sent_away_keeps_others_out_until_he_knows_or_is_gone() {
        let driver_slot = DriverSlot::new().unwrap();
        driver_slot.revoke();
        assert!(driver_slot.take());
        driver_slot.revoke();
        assert_eq!(driver_slot.wake_target(), WakeTarget::Engine);
        assert!(!driver_slot.goes_on() && !elsewhere(|| driver_slot.take()));
        assert!(!driver_slot.leave() && elsewhere(|| driver_slot.take()));
        // That one is gone without a word.
        driver_slot.revoke();
        assert!(driver_slot.take());
        // It takes the slot again and never knew.
        driver_slot.revoke();
        assert!(driver_slot.take() && driver_slot.goes_on());
    }

    #[test]
    fn who_often_leaves_with_an_event_is_expected_back_for_a_moment_and_who_seldom_does_is_not() {
        const SECOND: u64 = 1_000_000_000;
        let driver_slot = DriverSlot::new().unwrap();
        let leaves_at = |now| driver_slot.leaves_for_a_moment(now);
        assert!((1..10).all(|n| leaves_at(n * SECOND).is_none()), "seldom");
        let (mut now, step) = (20 * SECOND, SOON_NANOS / 2);
        let mut leaves = || {
            now += step;
            (now, leaves_at(now))
        };
        assert!((0..OFTEN).all(|_| leaves().1.is_none()));
        let (at, back_by) = leaves();
        assert_eq!(
            (back_by, driver_slot.expects(at + 1)),
            (Some(at + MOMENT_NANOS), Some(at + MOMENT_NANOS))
        );
        assert_eq!(driver_slot.expects(at + MOMENT_NANOS), None, "it stayed away");
        assert_eq!(driver_slot.expects(at + 1), None, "and is not expected any more");
        let (at, _) = leaves();
        assert!(driver_slot.take() && driver_slot.expects(at + 1).is_none(), "it is back");
        (0..MAX_COUNTED).for_each(|_| _ = leaves());
        // Others had the processor for long, once; then it is away again and again.
        assert!(leaves_at(40 * SECOND).is_some());
        assert!((50..60).map(|n| leaves_at(n * SECOND)).any(|moment| moment.is_none()));
        assert!((60..70).all(|n| leaves_at(n * SECOND).is_none()));
    }

    #[test]
    fn where_the_system_refuses_the_sockets_no_thread_drives_and_the_engine_is_woken() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let driver_slot =
                sys::filter::with_refused(&[libc::SYS_socketpair], errno, DriverSlot::new).unwrap();
            assert!(!driver_slot.take() && !driver_slot.goes_on() && !driver_slot.leave());
            assert_eq!(
                (driver_slot.wake_target(), driver_slot.waits(), driver_slot.wake_fd().is_none()),
                (WakeTarget::Engine, -1, true)
            );
            driver_slot.ring();
        }
    }

    #[test]
    fn a_local_peer_that_hangs_up_ends_the_driver_slot_and_one_that_rings_for_ever_fills_it() {
        let driver_slot = DriverSlot::new().unwrap();
        (0..10_000).for_each(|_| driver_slot.ring());
        let wake_fd = driver_slot.wake_fd().unwrap();
        assert!(sys::wake(wake_fd), "the thread that waits has something to read");
        socket2::SockRef::from(wake_fd).shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!sys::wake(wake_fd));
        assert!(driver_slot.take());
        driver_slot.close();
        assert!(!driver_slot.take() && !driver_slot.leave());
        assert_eq!(driver_slot.wake_target(), WakeTarget::Engine);
    }
}
