//! Running a test on many seeds.
//!
//! | variable | meaning |
//! |---|---|
//! | `VERBENA_SEEDS` | how many seeds instead of the test's own number |
//! | `VERBENA_SEED` | this one alone, with every packet on standard error |

/// The one seed that `VERBENA_SEED` asks for.
pub fn single() -> Option<u64> {
    std::env::var("VERBENA_SEED").ok()?.parse().ok()
}

/// [`each_seed_of`] for the tests of this crate: `file` and `test` are the names of the test file and function.
pub fn each_seed(file: &str, test: &str, count: u64, run: impl FnMut(u64)) {
    let command = format!("cargo test -p verbena-sim --test {file} {test} -- --nocapture");
    each_seed_of(&command, count, run);
}

/// Runs `run` on the seeds 0 to `count` - 1, or what the environment asks for. Where one panics, the command that
/// repeats it is printed to standard error: `command`, with the seed in its environment.
pub fn each_seed_of(command: &str, count: u64, mut run: impl FnMut(u64)) {
    let count = std::env::var("VERBENA_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(count);
    let seeds = single().map_or(0..count, |seed| seed..seed.saturating_add(1));
    for seed in seeds {
        let _told = Told { command, seed };
        run(seed);
    }
}

struct Told<'a> {
    command: &'a str,
    seed: u64,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Told { command, seed } = self;
            eprintln!("seed {seed} failed; to repeat it:");
            eprintln!("VERBENA_SEED={seed} {command}");
        }
    }
}
