//! What this process has counted, written to a file when it ends: `VERBENA_COUNTERS` names the file, in which `%p` stands
//! for the process's number.
//!
//! | name | what |
//! |---|---|
//! | `host.NAME` | [`crate::Counters`]: packets and system calls |
//! | `node.NAME` | [`node::Counters`]: packets that no queue pair got, by reason |
//! | `DEVICE.NAME` | [`nic::device::Counters`]: packets for queue pairs |
//!
//! One `name value` a line. A process that made no device writes nothing, and so does one that a signal kills.

use std::fmt::Write;
use std::path::PathBuf;

use super::{Instance, environment};
use crate::per_process::Kept;

/// The file as it was named at first. A forked child inherits it.
static FILE: Kept<Option<PathBuf>> = Kept::new();

/// Remembers the file that the environment asks for.
pub(super) fn remember() {
    FILE.get_or_make(environment::counters_file);
}

/// Writes the counters if the environment asked for it. Takes no lock that it would wait for.
pub(super) fn write(instance: &Instance) {
    let Some(Some(file)) = FILE.get() else { return };
    let name = file.to_string_lossy();
    let file = match name.contains("%p") {
        true => PathBuf::from(name.replace("%p", &std::process::id().to_string())),
        false => file.clone(),
    };
    if let Err(e) = std::fs::write(&file, text(instance)) {
        let message = format!("verbena: VERBENA_COUNTERS: {}: {e}\n", file.display());
        // SAFETY: bytes of ours. Not by `eprintln`, which takes a lock.
        unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    }
}

fn text(instance: &Instance) -> String {
    let host = instance.host.world().counters().snapshot();
    let host = host.into_iter().map(|(name, n)| (format!("host.{name}"), n));
    let mut text = String::new();
    for (name, n) in host.chain(instance.node().counted()) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {n}");
    }
    text
}
