//! Which descriptor of the program has an rsocket beside it. Nearly all descriptors have none,
//! which one load says.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sys::fork;
use sys::per_process::PerProcess;

use crate::lending::Names;
use crate::sets::Member;
use crate::{forks, lending, rdma, real, sets};

/// Descriptors that are looked at without the lock.
pub const FAST: usize = 1 << 16;
static MARKED: [AtomicU8; FAST] = [const { AtomicU8::new(NONE) }; FAST];
const NONE: u8 = 0;
const ENTRY: u8 = 1;
/// The stream goes by RDMA: what a forked child can not use.
const STREAM: u8 = 2;
/// A set of epoll(7) that has rsockets.
const SET: u8 = 3;
/// An ordinary socket whose bytes go on by RDMA elsewhere ([`crate::lending`]).
const LENT: u8 = 4;
/// What a child asks its parent by ([`crate::forks`]).
const CHANNEL: u8 = 5;
/// A socket of TCP alone, whatever stands in the table.
const TCP: u8 = 6;
/// A forked child has no rsockets.
static TABLE: PerProcess<Mutex<BTreeMap<c_int, Arc<Entry>>>> = PerProcess::new(Mutex::default);

/// What a descriptor has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A socket of nothing yet.
    Open,
    /// A listener of both.
    Listening,
    /// A stream by RDMA.
    Rdma,
    /// A stream by TCP: the rsocket is unused.
    Tcp,
    /// Connected by RDMA perhaps: a call that does not wait has begun it.
    Connecting,
}

/// An rsocket beside a descriptor of the program, or several that were duplicated.
pub struct Entry {
    /// The rsocket's descriptor.
    pub rsocket: c_int,
    way: AtomicU8,
    generation: u32,
    has_listened: AtomicBool,
    is_lent: AtomicBool,
    /// SO_ERROR of a connection that has failed.
    error: AtomicI32,
    /// Signalled when it is known whether a connection goes by RDMA.
    connected: Condvar,
    /// Sets of epoll(7) that have the socket, while it is not known which way it goes.
    members: Mutex<Vec<Member>>,
    /// Held while a thread takes a connection by TCP.
    turn: Mutex<()>,
}

impl Entry {
    fn new(rsocket: c_int, way: Way) -> Arc<Self> {
        Arc::new(Self {
            rsocket,
            way: AtomicU8::new(way as u8),
            generation: fork::generation(),
            has_listened: AtomicBool::new(way == Way::Listening),
            is_lent: AtomicBool::new(false),
            error: AtomicI32::new(0),
            connected: Condvar::new(),
            members: Mutex::default(),
            turn: Mutex::default(),
        })
    }

    /// The turn of the calling thread to take a connection by TCP.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream that the program has no descriptor for.
    pub fn of_stream(rsocket: c_int) -> Arc<Self> {
        Self::new(rsocket, Way::Rdma)
    }

    /// Whether it was ever a listener.
    pub fn has_listened(&self) -> bool {
        self.has_listened.load(Ordering::Relaxed)
    }

    /// Whether it is not lent yet; it is from now on.
    pub fn begin_to_lend(&self) -> bool {
        !self.is_lent.swap(true, Ordering::Relaxed)
    }

    /// Lending it has failed.
    pub fn is_not_lent(&self) {
        self.is_lent.store(false, Ordering::Relaxed);
    }

    /// What it has become.
    pub fn way(&self) -> Way {
        match self.way.load(Ordering::Relaxed) {
            0 => Way::Open,
            1 => Way::Listening,
            2 => Way::Rdma,
            3 => Way::Tcp,
            _ => Way::Connecting,
        }
    }

    /// The descriptor becomes that.
    pub fn becomes(&self, way: Way) {
        self.way.store(way as u8, Ordering::Relaxed);
        if way == Way::Listening {
            self.has_listened.store(true, Ordering::Relaxed);
        }
    }

    /// Sets that have the socket, while it is not known which way it goes.
    pub fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is known whether a connection goes by RDMA, or for so long.
    pub fn wait_connected(&self, most: Duration) {
        let members = self.members();
        if self.way() == Way::Connecting {
            drop(self.connected.wait_timeout(members, most));
        }
    }

    /// The way of the connection is known; the sets that have the socket.
    pub fn settle(&self, way: Way) -> Vec<Member> {
        let mut members = self.members();
        self.becomes(way);
        self.connected.notify_all();
        std::mem::take(&mut *members)
    }

    /// What SO_ERROR says once.
    pub fn set_error(&self, error: c_int) {
        self.error.store(error, Ordering::Relaxed);
    }

    /// That; 0 where it was said.
    pub fn take_error(&self) -> c_int {
        self.error.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.generation == fork::generation()
            && let Some(calls) = rdma::calls()
        {
            // SAFETY: an rsocket that only this entry knows.
            unsafe { (calls.rclose)(self.rsocket) };
        }
    }
}

fn table() -> MutexGuard<'static, BTreeMap<c_int, Arc<Entry>>> {
    TABLE.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a descriptor by one load.
fn marked(fd: c_int) -> u8 {
    let Ok(at) = usize::try_from(fd) else { return NONE };
    MARKED.get(at).map_or(ENTRY, |mark| mark.load(Ordering::Relaxed))
}

fn mark(fd: c_int, what: u8) {
    if let Some(mark) = usize::try_from(fd).ok().and_then(|at| MARKED.get(at)) {
        mark.store(what, Ordering::Relaxed);
    }
}

