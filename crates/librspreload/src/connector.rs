//! connect(2) that does not wait: a thread waits for the peers' answers by RDMA, and goes on by TCP
//! where there is none. The thread ends when no socket is being connected.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{pollfd, sockaddr, socklen_t};
use sys::WakeFd;
use sys::fork::Fd;
use sys::per_process::PerProcess;
use sys::thread::with_signals_blocked;

use crate::connecting::{self, Address};
use crate::rdma::Calls;
use crate::table::{self, Entry, Way};
use crate::{errno, failed, real};

/// Sockets that are being connected at once. More go by TCP.
const MOST: usize = 4096;
/// After what time a thread that waits for such a socket looks whether it goes by TCP.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// A socket that is being connected.
struct Attempt {
    /// The program's descriptor, and one that is the same as long as this lives.
    fd: c_int,
    own: Fd,
    entry: Arc<Entry>,
    to: Address,
    until: Instant,
}

#[derive(Default)]
struct Attempts {
    all: Vec<Attempt>,
    /// Wakes the thread; `None` while there is none.
    wake: Option<Arc<WakeFd>>,
}

static ATTEMPTS: PerProcess<Mutex<Attempts>> = PerProcess::new(Mutex::default);

fn attempts() -> MutexGuard<'static, Attempts> {
    ATTEMPTS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// connect(2) of a socket that does not wait; -1 with EINPROGRESS, or what connect(2) says by TCP.
pub(crate) fn begin(calls: &'static Calls, fd: c_int, entry: &Arc<Entry>, to: Address) -> c_int {
    // SAFETY: no pointers.
    let own = Fd::open_raw(|| unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) });
    let Ok(own) = own else { return failed(libc::ENOMEM) };
    let until = Instant::now() + connecting::PATIENCE;
    let attempt = Attempt { fd, own, entry: entry.clone(), to, until };
    entry.begin_to_connect(fd);
    // SAFETY: an address that lives across the call.
    let begun = unsafe {
        (calls.rfcntl)(entry.rsocket, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK);
        let (addr, len) = attempt.to.get();
        (calls.rconnect)(entry.rsocket, addr, len)
    };
    if begun < 0 && errno() != libc::EINPROGRESS {
        return attempt.by_tcp(calls);
    }
    match add(calls, attempt) {
        Ok(()) => failed(libc::EINPROGRESS),
        Err(attempt) => attempt.by_tcp(calls),
    }
}

/// Gives the thread an attempt; back where there is no thread to be had, or too much to do.
fn add(calls: &'static Calls, attempt: Attempt) -> Result<(), Attempt> {
    let mut attempts = attempts();
    if attempts.all.len() >= MOST {
        return Err(attempt);
    }
    if let Some(wake) = &attempts.wake {
        wake.wake();
    } else {
        let Ok(wake) = WakeFd::new().map(Arc::new) else { return Err(attempt) };
        let thread = std::thread::Builder::new().name("rsocket-connect".to_owned()).stack_size(1 << 18);
        let own = wake.clone();
        if with_signals_blocked(|| thread.spawn(move || run(calls, &own))).is_err() {
            return Err(attempt);
        }
        attempts.wake = Some(wake);
    }
    attempts.all.push(attempt);
    Ok(())
}

/// For how long the thread stays for the next connection.
const STAY: Duration = Duration::from_secs(1);

fn run(calls: &'static Calls, wake: &WakeFd) {
    let mut idle = Instant::now();
    loop {
        let (mut fds, until) = {
            let mut attempts = attempts();
            if !attempts.all.is_empty() {
                idle = Instant::now();
            } else if idle.elapsed() >= STAY {
                attempts.wake = None;
                return;
            }
            let until = attempts.all.iter().map(|attempt| attempt.until).min().unwrap_or(idle + STAY);
            let wanted = |fd| pollfd { fd, events: libc::POLLOUT, revents: 0 };
            let mut fds = vec![pollfd { events: libc::POLLIN, ..wanted(wake.as_raw_fd()) }];
            fds.extend(attempts.all.iter().map(|attempt| wanted(attempt.entry.rsocket)));
            (fds, until)
        };
        let left = until.saturating_duration_since(Instant::now()).as_millis() as c_int + 1;
        // SAFETY: an array of so many.
        let found = unsafe { (calls.rpoll)(fds.as_mut_ptr(), fds.len() as u64, left) };
        wake.drain();
        let now = Instant::now();
        // Only this thread takes attempts away, so that the first are those that were asked about.
        let done: Vec<Attempt> = {
            let mut attempts = attempts();
            let is_ready = |at: usize| found > 0 && fds.get(at + 1).is_some_and(|fd| fd.revents != 0);
            let is_done: Vec<bool> =
                (0..).zip(&attempts.all).map(|(at, attempt)| is_ready(at) || now >= attempt.until).collect();
            let mut is_done = is_done.into_iter();
            attempts.all.extract_if(.., |_| is_done.next() == Some(true)).collect()
        };
        done.into_iter().for_each(|attempt| attempt.finish(calls));
    }
}

impl Attempt {
    /// The peer has answered, or the time is over.
    fn finish(self, calls: &Calls) {
        let (mut error, mut len) = (0, size_of::<c_int>() as socklen_t);
        let (mut name, mut name_len) = ([0_u64; 16], size_of::<[u64; 16]>() as socklen_t);
        let at: *mut sockaddr = name.as_mut_ptr().cast();
        let rsocket = self.entry.rsocket;
        // SAFETY: an int, and room for any address, which live across the calls.
        let is_connected = unsafe {
            let value = (&raw mut error).cast();
            (calls.rgetsockopt)(rsocket, libc::SOL_SOCKET, libc::SO_ERROR, value, &raw mut len);
            error == 0 && (calls.rgetpeername)(rsocket, at, &raw mut name_len) == 0
        };
        if is_connected {
            // SAFETY: no pointers.
            unsafe {
                (calls.rfcntl)(rsocket, libc::F_SETFL, real::fcntl(self.own.as_raw_fd(), libc::F_GETFL, 0))
            };
            table::is_stream(&self.entry);
            self.entry.is_connected(calls, Way::Rdma);
            return;
        }
        if matches!(error, 0 | libc::ETIMEDOUT) {
            self.to.remember();
        }
        self.by_tcp(calls);
    }

    /// Goes on by TCP; what connect(2) says.
    fn by_tcp(&self, calls: &Calls) -> c_int {
        let (addr, len) = self.to.get();
        // SAFETY: an address that lives across the call.
        let connected = unsafe { real::connect(self.own.as_raw_fd(), addr, len) };
        let error = errno();
        match connected {
            0 => {}
            _ if error == libc::EINPROGRESS => {}
            _ => self.entry.set_error(error),
        }
        self.entry.is_connected(calls, Way::Tcp);
        if connected == 0 || error == libc::EINPROGRESS {
            table::is_tcp(self.fd, &self.entry);
        }
        if connected < 0 { failed(error) } else { connected }
    }
}

/// Which way a descriptor goes. Where it is being connected, and its program waits, that is known
/// then.
pub(crate) fn outcome(fd: c_int, entry: &Entry) -> Way {
    // SAFETY: no pointers.
    let waits = || unsafe { real::fcntl(fd, libc::F_GETFL, 0) } & libc::O_NONBLOCK == 0;
    while entry.way() == Way::Connecting && waits() {
        entry.wait_connected(LOOK);
    }
    entry.way()
}
