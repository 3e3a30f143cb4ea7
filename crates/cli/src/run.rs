//! `verbena run`: becomes another program, for which the dynamic loader finds Verbena instead of
//! rdma-core.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::fabric::On;
use crate::{brought, capture, object, packages, program, sysfs};

/// Where programs are looked for without PATH (execvp(3)).
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// VERBENA_DEVICES for an iWARP device on each interface.
const IWARP: &str = "siw_*=iwarp:*";

/// Run a program on Verbena
///
/// The program, and all that it starts, loads libibverbs.so.1, librdmacm.so.1 and librpma.so.0 from
/// Verbena, through LD_LIBRARY_PATH. Set-user-ID and statically linked programs do not load it; a
/// line on standard error says so. Where the kernel allows it, /sys/class/infiniband and
/// /dev/infiniband show the devices to the program alone. `rdma link show` and `rdma dev show` list
/// them everywhere.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the system's librpma.so.0 on top of Verbena's other libraries
    #[arg(long)]
    system_librpma: bool,
    /// Run the program on this host of a fabric that `verbena fabric run` has: libibumad.so.3 is
    /// Verbena's, and /sys/class/infiniband_mad and /dev/infiniband show the host's ports
    #[arg(long, value_name = "HOST")]
    on: Option<String>,
    /// The fabric of --on, where several run. Same as VERBENA_FABRIC
    #[arg(long, value_name = "NAME", requires = "on")]
    fabric: Option<String>,
    /// Leave /sys and /dev as they are, and the program in its caller's namespaces
    #[arg(long)]
    no_sysfs: bool,
    /// Preload the library (LD_PRELOAD), for programs that bring a libibverbs of their own under
    /// another name. Set by itself where the program's file names such a library
    #[arg(long)]
    preload: bool,
    /// Take the byte streams of programs that know sockets only to RDMA, by rsockets. A peer
    /// without rsockets is reached by TCP
    #[arg(long)]
    rsockets: bool,
    /// Write the counters to FILE when the program ends. %p in FILE stands for the process id. Same
    /// as VERBENA_COUNTERS
    #[arg(long, value_name = "FILE")]
    counters: Option<PathBuf>,
    /// Send all traffic through UDP sockets, even between processes of this host. Same as
    /// VERBENA_SAME_HOST=off
    #[arg(long)]
    wire: bool,
    /// Give each interface an iWARP device, siw_<interface>, in place of a RoCE one. Same as
    /// VERBENA_DEVICES='siw_*=iwarp:*'
    #[arg(long)]
    iwarp: bool,
    #[command(flatten)]
    capture: capture::CaptureArgs,
    /// Bring faults about by rules, such as loss=1%,dir=out; delay=2ms; error=rem-access,nth=5. All
    /// traffic goes as packets, as with --wire
    #[arg(long, value_name = "RULES")]
    faults: Option<String>,
    /// The seed of --faults: the same one makes the same decisions. Without it one is drawn, and
    /// printed
    #[arg(long, value_name = "NUMBER", requires = "faults")]
    seed: Option<u64>,
    /// Tell what the program does with work requests, memory and queues that the manual pages of
    /// rdma-core do not allow, on standard error. With --check=error its exit code is 23 then. Same
    /// as VERBENA_CHECK
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "on",
        value_parser = ["on", "error"])]
    check: Option<String>,
    /// Append what --check finds to FILE, a line of JSON each
    #[arg(long, value_name = "FILE", requires = "check")]
    check_json: Option<PathBuf>,
    /// Do not tell what FILE lists, a line RULE:PATTERN each; # begins a comment. The pattern is
    /// looked for in the frames and the text of a finding, and * in it stands for anything
    #[arg(long, value_name = "FILE", requires = "check")]
    check_suppressions: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Becomes the program; returns only where that fails, with the shell's code: 127 where there is no
