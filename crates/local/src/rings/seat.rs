//! The seat of a thread of the program that waits for an event and reads the rings meanwhile: what
//! comes by a ring wakes it, and not the engine that then wakes it.
//!
//! | thread | what it does |
//! |---|---|
//! | the thread | sits down, reads what is there, looks for a moment whether more comes (`linger`), says in each ring that it is to be woken ([`Whom::Visitor`]), looks for its event, and waits by a plain readv(2) |
//! | a neighbour | writes to the other end of that socket, which it was given with its ring |
//! | another thread that has an event for it | does the same (`host::eventfd::Counter`) |
//! | the engine | does all else as ever. Where the thread did nothing for a turn ([`Watch`]) the engine takes the rings back |
//!
//! A thread that has an event leaves, and the engine reads the rings, which it has to be woken for.
//! Where threads come and leave all the time, as in a server with many clients, one is back before
//! the engine would have done anything. Then no thread is woken, and the engine looks a moment
//! later whether it is.
//!
//! So no process needs to know whether the thread still waits. One that was cancelled, runs a
//! handler or left it by longjmp(3) costs what comes a few tenths of a second at most, once. One
//! that waits for long is sent away, so that an idle process is not woken again and again to look
//! after it. Where the system refuses two connected sockets there is no seat: threads wait at their
//! counters, and the engine does the work. A socket and no eventfd: what a neighbour does to its
//! end changes nothing at ours, but that it may hang up. Then no thread sits here any more.
//!
//! ```text
//!             take                 Watch: it did nothing for a turn
//!    free ------------> taken ------------------------------------> sent away
//!     ^ ^ ^             | | ^ ^                                        |  |
//!     | | |             | | | +---- take: the same thread, or that ----+  |
//!     | | +--- leave ---+ | |       one is gone                           |
//!     | |                 | | take                                        |
//!     | |  leaves_for_a_  v |                                             |
//!     | |  moment, leave  expected back                                   |
//!     | |                 |                                               |
//!     | +-- after 1 ms ---+                                               |
//!     +------------------ leave: it knows that it was sent away ----------+
//!
//!    any state --- close: the socket is of no use ---> closed
//! ```
//!
//! | state | fields of [`Seat`] | woken by what comes |
//! |---|---|---|
//! | free | `who` is 0 | the engine |
//! | taken | `who` is the thread | the thread |
//! | expected back | `who` is 0, `back_by` is to come | no thread: the engine looks at `back_by` |
//! | sent away | `who` is the thread and `SENT_AWAY` | the engine |
//! | closed | `who` is `CLOSED` | the engine |
//!
//! A thread that left the seat without a word takes it again as if it were free.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::fork::Fd;
use sys::refused::is_refused;
use sys::thread;

use crate::ring::Whom;

/// For how long a thread may sit and do nothing, at first.
const TURN_NANOS: u64 = 25_000_000;
/// For how long a thread may sit and do nothing at most, where it did something each time the
/// engine looked. The engine looks first no later than this after the thread sat down, and counts
/// from then on.
pub const LOOK_NANOS: u64 = 4 * TURN_NANOS;
/// How often a thread may be woken in a row with no event of its own. From then on the work is for
/// others, and the engine does it better. Also a signal that comes while the thread works, and not
/// while it waits, interrupts nothing.
const MOST_IN_VAIN: u32 = 16;
/// A thread that leaves with an event so often, each time so soon after the time before, is back in
/// a moment, as a rule. A time that was not soon takes half of those that were, of which no more
/// than so many count. Others may have had the processor meanwhile.
const OFTEN: u32 = 4;
const MOST_COUNTED: u32 = 16;
const SOON_NANOS: u64 = 500_000;
/// How long no thread reads the rings after one left so, at most.
const MOMENT_NANOS: u64 = 1_000_000;
/// Added to the number of a thread: it was sent away, and may not know. No other thread reads the
/// socket until it does, or is gone.
const SENT_AWAY: u64 = 1 << 32;
/// Instead of a thread's number: no thread sits here any more.
const CLOSED: u64 = SENT_AWAY;

