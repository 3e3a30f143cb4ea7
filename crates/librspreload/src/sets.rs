//! epoll(7): the program's sets hold the descriptors of rsockets in place of its own. Events bear
//! what the program has given, so it sees no difference.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU16, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event, sigset_t, timespec};

use crate::rdma::{self, Calls};
use crate::sockets::found;
use crate::table::{self, Entry, Way};
use crate::waits::{masked, millis, time_of};
use crate::{errno, failed, forks, real};

/// A set that has a socket of which it is not known which way it goes.
#[derive(Clone, Copy)]
pub struct Member {
    set: c_int,
    fd: c_int,
    events: u32,
    data: u64,
}

impl Entry {
    /// A connection of this descriptor is under way: the sets that have it hear nothing of it until
    /// it has come about.
    pub(crate) fn begin_to_connect(&self, fd: c_int) {
        let members = self.members();
        self.becomes(Way::Connecting);
        for member in members.iter().filter(|member| member.fd == fd) {
            // SAFETY: no event is needed. An error says that the set is no more.
            unsafe { real::epoll_ctl(member.set, EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        }
    }

    /// The way of the socket is known: the sets that have it get the rsocket, too, or in its place,
    /// or the socket again.
    pub(crate) fn is_connected(&self, calls: &Calls, way: Way) {
        let was = self.way();
        for Member { set, fd, events, data } in self.settle(way) {
            let mut event = epoll_event { events, u64: data };
            // SAFETY: an event that lives across the calls.
            unsafe {
                match (was, way) {
                    (Way::Connecting, Way::Tcp) => {
                        real::epoll_ctl(set, EPOLL_CTL_ADD, fd, &raw mut event);
                    }
                    (Way::Open, Way::Rdma) => {
                        real::epoll_ctl(set, EPOLL_CTL_DEL, fd, &raw mut event);
                    }
                    _ => {}
                }
                if matches!(way, Way::Rdma | Way::Listening) {
                    (calls.repoll_ctl)(set, EPOLL_CTL_ADD, self.rsocket, &raw mut event);
                    table::mark_set(set);
                }
            }
        }
    }

    /// epoll_ctl(2) of a socket of which it is not known which way it goes. `None` where it has
    /// become known.
    unsafe fn watched(&self, set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Option<c_int> {
        let mut members = self.members();
        let at = members.iter().position(|member| (member.set, member.fd) == (set, fd));
        // SAFETY: epoll_ctl's contract.
        let done = unsafe {
            match self.way() {
                Way::Open => real::epoll_ctl(set, op, fd, event),
                Way::Connecting => {
                    // The kernel's set does not have it, and says what else is wrong.
                    let known = real::epoll_ctl(set, EPOLL_CTL_MOD, fd, event);
                    match (op, at) {
                        _ if known == 0 || errno() != libc::ENOENT => known,
                        (EPOLL_CTL_ADD, Some(_)) => failed(libc::EEXIST),
                        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => failed(libc::ENOENT),
                        _ => 0,
                    }
                }
                _ => return None,
            }
        };
        if done == 0 {
            at.map(|at| members.swap_remove(at));
            // SAFETY: as above.
            if let (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some(event)) = (op, unsafe { event.as_ref() }) {
                members.push(Member { set, fd, events: event.events, data: event.u64 });
            }
        }
        Some(done)
    }
}

/// Threads that wait in the kernel's set of this number, or [`BY_RDMA`].
static WAITS: [AtomicU16; table::FAST] = [const { AtomicU16::new(0) }; table::FAST];
/// All threads wait by librdmacm, which has taken the rsockets out of the kernel's set.
const BY_RDMA: u16 = u16::MAX;

/// A thread that waits in the kernel's set, because the set has no rsockets, or another thread has
/// waited there since before it had some.
struct InKernel(Option<&'static AtomicU16>);

impl InKernel {
    /// `None` where the thread is to wait by librdmacm.
    fn enter(set: c_int) -> Option<Self> {
        let Some(waits) = usize::try_from(set).ok().and_then(|set| WAITS.get(set)) else {
            return Some(Self(None));
        };
        let mut threads = waits.load(Ordering::SeqCst);
        loop {
            let next = match threads {
                BY_RDMA => return None,
                0 if table::is_set(set) => BY_RDMA,
                _ => threads + 1,
            };
            match waits.compare_exchange_weak(threads, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return (next != BY_RDMA).then_some(Self(Some(waits))),
                Err(now) => threads = now,
            }
        }
    }
}

impl Drop for InKernel {
    fn drop(&mut self) {
        if let Some(waits) = self.0 {
            // A set that was closed meanwhile has none.
            let one_less = |threads| (1..BY_RDMA).contains(&threads).then(|| threads - 1);
            _ = waits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        }
    }
}

/// A set is closed.
pub(crate) fn is_closed(set: c_int) {
    if let Some(waits) = usize::try_from(set).ok().and_then(|set| WAITS.get(set)) {
        waits.store(0, Ordering::SeqCst);
    }
}

/// epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        if op == EPOLL_CTL_ADD {
            forks::take_listener(fd);
        }
        let Some((entry, calls)) = found(fd) else {
            return match rdma::calls_if_found().filter(|_| table::is_set(fd)) {
                // A set in another one: rsockets of both are the library's to tell of.
                Some(calls) => (calls.repoll_ctl)(set, op, fd, event),
                None => real::epoll_ctl(set, op, fd, event),
            };
        };
        let by_rdma = || {
            table::mark_set(set);
            (calls.repoll_ctl)(set, op, entry.rsocket, event)
        };
        if let Some(done) = entry.watched(set, op, fd, event) {
            return done;
        }
        match entry.way() {
            Way::Rdma => by_rdma(),
            Way::Listening => match real::epoll_ctl(set, op, fd, event) {
                0 => by_rdma(),
                failed => failed,
            },
            _ => real::epoll_ctl(set, op, fd, event),
        }
    }
}

/// epoll_wait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match InKernel::enter(set) {
            Some(_waits) => real::epoll_wait(set, events, most, timeout),
            None => wait_by_rdma(set, events, most, timeout),
        }
    }
}

/// epoll_wait(2) of a set that has rsockets.
unsafe fn wait_by_rdma(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match rdma::calls_if_found() {
            Some(_) if most <= 0 => failed(libc::EINVAL),
            Some(calls) => (calls.repoll_wait)(set, events, most, timeout),
            None => real::epoll_wait(set, events, most, timeout),
        }
    }
}

/// epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match InKernel::enter(set) {
            Some(_waits) => real::epoll_pwait(set, events, most, timeout, mask),
            None => masked(mask, || wait_by_rdma(set, events, most, timeout)),
        }
    }
}

/// epoll_pwait2(2). The time is rounded up to milliseconds where the set has rsockets.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match InKernel::enter(set) {
            Some(_waits) => real::epoll_pwait2(set, events, most, timeout, mask),
            None => {
                let timeout = millis(time_of(timeout));
                masked(mask, || wait_by_rdma(set, events, most, timeout))
            }
        }
    }
}
