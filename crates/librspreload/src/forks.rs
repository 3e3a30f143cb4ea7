//! fork(2): what a child has of its parent's rsockets. They stay the parent's. A child that uses an
//! inherited stream gets an ordinary socket in its place, whose bytes the process that has the
//! connection carries ([`crate::lending`]). A child that accepts at an inherited listener takes the
//! listener over.
//!
//! A process that forks gives each child one end of a pair of Unix sockets, by which the child
//! asks. Children of the child have the same end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::POLLIN;
use sys::fork::{self, Fd};
use sys::{ControlBuffer, files};

use crate::lending::{self, ANSWER, Names, Request};
use crate::rdma;
use crate::table::{self, Entry, Way};
use crate::{real, sockets};

/// Numbers from here on are taken for the child's end: programs close or reuse low ones.
const HIGH: c_int = 400;
/// How long the owner has to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that wait at a listener that was taken over.
const BACKLOG: c_int = libc::SOMAXCONN;

/// The end by which a child asks; -1 once the program has put another descriptor there.
struct Channel(AtomicI32);

impl Drop for Channel {
    fn drop(&mut self) {
        let fd = self.0.load(Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the owner of the descriptor.
            unsafe { real::close(fd) };
        }
    }
}

/// A descriptor of a child that stands for an rsocket of another process.
#[derive(Clone)]
struct InheritedSocket {
    channel: Arc<Channel>,
    /// Which of the owner's.
    id: u32,
    is_listener: bool,
}

/// What a child has.
struct Inheritance {
    channel: Arc<Channel>,
    descriptors: Mutex<BTreeMap<c_int, InheritedSocket>>,
    /// Of descriptors that were taken over before.
    names: BTreeMap<c_int, Names>,
}

impl Inheritance {
    fn descriptors(&self) -> MutexGuard<'_, BTreeMap<c_int, InheritedSocket>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Made anew for each child, with a lock that no thread of the parent knows.
static INHERITED: AtomicPtr<Inheritance> = AtomicPtr::new(null_mut());

/// What the thread that forks has made for the child, and what it keeps for the child's requests.
struct Prepared {
    inheritance: *mut Inheritance,
    owner: Option<(Fd, Vec<Arc<Entry>>)>,
}

thread_local! {
    static PREPARED: Cell<*mut Prepared> = const { Cell::new(null_mut()) };
}

/// Has children find what they inherit, from now on.
pub fn watch() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.load(Ordering::Acquire) {
        // Its handler in the child runs before those below, which the order of registration says.
        fork::watch();
        // SAFETY: three functions that live as long as the process. Registered twice they do no
        // harm.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
        REGISTERED.store(true, Ordering::Release);
    }
}

fn inherited() -> Option<&'static Inheritance> {
    // SAFETY: NULL, or made by `before` and never freed in the child that has it.
    unsafe { INHERITED.load(Ordering::Acquire).as_ref() }
}

extern "C" fn before() {
    let is_prepared = PREPARED.try_with(|prepared| !prepared.get().is_null());
    if is_prepared == Ok(false)
        && let Some(new) = prepare()
    {
        // The thread has its variables until it ends.
        _ = PREPARED.try_with(|prepared| prepared.set(Box::into_raw(Box::new(new))));
    }
}

/// A pair of sockets: the owner's end, which children close, and the children's.
fn channel() -> Option<(Fd, Channel)> {
    let (mut pair, kind) = ([-1; 2], libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    // SAFETY: two numbers that live across the call; no pointers.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) < 0 {
            return None;
        }
        let mut childs = Channel(AtomicI32::new(pair[1]));
        let high = real::fcntl(pair[1], libc::F_DUPFD_CLOEXEC, HIGH as usize);
        if high >= 0 {
            childs = Channel(AtomicI32::new(high));
        }
        Fd::open_raw(|| pair[0]).ok().map(|owners| (owners, childs))
    }
}

fn prepare() -> Option<Prepared> {
    let mut passed_on = BTreeMap::new();
    if let Some(inheritance) = inherited() {
        // Two processes must not ask for one stream.
        let all: Vec<_> =
            inheritance.descriptors().iter().map(|(fd, descriptor)| (*fd, descriptor.clone())).collect();
        for (fd, descriptor) in all {
            match descriptor.is_listener {
                true => _ = passed_on.insert(fd, descriptor),
                false => take_over(fd),
            }
        }
    }
    let own = table::entries();
    let mut names = inherited().map(|inheritance| inheritance.names.clone()).unwrap_or_default();
    names.extend(lending::all_names());
    if own.is_empty() && passed_on.is_empty() && names.is_empty() {
        return None;
    }
    let (owners, childs) = channel()?;
    let channel = Arc::new(childs);
    let mut kept: Vec<Arc<Entry>> = Vec::new();
    for (fd, entry) in own {
        let known = kept.iter().position(|kept| Arc::ptr_eq(kept, &entry));
        let id = known.unwrap_or(kept.len()) as u32;
        let is_listener = entry.is_listener();
        passed_on.insert(fd, InheritedSocket { channel: channel.clone(), id, is_listener });
        if known.is_none() {
            kept.push(entry);
        }
    }
    let descriptors = Mutex::new(passed_on);
    let inheritance = Box::into_raw(Box::new(Inheritance { channel, descriptors, names }));
    Some(Prepared { inheritance, owner: (!kept.is_empty()).then_some((owners, kept)) })
}

