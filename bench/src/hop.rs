//! How long a cache line takes from one core to the other: what no two processes of one machine are
//! faster than. A machine that is itself a guest has cores that its host moves, and then this
//! changes within minutes: so it stands beside the figures.

use std::hint;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin;

/// Short ones: the few in which something else ran do not move the median.
const ROUNDS: u64 = 201;
const PINGS: u64 = 1_000;
/// Two threads of which one waits for its core take turns of a scheduler's slice: then there are
/// fewer rounds, or none.
const PATIENCE: Duration = Duration::from_secs(3);

/// A line by itself, and the one beside it, which processors fetch along.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    /// Spins until the line says `wanted`; false when that takes too long.
    fn wait(&self, wanted: u64, until: Instant) -> bool {
        let mut spins = 0_u32;
        while self.0.load(Ordering::Acquire) != wanted {
            hint::spin_loop();
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 16) && Instant::now() > until {
                return false;
            }
        }
        true
    }
}

/// Nanoseconds of half a round trip of one line between two pinned threads, the median of several
/// rounds.
///
/// # Errors
/// When threads cannot be pinned; `TimedOut` when the two do not run at the same time.
pub(crate) fn half_round_trip() -> io::Result<f64> {
    let line = Line(AtomicU64::new(0));
    let until = Instant::now() + PATIENCE;
    let last = (ROUNDS + 1) * PINGS;
    thread::scope(|scope| {
        let answering = scope.spawn(|| -> io::Result<()> {
            pin::to_core(1)?;
            for n in 0..last {
                if !line.wait(2 * n + 1, until) {
                    break;
                }
                line.0.store(2 * n + 2, Ordering::Release);
            }
            Ok(())
        });
        let asking = scope.spawn(|| -> io::Result<f64> {
            pin::to_core(0)?;
            let (mut rounds, mut n) = (Vec::new(), 0);
            while n < last {
                let begin = Instant::now();
                for _ in 0..PINGS {
                    line.0.store(2 * n + 1, Ordering::Release);
                    if !line.wait(2 * n + 2, until) {
                        return median(rounds);
                    }
                    n += 1;
                }
                rounds.push(begin.elapsed().as_secs_f64() * 1e9 / PINGS as f64 / 2.0);
            }
            median(rounds)
        });
        let panicked = |_| io::Error::other("a measuring thread panicked");
        let took = asking.join().map_err(panicked)?;
        answering.join().map_err(panicked)??;
        took
    })
}

/// Of what there is; the first round warms up.
fn median(mut rounds: Vec<f64>) -> io::Result<f64> {
    if rounds.len() < 2 {
        let why = "a cache line does not come back: are there two free cores?";
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    rounds.remove(0);
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}
