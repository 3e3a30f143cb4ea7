//! Every order of initiators and of a thread that takes an entry back, on loom's models of shared
//! words. [`initiator::reach`], the tables and [`wait`] are as they ship. Memory that is taken back
//! is a cell of loom's. An access of an initiator that is not over when the wait is fails the
//! model. Calls and pages of a few lines stand for the system.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p verbena-local --lib --target-dir target/loom
//! peer_memory::loom_tests`

use std::cell::Cell;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use loom::sync::{
    Arc,
    atomic::Ordering::{Acquire, Relaxed, Release},
};
use loom::{cell::UnsafeCell, model::Builder, thread};
use nic::peer_memory::{Copy, Grant, Region};
use transport::op::Remote;
use wire::{Qpn, Rkey};

use super::fences::{At, model::LEFT_OUT};
use super::importer::{After, RevocationState, System, wait};
use super::initiator::{self, Request};
use super::{
    hazards,
    tables::{self, Entry},
};
use crate::ring::Word;

/// The owner's queue pair, and another one that has the same entry.
const QPN: Qpn = Qpn::new(0x10_0000);
const OTHER: Qpn = Qpn::new(0x11_0000);
/// The initiator's.
const FROM: Qpn = Qpn::new(0x20_0000);
const KEY: u32 = 1 << 16 | 0x77;
const PD: u32 = 7;
const BOTH: u32 = nic::Access::REMOTE_WRITE | nic::Access::REMOTE_READ;
const EXPORTED: Region =
    Region { key: KEY, pd: PD, access: BOTH, addr: 0x1000, len: 64, iova: 0, persists: false };
const QUEUE_PAIR: Entry = Entry::QueuePair(0);
const REGION: Entry = Entry::Region(0, 1);

/// What two processes share, and one of them owns.
struct Shared {
    exports: Vec<Word>,
    hazards: Vec<Word>,
    /// What an initiator copies to.
    region: UnsafeCell<()>,
    kernel: Kernel,
}

/// What a system knows of a process whose page initiators know, and of them.
struct Kernel(Mutex<Known>);

struct Known {
    /// The page that is there, by its number.
    page: Option<usize>,
    /// For each thread of the initiator's process whether it is in a call.
    calls: [bool; 2],
}

impl Kernel {
    /// A call of a thread that knows this page; false where that is not there.
    fn call(&self, thread: u32, page: usize, copy: impl FnOnce()) -> bool {
        let begins = {
            let mut known = self.0.lock();
            known.calls[thread as usize] = known.page == Some(page);
            known.calls[thread as usize]
        };
        if begins {
            copy();
            self.0.lock().calls[thread as usize] = false;
        }
        begins
    }
}

/// A page of the owner's. `stays`: wrong, it is there when it was taken away.
struct Page {
    shared: Arc<Shared>,
    stays: bool,
}

impl Drop for Page {
    fn drop(&mut self) {
        if !self.stays {
            self.shared.kernel.0.lock().page = None;
        }
    }
}

fn path(to: Qpn) -> nic::Path {
    let here = std::net::Ipv4Addr::LOCALHOST.into();
    nic::Path {
        source: here,
        dest: here,
        interface: 1,
        dest_qpn: to,
        traffic_class: 0,
        hop_limit: 0,
        source_port_epoch: 0,
        no_multicast_loop: false,
    }
}

fn ends() -> u32 {
    tables::ends(path(FROM).source, path(FROM).dest)
}

impl Shared {
    /// A queue pair and a region are exported, and there is page 1.
    fn new() -> Arc<Self> {
        let words = |len| (0..len).map(|_| Word::new(0)).collect::<Vec<_>>();
        let kernel = Kernel(Mutex::new(Rank::DeferredWork, Known { page: Some(1), calls: [false; 2] }));
        let (exports, hazards) = (words(10), words(4));
        let shared = Arc::new(Self { exports, hazards, region: UnsafeCell::new(()), kernel });
        shared.open(QPN, FROM, PD);
        tables::publish(&shared.exports, 0, 1, &EXPORTED);
        shared
    }

    /// The queue pair exports the region to its peer for messages.
    fn tell(&self) {
        if let Some((_, entry, mut region)) = tables::found(&self.exports, QPN, KEY) {
            region.tell();
            tables::enter_region(&self.exports, entry, region);
        }
    }

    fn open(&self, qpn: Qpn, peer: Qpn, pd: u32) {
        tables::open(&self.exports, &Grant { qpn, path: &path(peer), pd, table: 0, access: BOTH });
    }

