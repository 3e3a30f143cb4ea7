//! `verbena run`: becomes another program, for which the dynamic loader finds Verbena instead of rdma-core.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{object, program, sysfs};

/// Where programs are looked for without PATH (execvp(3)).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Run a program on Verbena
///
/// The program and all that it starts load libibverbs.so.1, librdmacm.so.1 and librpma.so.0 from
/// Verbena, through LD_LIBRARY_PATH. The loader ignores that for set-user-ID programs, and it means
/// nothing to statically linked ones: where the program is such a one, a line on standard error
/// says so. Where the kernel allows it, /sys/class/infiniband, /sys/class/infiniband_verbs and
/// /dev/infiniband show the devices as they are when the program starts, to it alone; `rdma link
/// show` and `rdma dev show` tell of them everywhere.
#[derive(clap::Args)]
pub struct Args {
    /// Leave librpma.so.0 to the system's, which runs on Verbena's other two libraries
    #[arg(long)]
    system_librpma: bool,
    /// Leave /sys and /dev as they are, and the program in the namespaces of its caller
    #[arg(long)]
    no_sysfs: bool,
    /// Write what was counted (packets sent, received, dropped and why) to FILE when the program ends; %p in it is the
    /// process's number. The same as VERBENA_COUNTERS in the environment
    #[arg(long, value_name = "FILE")]
    counters: Option<PathBuf>,
    /// Send by the network only, also between processes of this host. The same as VERBENA_SAME_HOST=off in the environment
    #[arg(long)]
    wire: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Becomes the program; returns only where that fails, with the shell's code: 127 where there is no such program, 126
/// where it cannot be run (env(1)).
///
/// # Errors
/// A message where the shared object is not found or cannot be linked to.
pub fn run(args: Args) -> Result<ExitCode, String> {
    // What is unpacked or shown may be longer than files of this process may be, of which the
    // kernel tells by a signal.
    let files = || {
        let object = object::find()?;
        let rpma = if args.system_librpma { None } else { Some(object::find_rpma(&object)?) };
        object::links(&object, rpma.as_deref())
    };
    let links = host::without_file_size_signal(files)?;
    let [program, rest @ ..] = &args.command[..] else {
        return Err("no program is named".into());
    };
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    if let Some(why) = program::obstacle(program, rest, &path) {
        eprintln!("verbena: {} does not get Verbena: {why}. See {}", program.display(), program::PAGE);
    }
    let mut given = env::var_os("LD_LIBRARY_PATH");
    if args.system_librpma {
        given = given.map(|path| without_rpma(&path));
    }
    let libraries = before(&links, given.as_deref());
    let mut command = Command::new(program);
    command.args(rest).env("LD_LIBRARY_PATH", libraries);
    if let Some(commands) = object::commands(&links) {
        command.env("PATH", before(&commands, Some(&path)));
    }
    if !args.no_sysfs {
        // A kernel that refuses, or devices that nobody can list, are no reason not to run: the library works without.
        let _ = host::without_file_size_signal(sysfs::present);
    }
    if let Some(file) = &args.counters {
        command.env("VERBENA_COUNTERS", file);
    }
    if args.wire {
        command.env("VERBENA_SAME_HOST", "off");
    }
    let error = command.exec();
    match program::missing_loader(program, &path).filter(|_| error.kind() == ErrorKind::NotFound) {
        Some(loader) => {
            eprintln!("verbena: cannot run {}: there is no {}", program.display(), loader.display());
        }
        None => eprintln!("verbena: cannot run {}: {error}", program.display()),
    }
    Ok(ExitCode::from(if error.kind() == ErrorKind::NotFound { 127 } else { 126 }))
}

/// A search path: `first`, then what was there. An empty entry would mean the current directory (ld.so(8), execvp(3)).
fn before(first: &Path, rest: Option<&OsStr>) -> OsString {
    let mut path = first.as_os_str().to_owned();
    if let Some(rest) = rest.filter(|r| !r.is_empty() && *r != path) {
        path.push(":");
        path.push(rest);
    }
    path
}

/// A search path less the directories of a `verbena run` around this one that show its librpma.
fn without_rpma(path: &OsStr) -> OsString {
    let kept = env::split_paths(path).filter(|dir| !object::shows_rpma(dir));
    env::join_paths(kept).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_links_stand_before_what_was_there_and_no_empty_entry_arises() {
        let links = Path::new("/run/verbena");
        assert_eq!(before(links, None), "/run/verbena");
        assert_eq!(before(links, Some(OsStr::new(""))), "/run/verbena");
        assert_eq!(before(links, Some(OsStr::new("/run/verbena"))), "/run/verbena");
        assert_eq!(before(links, Some(OsStr::new("/a:/b"))), "/run/verbena:/a:/b");
    }
}
