//! What can be seen of a program before it starts: whether the dynamic loader will find Verbena for
//! it.
//!
//! | program | what happens |
//! |---|---|
//! | set-user-ID, set-group-ID, with capabilities of its own | the loader ignores LD_LIBRARY_PATH (ld.so(8), secure-execution mode) |
//! | statically linked | there is no loader |
//! | of another C library (musl), or for another kind of processor | its loader cannot load Verbena's libraries |
//! | `env -i`, `sudo`, `doas` | what it starts gets no LD_LIBRARY_PATH |
//!
//! Each may be a launcher, and what it starts may well get Verbena: so it is told of, and runs.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The page that says what to do.
pub(crate) const PAGE: &str = "the guide, Troubleshooting, \"Programs that do not get Verbena\"";

/// Set-user-ID and set-group-ID (inode(7)); the latter means something else where the group may not
/// execute.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2010;

/// Why a program does not get Verbena, as far as its file and arguments tell; `None` where nothing
/// speaks against it.
pub(crate) fn obstacle(program: &OsStr, arguments: &[OsString], path: &OsStr) -> Option<String> {
    let file = find(program, path)?;
    if starts_with_nothing(&file, arguments) {
        return Some("it takes LD_LIBRARY_PATH away: start `verbena run` behind it".to_owned());
    }
    more_rights(&file).map(str::to_owned).or_else(|| match Elf::read(&file).ok()?? {
        Elf { is_ours: false, .. } => Some("it is for another kind of processor".to_owned()),
        Elf { loader: None, .. } => {
            Some("it is linked statically, so no loader looks for libraries".to_owned())
        }
        Elf { loader: Some(loader), .. } => {
            let name = loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"));
            (!name).then(|| {
                format!(
                    "it is of another C library than glibc, which Verbena's are linked to ({})",
                    loader.display()
                )
            })
        }
    })
}

/// What a program names to be started by, and that is not there: a loader, or the interpreter of a
/// script. execve(2) says ENOENT of it as of the program.
pub(crate) fn missing_interpreter(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let file = find(program, path)?;
    let interpreter = match Elf::read(&file).ok()? {
        Some(elf) => elf.loader?,
        None => script_interpreter(&file).ok()??,
    };
    (!interpreter.exists()).then_some(interpreter)
}

/// What stands after `#!` in the first line of a script, without the argument (execve(2)).
fn script_interpreter(file: &Path) -> io::Result<Option<PathBuf>> {
    let mut head = Vec::new();
    File::open(file)?.take(LONGEST).read_to_end(&mut head)?;
    let line = head.split(|byte| *byte == b'\n').next().and_then(|line| line.strip_prefix(b"#!"));
    let mut words = line.unwrap_or_default().split(|byte| b" \t".contains(byte));
    Ok(words.find(|word| !word.is_empty()).map(|word| OsStr::from_bytes(word).into()))
}

/// The file that execvp(3) runs.
fn find(program: &OsStr, path: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    std::env::split_paths(path)
        .map(|dir| dir.join(program))
        .find(|file| fs::metadata(file).is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0))
}

/// `sudo` and `doas`, or `env` with an option that empties the environment before the program that
/// it starts.
fn starts_with_nothing(file: &Path, arguments: &[OsString]) -> bool {
    let empties = |argument: &OsStr| match argument.as_bytes() {
        b"-" | b"--ignore-environment" => true,
        [b'-', first, rest @ ..] => {
            *first != b'-' && *first != b'u' && [*first].iter().chain(rest).any(|b| *b == b'i')
        }
        _ => false,
    };
    let is_option = |argument: &&OsString| argument.as_bytes().starts_with(b"-");
    let name = file.file_name().unwrap_or_default();
    name == "sudo"
        || name == "doas"
        || name == "env" && arguments.iter().take_while(is_option).any(|argument| empties(argument))
}

