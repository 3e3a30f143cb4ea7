//! A network namespace for one test. Tests are processes that share 127.0.0.1 otherwise, and what
//! the kernel has put into the socket of one that ends is lost. Datagrams and unreliable
//! connections have no engine that would send it again.

use std::process::Command;

/// Moves the calling thread, and those that it starts from now on, into a network namespace of its
/// own; where only root may, runs the test `name` again as root of a user namespace. True where
/// that has been done, and the caller is through.
pub(crate) fn begin(name: &str) -> bool {
    // SAFETY: no pointers; only the calling thread moves.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        let status = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(status.is_ok_and(|status| status.success()), "ip link set lo up");
        return false;
    }
    let test = name.split_once("::").map_or(name, |(_, test)| test);
    let program = std::env::current_exe().expect("a path");
    let again = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net"]);
        command
    };
    if !again().arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("no network namespace can be made here: other tests may disturb this one");
        return false;
    }
    let status = again().arg(program).args(["--exact", test, "--nocapture"]).status();
    assert!(status.is_ok_and(|status| status.success()), "the test in its own namespace");
    true
}

/// Leaves the rest of a test to a network namespace of its own.
macro_rules! alone {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        if $crate::alone::begin(name.strip_suffix("::here").unwrap_or(name)) {
            return;
        }
    }};
}
pub(crate) use alone;
