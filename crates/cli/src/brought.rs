//! Programs that bring libibverbs or librdmacm of their own: under another name, as wheels of PyPI
//! do (`libibverbs-1a2b3c4d.so.1` in a directory `.libs`), or in a directory that the dynamic
//! loader searches before LD_LIBRARY_PATH (DT_RPATH). They do not find Verbena's by the library's
//! name, but by the names of its functions, where the object comes first of all (LD_PRELOAD).
//!
//! What a program needs is read from its file and from those that it names, as the loader would
//! (ld.so(8), elf(5)). What it loads while it runs is not seen so.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most files that are looked at.
const MAX_FILES: usize = 1_000;
/// Most bytes of a table of a file.
const MAX_BYTES: u64 = 16 << 20;

/// The copies that a program brings of the libraries of these names: their files.
pub(crate) fn copies(program: &Path, library_path: Option<&OsStr>, names: &[&str]) -> Vec<PathBuf> {
    let given: Vec<PathBuf> =
        library_path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    // Each with the DT_RPATH of those that need it.
    let mut to_do = vec![(program.to_owned(), Vec::new())];
    while let Some((file, above)) = to_do.pop() {
        let Some(needs) = Needs::of(&file).filter(|_| known.len() < MAX_FILES) else { continue };
        let first: Vec<PathBuf> = if needs.runpath.is_empty() {
            needs.rpath.iter().cloned().chain(above.iter().cloned()).collect()
        } else {
            Vec::new()
        };
        for name in &needs.names {
            let is_it = names.iter().any(|known| OsStr::new(known) == name);
            let before = find(&first, name);
            let place = before.clone().or_else(|| find(&given, name)).or_else(|| find(&needs.runpath, name));
            let Some(place) = place.filter(|place| known.insert(place.clone())) else { continue };
            if is_it && before.is_some() || !is_it && is_copy(name, names) {
                found.push(place);
            } else if !is_it {
                to_do.push((place, first.clone()));
            }
        }
    }
    found
}

/// Whether a name is made from one of these: `libibverbs-1a2b3c4d.so.1` from `libibverbs.so.1`.
fn is_copy(name: &OsStr, names: &[&str]) -> bool {
    let file = Path::new(name).file_name().unwrap_or(name).as_bytes();
    names.iter().any(|known| {
        let stem = known.split('.').next().unwrap_or(known).as_bytes();
        file.strip_prefix(stem).is_some_and(|rest| matches!(rest.first(), Some(b'-' | b'_' | b'.')))
    })
}

/// Where the loader finds a name in these directories. One with a slash is a path.
fn find(dirs: &[PathBuf], name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// What a file says that it needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    names: Vec<OsString>,
    rpath: Vec<PathBuf>,
    runpath: Vec<PathBuf>,
}

