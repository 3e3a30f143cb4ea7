//! Threads on cores of their own, and what they take of them.

use std::io;
use std::process::{Child, Command};
use std::time::Duration;

/// Keeps the calling thread on one core; on a machine with fewer, on the last.
///
/// # Errors
/// What sched_setaffinity(2) says.
pub(crate) fn to_core(core: usize) -> io::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: a cpu_set_t is an array of integers, for which all zeros is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and CPU_SET checks the index against its size.
    unsafe { libc::CPU_SET(core.min(cores - 1), &mut set) };
    // SAFETY: the pointer and the size describe `set`, which the call only reads.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process on each core that computes without a break, until this is dropped.
pub(crate) struct Busy(Vec<Child>);

impl Busy {
    /// # Errors
    /// When one cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let mut busy = Self(Vec::new());
        for core in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            // A child inherits the affinity of the thread that starts it.
            let start = move || {
                to_core(core)?;
                Command::new("sh").args(["-c", "while :; do :; done"]).spawn()
            };
            let started = std::thread::spawn(start).join();
            busy.0.push(started.map_err(|_| io::Error::other("a starting thread panicked"))??);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // They end in no other way.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How often threads of processes that this one started, and that have ended, slept.
pub(crate) fn sleeps_of_children() -> i64 {
    of_children().ru_nvcsw
}

/// What processes that this one started, and that have ended, have taken of the processor, in the
/// system, too.
pub(crate) fn time_of_children() -> Duration {
    let usage = of_children();
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn of_children() -> libc::rusage {
    // SAFETY: integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the structure, which is ours.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    usage
}

/// What all threads of this process have taken of the processor so far.
pub(crate) fn time_of_all() -> Duration {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// What the calling thread has.
pub(crate) fn time_of_thread() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn time_of(clock: libc::clockid_t) -> Duration {
    // SAFETY: a timespec is two integers, for which zero is a value.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the clock writes the timespec, which is ours.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