    /// What the initiator wants.
    fn request(what: &Copy) -> Request<'_> {
        let remote = Remote { addr: 8, length: 8, rkey: Rkey(KEY) };
        Request { qpn: QPN, from: FROM, ends: ends(), remote, asks: what.rights(), what }
    }

    /// An access of an initiator, whose page is always there.
    fn reach(&self, what: Copy, copy: impl FnOnce()) -> bool {
        initiator::reach(&self.hazards, &self.exports, 0, &Self::request(&what), |_| {
            copy();
            true
        })
    }

    /// An access by a call of the kernel, for a thread that knows the first page.
    fn call(&self, thread: u32) -> bool {
        let request = Self::request(&Copy::Write);
        initiator::reach(&self.hazards, &self.exports, thread, &request, |_| {
            self.kernel.call(thread, 1, || self.use_beside_others())
        })
    }

    /// A thread uses the region's memory, alone.
    fn touch(&self) {
        self.region.with_mut(|_| ());
    }

    /// An initiator uses the region's memory: others may, but not the thread that took it back.
    fn use_beside_others(&self) {
        self.region.with(|_| ());
    }
}

/// The system as a wait sees it: the time goes on by a step with each of the first looks at it.
struct Model<'a> {
    shared: &'a Shared,
    began: Instant,
    looks: Cell<u32>,
    step: Duration,
    /// Threads that are stopped while they are in no call: each may go on at once.
    stops: [bool; 2],
}

/// So many looks of the model, and time enough for whatever a step is long enough for.
const LOOKS: u32 = 8;
const NO_TIME: Duration = Duration::ZERO;
/// So long that no thread is waited for before its page is taken away.
const LONG: Duration = Duration::from_millis(30);
/// So long that no thread is believed for a few of them.
const VERY_LONG: Duration = Duration::from_secs(6);

impl Model<'_> {
    fn new(shared: &Shared, step: Duration) -> Model<'_> {
        Model { shared, began: Instant::now(), looks: Cell::new(0), step, stops: [false; 2] }
    }
}

impl System for Model<'_> {
    fn now(&self) -> Instant {
        self.looks.set(LOOKS.min(self.looks.get() + 1));
        self.began + self.step * self.looks.get()
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn is_stopped(&self, thread: u32) -> bool {
        self.stops[thread as usize] && !self.shared.kernel.0.lock().calls[thread as usize]
    }

    fn pause(&self, _: Option<Duration>) {
        thread::yield_now();
    }
}

/// A process that is exported to. `stays`: see [`Page`].
fn importer(shared: &Arc<Shared>, stays: bool) -> Mutex<RevocationState<Page>> {
    let mut revocation = RevocationState::default();
    assert!(revocation.renew(Page { shared: shared.clone(), stays }));
    Mutex::new(Rank::IdentityPage, revocation)
}

/// Takes an entry back and waits as it ships.
fn take_back(
    shared: &Shared,
    entry: Entry,
    revocation: &Mutex<RevocationState<Page>>,
    system: &Model<'_>,
) -> After {
    tables::clear(&shared.exports, entry);
    wait(&shared.hazards, revocation, entry, &mut None, system)
}

