//! poll(2) and select(2) of descriptors of which some are rsockets.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::rdma::{self, Calls};
use crate::table::{self, Entry, Way};
use crate::{connector, errno, failed, forks, real};

/// The entries that are asked about in a program's place: of each of its own one or two.
#[derive(Default)]
struct Asked {
    fds: Vec<pollfd>,
    /// Which of the program's each is for; `None` for a socket that is being connected.
    owners: Vec<Option<usize>>,
    connecting: Vec<Arc<Entry>>,
}

impl Asked {
    /// `None` where no descriptor has an rsocket in use, or is a set that holds some.
    fn of(fds: &[pollfd]) -> Option<Self> {
        let mut asked = Self::default();
        let mut any = false;
        for (at, own) in fds.iter().enumerate() {
            forks::take_listener(own.fd);
            let entry = table::find(own.fd);
            let way = entry.as_ref().map_or(Way::Tcp, |entry| entry.way());
            if !matches!(way, Way::Rdma | Way::Connecting) {
                asked.push(*own, Some(at));
            }
            any |= table::is_set(own.fd);
            let Some(entry) = entry else { continue };
            match way {
                Way::Rdma | Way::Listening => asked.push(pollfd { fd: entry.rsocket, ..*own }, Some(at)),
                Way::Connecting => {
                    asked.push(pollfd { fd: entry.rsocket, events: libc::POLLOUT, revents: 0 }, None);
                    asked.connecting.push(entry);
                }
                _ => continue,
            }
            any = true;
        }
        any.then_some(asked)
    }

    fn push(&mut self, fd: pollfd, owner: Option<usize>) {
        self.fds.push(pollfd { revents: 0, ..fd });
        self.owners.push(owner);
    }

    fn wait(mut self, calls: &Calls, fds: &mut [pollfd], timeout: c_int) -> c_int {
        let until = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            let left = millis(until.map(|until| until.saturating_duration_since(Instant::now())));
            // A connection goes on by TCP without a sign of its rsocket.
            let look = connector::LOOK.as_millis() as c_int;
            let most = match self.connecting.is_empty() {
                false if left < 0 || left > look => look,
                _ => left,
            };
            // SAFETY: an array of so many.
            let n = unsafe { (calls.rpoll)(self.fds.as_mut_ptr(), self.fds.len() as nfds_t, most) };
            if n < 0 {
                return n;
            }
            fds.iter_mut().for_each(|fd| fd.revents = 0);
            let answers = self.fds.iter().zip(&self.owners);
            for (asked, owner) in answers.filter_map(|(asked, owner)| Some((asked, (*owner)?))) {
                fds[owner].revents |= asked.revents;
            }
            let found = fds.iter().filter(|fd| fd.revents != 0).count() as c_int;
            if found > 0 || self.connecting.is_empty() || timeout == 0 {
                return found;
            }
            if n > 0 {
                // The thread that connects sees the same.
                self.connecting.iter().for_each(|entry| entry.wait_connected(Duration::from_millis(1)));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return 0;
            }
            if let Some(again) = Self::of(fds) {
                self = again;
                continue;
            }
            let left = millis(until.map(|until| until.saturating_duration_since(Instant::now())));
            // SAFETY: an array of so many.
            return unsafe { real::poll(fds.as_mut_ptr(), fds.len() as nfds_t, left) };
        }
    }
}

/// The entries of a caller.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match fds.is_null() || count == 0 {
        true => &mut [],
        // SAFETY: poll(2)'s contract.
        false => unsafe { std::slice::from_raw_parts_mut(fds, count as usize) },
    }
}

/// poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let own = entries(fds, count);
        match (Asked::of(own), rdma::calls_if_found()) {
            (Some(asked), Some(calls)) => asked.wait(calls, own, timeout),
            _ => real::poll(fds, count, timeout),
        }
    }
}

/// poll(2), as the compiler calls it where it knows the array's size (_FORTIFY_SOURCE).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    if (room / size_of::<pollfd>()) < count as usize {
        // SAFETY: no pointers. So ends the C library a program, too.
        unsafe { libc::abort() };
    }
    // SAFETY: the man page's contract.
    unsafe { poll(fds, count, timeout) }
}

