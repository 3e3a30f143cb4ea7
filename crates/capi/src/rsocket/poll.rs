//! Waiting for several descriptors, rsockets and others: poll(2), select(2). System calls are made
//! as such, as in `mirror`.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, nfds_t, pollfd};
use nic::Errno;
use rsocket::Readiness;

use crate::ffi_guard;
use crate::instance::{self, Instance};
use crate::rsocket::object::Rsocket;
use crate::rsocket::{set_list, table, waiting};

/// Descriptors of one call, at most.
const MAX_FDS: usize = 1 << 20;

/// What poll(2) says of a readiness.
pub(super) fn events_of(ready: Readiness, wanted: i16) -> i16 {
    let bits = [
        (ready.readable, (POLLIN | POLLRDNORM) & wanted),
        (ready.writable, (POLLOUT | POLLWRNORM) & wanted),
        (ready.read_hup, POLLRDHUP & wanted),
        (ready.hup, POLLHUP),
        (ready.error, POLLERR),
    ];
    bits.iter().filter(|(is, _)| *is).fold(0, |all, (_, bits)| all | bits)
}

/// The entries of a call: which are rsockets.
struct Polled<'a> {
    fds: &'a mut [pollfd],
    rsockets: Vec<Option<Arc<Rsocket>>>,
    /// Where an entry stands among those that are none.
    others: Vec<pollfd>,
}

impl<'a> Polled<'a> {
    fn new(fds: &'a mut [pollfd]) -> Self {
        let rsockets: Vec<_> = fds.iter().map(|fd| table::get(fd.fd)).collect();
        let is_other = |(fd, rsocket): (&pollfd, &Option<_>)| rsocket.is_none().then_some(*fd);
        let others: Vec<pollfd> = fds.iter().zip(&rsockets).filter_map(is_other).collect();
        others.iter().for_each(|other| set_list::is_looked_at(other.fd));
        Self { fds, rsockets, others }
    }

    /// Looks at the rsockets; the others are as they were looked at last.
    fn check(&mut self) -> usize {
        let mut others = self.others.iter();
        for (fd, rsocket) in self.fds.iter_mut().zip(&self.rsockets) {
            fd.revents = match rsocket {
                Some(rsocket) => events_of(rsocket.look(), fd.events),
                None => others.next().map_or(0, |other| other.revents),
            };
        }
        self.fds.iter().filter(|fd| fd.revents != 0).count()
    }

    /// Looks at all.
    fn check_all(&mut self) -> Result<usize, Errno> {
        if !self.others.is_empty() {
            waiting::poll(&mut self.others, Some(Duration::ZERO))?;
        }
        Ok(self.check())
    }

    fn wait(&mut self, instance: &Instance, until: Option<Instant>) -> Result<usize, Errno> {
        let mut found = 0;
        let others = !self.others.is_empty();
        waiting::spin(instance, || {
            found = self.check();
            found > 0
        });
        while found == 0 {
            if others {
                found = self.check_all()?;
            }
            if found > 0 || until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let counter = waiting::counter()?;
            let rsockets = self.rsockets.clone();
            rsockets.iter().flatten().for_each(|rsocket| rsocket.add_waiter(&counter));
            // What came before the counter was listed.
            found = self.check();
            let slept = match found {
                0 => waiting::sleep(instance, &counter, &mut self.others, until),
                _ => Ok(()),
            };
            rsockets.iter().flatten().for_each(|rsocket| rsocket.forget_waiter(&counter));
            slept?;
            found = self.check();
        }
        Ok(found)
    }
}

impl Rsocket {
    /// What it is ready for.
    fn look(&self) -> Readiness {
        let mut state = self.lock();
        state.take_completions();
        state.readiness()
    }
}

fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let until = timeout.map(|timeout| Instant::now() + timeout);
    let mut polled = Polled::new(fds);
    let found = polled.check_all()?;
    if found > 0 {
        return Ok(found);
    }
    let instance = instance::get()?;
    if timeout == Some(Duration::ZERO) {
        // A program that does not wait may be polling.
        instance.host.poll();
        instance.host.later().run();
        return Ok(polled.check());
    }
    let found = polled.wait(&instance, until);
    instance.host.later().run();
    found
}

/// `rpoll`, poll(2), for rsockets and other descriptors. errno: EINTR, EINVAL for more than 2^20
/// entries, EFAULT for NULL.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    ffi_guard::or_minus_one(|| {
        let count = usize::try_from(count).ok().filter(|&n| n <= MAX_FDS).ok_or(Errno::EINVAL)?;
        let fds = match count {
            0 => &mut [],
            _ if fds.is_null() => return Err(Errno::EFAULT),
            // SAFETY: an array of so many, by the man page's contract.
            _ => unsafe { std::slice::from_raw_parts_mut(fds, count) },
        };
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        poll(fds, timeout).map(|n| n as c_int)
    })
}

/// Descriptors of a set: words of 64 bits.
fn words<'a>(set: *mut libc::fd_set, count: usize) -> &'a mut [u64] {
    match set.is_null() {
        true => &mut [],
        // SAFETY: a set of at least so many bits, by select(2)'s contract.
        false => unsafe { std::slice::from_raw_parts_mut(set.cast(), count.div_ceil(64)) },
    }
}

/// `rselect`, select(2). The time is left as it is. errno: as `rpoll`; EBADF.
pub unsafe extern "C" fn rselect(
    count: c_int,
    reads: *mut libc::fd_set,
    writes: *mut libc::fd_set,
    excepts: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let count = usize::try_from(count).ok().filter(|&n| n <= MAX_FDS).ok_or(Errno::EINVAL)?;
        // SAFETY: NULL or a time, by the man page's contract.
        let timeout = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        let sets = [words(reads, count), words(writes, count), words(excepts, count)];
        select(count, sets, timeout).map(|n| n as c_int)
    })
}

/// What each set of select(2) asks for, and what counts for it (select(2)).
const SETS: [(i16, i16); 3] =
    [(POLLIN, POLLIN | POLLHUP | POLLERR), (POLLOUT, POLLOUT | POLLERR), (libc::POLLPRI, libc::POLLPRI)];

fn select(count: usize, mut sets: [&mut [u64]; 3], timeout: Option<Duration>) -> Result<usize, Errno> {
    let has = |set: &[u64], fd: usize| set.get(fd / 64).is_some_and(|word| word >> (fd % 64) & 1 != 0);
    let mut fds = Vec::new();
    for fd in 0..count {
        let asked = SETS.iter().zip(&sets).filter(|(_, set)| has(set, fd));
        let events = asked.map(|((events, _), _)| *events).fold(0, |all, events| all | events);
        if events != 0 {
            fds.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    poll(&mut fds, timeout)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno::EBADF);
    }
    let mut found = 0;
    for ((asked, counts), set) in SETS.iter().zip(&mut sets) {
        set.fill(0);
        for fd in fds.iter().filter(|fd| fd.events & asked != 0 && fd.revents & counts != 0) {
            set[fd.fd as usize / 64] |= 1 << (fd.fd % 64);
            found += 1;
        }
    }
    Ok(found)
}