/// Whether the kernel gives the program more rights than its caller has.
fn more_rights(file: &Path) -> Option<&'static str> {
    let about = fs::metadata(file).ok()?;
    let (user, group) = linux::real_ids();
    let has_bits = |bits| about.mode() & bits == bits;
    match () {
        () if fs::read_to_string("/proc/self/status")
            .is_ok_and(|status| status.contains("NoNewPrivs:\t1")) =>
        {
            None
        }
        () if has_bits(SET_USER_ID) && about.uid() != user => {
            Some("it is set-user-ID, and the loader ignores LD_LIBRARY_PATH for it")
        }
        () if has_bits(SET_GROUP_ID) && about.gid() != group => {
            Some("it is set-group-ID, and the loader ignores LD_LIBRARY_PATH for it")
        }
        () if user != 0 && linux::has_file_capabilities(file) => {
            Some("it has capabilities of its own (setcap), and the loader ignores LD_LIBRARY_PATH for it")
        }
        () => None,
    }
}

/// What the head of an ELF file says.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    /// For processors of the kind that this command is for.
    is_ours: bool,
    /// The dynamic loader; `None` for what is linked statically.
    loader: Option<PathBuf>,
}

/// Of the ELF header (elf(5)): the bytes before the program's headers, and where they say what.
const HEADER: usize = 64;
/// Headers that are looked at, and the longest name of a loader.
const MAX_HEADERS: u16 = 64;
const LONGEST: u64 = 4096;
const PT_INTERP: u64 = 3;

impl Elf {
    /// `None` for a file that is none, as a script.
    fn read(file: &Path) -> io::Result<Option<Self>> {
        let file = File::open(file)?;
        let mut header = [0; HEADER];
        if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        let own = own_machine();
        // 64 bits, little-endian, and its machine.
        if header[4] != 2 || header[5] != 1 || own.is_some_and(|own| number(&header[18..20]) != own) {
            return Ok(Some(Self { is_ours: false, loader: None }));
        }
        let (at, size, count) = (number(&header[32..40]), number(&header[54..56]), number(&header[56..58]));
        let mut loader = None;
        for n in 0..count.min(MAX_HEADERS.into()) {
            let mut entry = [0; 56];
            file.read_exact_at(&mut entry, at.saturating_add(n * size))?;
            if number(&entry[..4]) == PT_INTERP {
                let mut name = vec![0; number(&entry[32..40]).min(LONGEST) as usize];
                file.read_exact_at(&mut name, number(&entry[8..16]))?;
                let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
                loader = Some(PathBuf::from(OsStr::from_bytes(&name[..end])));
            }
        }
        Ok(Some(Self { is_ours: true, loader }))
    }
}