/// such program, 126 where it cannot be run (env(1)).
///
/// # Errors
/// A message where the shared object is not found or cannot be linked to.
pub(crate) fn run(args: Args) -> Result<ExitCode, String> {
    // What is unpacked or shown may be longer than files of this process may be, of which the
    // kernel tells by a signal.
    let links = linux::without_file_size_signal(|| links(&args))?;
    let on = args.on.as_deref().map(|host| On::enter(args.fabric.as_deref(), host)).transpose()?;
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
    preload(&mut command, &args, &links)?;
    if let Some(commands) = object::commands(&links) {
        command.env("PATH", before(&commands, Some(&path)));
    }
    if let Some(on) = &on {
        on.present(&mut command, !args.no_sysfs);
    } else if !args.no_sysfs && linux::process::environment::fabric().is_none() {
        // A kernel that refuses, or devices that the command cannot list, are no reason not to run:
        // the library works without.
        let devices = args.iwarp.then_some(IWARP);
        let _ = linux::without_file_size_signal(|| sysfs::present(&mut command, devices));
    }
    if args.iwarp {
        command.env("VERBENA_DEVICES", IWARP);
    }
    if let Some(file) = &args.counters {
        command.env("VERBENA_COUNTERS", file);
    }
    if let Some(rules) = &args.faults {
        let spec: faults::Spec = rules.parse().map_err(|error| format!("--faults: {error}"))?;
        let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()) >> 32);
        eprintln!("verbena: --faults '{spec}' --seed {seed}");
        note_faults(&spec, args.iwarp);
        command.env("VERBENA_FAULTS", rules).env("VERBENA_FAULTS_SEED", seed.to_string());
    }
    set_checks(&mut command, &args)?;
    if args.wire || args.faults.is_some() {
        command.env("VERBENA_SAME_HOST", "off");
    }
    let error = if args.capture.file.is_some() {
        match capture::run(command, args.capture, &links)? {
            Ok(code) => return Ok(code),
            Err(error) => error,
        }
    } else {
        command.exec()
    };
    let is_missing = error.kind() == ErrorKind::NotFound;
    eprintln!("verbena: cannot run {}: {}", program.display(), why_not(program, &path, &error));
    Ok(ExitCode::from(if is_missing { 127 } else { 126 }))
}

/// Says which rules do nothing on the devices that the program will have.
fn note_faults(spec: &faults::Spec, iwarp: bool) {
    let devices = env::var("VERBENA_DEVICES").unwrap_or_default();
    let has_streams = iwarp || devices.contains("=iwarp:");
    let has_packets = !iwarp && (devices.trim().is_empty() || devices.contains("=roce:"));
    spec.notes(has_streams, has_packets).iter().for_each(|note| eprintln!("verbena: --faults: {note}"));
}

/// The directory of links to the objects that the program loads.
fn links(args: &Args) -> Result<PathBuf, String> {
    let object = object::find()?;
    let rpma = if args.system_librpma { None } else { Some(object::find_rpma(&object)?) };
    let umad = if args.on.is_some() { Some(object::find_umad(&object)?) } else { None };
    object::links(&object, rpma.as_deref(), umad.as_deref())
}

/// Sets what is loaded before all else: the object, where the program brings one of its own, and
/// the one of rsockets.
fn preload(command: &mut Command, args: &Args, links: &Path) -> Result<(), String> {
    let mut given = env::var_os("LD_PRELOAD");
    let program = command.get_program().to_owned();
    let object = args.preload || brings_its_own(&program, set_before(command, "LD_LIBRARY_PATH"));
    let object = object.then(|| links.join(object::NAMES[0]));
    let rsockets = args.rsockets.then(|| object::find_rspreload(&object::find()?)).transpose()?;
    for object in object.iter().chain(&rsockets) {
        given = Some(behind(given.as_deref(), object));
        command.env("LD_PRELOAD", given.as_deref().unwrap_or_default());
    }
    Ok(())
}