/// Milliseconds, rounded up; -1 for ever.
pub(crate) fn millis(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

pub(crate) unsafe fn time_of(time: *const timespec) -> Option<Duration> {
    // SAFETY: NULL or a time.
    let time = unsafe { time.as_ref()? };
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Some(Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos))
}

/// Waits with another mask of signals. A signal that comes between the two calls is seen after the
/// wait.
pub(crate) unsafe fn masked(mask: *const sigset_t, wait: impl FnOnce() -> c_int) -> c_int {
    if mask.is_null() {
        return wait();
    }
    // SAFETY: a set of signals, and one to keep the old in.
    unsafe {
        let mut old: sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut old);
        let n = wait();
        let error = errno();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        if n < 0 { failed(error) } else { n }
    }
}

/// ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let own = entries(fds, count);
        match (Asked::of(own), rdma::calls_if_found()) {
            (Some(asked), Some(calls)) => {
                let timeout = millis(time_of(timeout));
                masked(mask, || asked.wait(calls, own, timeout))
            }
            _ => real::ppoll(fds, count, timeout, mask),
        }
    }
}

/// ppoll(2), as `__poll_chk`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    if (room / size_of::<pollfd>()) < count as usize {
        // SAFETY: no pointers. So ends the C library a program, too.
        unsafe { libc::abort() };
    }
    // SAFETY: the man page's contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// The words of a set of descriptors.
unsafe fn words<'a>(set: *mut fd_set, count: c_int) -> &'a mut [u64] {
    match set.is_null() {
        true => &mut [],
        // SAFETY: select(2)'s contract: so many bits.
        false => unsafe { std::slice::from_raw_parts_mut(set.cast(), (count as usize).div_ceil(64)) },
    }
}

/// What each set asks for, and what counts for it (select(2)).
const SETS: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// The entries for sets of descriptors.
fn entries_of(sets: &[&mut [u64]; 3], count: c_int) -> Vec<pollfd> {
    let has = |set: &[u64], fd: usize| set.get(fd / 64).is_some_and(|word| word >> (fd % 64) & 1 != 0);
    let events = |fd: usize| {
        let asked = SETS.iter().zip(sets).filter(|(_, set)| has(set, fd));
        asked.fold(0, |all, ((events, _), _)| all | events)
    };
    let all = (0..count).map(|fd| pollfd { fd, events: events(fd as usize), revents: 0 });
    all.filter(|fd| fd.events != 0).collect()
}

/// Waits for sets of descriptors; `None` where none has an rsocket in use.
unsafe fn select_any(
    count: c_int,
    sets: [*mut fd_set; 3],
    mask: *const sigset_t,
    timeout: Option<Duration>,
) -> Option<c_int> {
    // SAFETY: select(2)'s contract.
    let mut sets = sets.map(|set| unsafe { words(set, count) });
    let mut fds = entries_of(&sets, count);
    let asked = Asked::of(&fds)?;
    let calls = rdma::calls_if_found()?;
    // SAFETY: as above.
    let n = unsafe { masked(mask, || asked.wait(calls, &mut fds, millis(timeout))) };
    if n < 0 {
        return Some(n);
    }
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Some(failed(libc::EBADF));
    }
    let mut found = 0;
    for ((asked, counts), set) in SETS.iter().zip(&mut sets) {
        set.fill(0);
        for fd in fds.iter().filter(|fd| fd.events & asked != 0 && fd.revents & counts != 0) {
            set[fd.fd as usize / 64] |= 1 << (fd.fd % 64);
            found += 1;
        }
    }
    Some(found)
}

/// select(2). The time is left as it is where an rsocket is among the descriptors.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let time = timeout.as_ref().map(|time| {
            let micros = u64::try_from(time.tv_usec).unwrap_or(0);
            Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0)) + Duration::from_micros(micros)
        });
        match select_any(count, [reads, writes, excepts], std::ptr::null(), time) {
            Some(n) => n,
            None => real::select(count, reads, writes, excepts, timeout),
        }
    }
}

/// pselect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        match select_any(count, [reads, writes, excepts], mask, time_of(timeout)) {
            Some(n) => n,
            None => real::pselect(count, reads, writes, excepts, timeout, mask),
        }
    }
}