/// Every order of these threads, with so many switches that nothing forces.
fn explore(switches: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

/// An access, and its entry is taken back.
fn one_takes_back(entry: Entry, way: Way) {
    explore(4, move || {
        let shared = Shared::new();
        let theirs = shared.clone();
        let initiator = thread::spawn(move || way.reach(&theirs));
        let after = take_back(&shared, entry, &importer(&shared, false), &Model::new(&shared, NO_TIME));
        assert_eq!(after, After::Nothing);
        shared.touch();
        initiator.join().unwrap();
    });
}

/// How an initiator goes about it.
#[derive(Clone, Copy)]
enum Way {
    AsItShips,
    /// Wrong: it looks both up, and then says that it uses them.
    LooksThenSays,
    /// Wrong: it says that it does not use it any more, and copies.
    LetsGoThenCopies,
}

impl Way {
    fn reach(self, shared: &Shared) {
        let Request { qpn, from, ends, remote, .. } = Shared::request(&Copy::Write);
        let look_up = || tables::look_up(&shared.exports, qpn, from, ends, BOTH);
        let begin = || hazards::begin(&shared.hazards, 0, QUEUE_PAIR, REGION).unwrap();
        let find = |found| tables::find(&shared.exports, found, remote, BOTH);
        match self {
            Self::AsItShips => {
                shared.reach(Copy::Write, || shared.touch());
            }
            Self::LooksThenSays => {
                if look_up().and_then(find).is_some() {
                    let _access = begin();
                    shared.touch();
                }
            }
            Self::LetsGoThenCopies => {
                if shared.reach(Copy::Write, || ()) {
                    shared.touch();
                }
            }
        }
    }
}

#[test]
fn who_takes_a_queue_pair_back_waits_for_who_uses_it() {
    one_takes_back(QUEUE_PAIR, Way::AsItShips);
}

#[test]
fn who_takes_a_region_back_waits_for_who_uses_it() {
    one_takes_back(REGION, Way::AsItShips);
}

#[test]
fn two_initiators_are_waited_for() {
    explore(2, || {
        let shared = Shared::new();
        let initiators = [0, 1].map(|_| {
            let theirs = shared.clone();
            thread::spawn(move || theirs.reach(Copy::Read, || theirs.use_beside_others()))
        });
        take_back(&shared, REGION, &importer(&shared, false), &Model::new(&shared, NO_TIME));
        shared.touch();
        initiators.into_iter().for_each(|initiator| _ = initiator.join().unwrap());
    });
}

/// A process is exported to while something is taken back: it is in the list of those that are
/// waited for, or finds nothing.
#[test]
fn who_is_exported_to_meanwhile_is_waited_for_or_finds_nothing() {
    explore(4, || {
        let shared = Shared::new();
        let list = Arc::new(Word::new(0));
        let (theirs, added) = (shared.clone(), list.clone());
        let initiator = thread::spawn(move || {
            added.store(1, Release);
            theirs.reach(Copy::Write, || theirs.touch())
        });
        tables::clear(&shared.exports, REGION);
        if list.load(Acquire) == 1 {
            let system = Model::new(&shared, NO_TIME);
            wait(&shared.hazards, &importer(&shared, false), REGION, &mut None, &system);
        }
        shared.touch();
        initiator.join().unwrap();
    });
}

/// What a queue pair has exported is pulled while that fails, and its program writes something else
/// there. No thread waits.
#[test]
fn what_was_taken_back_does_not_count_as_pulled() {
    explore(4, || {
        let shared = Shared::new();
        shared.tell();
        let sent = Arc::new(Word::new(1));
        let (theirs, there) = (shared.clone(), sent.clone());
        let puller = thread::spawn(move || {
            let mut pulled = 0;
            let counts = theirs.reach(Copy::Pull, || pulled = there.load(Relaxed));
            assert!(!counts || pulled == 1, "it is not what was sent");
        });
        tables::clear(&shared.exports, QUEUE_PAIR);
        sent.store(2, Relaxed);
        puller.join().unwrap();
    });
}

/// Two queue pairs of one entry, of different domains. A thread that looks one up while the other
/// takes the place does not find the other's domain.
#[test]
fn what_is_found_is_of_one_queue_pair() {
    explore(4, || {
        let shared = Shared::new();
        tables::clear(&shared.exports, REGION);
        tables::publish(&shared.exports, 0, 1, &Region { pd: PD + 1, ..EXPORTED });
        let theirs = shared.clone();
        let initiator = thread::spawn(move || theirs.reach(Copy::Write, || ()));
        tables::clear(&shared.exports, QUEUE_PAIR);
        shared.open(OTHER, FROM, PD + 1);
        assert!(!initiator.join().unwrap(), "a region of another domain than the queue pair's");
    });
}

/// Threads that may be stopped wherever they are in no call, and one that takes a region back,
/// that times out at once. `stays`: see [`Page`].
fn one_times_out(threads: u32, stays: bool) {
    explore(if threads == 1 { 4 } else { 3 }, move || {
        let shared = Shared::new();
        let initiators: Vec<_> = (0..threads)
            .map(|number| {
                let theirs = shared.clone();
                thread::spawn(move || theirs.call(number))
            })
            .collect();
        let revocation = importer(&shared, stays);
        // Of two threads one is stopped, and the other is not.
        let system = Model { stops: [true, false], ..Model::new(&shared, LONG) };
        let after = take_back(&shared, REGION, &revocation, &system);
        shared.touch();
        // The process may have another page, by which accesses that begin now know it.
        if after == After::Export {
            shared.kernel.0.lock().page = Some(2);
            assert!(revocation.lock().renew(Page { shared: shared.clone(), stays: false }));
        }
        initiators.into_iter().for_each(|initiator| _ = initiator.join().unwrap());
    });
}

#[test]
fn who_is_stopped_writes_nothing_afterwards() {
    one_times_out(1, false);
}

#[test]
fn a_thread_that_is_stopped_does_not_hide_one_that_copies() {
    one_times_out(2, false);
}

/// A thread that says for ever that it uses something is banned when no call of it is left.
#[test]
fn who_lies_is_banned() {
    explore(3, || {
        let shared = Shared::new();
        let theirs = shared.clone();
        let liar = thread::spawn(move || {
            let access = hazards::begin(&theirs.hazards, 0, QUEUE_PAIR, REGION).unwrap();
            // For ever.
            std::mem::forget(access);
            theirs.kernel.call(0, 1, || theirs.use_beside_others());
        });
        let revocation = importer(&shared, false);
        // A call that has begun ends long before the time is over.
        let after = take_back(&shared, QUEUE_PAIR, &revocation, &Model::new(&shared, VERY_LONG));
        let begun = shared.kernel.0.lock().calls[0];
        if after == After::Banned && !begun {
            shared.touch();
            let page = Page { shared: shared.clone(), stays: false };
            assert!(!revocation.lock().renew(page), "it gets no other one");
        }
        liar.join().unwrap();
    });
}

/// The models see what is wrong.
mod the_models_see;
