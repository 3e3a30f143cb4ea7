//! What `#[verbena::test]` expands to: a test on all of its seeds.

use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::pin::Pin;

use ::fabric::net::Net;

use super::fabric;
use super::host::Host;
use super::settings::{Settings, Wrong};
use super::world::{Entered, World};

/// What a test function may return: nothing, or a `Result` whose error is a panic.
pub trait Outcome {
    /// Panics with the error.
    fn check(self);
}

impl Outcome for () {
    fn check(self) {}
}

impl<T: Outcome, E: std::fmt::Debug> Outcome for Result<T, E> {
    fn check(self) {
        match self {
            Ok(outcome) => outcome.check(),
            Err(e) => panic!("the test returned an error: {e:?}"),
        }
    }
}

/// For the attribute: the outcome of a test function.
#[doc(hidden)]
pub fn check(outcome: impl Outcome) {
    outcome.check();
}

/// For the attribute: evaluated by the compiler, so that a wrong text does not compile.
#[doc(hidden)]
pub const fn check_settings(text: &str) {
    if let Err(wrong) = Settings::parse(text) {
        panic!("{}", wrong.why);
    }
}

/// For the attribute: runs a test on its seeds. `module` is the module's path, `args` the text of
/// the attribute, `hosts` the names of the hosts in order.
///
/// # Panics
///
/// Where the test does, or `args` is wrong; after what the test said stands the command that
/// repeats the seed.
#[doc(hidden)]
#[track_caller]
pub fn run_seeds(
    module: &str,
    test: &str,
    args: &str,
    hosts: &[&'static str],
    run: impl Fn(Vec<Host>) -> Pin<Box<dyn Future<Output = ()>>>,
) {
    let at = Location::caller();
    let settings = Settings::parse(args).unwrap_or_else(|Wrong { why, left }| {
        panic!("#[verbena::test({args})]: {why}, at `{}`", args.get(args.len() - left..).unwrap_or(""))
    });
    let net = settings
        .fabric
        .map(|text| fabric::net(text).unwrap_or_else(|why| panic!("#[verbena::test({args})]: {why}")));
    ::sim::each_seed_of(&command(module, test), settings.seeds, |seed| {
        simulate(seed, (&settings, net.as_ref()), hosts, at, &run);
    });
}

/// The command that runs one test alone, of whichever file of the package. The name of a test is
/// its path in its crate.
fn command(module: &str, test: &str) -> String {
    let inner = module.split_once("::").map(|(_, inner)| format!("{inner}::")).unwrap_or_default();
    let package = std::env::var("CARGO_PKG_NAME").map(|name| format!(" -p {name}")).unwrap_or_default();
    format!("cargo test{package} {inner}{test} -- --exact --nocapture")
}

pub(super) fn simulate(
    seed: u64,
    (settings, net): (&Settings<'_>, Option<&Net>),
    hosts: &[&'static str],
    at: &'static Location<'static>,
    run: &impl Fn(Vec<Host>) -> Pin<Box<dyn Future<Output = ()>>>,
) {
    let world = World::new(seed, (settings, net), hosts);
    let _entered = Entered::new(&world);
    // Tasks are dropped when nothing unwinds any more: what they hold may panic, too.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let hosts = (0..hosts.len()).map(|place| Host::new(&world, place)).collect();
        world.run(run(hosts), at);
    }));
    world.end();
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_the_test_by_its_path_in_the_crate() {
        let package = std::env::var("CARGO_PKG_NAME").unwrap();
        let command = |module| command(module, "works");
        let expected = |name| format!("cargo test -p {package} {name} -- --exact --nocapture");
        assert_eq!(command("three_hosts"), expected("works"));
        assert_eq!(command("verbena::sim::tests"), expected("sim::tests::works"));
    }
}
