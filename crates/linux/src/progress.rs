//! The thread that serves threads that do not poll: targets of one-sided operations, completion
//! channels, timers; and everything that is not a packet. One per host.
//!
//! | file | what the engine does there |
//! |---|---|
//! | this one | its loop: timers, how long it sleeps, leases of sockets, the end of a process |
//! | `sources` | what an event of each [`Source`](crate::reactor::Source) makes it do |
//! | `rings` | the rings of other processes of this host: what waits for room, and what is read |

mod rings;
mod sources;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use local::Drained;
use local::lease;
use local::rings::driver_slot::Watch;
use nic::DeferredWork;
use stack::{Input, InputHandler};
use sys::Room;

use rings::ROOM_PAUSE;

use crate::counters::add;
use crate::env::LinuxEnv;
use crate::inspected::Inspected;
use crate::leased::Leased;
use crate::names::{Listener, NameOwner};

/// How often one event reads its socket before the others get their turn.
const READS_PER_EVENT: usize = 16;
/// How many sockets are read before timers and turns are looked after again.
const EVENTS_PER_WAIT: usize = 16;
/// For how long the engine polls, rather than sleeps, after bulk and after packets that came one
/// behind the other: more is near, and waking a thread costs the sender a good part of a segmented
/// send.
const STREAM_PAUSE: Duration = Duration::from_micros(30);
/// Reads that are no further apart belong to one stream. Longer than the pause: the sender wakes
/// the engine for each packet as long as it sleeps.
const STREAM_NANOS: u64 = 60_000;
/// Another thread that has the processor for so long computes without a break. An engine that
/// sleeps is woken before it; one that polls waits its turn.
const LOST_NANOS: u64 = 1_000_000;
/// For so long the engine sleeps between packets then.
const CPU_CONTENTION_NANOS: u64 = 100_000_000;
/// The longest sleep after the engine had something to do. A timer that is set for later wakes no
/// engine, and each message of a connection manager sets one.
const MAX_SLEEP_NANOS: u64 = 50_000_000;
/// When the engine tries a socket again at which messages wait and a thread of the program reads.
const BUSY_PAUSE: Duration = Duration::from_micros(100);
/// When the engine looks again whether there is a descriptor for a process that wants to connect.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a panic of the input handler, so that a panic in a timer does not take a whole
/// processor.
const AFTER_PANIC: Duration = Duration::from_millis(10);

/// Rounds of events after which the end of a process is told at the latest, whatever else comes.
const MAX_ROUNDS: u32 = 64;

/// A process that is gone. Its last packets may lie in a ring whose connection is not accepted yet,
/// or in later events. So the input handler is told after a round that took all of them.
struct Gone {
    owner: Arc<NameOwner>,
    rounds: u32,
}

/// The engine's own state.
struct Engine<G> {
    env: Arc<LinuxEnv>,
    handler: Arc<G>,
    /// Sockets that polling threads serve: looked at again when their lease ends.
    leased: Vec<Arc<dyn Leased>>,
    /// When, on the environment's clock; and since when they do without a break.
    leases_at: u64,
    leased_since: u64,
    /// Names at which more processes want to connect than one event takes.
    asked: Vec<Arc<Listener>>,
    /// A listener of `asked` waits for a descriptor.
    no_descriptor: bool,
    /// The socket of `verbena ps`, where no thread could be had to answer.
    unanswered: Option<Arc<Inspected>>,
    /// For packets of other processes.
    room: Room,
    /// When the input handler is called again.
    handler_at: Option<Instant>,
    /// The earliest timer that was set since the input handler was called, by the environment's
    /// clock. It may be stale: a look in vain is cheaper than to ask the input handler for its
    /// deadline each time.
    set_at: u64,
    /// Since when threads that poll read the rings.
    rings_leased: Option<u64>,
    /// How long the engine waited last for room in a ring, and how often in vain.
    room_pause: Duration,
    room_tries: u32,
    /// Processes that are gone, of which the input handler has not been told.
    gone: Vec<Gone>,
    /// The watch over the thread that drives in the driver slot.
    watch: Watch,
    /// When a thread had last polled, at the time the engine last read the rings.
    polled_at: u64,
    /// A stream of packets came lately: until then, on the environment's clock, the engine does not
    /// sleep.
    awake_until: u64,
    /// Other threads compute: until then the engine does not stay awake.
    contended_until: u64,
    /// When a read last brought packets.
    read_at: u64,
    /// The engine had something to do since it slept last.
    is_active: bool,
}

