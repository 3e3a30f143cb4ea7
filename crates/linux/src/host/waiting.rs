//! How a thread waits for an event: it reads rings and sockets for a moment, then sleeps in the
//! driver slot, where it is woken by what comes by rings, or at its counter, where the engine wakes
//! it. A task looks for a moment likewise, before its thread goes back to its runtime.

use std::time::Duration;

use local::Drained;
use local::rings::adaptive_spin::{AdaptiveSpin, Spun};
use local::rings::driver_slot::LOOK_NANOS;
use stack::InputHandler;

use super::{Host, LOOKS};
use crate::env::LinuxEnv;
use crate::eventfd::{Counter, Wait};

/// For how long a thread that waits looks at sockets: to sleep costs it two wakes, of the engine by
/// the packet and of the thread by the engine.
const AT_SOCKETS: Duration = Duration::from_micros(100);

/// How often a thread that waits looks at sockets before other threads have the processor: each
/// look is a system call.
const SOCKET_LOOKS: u32 = 4;

/// A thread that looks for so long has lost the processor to others: one that sleeps is woken
/// sooner.
const LOST: Duration = Duration::from_millis(1);

/// Weighs what a look cost that lost the processor, and what one saved that found its event.
fn weigh(spin: &AdaptiveSpin, spun: Spun, is_lost: bool) {
    match spun {
        Spun::NotTried => {}
        _ if is_lost => spin.weigh(true),
        Spun::Found => spin.weigh(false),
        Spun::InVain => {}
    }
}

impl<G: InputHandler> Host<G> {
    /// For a thread that is about to block until `counter` has an event: it reads rings and sockets
    /// for a moment. Then, where it may, it reads the rings from now on, so that what comes by them
    /// wakes it at once (`rings::driver_slot`). An event that it brings itself it has taken. Call
    /// it with no lock of the input handler held. A panic in the input handler comes through.
    pub fn wait_as_driver(&self, counter: &Counter) -> Wait {
        let LinuxEnv { rings, .. } = &*self.env;
        if counter.take_inline() {
            return Wait::Over;
        }
        if !self.is_ours() || counter.has_events() || counter.seems_nonblocking() {
            return Wait::AtCounter;
        }
        if rings.is_empty() {
            return sys::thread::not_cancelled(|| self.wait_at_sockets(counter));
        }
        if !rings.driver_slot.take() {
            return Wait::AtCounter;
        }
        rings.lease.end();
        sys::thread::not_cancelled(|| match self.attend(counter) {
            Wait::InDriverSlot(_) if counter.is_nonblocking() => {
                self.leave_driver_slot(Some(counter), false);
                Wait::AtCounter
            }
            wait => wait,
        })
    }

    /// Like [`Host::wait_as_driver`], after a wait in the driver slot.
    pub fn sit_on(&self, counter: &Counter) -> Wait {
        if !self.is_ours() {
            return Wait::AtCounter;
        }
        sys::thread::not_cancelled(|| self.attend(counter))
    }

    /// The calling thread does not wait in the driver slot any more: the engine reads the rings
    /// again. `counter`: unless it is gone. `closed`: no thread can wait there.
    pub fn release_driver(&self, counter: Option<&Counter>, closed: bool) {
        if self.is_ours() {
            sys::thread::not_cancelled(|| self.leave_driver_slot(counter, closed));
        }
    }

    fn leave_driver_slot(&self, counter: Option<&Counter>, closed: bool) {
        let LinuxEnv { rings, alarm, counters, .. } = &*self.env;
        rings.send_pending_wakes(&counters.local);
        counter.into_iter().for_each(|counter| counter.waits_in(None));
        if closed {
            rings.driver_slot.close();
        }
        // A thread that lingers has none woken, and may have been revoked meanwhile.
        let spun = counter.is_some_and(|counter| counter.spin().may());
        if (rings.driver_slot.leave() || closed || spun) && !rings.sleep(false) {
            alarm.set(0);
        }
    }

    /// Leaves the driver slot with an event; false where this thread may not be back in a moment,
    /// and the engine has to be told. A thread that takes one event after the other would have
    /// it woken each time.
    fn leave_for_a_moment(&self, counter: &Counter) -> bool {
        let LinuxEnv { rings, alarm, clock, .. } = &*self.env;
        let Some(back_by) = rings.driver_slot.leaves_for_a_moment(clock.now()) else { return false };
        counter.waits_in(None);
        rings.stay_awake();
        rings.driver_slot.leave();
        alarm.set(back_by);
        true
    }

    /// Takes what came by rings to the input handler; where to wait, as [`Host::wait_as_driver`]
    /// says.
    fn attend(&self, counter: &Counter) -> Wait {
        let LinuxEnv { rings, alarm, clock, .. } = &*self.env;
        counter.waits_in(None);
        let (stays, at_once) = (rings.driver_slot.goes_on(), counter.has_events());
        let taker = counter.taker();
        let waits = stays && !self.spins(counter) && self.empty_rings(counter);
        self.env.decline_broken_rings();
        self.later.run();
        drop(taker);
        if waits {
            counter.waits_in(Some(rings.driver_slot.clone()));
        }
        if !waits || counter.has_events() {
            // A thread that has not looked at the rings does not have others wait for it.
            let looked = stays && !at_once && counter.has_events();
            if !(looked && self.leave_for_a_moment(counter)) {
                self.leave_driver_slot(Some(counter), false);
            }
            return if counter.take_inline() { Wait::Over } else { Wait::AtCounter };
        }
        rings.send_pending_wakes(&self.env.counters.local);
        alarm.set(clock.now() + LOOK_NANOS);
        Wait::InDriverSlot(rings.driver_slot.waits())
    }