fn prepared() -> *mut Prepared {
    PREPARED.try_with(|prepared| prepared.replace(null_mut())).unwrap_or(null_mut())
}

extern "C" fn after_in_parent() {
    let prepared = prepared();
    if prepared.is_null() {
        return;
    }
    // SAFETY: made by `before` in this thread, both, and known here alone. The child has a copy.
    let owner = unsafe {
        let Prepared { inheritance, owner } = *Box::from_raw(prepared);
        drop(Box::from_raw(inheritance));
        owner
    };
    if let Some((channel, entries)) = owner {
        lending::serve(channel, entries);
    }
}

/// Runs in the only thread of a new child; async-signal-safe. What the parent's thread would free
/// stays.
extern "C" fn after_in_child() {
    let prepared = prepared();
    // SAFETY: NULL, or made by `before` in the thread that forked.
    let inheritance = unsafe { prepared.as_ref() }.map_or(null_mut(), |prepared| prepared.inheritance);
    INHERITED.store(inheritance, Ordering::Release);
    if let Some(inheritance) = inherited() {
        table::mark_channel(inheritance.channel.0.load(Ordering::Relaxed));
    }
}

/// Asks the owner; what it answers.
fn ask(descriptor: &InheritedSocket, request: Request) -> Option<(Names, Option<Fd>)> {
    let channel = descriptor.channel.0.load(Ordering::Relaxed);
    if channel < 0 {
        return None;
    }
    // SAFETY: open, because the program's calls leave it alone.
    let channel = unsafe { BorrowedFd::borrow_raw(channel) };
    let (own, owners) = sys::socket_pair().ok()?;
    sys::send_descriptor(channel, &request.encode(descriptor.id), &owners).ok()?;
    drop(owners);
    files::wait_for(&own, POLLIN, Some(PATIENCE)).ok().filter(|events| *events != 0)?;
    let (mut bytes, mut control) = ([0; ANSWER], ControlBuffer::new());
    let answer = sys::receive(&own, &mut bytes, &mut control, libc::MSG_CMSG_CLOEXEC).ok()?;
    let (len, mut given) = (answer.len, sys::take_descriptors(answer.control));
    (len == ANSWER).then(|| (Names::decode(&bytes), given.pop()))
}

/// The child uses a stream: its descriptors become those of a socket to the process that has the
/// connection. Where that is gone they stay as they are.
pub fn take_over(fd: c_int) {
    let Some(inheritance) = inherited() else { return };
    let (descriptor, fds) = {
        let mut descriptors = inheritance.descriptors();
        let Some(descriptor) = descriptors.get(&fd).filter(|descriptor| !descriptor.is_listener).cloned()
        else {
            return;
        };
        let is_same = |other: &InheritedSocket| {
            Arc::ptr_eq(&other.channel, &descriptor.channel) && other.id == descriptor.id
        };
        let fds: Vec<c_int> =
            descriptors.iter().filter(|(_, descriptor)| is_same(descriptor)).map(|(fd, _)| *fd).collect();
        descriptors.retain(|_, other| !is_same(other));
        (descriptor, fds)
    };
    if let Some((names, Some(socket))) = ask(&descriptor, Request::Stream) {
        for fd in fds {
            lending::stand_in(fd, socket.as_raw_fd(), names);
        }
    }
}

/// The child waits for connections at a descriptor: an inherited listener's is its own from now
/// on, by RDMA where no other child has it.
pub fn take_listener(fd: c_int) {
    // Nearly all processes have no parent that lends them any.
    let Some(inheritance) = inherited().filter(|_| table::may_be_inherited(fd)) else { return };
    let descriptor = {
        let mut descriptors = inheritance.descriptors();
        let is_listener = descriptors.get(&fd).is_some_and(|descriptor| descriptor.is_listener);
        if is_listener { descriptors.remove(&fd) } else { None }
    };
    let (Some(descriptor), Some(calls)) = (descriptor, rdma::calls()) else { return };
    // Where the owner is gone, so is its listener.
    _ = ask(&descriptor, Request::Listener);
    if let Some(rsocket) = sockets::listener_beside(calls, fd, BACKLOG) {
        table::add(fd, rsocket, Way::Listening);
    }
}

/// The child has closed a descriptor that it has inherited.
pub fn closed(fd: c_int) {
    let Some(inheritance) = inherited() else { return };
    let mut descriptors = inheritance.descriptors();
    let Some(descriptor) = descriptors.remove(&fd).filter(|descriptor| !descriptor.is_listener) else {
        return;
    };
    let is_same = |other: &InheritedSocket| {
        Arc::ptr_eq(&other.channel, &descriptor.channel) && other.id == descriptor.id
    };
    if !descriptors.values().any(is_same) {
        drop(descriptors);
        _ = ask(&descriptor, Request::Closed);
    }
}

/// The program has put another descriptor where the channel was.
pub fn channel_is_gone() {
    if let Some(inheritance) = inherited() {
        inheritance.channel.0.store(-1, Ordering::Relaxed);
    }
}

/// The names of a connection that this process's parent has taken over.
pub fn names(fd: c_int) -> Option<Names> {
    inherited()?.names.get(&fd).copied()
}

/// vfork(2), as fork(2): the child of the other shares memory with its parent, and what it does to
/// descriptors would be taken for the parent's doing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    // SAFETY: no pointers.
    unsafe { libc::fork() }
}

impl Entry {
    /// Whether it listens, or did before a child has taken the listener over.
    fn is_listener(&self) -> bool {
        self.way() == Way::Listening || self.has_listened()
    }
}
