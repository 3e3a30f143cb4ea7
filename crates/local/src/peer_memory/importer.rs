//! A process that we export to, and how long it is waited for when something is taken back.
//!
//! What it says that it uses is its word. An honest process uses something for as long as a copy
//! takes, and its thread may be preempted meanwhile. After [`LONG`] the page by which it knows us
//! is taken away, so that it can begin no call. After [`MAX_REVOKING`] without that page nothing
//! that it had begun runs, whatever it says. A process that is waited for in vain so, or again and
//! again, gets no page any more. What it says then counts for nothing, and its requests go as
//! packets. So a process that means harm holds us up for 20 ms a time. Beyond that it does so for a
//! sixteenth of the time and ten seconds at most, and then not at all.
//!
//! ```text
//!  no page yet
//!       |
//!       | renew
//!       v
//!    has page --- an entry is in use 20 ms after a wait began ---> waited for --+
//!       ^                                                           |    ^      |
//!       |                          the last wait is over, `kept` is |    |      | the last wait is
//!       |                          5 s at most                      |    |      | over, `kept` is
//!       |                                                           v    |      | over 5 s
//!       +--------------------------- renew ----------------------- page gone    |
//!                                                 (up: an entry, as above)      v
//!   any state --- banned: its ring is broken ------------------------------> banned
//! ```
//!
//! | state | fields of [`RevocationState`] | for an entry that the process says it uses |
//! |---|---|---|
//! | no page yet | no `identity`, no `taken` | no thread waits: the process never could reach it |
//! | has page | `identity_page` | a thread waits for 20 ms ([`LONG`]), and takes the page away |
//! | waited for | `taken`, `waiting` above 0 | threads wait until 5 s ([`MAX_REVOKING`]) after `taken`; [`RevocationState::renew`] fails |
//! | page gone | `taken`, `waiting` is 0 | a thread waits for 20 ms, then as above |
//! | banned | `banned` | threads wait until 5 s after `taken`, and never again |
//!
//! A wait is over when the process says that it does not use the entry. Without a page it is also
//! over when the process is gone, and when all its threads that use the entry are stopped.

use std::io;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use sys::fork::Fd;

use super::export_table::Cleared;
use super::hazards;
use super::identity_page::{IdentityPage, Proof};
use super::tables::Entry;
use crate::env::Known;
use crate::memory::Part;
use crate::ring::Word;

/// How long a process may use what is taken back before it is asked what keeps it. That is longer
/// than a copy takes, and the turn of another thread that its processor may have given up in the
/// middle.
const LONG: Duration = Duration::from_millis(20);
/// How long a process is believed that can begin no call: far longer than any call that had begun
/// takes on a busy machine.
const MAX_REVOKING: Duration = Duration::from_secs(5);
/// How often a thread looks again then.
const AGAIN: Duration = Duration::from_micros(200);
/// Of so much time a process may keep us waiting for one part, in which it can begin no call;
/// beyond [`MAX_REVOKING`], which it may at any time.
const OF_THE_TIME: u32 = 16;

/// A process that we export to, and what it may do.
pub(crate) struct Importer {
    /// Where the process says what it uses.
    hazards: Part,
    revocation: Mutex<RevocationState<IdentityPage>>,
    /// The number of the process, or 0.
    pid: i32,
}

/// What an importer can do, and may.
pub(super) struct RevocationState<G> {
    /// The page by which it knows us, which is there while this is; none while it is taken away.
    identity: Option<G>,
    /// When the page was taken away last. `None`: the process never had one.
    taken: Option<Instant>,
    /// Threads that wait for it without its page.
    waiting: usize,
    /// How long the process has kept us waiting so, less its part of the time since then, and when
    /// that was last reckoned.
    kept: Duration,
    reckoned: Option<Instant>,
    /// The process gets no page any more.
    banned: bool,
}

/// What follows from a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// The process does not know us any more, and may again.
    Export,
    /// The process is not to be believed.
    Banned,
}

