//! What must not compile does not, and says why so that one sees what to do: the messages lie
//! beside the programs. They are those of the compiler named here; others word them differently,
//! and are asked by the documentation tests whether they refuse the like. `TRYBUILD=overwrite`
//! writes them anew.
// Not where the tests of a foreign machine run, which has no compiler of its own.
#![cfg(all(feature = "software", feature = "sim", target_arch = "x86_64"))]

use std::process::Command;

/// The compiler whose messages they are.
const RUSTC: &str = "rustc 1.95.";

#[test]
fn what_is_unsound_does_not_compile_and_says_why() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version =
        Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version);
    if !version.starts_with(RUSTC) {
        eprintln!("left out: the messages are those of {RUSTC}, here is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