/// The seat of a thread of the program that waits for an event and reads the rings meanwhile.
pub struct Seat {
    /// Where the thread that sits reads, and the other end; `None` where the system refuses them.
    ends: Option<(Fd, Fd)>,
    /// The number of the thread that sits, 0 for none.
    who: AtomicU64,
    /// How often a thread did something here; runs over.
    turns: AtomicU32,
    /// How often a thread did something here since it sat down.
    since: AtomicU32,
    /// When a thread last left with an event, and how often it was soon.
    left_at: AtomicU64,
    soon: AtomicU32,
    /// Until when no other thread reads the rings, as it is back by then; 0 where one does.
    back_by: AtomicU64,
}

impl Seat {
    /// # Errors
    ///
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> io::Result<Seat> {
        let ends = match sys::socket_pair() {
            Err(error) if is_refused(&error) => None,
            made => Some(made?),
        };
        let (zero, none) = (|| AtomicU64::new(0), || AtomicU32::new(0));
        Ok(Seat {
            who: AtomicU64::new(if ends.is_some() { 0 } else { CLOSED }),
            ends,
            turns: none(),
            since: none(),
            left_at: zero(),
            soon: none(),
            back_by: zero(),
        })
    }

    /// Where the thread that sits waits; -1 where there is no seat.
    pub fn waits(&self) -> RawFd {
        self.ends.as_ref().map_or(-1, |(waits, _)| waits.as_raw_fd())
    }

    /// What wakes that thread.
    pub(crate) fn bell(&self) -> Option<&Fd> {
        self.ends.as_ref().map(|(_, bell)| bell)
    }

    /// Wakes the thread that sits.
    pub fn ring(&self) {
        self.bell().map(sys::ring);
    }

    /// Which of the two is to be woken by what comes: the thread that sits, or the engine.
    pub(crate) fn whom(&self) -> Whom {
        match self.who.load(Ordering::SeqCst) {
            0 | SENT_AWAY.. => Whom::Engine,
            _ => Whom::Visitor,
        }
    }