impl Importer {
    /// One that says so in this memory, at the other end of a connection.
    pub(crate) fn new(hazards: Part, connection: &Fd) -> Self {
        let pid = sys::peer_pid(connection).unwrap_or(0);
        Self { hazards, revocation: Mutex::new(Rank::IdentityPage, RevocationState::default()), pid }
    }

    /// The number of its process, or 0.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The page by which the process shall know us from now on; `None` where it shall not.
    ///
    /// # Errors
    ///
    /// Those of mmap(2).
    pub(crate) fn renew(&self, proof: &Proof) -> io::Result<Option<Known>> {
        let new = IdentityPage::new(&self.hazards, proof)?;
        let known = new.known();
        Ok(self.revocation.lock().renew(new).then_some(known))
    }

    /// Whether it gets no page any more.
    pub(crate) fn is_banned(&self) -> bool {
        self.revocation.lock().banned
    }

    /// Takes away for good the page by which the process knows us.
    pub(crate) fn ban(&self) {
        let mut revocation = self.revocation.lock();
        revocation.take(Instant::now());
        revocation.banned = true;
    }

    /// Whether it says that it uses an entry which was taken back.
    pub(crate) fn uses(&self, Cleared(entry): Cleared) -> bool {
        hazards::users(&self.hazards, entry).next().is_some()
    }

    /// Waits until the process does not use an entry any more, or can not. `began`: when we began
    /// to wait for any process. `is_gone`: whether its connection has ended.
    pub(crate) fn wait(
        &self,
        cleared: Cleared,
        began: &mut Option<Instant>,
        is_gone: impl Fn() -> bool,
    ) -> After {
        let Cleared(entry) = cleared;
        wait(&self.hazards, &self.revocation, entry, began, &Others { is_gone, pid: self.pid })
    }
}

/// What a wait asks of the system.
pub(super) trait System {
    fn now(&self) -> Instant;
    /// Whether nothing of the process runs any more.
    fn is_gone(&self) -> bool;
    /// Whether one of its threads is stopped: then it is in no call.
    fn is_stopped(&self, thread: u32) -> bool;
    /// Lets others run. `None`: just now.
    fn pause(&self, time: Option<Duration>);
}

/// The real system, asked about a process.
struct Others<F> {
    is_gone: F,
    pid: i32,
}

impl<F: Fn() -> bool> System for Others<F> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn is_gone(&self) -> bool {
        (self.is_gone)()
    }

    fn is_stopped(&self, thread: u32) -> bool {
        sys::is_stopped(self.pid, thread)
    }

    fn pause(&self, time: Option<Duration>) {
        time.map_or_else(std::thread::yield_now, std::thread::sleep);
    }
}

/// [`Importer::wait`] for an entry that is cleared.
pub(super) fn wait<G>(
    hazards: &[Word],
    revocation: &Mutex<RevocationState<G>>,
    entry: Entry,
    began: &mut Option<Instant>,
    system: &impl System,
) -> After {
    let mut waits = false;
    if hazards::users(hazards, entry).next().is_none() || revocation.lock().is_harmless(system.now()) {
        return After::Nothing;
    }
    while hazards::users(hazards, entry).next().is_some() {
        let began = *began.get_or_insert_with(|| system.now());
        if system.now() - began < LONG {
            system.pause(None);
            continue;
        }
        // From now on it can begin no call.
        let Some(taken) = revocation.lock().wait(&mut waits, system.now()) else { break };
        // One that is stopped says nothing of the others, which may be in a call that had begun.
        let all_stopped = || hazards::users(hazards, entry).all(|(_, thread)| system.is_stopped(thread));
        if system.now() - taken > MAX_REVOKING || system.is_gone() || all_stopped() {
            break;
        }
        system.pause(Some(AGAIN));
    }
    if waits { revocation.lock().waited(system.now()) } else { After::Nothing }
}

impl<G> Default for RevocationState<G> {
    fn default() -> Self {
        Self { identity: None, taken: None, waiting: 0, kept: Duration::ZERO, reckoned: None, banned: false }
    }
}

