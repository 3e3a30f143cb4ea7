//! The objects that the command bears in itself, as files that the dynamic loader can map: for a
//! command that stands alone, as `cargo install` leaves it.
//!
//! Each file lies in a directory of this user's own which is named after a hash of the object. So
//! every build has its own and all runs of a build share one. It is written under another name and
//! then renamed: no program sees half of it.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::object::{self, OBJECT, RPMA, RSPRELOAD, UMAD};

/// An object that is inside: the file's name, its bytes, and a hash of them.
pub(crate) struct Inside {
    name: &'static str,
    bytes: &'static [u8],
    hash: u64,
}

impl Inside {
    const fn of(name: &'static str, (bytes, hash): (&'static [u8], u64)) -> Self {
        Self { name, bytes, hash }
    }
}

/// The one that is libibverbs and librdmacm.
pub(crate) static VERBS: Inside = Inside::of(OBJECT, cli_embed::object!(verbena_rdma));

/// The one that is librpma.
pub(crate) static LIBRPMA: Inside = Inside::of(RPMA, cli_embed::object!(verbena_rpma));

/// The one that is libibumad.
pub(crate) static LIBUMAD: Inside = Inside::of(UMAD, cli_embed::object!(verbena_umad));

/// The one that is preloaded for rsockets.
pub(crate) static LIBRSPRELOAD: Inside = Inside::of(RSPRELOAD, cli_embed::object!(verbena_rspreload));

/// Objects of other builds that were not used for so long make room when one is added.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What helps where no directory is taken.
pub(crate) const ADVICE: &str = "Point XDG_CACHE_HOME or TMPDIR to a directory of yours without `noexec`, into whose path other users \
                          cannot put anything.";

/// An object as a file, which is written where it is not there yet: in the user's cache
/// ($XDG_CACHE_HOME or ~/.cache), or a directory that does not outlive the machine.
///
/// # Errors
/// A message that says why each directory was not taken.
pub(crate) fn unpack(inside: &Inside, uid: u32) -> Result<PathBuf, String> {
    if inside.bytes.is_empty() {
        return Err("This build of the command has no object inside.".into());
    }
    let mut refused = Vec::new();
    let cache = cache(uid);
    for base in cache.iter().cloned().chain(object::bases(uid)) {
        match unpack_in(&base, uid, inside) {
            Ok((object, new)) => {
                if new && cache.as_ref() == Some(&base) {
                    forget_others(&base, &object);
                }
                return Ok(object);
            }
            Err(e) => refused.push(format!("  {}: {e}", base.display())),
        }
    }
    Err(format!(
        "The one inside this command could not be written to any of\n{}\n{ADVICE}",
        refused.join("\n")
    ))
}

/// `verbena` in the user's cache directory (XDG base directory specification). Where the directory
/// belongs to another user, as that of the caller of sudo does, nothing is left in it.
pub(crate) fn cache(uid: u32) -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|d| d.is_absolute());
    let home = || absolute("HOME").filter(|home| is_own(home, uid)).map(|home| home.join(".cache"));
    let dir = absolute("XDG_CACHE_HOME").or_else(home)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    if made.is_err() || !is_own(&dir, uid) || !object::fits(&dir) {
        return None;
    }
    let dir = dir.join("verbena");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    (made.is_ok() && fs::symlink_metadata(&dir).is_ok_and(|m| object::is_private(&m, uid))).then_some(dir)
}

fn is_own(dir: &Path, uid: u32) -> bool {
    fs::metadata(dir).is_ok_and(|m| m.uid() == uid)
}