/// What `--check` and the options beside it say, for the program's environment.
fn set_checks(command: &mut Command, args: &Args) -> Result<(), String> {
    let Some(how) = &args.check else { return Ok(()) };
    command.env("VERBENA_CHECK", how);
    if let Some(file) = &args.check_json {
        let file = std::path::absolute(file).map_err(|error| format!("--check-json: {error}"))?;
        command.env("VERBENA_CHECK_JSON", file);
    }
    if let Some(file) = &args.check_suppressions {
        let wrong = |why: &dyn Display| format!("--check-suppressions: {}: {why}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        check::Suppressions::parse(&text).map_err(|bad| wrong(&bad))?;
        let file = std::path::absolute(file).map_err(|error| wrong(&error))?;
        command.env("VERBENA_CHECK_SUPPRESSIONS", file);
    }
    Ok(())
}

/// What is wrong where execvp(3) failed so: ENOENT is said of the program and of what the kernel
/// starts for it alike.
fn why_not(program: &OsStr, path: &OsStr, error: &io::Error) -> String {
    if error.kind() != ErrorKind::NotFound {
        return error.to_string();
    }
    if let Some(interpreter) = program::missing_interpreter(program, path) {
        return format!("there is no {}, which it names", interpreter.display());
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return format!("there is no such file ({error})");
    }
    let none = format!("there is no such program in PATH ({error})");
    match packages::of(program) {
        Some(package) => {
            format!("{none}. Debian and Ubuntu have it in {package}: apt-get install {package}")
        }
        None => none,
    }
}

/// Whether a program brings these libraries along, which is said then.
fn brings_its_own(program: &OsStr, library_path: Option<OsString>) -> bool {
    let Some(file) = found(program) else { return false };
    let copies = brought::copies(&file, library_path.as_deref(), &object::NAMES);
    if let [first, ..] = &copies[..] {
        eprintln!(
            "verbena: {} brings {}; Verbena's is put before it by LD_PRELOAD",
            program.display(),
            first.display()
        );
    }
    !copies.is_empty()
}

/// What a variable of a command's environment was set to.
fn set_before(command: &Command, variable: &str) -> Option<OsString> {
    let mut given = command.get_envs();
    given.find(|(name, _)| *name == variable).and_then(|(_, value)| value.map(OsStr::to_owned))
}

/// The file of a program, as execvp(3) finds it.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// What is preloaded: what was, then the object, unless it is there.
fn behind(given: Option<&OsStr>, object: &Path) -> OsString {
    let mut all = given.unwrap_or_default().to_owned();
    let is_there = |text: &OsStr| {
        text.as_encoded_bytes()
            .split(|b| b": ".contains(b))
            .any(|p| p == object.as_os_str().as_encoded_bytes())
    };
    if !is_there(&all) {
        if !all.is_empty() {
            all.push(":");
        }
        all.push(object);
    }
    all
}

/// A search path: `first`, then what was there. An empty entry would mean the current directory
/// (ld.so(8), execvp(3)).
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
    fn the_object_is_preloaded_once_behind_what_was() {
        let object = Path::new("/run/verbena/libibverbs.so.1");
        let preloaded = |given: &str| behind(Some(OsStr::new(given)), object);
        assert_eq!((behind(None, object), preloaded("")), (object.into(), object.into()));
        assert_eq!(preloaded("/a.so"), "/a.so:/run/verbena/libibverbs.so.1");
        assert_eq!(preloaded("/a.so /run/verbena/libibverbs.so.1"), "/a.so /run/verbena/libibverbs.so.1");
    }

    #[test]
    fn the_links_stand_before_what_was_there_and_no_empty_entry_arises() {
        let links = Path::new("/run/verbena");
        assert_eq!(before(links, None), "/run/verbena");
        assert_eq!(before(links, Some(OsStr::new(""))), "/run/verbena");
        assert_eq!(before(links, Some(OsStr::new("/run/verbena"))), "/run/verbena");
        assert_eq!(before(links, Some(OsStr::new("/a:/b"))), "/run/verbena:/a:/b");
    }
}
