//! The seat of a thread of the program that waits for an event and reads the rings meanwhile: what comes by a ring wakes it, and not the engine
//! that then wakes it.
//!
//! | who | what |
//! |---|---|
//! | the thread | sits down, reads what is there, looks for a moment whether more comes (`linger`), says in each ring that it is to be woken ([`ring::Whom::Visitor`]), looks for its event, and waits by a plain read(2) |
//! | a neighbour | writes to the other end of that socket, which it was given with its ring |
//! | another thread that has an event for it | does the same ([`crate::eventfd::Counter`]) |
//! | the engine | does all else as ever. Where the thread did nothing for [`TURN_NANOS`] the engine takes the rings back |
//!
//! So nobody needs to know whether the thread still waits: one that was cancelled, runs a handler or left it by longjmp(3) costs what comes a
//! few hundredths of a second once. One that waits for long is sent away, so that an idle process is not woken again and again to look after it.
//! A socket and no eventfd: what a neighbour does to its end changes nothing at ours, but that it may hang up, and then nobody sits here any more.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ring::Whom;

use crate::fork::Fd;
use crate::sys;
use crate::sys::thread;

/// For how long a thread may sit and do nothing.
pub(crate) const TURN_NANOS: u64 = 25_000_000;
/// How often it may be woken in a row with no event of its own: then the work is for others, and the engine does it better. Also a signal that
/// comes while it works, and not while it waits, interrupts nothing.
const MOST_IN_VAIN: u32 = 16;
/// In front of the number of a thread: it was sent away, and may not know. Nobody else reads the socket until it does, or is gone.
const SENT_AWAY: u64 = 1 << 32;
/// Instead of it: nobody sits here any more.
const CLOSED: u64 = SENT_AWAY;

/// See the module.
pub(crate) struct Seat {
    /// Whoever sits reads here.
    waits: Fd,
    /// The other end.
    bell: Fd,
    /// The number of the thread that sits, 0 for nobody.
    who: AtomicU64,
    /// How often somebody did something here; runs over.
    turns: AtomicU32,
    /// How often since it sat down.
    since: AtomicU32,
}

impl Seat {
    pub(crate) fn new() -> io::Result<Seat> {
        let (waits, bell) = sys::socket_pair()?;
        Ok(Seat { waits, bell, who: AtomicU64::new(0), turns: AtomicU32::new(0), since: AtomicU32::new(0) })
    }

    /// Where whoever sits waits.
    pub(crate) fn waits(&self) -> RawFd {
        self.waits.as_raw_fd()
    }

    /// By what he is woken.
    pub(crate) fn bell(&self) -> &Fd {
        &self.bell
    }

    /// Wakes whoever sits.
    pub(crate) fn ring(&self) {
        sys::ring(&self.bell);
    }

    /// Who is to be woken by what comes.
    pub(crate) fn whom(&self) -> Whom {
        match self.who.load(Ordering::SeqCst) {
            0 | SENT_AWAY.. => Whom::Engine,
            _ => Whom::Visitor,
        }
    }

    /// The calling thread sits down; false where it may not.
    pub(crate) fn take(&self) -> bool {
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
        }
        sits
    }

    /// The calling thread still sits here, and does something; false where it has to leave.
    pub(crate) fn goes_on(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.who.load(Ordering::SeqCst) == u64::from(thread::own_thread())
            && self.since.fetch_add(1, Ordering::Relaxed) <= MOST_IN_VAIN
    }

    /// The calling thread sits no more; true where it was to be woken until now.
    pub(crate) fn leave(&self) -> bool {
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
    pub(crate) fn close(&self) {
        self.who.store(CLOSED, Ordering::SeqCst);
    }

    /// For the engine: how often somebody did something here, while somebody sits.
    pub(crate) fn turns(&self) -> Option<u32> {
        (self.whom() == Whom::Visitor).then(|| self.turns.load(Ordering::Relaxed))
    }

    /// Whoever sits shall wait elsewhere. The engine has to be woken from now on, which is said in the rings afterwards.
    pub(crate) fn send_away(&self) {
        let who = self.who.load(Ordering::SeqCst);
        if who & SENT_AWAY == 0
            && who != 0
            && self.who.compare_exchange(who, who | SENT_AWAY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            self.ring();
        }
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
        assert_eq!((seat.whom(), seat.turns()), (Whom::Engine, None));
        assert!(seat.take() && seat.goes_on());
        assert_eq!((seat.whom(), seat.turns()), (Whom::Visitor, Some(1)));
        assert!(!elsewhere(|| seat.take() || seat.goes_on() || seat.leave()));
        assert!(seat.leave() && !seat.leave());
        assert!(elsewhere(|| seat.take() && seat.leave()));
        assert_eq!(seat.whom(), Whom::Engine);
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
    fn a_neighbour_that_hangs_up_ends_the_seat_and_one_that_rings_for_ever_fills_it() {
        let seat = Seat::new().unwrap();
        (0..10_000).for_each(|_| seat.ring());
        assert!(sys::ring(seat.bell()), "whoever waits has something to read");
        socket2::SockRef::from(seat.bell()).shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!sys::ring(seat.bell()));
        assert!(seat.take());
        seat.close();
        assert!(!seat.take() && !seat.leave());
        assert_eq!(seat.whom(), Whom::Engine);
    }
}
