//! What a thread waits with for many descriptors.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use libc::{c_int, c_void};

use super::check;
use super::refused::is_refused;
use crate::fork::Fd;

/// An epoll instance (epoll(7)), level-triggered.
pub struct Epoll {
    fd: Fd,
    /// The first of [`WAYS`] that the system has not refused.
    way: AtomicU8,
}

type Wait = fn(&Epoll, &mut [libc::epoll_event], Option<Duration>) -> io::Result<usize>;

/// How to wait, best first: to the nanosecond (epoll_pwait2, Linux 5.11), then to the millisecond.
const WAYS: [Wait; 3] = [Epoll::pwait2, Epoll::pwait, Epoll::plain];

impl Epoll {
    /// One that waits for nothing yet.
    ///
    /// # Errors
    ///
    /// What epoll_create1(2) says.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = Fd::open_raw(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { fd, way: AtomicU8::new(0) })
    }

    /// Adds a descriptor; errors and hang-ups are told whatever `events` says.
    ///
    /// # Errors
    ///
    /// What epoll_ctl(2) says.
    pub fn add(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    /// Waits for other events of a descriptor. Of those that are there already it tells at once.
    ///
    /// # Errors
    ///
    /// What epoll_ctl(2) says.
    pub fn change(&self, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, events, token)
    }

    /// Waits for a descriptor no more.
    ///
    /// # Errors
    ///
    /// What epoll_ctl(2) says.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: c_int, fd: RawFd, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the kernel reads one event, which lives across the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &raw mut event) }).map(drop)
    }

    /// Waits for events, at most `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// EINTR; anything else says that no call of the kernel's waits here, now or later.
    pub fn wait<'a>(
        &self,
        events: &'a mut [libc::epoll_event],
        timeout: Option<Duration>,
    ) -> io::Result<&'a [libc::epoll_event]> {
        loop {
            let way = usize::from(self.way.load(Ordering::Relaxed)).min(WAYS.len() - 1);
            match WAYS[way](self, events, timeout) {
                Ok(count) => return Ok(&events[..count]),
                Err(error) if is_refused(&error) && way + 1 < WAYS.len() => {
                    self.way.store(way as u8 + 1, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn pwait2(&self, events: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as _,
        });
        let time_ptr: *const libc::timespec = time.as_ref().map_or(std::ptr::null(), |time| time);
        // SAFETY: the kernel writes at most as many events as there are, reads one timespec or
        // none, and no signal mask.
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.as_mut_ptr(),
                capacity(events),
                time_ptr,
                std::ptr::null::<c_void>(),
                0usize,
            )
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    fn pwait(&self, events: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        let (fd, most, millis) = (self.fd.as_raw_fd(), capacity(events), millis(timeout));
        // SAFETY: the kernel writes at most `most` events, and reads no signal mask.
        check(unsafe { libc::epoll_pwait(fd, events.as_mut_ptr(), most, millis, std::ptr::null()) })
    }

    /// A system call of its own on x86-64 only.
    fn plain(&self, events: &mut [libc::epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        let (fd, most, millis) = (self.fd.as_raw_fd(), capacity(events), millis(timeout));
        // SAFETY: the kernel writes at most `most` events.
        check(unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), most, millis) })
    }
}

fn capacity(events: &[libc::epoll_event]) -> c_int {
    events.len().min(i32::MAX as usize) as c_int
}

/// Rounded up: an engine that wakes too early finds nothing to do. -1 for ever.
fn millis(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |timeout| timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as c_int)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WakeFd;
    use crate::filter::with_refused;

    /// Waits for a wake descriptor that has rung, then for one that has not; the errno of the first
    /// that failed.
    fn waits() -> Result<(), i32> {
        let (epoll, wake_fd) = (Epoll::new().unwrap(), WakeFd::new().unwrap());
        epoll.add(wake_fd.as_raw_fd(), libc::EPOLLIN as u32, 7).unwrap();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let mut count = |timeout| match epoll.wait(&mut events, timeout) {
            Ok(found) => Ok(found.len()),
            Err(error) => Err(error.raw_os_error().unwrap()),
        };
        wake_fd.wake();
        assert_eq!(count(None)?, 1);
        wake_fd.drain();
        assert_eq!(count(Some(Duration::from_micros(100)))?, 0);
        Ok(())
    }

    #[test]
    fn an_engine_waits_whichever_call_that_waits_is_refused_and_by_whatever_errno() {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
            assert_eq!(with_refused(&[libc::SYS_epoll_pwait2], errno, waits), Ok(()));
            let two = [libc::SYS_epoll_pwait2, libc::SYS_epoll_pwait];
            let plain = with_refused(&two, errno, waits);
            assert!(plain == Ok(()) || cfg!(not(target_arch = "x86_64")), "{plain:?}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn where_every_call_that_waits_is_refused_the_error_says_so() {
        let all = [libc::SYS_epoll_pwait2, libc::SYS_epoll_pwait, libc::SYS_epoll_wait];
        assert_eq!(with_refused(&all, libc::EPERM, waits), Err(libc::EPERM));
    }
}