/// The object in a private directory in `base`, and whether it is there only now.
fn unpack_in(base: &Path, uid: u32, inside: &Inside) -> io::Result<(PathBuf, bool)> {
    let Inside { name, bytes, hash } = *inside;
    if !linux::may_load_from(base)? {
        return Err(io::Error::other("mounted with noexec"));
    }
    let dir = object::private_dir_of(base, uid, hash)?;
    let path = dir.join(name);
    if let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path)
        && is_whole(&file, uid, bytes)?
    {
        // When it was last used; a process that cannot say so uses it all the same.
        let _ = file.set_modified(SystemTime::now());
        return Ok((path, false));
    }
    let new = dir.join(format!(".{name}.{:x}", object::random()));
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o500).open(&new).and_then(|mut file| {
            file.write_all(bytes)?;
            // Or a machine that goes down now may keep the new name of a file without its bytes.
            file.sync_all()
        });
    if let Err(e) = written.and_then(|()| fs::rename(&new, &path)) {
        let _ = fs::remove_file(&new);
        return Err(e);
    }
    Ok((path, true))
}

/// Whether a file of this user, which no other may write to, holds just these bytes: one may have
/// been cut off, or written over.
fn is_whole(file: &File, uid: u32, bytes: &[u8]) -> io::Result<bool> {
    let about = file.metadata()?;
    if !about.is_file()
        || about.uid() != uid
        || about.mode() & 0o022 != 0
        || about.len() != bytes.len() as u64
    {
        return Ok(false);
    }
    let (mut file, mut rest, mut part) = (file, bytes, [0; 1 << 16]);
    while !rest.is_empty() {
        let read = file.read(&mut part)?;
        match rest.strip_prefix(&part[..read]) {
            Some(after) if read > 0 => rest = after,
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Removes what other builds left in the cache and no run used for a month. What fails here is
/// tried again with the next build.
fn forget_others(base: &Path, but: &Path) {
    let old = |object: &Path| {
        let used = fs::metadata(object).and_then(|m| m.modified()).ok();
        used.and_then(|used| used.elapsed().ok()).is_some_and(|age| age > KEPT)
    };
    for dir in fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let mut objects = [OBJECT, RPMA].map(|name| dir.join(name)).into_iter();
        if objects.any(|object| object != but && old(&object)) {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty directory of this test's own.
    fn scratch(name: &str) -> PathBuf {
        let dir = env::temp_dir().join(format!("verbena-unpack-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn what_is_inside_are_shared_objects() {
        for inside in [&VERBS, &LIBRPMA, &LIBUMAD, &LIBRSPRELOAD] {
            assert!(inside.bytes.starts_with(b"\x7fELF"), "{}", inside.name);
            assert_ne!(inside.hash, 0);
        }
    }

    /// An object of few bytes.
    fn few(hash: u64) -> Inside {
        Inside::of(OBJECT, (b"object", hash))
    }

    #[test]
    fn an_object_is_written_once_and_again_where_it_was_cut_off() {
        let (base, uid) = (scratch("once"), linux::user());
        let (path, new) = unpack_in(&base, uid, &few(1)).unwrap();
        assert!(new);
        assert_eq!(unpack_in(&base, uid, &few(1)).unwrap(), (path.clone(), false));
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"obj").unwrap();
        assert_eq!(unpack_in(&base, uid, &few(1)).unwrap(), (path.clone(), true));
        assert_eq!(fs::read(&path).unwrap(), b"object");
        // One of as many other bytes, and a link to a file that says what it should.
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"OBJECT").unwrap();
        assert_eq!(unpack_in(&base, uid, &few(1)).unwrap(), (path.clone(), true));
        assert_eq!(fs::read(&path).unwrap(), b"object");
        let elsewhere = base.join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert_eq!(unpack_in(&base, uid, &few(1)).unwrap(), (path.clone(), true));
        assert!(!path.is_symlink());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn builds_stand_side_by_side_and_one_not_used_for_a_month_goes() {
        let (base, uid) = (scratch("builds"), linux::user());
        let [old, used, new] = [1, 2, 3].map(|hash| unpack_in(&base, uid, &few(hash)).unwrap().0);
        let month_ago = SystemTime::now() - 2 * KEPT;
        for path in [&old, &used, &new] {
            File::open(path).unwrap().set_modified(month_ago).unwrap();
        }
        unpack_in(&base, uid, &few(2)).unwrap();
        forget_others(&base, &new);
        assert_eq!([&old, &used, &new].map(|path| path.exists()), [false, true, true]);
        fs::remove_dir_all(base).unwrap();
    }
}