impl Needs {
    /// `None` for what is no dynamic object of 64 bits, in the byte order of this machine.
    fn of(path: &Path) -> Option<Self> {
        const PT_LOAD: u32 = 1;
        const PT_DYNAMIC: u32 = 2;
        let file = File::open(path).ok()?;
        let header = bytes(&file, 0, 64)?;
        let is_elf = header.starts_with(b"\x7fELF\x02")
            && header[5] == if cfg!(target_endian = "little") { 1 } else { 2 };
        if !is_elf {
            return None;
        }
        let (entry, count) = (u64::from(half(&header, 54)?), u64::from(half(&header, 56)?));
        let table = bytes(&file, long(&header, 32)?, entry.checked_mul(count)?)?;
        // Type, offset in the file, address, bytes in the file.
        let segments: Vec<(u32, u64, u64, u64)> = table
            .chunks_exact(usize::try_from(entry).ok().filter(|entry| *entry >= 56)?)
            .filter_map(|s| Some((word(s, 0)?, long(s, 8)?, long(s, 16)?, long(s, 32)?)))
            .collect();
        let &(_, at, _, len) = segments.iter().find(|segment| segment.0 == PT_DYNAMIC)?;
        let dynamic = bytes(&file, at, len)?;
        let entries: Vec<(u64, u64)> = dynamic
            .as_chunks::<16>()
            .0
            .iter()
            .filter_map(|e| Some((long(e, 0)?, long(e, 8)?)))
            .take_while(|e| e.0 != 0)
            .collect();
        const DT_NEEDED: u64 = 1;
        const DT_STRTAB: u64 = 5;
        const DT_STRSZ: u64 = 10;
        const DT_RPATH: u64 = 15;
        const DT_RUNPATH: u64 = 29;
        let values = |tag| entries.iter().filter(move |entry| entry.0 == tag).map(|entry| entry.1);
        let address = values(DT_STRTAB).next()?;
        let place = segments.iter().find_map(|&(kind, offset, from, len)| {
            let at = address.checked_sub(from).filter(|at| kind == PT_LOAD && *at < len)?;
            offset.checked_add(at)
        })?;
        let strings = bytes(&file, place, values(DT_STRSZ).next()?)?;
        let string = |at: u64| {
            let rest = strings.get(usize::try_from(at).ok()?..)?;
            let end = rest.iter().position(|byte| *byte == 0)?;
            Some(OsStr::from_bytes(&rest[..end]))
        };
        let origin = std::fs::canonicalize(path).ok()?.parent()?.to_owned();
        let dirs = |tag| {
            let lists = values(tag).filter_map(string);
            lists.flat_map(std::env::split_paths).map(|dir| expanded(&dir, &origin)).collect::<Vec<_>>()
        };
        let names = values(DT_NEEDED).filter_map(string).map(OsStr::to_owned).collect();
        Some(Self { names, rpath: dirs(DT_RPATH), runpath: dirs(DT_RUNPATH) })
    }
}

/// A directory with `$ORIGIN` in its place (ld.so(8)).
fn expanded(dir: &Path, origin: &Path) -> PathBuf {
    let mut text = dir.as_os_str().as_bytes().to_vec();
    for token in [&b"${ORIGIN}"[..], b"$ORIGIN"] {
        while let Some(at) = text.windows(token.len()).position(|part| part == token) {
            text.splice(at..at + token.len(), origin.as_os_str().as_bytes().iter().copied());
        }
    }
    PathBuf::from(OsStr::from_bytes(&text))
}

fn bytes(file: &File, at: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= MAX_BYTES)?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

    #[test]
    fn a_copy_is_known_by_the_name_that_it_is_made_from() {
        let is = |name: &str| is_copy(OsStr::new(name), &NAMES);
        assert!(
            is("libibverbs-1a2b3c4d.so.1")
                && is("librdmacm-dead.so.1.3.44.0")
                && is("/x/.libs/libibverbs_1.so")
        );
        assert!(!is("libibverbsx.so.1") && !is("libc.so.6") && !is("libibumad.so.3"));
    }

    #[test]
    fn the_directory_of_the_file_stands_where_it_is_named() {
        let origin = Path::new("/opt/x");
        for (dir, want) in
            [("$ORIGIN/../.libs", "/opt/x/../.libs"), ("${ORIGIN}", "/opt/x"), ("/usr/lib", "/usr/lib")]
        {
            assert_eq!(expanded(Path::new(dir), origin), Path::new(want));
        }
    }

    #[test]
    fn what_is_no_object_needs_nothing_and_this_test_needs_the_c_library() {
        let own = Needs::of(&std::env::current_exe().unwrap()).unwrap();
        assert!(own.names.iter().any(|name| name.as_bytes().starts_with(b"libc.so.")), "{own:?}");
        let dir = std::env::temp_dir().join(format!("verbena-brought-{}", std::process::id()));
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for len in [0, 4, 63, 64, 200, 1000] {
            std::fs::write(&dir, &whole[..len]).unwrap();
            assert_eq!(Needs::of(&dir), None, "{len} bytes");
        }
        // Whatever a file says of its tables.
        for at in 0..64 {
            let mut bad = whole[..4096].to_vec();
            bad[at] = 0xff;
            std::fs::write(&dir, &bad).unwrap();
            _ = Needs::of(&dir);
        }
        std::fs::remove_file(dir).unwrap();
    }
}