/// The entry of a descriptor. A stream that a child has inherited becomes an ordinary socket
/// before.
pub fn find(fd: c_int) -> Option<Arc<Entry>> {
    let mark = marked(fd);
    if matches!(mark, NONE | TCP) {
        return None;
    }
    let found = table().get(&fd).cloned();
    if found.is_none() && mark == STREAM {
        forks::take_over(fd);
    }
    found
}

/// Whether the descriptor is perhaps one that a child has inherited.
pub fn may_be_inherited(fd: c_int) -> bool {
    matches!(marked(fd), ENTRY | STREAM) && !table().contains_key(&fd)
}

/// All descriptors that have a stream by RDMA or a listener, or had one that a child took over.
pub fn entries() -> Vec<(c_int, Arc<Entry>)> {
    let is_of_use = |entry: &Entry| entry.way() == Way::Rdma || entry.has_listened();
    let table = table();
    table.iter().filter(|(_, entry)| is_of_use(entry)).map(|(fd, entry)| (*fd, entry.clone())).collect()
}

/// Forgets the descriptors of an entry; which they were.
pub fn take_all(entry: &Arc<Entry>) -> Vec<c_int> {
    let mut table = table();
    let all: Vec<_> = table.iter().filter(|(_, of)| Arc::ptr_eq(of, entry)).map(|(fd, _)| *fd).collect();
    all.iter().for_each(|fd| {
        table.remove(fd);
    });
    all
}

/// A descriptor is an ordinary socket from now on, whose names are known.
pub fn mark_lent(fd: c_int) {
    mark(fd, LENT);
}

/// The names of one.
pub fn lent_names(fd: c_int) -> Option<Names> {
    if marked(fd) != LENT {
        return None;
    }
    lending::names(fd).or_else(|| forks::names(fd))
}

/// A descriptor is what a child asks by.
pub fn mark_channel(fd: c_int) {
    mark(fd, CHANNEL);
}

/// The descriptors of a range that are not the kernel's alone.
pub fn marked_in(first: c_uint, last: c_uint) -> Vec<c_int> {
    let low = (first as usize..FAST.min((last as usize).saturating_add(1))).map(|fd| fd as c_int);
    let low = low.filter(|fd| marked(*fd) != NONE);
    let high = |fd: &c_int| *fd as usize >= FAST && (first..=last).contains(&fd.cast_unsigned());
    let table = table();
    low.chain(table.keys().copied().filter(high)).collect()
}

/// Whether it is that.
pub fn is_channel(fd: c_int) -> bool {
    marked(fd) == CHANNEL
}

/// The rsocket of a descriptor whose stream goes by RDMA.
pub fn stream(fd: c_int) -> Option<Arc<Entry>> {
    find(fd).filter(|entry| entry.way() == Way::Rdma)
}

/// Whether the descriptor is a stream of a parent's, by RDMA, which this child could not take over;
/// says so then.
pub fn is_lost(fd: c_int) -> bool {
    let is_lost = marked(fd) == STREAM && !table().contains_key(&fd);
    if is_lost {
        eprintln!(
            "verbena: process {}: descriptor {fd} is a connection by RDMA of the process that it was forked from, \
             and can not be used here",
            std::process::id()
        );
    }
    is_lost
}

/// The descriptors of an entry are a stream by RDMA from now on.
pub fn is_stream(entry: &Arc<Entry>) {
    let table = table();
    let all = table.iter().filter(|(_, of)| Arc::ptr_eq(of, entry));
    all.for_each(|(fd, _)| mark(*fd, STREAM));
}

/// A descriptor is TCP's alone from now on, if it is still the entry's.
pub fn is_tcp(fd: c_int, entry: &Arc<Entry>) {
    entry.becomes(Way::Tcp);
    let table = table();
    if table.get(&fd).is_some_and(|of| Arc::ptr_eq(of, entry)) {
        mark(fd, TCP);
    }
}

/// Enters an rsocket beside a descriptor.
pub fn add(fd: c_int, rsocket: c_int, way: Way) {
    forks::watch();
    put(fd, Entry::new(rsocket, way));
}

/// Another descriptor is the same from now on.
pub fn put(fd: c_int, entry: Arc<Entry>) {
    let what = if entry.way() == Way::Rdma { STREAM } else { ENTRY };
    let old = table().insert(fd, entry);
    mark(fd, what);
    drop(old);
}

/// The descriptor is no more; what it was.
pub fn take(fd: c_int) -> Option<Arc<Entry>> {
    let was = marked(fd);
    if was == NONE {
        return None;
    }
    mark(fd, NONE);
    let entry = table().remove(&fd);
    match was {
        LENT => lending::forget(fd),
        CHANNEL => forks::channel_is_gone(),
        STREAM | ENTRY if entry.is_none() => forks::closed(fd),
        _ => {}
    }
    entry
}

/// A set of epoll(7) has an rsocket.
pub fn mark_set(set: c_int) {
    mark(set, SET);
}

/// Whether a set of epoll(7) has had an rsocket.
pub fn is_set(set: c_int) -> bool {
    marked(set) == SET
}

/// The set is closed; whether it had rsockets.
pub fn take_set(set: c_int) -> bool {
    let is_set = is_set(set);
    if is_set {
        mark(set, NONE);
        sets::is_closed(set);
    }
    is_set
}

/// Makes a descriptor that stands for an rsocket alone: a socket that goes nowhere.
pub fn placeholder(domain: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }
}