/// `e_machine` of this command; `None` where that is not known.
fn own_machine() -> Option<u64> {
    match std::env::consts::ARCH {
        "x86_64" => Some(62),
        "aarch64" => Some(183),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The head of an ELF file for this machine, with a loader of that name.
    fn elf(loader: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&(own_machine().unwrap_or(0) as u16).to_le_bytes());
        bytes[32] = HEADER as u8;
        bytes[54] = 56;
        if let Some(loader) = loader {
            bytes[56] = 2;
            // PT_LOAD, then PT_INTERP, whose name stands after.
            let mut entries = [0; 2 * 56];
            entries[0] = 1;
            entries[56] = PT_INTERP as u8;
            entries[56 + 8..56 + 16].copy_from_slice(&((HEADER + 2 * 56) as u64).to_le_bytes());
            entries[56 + 32..56 + 40].copy_from_slice(&(loader.len() as u64 + 1).to_le_bytes());
            bytes.extend(entries);
            bytes.extend(loader.bytes().chain([0]));
        }
        bytes
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("verbena-program-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        /// A program, and what speaks against it.
        fn judged(&self, name: &str, bytes: &[u8], mode: u32, arguments: &[&str]) -> Option<String> {
            let file = self.0.join(name);
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let by_path = obstacle(OsStr::new(name), &arguments, self.0.as_os_str());
            assert_eq!(by_path, obstacle(file.as_os_str(), &arguments, OsStr::new("/nowhere")));
            by_path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn a_program_of_glibc_and_a_script_have_no_obstacle() {
        let dir = Scratch::new("fine");
        assert_eq!(dir.judged("program", &elf(Some(GLIBC)), 0o755, &["-i"]), None);
        assert_eq!(
            dir.judged("nix", &elf(Some("/nix/store/x-glibc/lib/ld-linux-x86-64.so.2")), 0o755, &[]),
            None
        );
        assert_eq!(dir.judged("script", b"#!/bin/sh\nexec rping\n", 0o755, &[]), None);
        assert_eq!(dir.judged("short", b"\x7fELF", 0o755, &[]), None);
        assert_eq!(obstacle(OsStr::new("none"), &[], dir.0.as_os_str()), None);
    }

    #[test]
    fn static_programs_those_of_another_library_and_of_another_machine_are_told_of() {
        let dir = Scratch::new("loader");
        let says = |bytes: &[u8], word: &str| {
            let said = dir.judged("program", bytes, 0o755, &[]);
            assert!(said.as_ref().is_some_and(|said| said.contains(word)), "{said:?} {word}");
        };
        says(&elf(None), "statically");
        says(&elf(Some("/lib/ld-musl-x86_64.so.1")), "ld-musl-x86_64.so.1");
        let mut other = elf(Some(GLIBC));
        other[4] = 1;
        says(&other, "another kind of processor");
        // Cut off in the middle it is the kernel's to refuse.
        let whole = elf(Some(GLIBC));
        assert!((HEADER..whole.len()).all(|len| dir.judged("cut", &whole[..len], 0o755, &[]).is_none()));
        let missing = elf(Some("/nowhere/ld-linux-x86-64.so.2"));
        assert_eq!(dir.judged("missing", &missing, 0o755, &[]), None);
        let loader = missing_interpreter(OsStr::new("missing"), dir.0.as_os_str());
        assert_eq!(loader, Some(PathBuf::from("/nowhere/ld-linux-x86-64.so.2")));
        for (script, names) in [
            (&b"#!/nowhere/python3 -u\nprint()\n"[..], Some("/nowhere/python3")),
            (b"#! \t/nowhere/sh", Some("/nowhere/sh")),
            (b"#!/bin/sh\n", None),
            (b"#!\n", None),
            (b"#", None),
            (b"", None),
        ] {
            assert_eq!(dir.judged("script", script, 0o755, &[]), None);
            let missing = missing_interpreter(OsStr::new("script"), dir.0.as_os_str());
            assert_eq!(missing, names.map(PathBuf::from), "{script:?}");
        }
    }

    #[test]
    fn env_that_empties_the_environment_is_told_of_and_env_that_does_not_is_not() {
        let dir = Scratch::new("env");
        let is_told = |arguments: &[&str]| dir.judged("env", &elf(Some(GLIBC)), 0o755, arguments).is_some();
        for empties in [&["-i", "rping"][..], &["-", "rping"], &["--ignore-environment", "x"], &["-0i", "x"]]
        {
            assert!(is_told(empties), "{empties:?}");
        }
        for keeps in [&["A=i", "rping", "-i"][..], &["rping", "-"], &["-uid", "x"], &["--unset=i", "x"], &[]]
        {
            assert!(!is_told(keeps), "{keeps:?}");
        }
    }

    #[test]
    fn a_program_with_another_users_rights_is_told_of_and_one_with_the_callers_is_not() {
        let dir = Scratch::new("rights");
        let program = elf(Some(GLIBC));
        assert_eq!(dir.judged("own", &program, 0o6755, &[]), None, "it is the caller's own");
        if linux::user() != 0 {
            return println!("left out: only root gives files away");
        }
        for (bits, word) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
            let file = dir.0.join("other");
            fs::write(&file, &program).unwrap();
            std::os::unix::fs::chown(&file, Some(4242), Some(4242)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(bits)).unwrap();
            let said = obstacle(file.as_os_str(), &[], OsStr::new(""));
            assert!(said.as_ref().is_some_and(|said| said.contains(word)), "{said:?}");
        }
    }
}
