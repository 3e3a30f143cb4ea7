//! The engine and the rings of other processes of this host: packets that wait for room in a ring
//! leave, and packets that came by one are read where no thread of the program reads them.

use std::time::Duration;

use local::Drained;
use local::lease;
use local::rings::Backlog;
use stack::InputHandler;

use super::{Engine, sooner};
use crate::env::LinuxEnv;

/// When the engine tries a full ring again: so many times in a row that its reader took nothing;
/// then less and less often, as if the reader is stopped.
pub(super) const ROOM_PAUSE: Duration = Duration::from_micros(20);
const ROOM_TRIES: u32 = 1_000;
const MAX_ROOM_PAUSE: Duration = Duration::from_millis(10);

/// Which thread reads the rings until the engine looks again.
enum Reader {
    Engine,
    /// A thread that polls, or one that is expected back in the driver slot. The engine looks after
    /// this time whether it does.
    Program(Duration),
    /// The thread in the driver slot. The engine's [`Watch`](local::rings::driver_slot::Watch) ends
    /// its turn.
    DriverSlot,
}

impl<G: InputHandler> Engine<G> {
    /// Writes what waits for room in rings, and reads the rings unless a thread of the program
    /// does. Returns how soon to come back at the latest.
    pub(super) fn rings(&mut self) -> Option<Duration> {
        let env = self.env.clone();
        env.rings.send_pending_wakes(&env.counters.local);
        let retry = self.write_backlog(&env);
        if env.rings.is_empty() {
            return retry;
        }
        let now = env.clock.now();
        match self.reader(&env, now) {
            Reader::Program(pause) => sooner(retry, Some(pause)),
            Reader::DriverSlot => retry,
            Reader::Engine if self.drain_rings(&env, now) => retry,
            Reader::Engine => Some(Duration::ZERO),
        }
    }

    /// Writes what waits for room in rings. Returns when to try those again that are still full,
    /// `None` where none is.
    fn write_backlog(&mut self, env: &LinuxEnv) -> Option<Duration> {
        let retry = match env.rings.go_on(env) {
            Backlog::None => {
                self.room_tries = 0;
                None
            }
            Backlog::Stuck if self.room_tries < ROOM_TRIES => {
                self.room_tries += 1;
                Some(ROOM_PAUSE)
            }
            Backlog::Stuck => Some((self.room_pause * 2).min(MAX_ROOM_PAUSE)),
            Backlog::Moves => {
                self.room_tries = 0;
                Some(ROOM_PAUSE)
            }
        };
        self.room_pause = retry.unwrap_or(ROOM_PAUSE);
        retry
    }

    /// Which thread reads the rings. A lease that has ended is taken back.
    fn reader(&mut self, env: &LinuxEnv, now: u64) -> Reader {
        let rings = &env.rings;
        if let Some(back_by) = rings.driver_slot.expects(now) {
            return Reader::Program(Duration::from_nanos(back_by - now));
        }
        if !rings.lease.is_shared()
            && let Some(end) = rings.lease.ends_at(now)
        {
            let since = *self.rings_leased.get_or_insert(now);
            return Reader::Program(Duration::from_nanos(end - now + lease::pause(now - since)));
        }
        if self.rings_leased.take().is_some() {
            rings.lease.taken_back(now);
        } else if rings.polled_at() == self.polled_at && self.watch.leaves_it_to(&rings.driver_slot) {
            return Reader::DriverSlot;
        }
        Reader::Engine
    }

    /// Reads what came by the rings. True where nothing is left and a writer will wake the engine,
    /// or the thread in the driver slot; false where the engine has to look again at once.
    fn drain_rings(&mut self, env: &LinuxEnv, now: u64) -> bool {
        let polled_at = env.rings.polled_at();
        self.polled_at = polled_at;
        let mut drained = Drained::Empty;
        self.guarded(|handler| drained = env.rings.drain(&env.delivery(handler).of_rings()));
        if let Drained::Some { bulk } = drained {
            env.rings.lease.engine_found(now, polled_at);
            if bulk {
                self.stay_awake(env.clock.now());
            }
        }
        env.decline_broken_rings();
        // An engine that looks again at once is not to be woken for each piece.
        let looks_again = drained != Drained::Empty || env.clock.now() < self.awake_until;
        !looks_again && env.rings.sleep(true)
    }
}
