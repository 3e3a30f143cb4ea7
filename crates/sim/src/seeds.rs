//! Running a test on many seeds.
//!
//! | variable | meaning |
//! |---|---|
//! | `VERBENA_SEEDS` | how many seeds instead of the test's own number |
//! | `VERBENA_SEED` | this one alone, with every packet on standard error |

/// The one seed that `VERBENA_SEED` asks for.
///
/// # Panics
///
/// If the variable is set to anything but a number: other seeds in its place would hide the failure
/// that it was to repeat.
pub fn single() -> Option<u64> {
    number("VERBENA_SEED")
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{variable}: '{}' is not a number", text.display())))
}

/// [`each_seed_of`] for the tests of this crate: `file` and `test` are the names of the test file
/// and function.
pub fn each_seed(file: &str, test: &str, count: u64, run: impl FnMut(u64)) {
    let command = format!("cargo test -p verbena-sim --test all {file}::{test} -- --nocapture");
    each_seed_of(&command, count, run);
}

/// Runs `run` on the seeds 0 to `count` - 1, or what the environment asks for. Where one panics,
/// the command that repeats it is printed to standard error: `command`, with the seed in its
/// environment.
pub fn each_seed_of(command: &str, count: u64, mut run: impl FnMut(u64)) {
    let count = number("VERBENA_SEEDS").unwrap_or(count);
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
