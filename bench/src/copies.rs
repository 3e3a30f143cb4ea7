//! What the kernel's copies between two processes take with nothing in between: the calls that a
//! WRITE or READ of Verbena by memory makes, of which each begins with eight bytes to or from a
//! page that proves who the other one is.
//!
//! The other process is `verbena-bench copies answer|lie`: it says where its memory is, is told
//! where ours is, and answers or leaves it alone.

use std::hint;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::pin;
use crate::rdma::Running;

/// Bytes of a large copy.
const LARGE: usize = 1 << 20;
/// In the memory of each: a page of eight bytes that are copied first, then that of the copies.
const GUARD: usize = 512;
const WORDS: usize = GUARD + LARGE / 8;
const ROUNDS: usize = 9;
const PINGS: u64 = 20_000;
const COPIES: usize = 256;
/// What ends the other one.
const END: u64 = u64::MAX;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// process_vm_writev(2).
    To,
    /// process_vm_readv(2).
    From,
}

/// The other process.
struct Other {
    pid: i32,
    /// Of its memory.
    address: u64,
}

/// Bytes of this process, all of them in memory: of zeros that were never written the system has
/// one page for all, and copies of it cost less than any program's.
fn memory() -> &'static [AtomicU64] {
    let ours = (1..=WORDS as u64).map(AtomicU64::new).collect::<Vec<_>>().leak();
    // What is looked at: no round has been.
    ours[GUARD..GUARD + 2].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    ours
}

impl Other {
    fn parse(line: [f64; 2]) -> Self {
        // A number of 53 bits holds any address of a process.
        Self { pid: line[0] as i32, address: line[1] as u64 }
    }

    /// Copies between these words of ours and its words at the same place, those of the guard
    /// first; the last word is a piece of its own.
    fn copy(&self, way: Way, ours: &[AtomicU64], at: usize, words: usize) -> io::Result<()> {
        let here =
            |at: usize, words: usize| libc::iovec { iov_base: ours[at].as_ptr().cast(), iov_len: words * 8 };
        let there = |at: usize, words: usize| libc::iovec {
            iov_base: (self.address as usize + at * 8) as *mut libc::c_void,
            iov_len: words * 8,
        };
        let local = [here(0, 1), here(at, words)];
        let mut remote = vec![there(8, 1)];
        if way == Way::To && words > 1 {
            remote.extend([there(at, words - 1), there(at + words - 1, 1)]);
        } else {
            remote.push(there(at, words));
        }
        let call = if way == Way::To { libc::process_vm_writev } else { libc::process_vm_readv };
        // SAFETY: the pieces lie in memory of atomics that is never given back; the kernel checks
        // those of the other process.
        let done = unsafe { call(self.pid, local.as_ptr(), 2, remote.as_ptr(), remote.len() as u64, 0) };
        if done == (words as isize + 1) * 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Two numbers in a line: a process and its memory.
fn introduce(ours: &[AtomicU64]) -> String {
    format!("{} {}", std::process::id(), ours.as_ptr() as u64)
}

/// The other process.
///
/// # Errors
/// What the system says; `InvalidInput` for other arguments.
pub(crate) fn run(args: &[String]) -> io::Result<()> {
    let [what] = args else { return Err(io::ErrorKind::InvalidInput.into()) };
    pin::to_core(1)?;
    let ours = memory();
    println!("{}", introduce(ours));
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    let other = Other::parse(numbers.ok_or(io::ErrorKind::InvalidInput)?);
    // Until the process that started it has done.
    let mut wait = || io::stdin().read_line(&mut line).map(drop);
    if what == "lie" {
        return wait();
    }
    let mut last = 0;
    loop {
        match ours[GUARD].load(Ordering::Acquire) {
            END => return wait(),
            word if word == last => hint::spin_loop(),
            word => {
                last = word;
                ours[GUARD + 1].store(word, Ordering::Relaxed);
                other.copy(Way::To, ours, GUARD + 1, 1)?;
            }
        }
    }
}

/// Runs this with the other process, in a thread on the first core.
fn with<T: Send>(
    what: &str,
    measure: impl FnOnce(&Other, &[AtomicU64]) -> io::Result<T> + Send,
) -> io::Result<T> {
    let ours = memory();
    let mut child = Running::start(Command::new(std::env::current_exe()?).args(["copies", what]))?;
    let other = Other::parse(child.numbers()?);
    child.tell(&introduce(ours))?;
    let measured = thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            pin::to_core(0)?;
            measure(&other, ours)
        });
        measuring.join().map_err(|_| io::Error::other("a measuring thread panicked"))?
    })?;
    child.go()?;
    child.end()?;
    Ok(measured)
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Microseconds of half a round trip of eight bytes, each side watching its memory.
///
/// # Errors
/// When the system refuses the calls, or the other process ends.
pub(crate) fn ping_pong() -> io::Result<f64> {
    with("answer", |other, ours| {
        let (mut rounds, mut n) = (Vec::new(), 0);
        for _ in 0..=ROUNDS {
            let begin = Instant::now();
            for _ in 0..PINGS {
                n += 1;
                ours[GUARD].store(n, Ordering::Relaxed);
                other.copy(Way::To, ours, GUARD, 1)?;
                while ours[GUARD + 1].load(Ordering::Acquire) != n {
                    hint::spin_loop();
                }
            }
            rounds.push(begin.elapsed().as_secs_f64() * 1e6 / PINGS as f64 / 2.0);
        }
        ours[GUARD].store(END, Ordering::Relaxed);
        other.copy(Way::To, ours, GUARD, 1)?;
        rounds.remove(0); // warming up
        Ok(median(rounds))
    })
}

/// GB/s of copies of 1 MiB by one thread.
///
/// # Errors
/// When the system refuses the calls.
pub(crate) fn bandwidth(way: Way) -> io::Result<f64> {
    with("lie", |other, ours| {
        let mut rounds = Vec::new();
        for _ in 0..=ROUNDS {
            let begin = Instant::now();
            for _ in 0..COPIES {
                other.copy(way, ours, GUARD, LARGE / 8)?;
            }
            rounds.push((COPIES * LARGE) as f64 / begin.elapsed().as_secs_f64() / 1e9);
        }
        rounds.remove(0); // warming up
        Ok(median(rounds))
    })
}
