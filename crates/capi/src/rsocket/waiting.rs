//! How a thread waits for rsockets: it reads rings and sockets for a moment, then sleeps in
//! poll(2) with a counter of its own, which each rsocket counts up when something has changed.

use std::cell::RefCell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use linux::eventfd::{A_WAKE, Counter, Wait};
use nic::Errno;
use sys::fork;

use crate::instance::Instance;
use crate::rsocket::config;

thread_local! {
    static COUNTER: RefCell<Option<(u32, Counter)>> = const { RefCell::new(None) };
}

/// The calling thread's counter.
pub(super) fn counter() -> Result<Counter, Errno> {
    let kept = COUNTER.try_with(|counter| {
        let mut counter = counter.borrow_mut();
        match &*counter {
            Some((generation, counter)) if *generation == fork::generation() => Ok(counter.clone()),
            _ => {
                let new = Counter::of(A_WAKE)?;
                *counter = Some((fork::generation(), new.clone()));
                Ok(new)
            }
        }
    });
    // What is the thread's own is gone before functions run at exit.
    kept.unwrap_or_else(|_| Ok(Counter::of(A_WAKE)?))
}

/// Reads what arrives for the configured time, until `is_ready`.
pub(super) fn spin(instance: &Instance, mut is_ready: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_micros(config::get().polling_us.into());
    loop {
        instance.host.poll();
        instance.host.later().run();
        if is_ready() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
}

/// poll(2) that is no cancellation point: the frames above have destructors.
pub(super) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let time = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: an array of so many, a time or NULL, no mask.
    let ready = unsafe {
        libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), time, std::ptr::null::<u8>(), 8)
    };
    usize::try_from(ready).map_err(|_| Errno::last())
}

/// One read that does not wait, and is no cancellation point.
fn read(fd: c_int, bytes: &mut [u8]) {
    // SAFETY: so many writable bytes. poll(2) has said that there is something.
    unsafe { libc::syscall(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()) };
}

fn entry(fd: c_int) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until the thread's counter was counted up, a descriptor of `fds` is ready, or the time is
/// over. All of it may be early. The `revents` of `fds` are those of the last look.
///
/// # Errors
///
/// EINTR for a signal; what poll(2) says else.
pub(super) fn sleep(
    instance: &Instance,
    counter: &Counter,
    fds: &mut Vec<libc::pollfd>,
    until: Option<Instant>,
) -> Result<(), Errno> {
    let own = fds.len();
    let mut wait = instance.host.wait_as_driver(counter);
    loop {
        let slot = match wait {
            Wait::Over => return Ok(()),
            Wait::AtCounter => None,
            Wait::InDriverSlot(fd) => Some(fd),
        };
        fds.push(entry(counter.fd()));
        fds.extend(slot.map(entry));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ready = poll(fds, left);
        let is_rung = slot.is_some() && ready.is_ok() && fds[own + 1].revents != 0;
        let is_counted = ready.is_ok() && fds[own].revents != 0;
        fds.truncate(own);
        if is_rung {
            read(slot.unwrap_or(-1), &mut [0; 256]);
            let others = is_counted || fds.iter().any(|fd| fd.revents != 0);
            if !others {
                wait = instance.host.sit_on(counter);
                continue;
            }
        }
        if slot.is_some() {
            instance.host.release_driver(Some(counter), false);
        }
        if counter.has_events() && is_counted {
            read(counter.fd(), &mut [0; 8]);
            counter.taken();
        }
        return ready.map(drop);
    }
}