/// Runs until `stop` is set and the wake descriptor rung. Meets the starting thread at the barrier.
pub(crate) fn run<G: InputHandler>(
    env: Arc<LinuxEnv>,
    handler: Arc<G>,
    later: &DeferredWork,
    stop: &AtomicBool,
    at_work: Arc<Barrier>,
) {
    // A program that polls on one processor leaves it to no other thread.
    sys::thread::run_anywhere();
    sys::thread::tighten_timers();
    let mut engine = Engine {
        env,
        handler,
        leased: Vec::new(),
        leases_at: 0,
        leased_since: 0,
        asked: Vec::new(),
        no_descriptor: false,
        unanswered: None,
        room: Room::new(1 << 16),
        handler_at: None,
        set_at: u64::MAX,
        rings_leased: None,
        room_pause: ROOM_PAUSE,
        room_tries: 0,
        gone: Vec::new(),
        watch: Watch::default(),
        polled_at: 0,
        awake_until: 0,
        contended_until: 0,
        read_at: 0,
        is_active: false,
    };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_WAIT];
    // What a thread allocates once (arc_swap's node) it has before the device is there: later the
    // heap may be at its end, where an object that is made is ENOMEM, and this thread would abort.
    let _ = (engine.timers(), engine.backlogs(), engine.rings());
    at_work.wait();
    drop(at_work);
    while !stop.load(Ordering::Acquire) {
        let due = engine.timers();
        let pause = sooner(engine.backlogs(), engine.rings());
        engine.guarded(|_| later.run());
        let timeout = engine.sleep(due, pause);
        let env = engine.env.clone();
        match env.reactor.wait(&mut events, timeout) {
            Ok([]) if engine.awake_until > 0 && engine.gone.is_empty() => engine.give_way(),
            Ok(events) => {
                engine.is_active = !events.is_empty();
                events.iter().for_each(|event| engine.event(event.events, event.u64));
                engine.tell_of_the_gone(events.len() == EVENTS_PER_WAIT);
            }
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            // It would turn in circles from now on, or sleep while packets wait.
            Err(error) => return engine.cannot_wait(&error),
        }
    }
}

/// The sooner of two; `None` is never.
fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

impl<G: InputHandler> Engine<G> {
    /// Does what is due; when something is again, on the environment's clock.
    fn timers(&mut self) -> u64 {
        let env = self.env.clone();
        self.set_at = self.set_at.min(env.alarm.take());
        let now = Instant::now();
        env.neighbours.recheck(now, &env.requests);
        for (ticket, result) in env.neighbours.take_answers() {
            self.guarded(|handler| handler.input(now, Input::Resolved { ticket, result }));
        }
        if self.set_at <= env.clock.nanos(now) || self.handler_at.is_some_and(|at| at <= now) {
            self.set_at = u64::MAX;
            let fine = self.guarded(|handler| handler.expire(now));
            self.handler_at = if fine { self.deadline() } else { Some(now + AFTER_PANIC) };
        }
        let idle_at = env.close_idle(env.clock.nanos(now));
        let streams_at = env.streams.close_due(env.clock.nanos(now));
        let turn_end = self.watch.look(&env.rings.driver_slot, env.clock.nanos(now));
        let lease_end = self.look_after_leases();
        let own = [self.handler_at, env.neighbours.deadline()].into_iter().flatten();
        own.map(|at| env.clock.nanos(at))
            .chain(lease_end)
            .chain(turn_end)
            .fold(self.set_at.min(idle_at).min(streams_at), u64::min)
    }

    /// The time to sleep: until `due` or for `pause`, whichever is first; `None`: until an event.
    fn sleep(&mut self, due: u64, pause: Option<Duration>) -> Option<Duration> {
        let (env, now) = (&self.env, self.env.clock.now());
        if now >= self.awake_until {
            self.awake_until = 0;
        }
        if !self.gone.is_empty() || self.awake_until > 0 || pause.is_some_and(|pause| pause.is_zero()) {
            return Some(Duration::ZERO);
        }
        let pause_end = pause.map_or(u64::MAX, |pause| now + pause.as_nanos() as u64);
        let longest = if self.is_active { now + MAX_SLEEP_NANOS } else { u64::MAX };
        match env.alarm.sleep(due.min(pause_end).min(longest)) {
            u64::MAX => None,
            at => Some(Duration::from_nanos(at.saturating_sub(now))),
        }
    }