    /// Whether there is an event, or one comes in a moment, of a counter where that is likely. The
    /// thread is in the driver slot.
    fn spins(&self, counter: &Counter) -> bool {
        counter.spin().may() && self.spin_at_rings(counter.spin(), || counter.has_events()) == Spun::Found
    }

    /// Reads rings, and sockets that are due, for a moment or until there is an event, where that
    /// is likely. The rings wake no thread afterwards. Should this thread stay away the engine
    /// looks.
    fn spin_at_rings(&self, spin: &AdaptiveSpin, has_event: impl Fn() -> bool) -> Spun {
        let LinuxEnv { rings, alarm, clock, rx_sockets, streams, .. } = &*self.env;
        alarm.set(clock.now() + LOOK_NANOS);
        let to = self.env.delivery(&*self.handler);
        let (mut awake, mut at_sockets) = (false, false);
        let spun = spin.run(spin.moment(), clock, &has_event, |looks, now| {
            // No thread is woken for what is written to rings from now on.
            if !std::mem::replace(&mut awake, true) {
                rings.stay_awake();
            }
            let mut brought = rings.look(looks, &to.of_rings());
            if !brought && !has_event() && rings.sockets_are_due(now) {
                at_sockets = true;
                brought = self.poll_sockets(clock.instant(now), now) != Drained::Empty;
                if brought {
                    rings.sockets_brought(now);
                }
                self.handler.release(true);
            }
            if brought {
                self.later.run();
            }
            brought
        });
        if spun == Spun::InVain && at_sockets {
            rx_sockets.end_polling(&self.env.reactor);
            streams.end_polling();
        }
        spun
    }

    /// For a thread that is about to block where no process sends by a ring: reads the sockets for
    /// a moment, so that an answer that is near wakes no thread. In vain, the engine has them back
    /// at once.
    fn wait_at_sockets(&self, counter: &Counter) -> Wait {
        if !counter.spin().may() {
            return Wait::AtCounter;
        }
        let taker = counter.taker();
        self.spin_at_sockets(counter.spin(), || counter.has_events());
        drop(taker);
        if counter.take_inline() { Wait::Over } else { Wait::AtCounter }
    }

    /// Reads the sockets for a moment or until there is an event, where that is likely.
    fn spin_at_sockets(&self, spin: &AdaptiveSpin, has_event: impl Fn() -> bool) -> Spun {
        let LinuxEnv { clock, rx_sockets, streams, reactor, .. } = &*self.env;
        if rx_sockets.is_empty() && streams.is_empty() {
            return Spun::NotTried;
        }
        let lost_at = clock.now() + LOST.as_nanos() as u64;
        let spun = spin.run(spin.moment().max(AT_SOCKETS), clock, &has_event, |looks, _| {
            let looks = looks.min(SOCKET_LOOKS);
            (0..looks).any(|_| self.look() != Drained::Empty || has_event())
        });
        weigh(spin, spun, clock.now() > lost_at);
        if spun == Spun::InVain {
            rx_sockets.end_polling(reactor);
            streams.end_polling();
        }
        spun
    }

    /// For a task that is about to wait: its thread reads rings and sockets for a moment, as one
    /// does that is about to block, or until `has_event`. Where that is in vain the engine has them
    /// back at once. Where a thread drives in the driver slot it brings what comes. Call it with no
    /// lock of the input handler held. A panic in the input handler comes through.
    pub fn spin_for_task(&self, spin: &AdaptiveSpin, has_event: impl Fn() -> bool) {
        let LinuxEnv { rings, alarm, clock, .. } = &*self.env;
        let slot = &rings.driver_slot;
        if !self.is_ours() || slot.is_taken() {
            return;
        }
        if rings.is_empty() {
            self.spin_at_sockets(spin, has_event);
            return;
        }
        let polled = rings.lease.end();
        let lost_at = clock.now() + LOST.as_nanos() as u64;
        let mut spun = self.spin_at_rings(spin, || has_event() || clock.now() > lost_at);
        let is_lost = clock.now() > lost_at;
        weigh(spin, spun, is_lost);
        if spun != Spun::NotTried && is_lost {
            spun = Spun::InVain;
        }
        // A thread that took the slot meanwhile may sleep by now, and no writer would wake it.
        if slot.is_taken() {
            slot.stays_away();
            slot.ring();
            return;
        }
        // Threads that run tasks come and leave as those do that take events in the driver slot.
        if spun == Spun::Found
            && let Some(back_by) = slot.leaves_for_a_moment(clock.now())
        {
            alarm.set(back_by);
            return;
        }
        if (slot.stays_away() || polled || spun != Spun::NotTried) && !rings.sleep(false) {
            alarm.set(0);
        }
    }

    /// Reads the rings until nothing is there; false where there is an event first.
    fn empty_rings(&self, counter: &Counter) -> bool {
        let LinuxEnv { rings, alarm, clock, .. } = &*self.env;
        let to = self.env.delivery(&*self.handler);
        for _ in 0..LOOKS {
            if let Drained::Some { .. } = rings.drain(&to.of_rings()) {
                if counter.has_events() {
                    return false;
                }
            } else if !rings.lease.is_shared() && rings.lease.ends_at(clock.now()).is_some() {
                // Another thread polls, and no thread is told of packets. The engine looks when it
                // stops.
                break;
            } else if rings.sleep(true) {
                return true;
            }
        }
        alarm.set(0);
        true
    }
}