impl<G> RevocationState<G> {
    /// The process shall know us by this page from now on; false where it shall not.
    pub(super) fn renew(&mut self, identity: G) -> bool {
        let may = !self.banned && self.waiting == 0;
        if may {
            self.identity = Some(identity);
        }
        may
    }

    /// Whether nothing of it runs, or ever will.
    fn is_harmless(&self, now: Instant) -> bool {
        let ended = self.taken.is_none_or(|taken| self.banned && now - taken > MAX_REVOKING);
        self.identity.is_none() && ended
    }

    /// Takes the page away, so that it can begin no call; when it could last. `None`: never.
    fn take(&mut self, now: Instant) -> Option<Instant> {
        if self.identity.take().is_some() {
            self.taken = Some(now);
        }
        self.taken
    }

    /// Like [`RevocationState::take`], for a thread that waits, which `waits` notes.
    fn wait(&mut self, waits: &mut bool, now: Instant) -> Option<Instant> {
        let taken = self.take(now)?;
        if !std::mem::replace(waits, true) {
            self.waiting += 1;
        }
        Some(taken)
    }

    /// A thread that was noted as waiting does not wait any more.
    fn waited(&mut self, now: Instant) -> After {
        self.waiting -= 1;
        if self.waiting > 0 || self.banned {
            return After::Nothing;
        }
        let waited = self.taken.map_or(Duration::ZERO, |taken| now - taken);
        let since = self.reckoned.replace(now).map_or(Duration::ZERO, |then| now - then);
        self.kept = self.kept.saturating_sub(since / OF_THE_TIME) + waited;
        self.banned = self.kept > MAX_REVOKING;
        if self.banned { After::Banned } else { After::Export }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;

    fn memory() -> Part {
        let (memory, _) = SharedMemory::create(hazards::BYTES).unwrap();
        memory.split(hazards::BYTES).unwrap().0
    }

    /// A wait of a length, and a pause; what follows from it.
    fn waits(
        revocation: &mut RevocationState<IdentityPage>,
        now: &mut Instant,
        wait: Duration,
        pause: Duration,
    ) -> After {
        let proof = Proof { nonce: 1, tables: 2, ring: 3 };
        revocation.identity = Some(IdentityPage::new(&memory(), &proof).unwrap());
        assert!(!revocation.is_harmless(*now));
        let mut waits = false;
        assert_eq!(revocation.wait(&mut waits, *now), Some(*now));
        // Another look, and another thread.
        assert_eq!(revocation.wait(&mut waits, *now + wait / 2), Some(*now));
        let mut others = false;
        revocation.wait(&mut others, *now + wait / 2);
        *now += wait;
        assert_eq!(revocation.waited(*now), After::Nothing, "the other one waits");
        let after = revocation.waited(*now);
        *now += pause;
        after
    }

    #[test]
    fn who_lets_go_in_time_each_time_is_not_believed_for_ever() {
        let (mut revocation, mut now) = (RevocationState::default(), Instant::now());
        let second = Duration::from_secs(1);
        for _ in 0..5 {
            assert_eq!(waits(&mut revocation, &mut now, second, Duration::ZERO), After::Export);
        }
        assert_eq!(waits(&mut revocation, &mut now, second, Duration::ZERO), After::Banned);
        assert!(revocation.identity.is_none() && revocation.banned);
    }

    #[test]
    fn who_is_slow_now_and_then_is() {
        let (mut revocation, mut now) = (RevocationState::default(), Instant::now());
        for _ in 0..1000 {
            let after = waits(&mut revocation, &mut now, Duration::from_millis(50), Duration::from_secs(1));
            assert_eq!(after, After::Export);
        }
        let in_vain = MAX_REVOKING + Duration::from_millis(1);
        assert_eq!(waits(&mut revocation, &mut now, in_vain, Duration::ZERO), After::Banned);
    }

    #[test]
    fn who_never_could_reach_anything_is_not_waited_for() {
        let (mut revocation, mut waits, now) =
            (RevocationState::<IdentityPage>::default(), false, Instant::now());
        assert!(revocation.is_harmless(now));
        assert_eq!((revocation.wait(&mut waits, now), waits), (None, false));
    }
}