    /// A stream of packets came: the engine does not sleep for a moment.
    fn stay_awake(&mut self, now: u64) {
        if now >= self.contended_until {
            self.awake_until = now + STREAM_PAUSE.as_nanos() as u64;
        }
    }

    /// While the engine stays awake: the program's own threads may want this core.
    fn give_way(&mut self) {
        let before = self.env.clock.now();
        std::thread::yield_now();
        let now = self.env.clock.now();
        if now.saturating_sub(before) > LOST_NANOS {
            self.awake_until = 0;
            self.contended_until = now + CPU_CONTENTION_NANOS;
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let mut deadline = None;
        self.guarded(|handler| deadline = handler.deadline());
        deadline
    }

    /// Takes back the sockets whose lease has ended; when to look again. Where threads poll without
    /// a break that is later and later: it takes the processor from one of them each time.
    fn look_after_leases(&mut self) -> Option<u64> {
        let now = self.env.clock.now();
        let reactor = &self.env.reactor;
        let mut first = u64::MAX;
        let before = self.leased.len();
        self.leased.retain(|socket| match socket.lease().ends_at(now) {
            Some(end) => {
                first = first.min(end);
                true
            }
            None => {
                socket.lease().taken_back(now);
                socket.arm(reactor);
                false
            }
        });
        if self.leased.len() < before {
            self.leased_since = now;
            self.leases_at = first;
        } else if now >= self.leases_at && first < u64::MAX {
            self.leases_at = first + lease::pause(now - self.leased_since);
        }
        (!self.leased.is_empty()).then_some(self.leases_at)
    }

    /// Continues with what one event did not take: connections to names, and connection manager
    /// messages at sockets with nothing else to read. Returns how soon to come back for the rest.
    fn backlogs(&mut self) -> Option<Duration> {
        let env = self.env.clone();
        self.no_descriptor = false;
        std::mem::take(&mut self.asked).into_iter().for_each(|listener| self.accept(listener));
        let pause = if self.no_descriptor { DESCRIPTOR_PAUSE } else { Duration::ZERO };
        let mut again = (!self.asked.is_empty()).then_some(pause);
        self.unanswered = self.unanswered.take().filter(|asked| !asked.answer());
        again = again.or(self.unanswered.is_some().then_some(DESCRIPTOR_PAUSE));
        env.rx_sockets.each_with_backlog(|socket| {
            let mut drained = Drained::Empty;
            self.guarded(|handler| {
                drained = socket.drain(READS_PER_EVENT, None, &env.delivery(handler));
            });
            if drained == Drained::Busy {
                again = again.or(Some(BUSY_PAUSE));
            } else if socket.has_backlog() {
                again = Some(Duration::ZERO);
            }
        });
        again
    }

    /// Tells of processes that are gone, after all that they sent. `more`: events may be left.
    fn tell_of_the_gone(&mut self, more: bool) {
        let env = self.env.clone();
        let more = more || !self.asked.is_empty();
        for mut gone in std::mem::take(&mut self.gone) {
            gone.rounds += 1;
            // The first one is that in which it was found.
            if gone.rounds < 2 || more && gone.rounds < MAX_ROUNDS {
                self.gone.push(gone);
                continue;
            }
            self.guarded(|handler| env.rings.drain_all(&env.delivery(handler).of_rings()));
            if let Some((name, watch)) = env.names.ended(&gone.owner, &env.reactor) {
                self.guarded(|handler| handler.input(Instant::now(), Input::Gone(name, watch)));
            }
        }
    }

    /// The system refuses every call that waits, or the program closed what this thread waits at.
    fn cannot_wait(&self, error: &io::Error) {
        add(&self.env.counters.engine_ended, 1);
        let _ = writeln!(
            io::stderr(),
            "verbena: the engine thread cannot wait (epoll_wait(2): {error}); its devices have failed"
        );
        let _ = catch_unwind(self.env.config.on_failure);
    }

    /// Calls the input handler; a panic in it is counted, and the thread lives on. False where it
    /// panicked.
    fn guarded(&self, call: impl FnOnce(&G)) -> bool {
        // The input handler's own locks tell it what was left half-done; ours are not held here,
        // but for a receive token, which guards nothing but buffers.
        let fine = catch_unwind(AssertUnwindSafe(|| call(&self.handler))).is_ok();
        if !fine {
            add(&self.env.counters.panics, 1);
            let _ = catch_unwind(self.env.config.on_failure);
        }
        fine
    }
}