    /// The calling thread sits down; false where it may not.
    pub fn take(&self) -> bool {
        let me = u64::from(thread::own_thread());
        let who = self.who.load(Ordering::SeqCst);
        let free = match who {
            0 => true,
            1..SENT_AWAY => who == me,
            CLOSED => false,
            // It left without a word, and is back, or gone.
            _ => {
                let number = who & !SENT_AWAY;
                number == me || !thread::is_there(number as u32)
            }
        };
        let sits = free && self.who.compare_exchange(who, me, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if sits {
            self.since.store(0, Ordering::Relaxed);
            self.back_by.store(0, Ordering::SeqCst);
        }
        sits
    }

    /// The calling thread leaves with an event, at this time. Returns until when no other thread
    /// needs to read the rings, as threads here are back by then. It says so to the engine. `None`:
    /// the engine reads them from now on.
    pub fn leaves_for_a_moment(&self, now: u64) -> Option<u64> {
        let is_soon = now.saturating_sub(self.left_at.swap(now, Ordering::Relaxed)) < SOON_NANOS;
        let before = self.soon.load(Ordering::Relaxed);
        let soon = if is_soon { MOST_COUNTED.min(before + 1) } else { before / 2 };
        self.soon.store(soon, Ordering::Relaxed);
        let back_by = (soon >= OFTEN).then_some(now + MOMENT_NANOS)?;
        self.back_by.store(back_by, Ordering::SeqCst);
        Some(back_by)
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

    /// The calling thread sits here.
    pub(crate) fn is_mine(&self) -> bool {
        self.who.load(Ordering::Relaxed) == u64::from(thread::own_thread())
    }

    /// The calling thread still sits here, and does something; false where it has to leave.
    pub fn goes_on(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.who.load(Ordering::SeqCst) == u64::from(thread::own_thread())
            && self.since.fetch_add(1, Ordering::Relaxed) <= MOST_IN_VAIN
    }

    /// The calling thread sits no more; true where it was to be woken until now.
    pub fn leave(&self) -> bool {
        let me = u64::from(thread::own_thread());
        let free = |who| self.who.compare_exchange(who, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let sat = free(me);
        if !sat {
            // It knows now that it was sent away.
            free(SENT_AWAY | me);
        }
        sat
    }

    /// The socket is of no use any more.
    pub fn close(&self) {
        self.who.store(CLOSED, Ordering::SeqCst);
    }

    /// The thread that sits shall wait elsewhere. The engine has to be woken from now on, which is
    /// said in the rings afterwards.
    fn send_away(&self) {
        let who = self.who.load(Ordering::SeqCst);
        if who & SENT_AWAY == 0
            && who != 0
            && self.who.compare_exchange(who, who | SENT_AWAY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            self.ring();
        }
    }
}

/// The engine's watch over the seat, that no thread sits there and does nothing.
#[derive(Default)]
pub struct Watch {
    /// How often a thread had done something.
    turns: u32,
    /// For how long no thread needs to do more, and until when; 0 where none sits.
    turn: u64,
    end: u64,
}

impl Watch {
    /// Sends away a thread that did nothing for a turn; when to look again. Each look takes the
    /// processor from a thread that works. So they become rarer while something is done all the
    /// time, and go on where no thread sits just now.
    pub fn look(&mut self, seat: &Seat, now: u64) -> Option<u64> {
        let (turns, sits) = (seat.turns.load(Ordering::Relaxed), seat.whom() == Whom::Visitor);
        if turns != self.turns || (sits && self.end == 0) {
            self.turns = turns;
            self.turn = (2 * self.turn).clamp(TURN_NANOS, LOOK_NANOS);
            self.end = now + self.turn;
        } else if now >= self.end {
            if sits {
                seat.send_away();
            }
            (self.turn, self.end) = (0, 0);
        }
        (self.end > 0).then_some(self.end)
    }

    /// Whether a thread sits whose turn was not over at the last look: it reads the rings.
    pub fn leaves_it_to(&self, seat: &Seat) -> bool {
        self.end > 0 && seat.whom() == Whom::Visitor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(f).join().unwrap())
    }

    #[test]
    fn one_thread_sits_and_the_engine_is_woken_where_none_does() {
        let seat = Seat::new().unwrap();
        assert_eq!(seat.whom(), Whom::Engine);
        assert!(seat.take() && seat.goes_on());
        assert_eq!(seat.whom(), Whom::Visitor);
        assert!(!elsewhere(|| seat.take() || seat.goes_on() || seat.leave()));
        assert!(seat.leave() && !seat.leave());
        assert!(elsewhere(|| seat.take() && seat.leave()));
        assert_eq!(seat.whom(), Whom::Engine);
    }

    #[test]
    fn who_does_nothing_for_a_turn_is_sent_away_and_turns_become_longer_while_something_is_done() {
        let (seat, mut watch) = (Seat::new().unwrap(), Watch::default());
        assert_eq!(watch.look(&seat, 0), None, "nobody sits");
        assert!(seat.take());
        assert!(!watch.leaves_it_to(&seat));
        let mut now = 1;
        assert_eq!(watch.look(&seat, now), Some(now + TURN_NANOS));
        assert!(watch.leaves_it_to(&seat));
        for longer in [2, 4, 4] {
            assert!(seat.goes_on());
            now += TURN_NANOS;
            assert_eq!(watch.look(&seat, now), Some(now + longer * TURN_NANOS));
        }
        // It is elsewhere when the engine looks, and back.
        assert!(seat.goes_on() && seat.leave());
        assert_eq!(watch.look(&seat, now), Some(now + LOOK_NANOS));
        assert!(!watch.leaves_it_to(&seat) && seat.take() && watch.leaves_it_to(&seat));
        assert_eq!(watch.look(&seat, now + 1), Some(now + LOOK_NANOS));
        now += LOOK_NANOS;
        assert_eq!((watch.look(&seat, now), seat.whom()), (None, Whom::Engine), "sent away");
        assert!(!watch.leaves_it_to(&seat) && !seat.leave());
        assert!(seat.take() && seat.goes_on() && seat.leave());
        assert_eq!(watch.look(&seat, now), Some(now + TURN_NANOS), "short again");
        assert_eq!(watch.look(&seat, now + TURN_NANOS), None, "and nobody is there");
    }

    #[test]
    fn who_was_sent_away_keeps_others_out_until_he_knows_or_is_gone() {
        let seat = Seat::new().unwrap();
        seat.send_away();
        assert!(seat.take());
        seat.send_away();
        assert_eq!(seat.whom(), Whom::Engine);
        assert!(!seat.goes_on() && !elsewhere(|| seat.take()));
        assert!(!seat.leave() && elsewhere(|| seat.take()));
        // That one is gone without a word.
        seat.send_away();
        assert!(seat.take());
        // It sits down again and never knew.
        seat.send_away();
        assert!(seat.take() && seat.goes_on());
    }

    #[test]
    fn who_often_leaves_with_an_event_is_expected_back_for_a_moment_and_who_seldom_does_is_not() {
        const SECOND: u64 = 1_000_000_000;
        let seat = Seat::new().unwrap();
        let leaves_at = |now| seat.leaves_for_a_moment(now);
        assert!((1..10).all(|n| leaves_at(n * SECOND).is_none()), "seldom");
        let (mut now, step) = (20 * SECOND, SOON_NANOS / 2);
        let mut leaves = || {
            now += step;
            (now, leaves_at(now))
        };
        assert!((0..OFTEN).all(|_| leaves().1.is_none()));
        let (at, back_by) = leaves();
        assert_eq!((back_by, seat.expects(at + 1)), (Some(at + MOMENT_NANOS), Some(at + MOMENT_NANOS)));
        assert_eq!(seat.expects(at + MOMENT_NANOS), None, "it stayed away");
        assert_eq!(seat.expects(at + 1), None, "and is not expected any more");
        let (at, _) = leaves();
        assert!(seat.take() && seat.expects(at + 1).is_none(), "it is back");
        (0..MOST_COUNTED).for_each(|_| _ = leaves());
        // Others had the processor for long, once; then it is away again and again.
        assert!(leaves_at(40 * SECOND).is_some());
        assert!((50..60).map(|n| leaves_at(n * SECOND)).any(|moment| moment.is_none()));
        assert!((60..70).all(|n| leaves_at(n * SECOND).is_none()));
    }

    #[test]
    fn where_the_system_refuses_the_sockets_no_thread_sits_and_the_engine_is_woken() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let seat = sys::filter::with_refused(&[libc::SYS_socketpair], errno, Seat::new).unwrap();
            assert!(!seat.take() && !seat.goes_on() && !seat.leave());
            assert_eq!((seat.whom(), seat.waits(), seat.bell().is_none()), (Whom::Engine, -1, true));
            seat.ring();
        }
    }

    #[test]
    fn a_neighbour_that_hangs_up_ends_the_seat_and_one_that_rings_for_ever_fills_it() {
        let seat = Seat::new().unwrap();
        (0..10_000).for_each(|_| seat.ring());
        let bell = seat.bell().unwrap();
        assert!(sys::ring(bell), "the thread that waits has something to read");
        socket2::SockRef::from(bell).shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!sys::ring(bell));
        assert!(seat.take());
        seat.close();
        assert!(!seat.take() && !seat.leave());
        assert_eq!(seat.whom(), Whom::Engine);
    }
}
