//! What the view of /sys/class shows ([`crate::sysfs`]), as a directory that lies ready for the
//! programs of a user. It has six hundred names for two devices: to make them for each program took
//! half of the 9 ms of `verbena run -- true`, and the kernel took them apart again when the program
//! ended.
//!
//! It lies where the links to the library do, in a private directory that is named after a hash of
//! all that it says. Programs that start while the devices have the same addresses share it, and no
//! program changes it. It is made under another name and then renamed: no program sees half of it.
//! Each week has its own, because what is ten days old may be removed from /tmp, file by file
//! (tmpfiles.d(5)).

use std::fs::{self, DirBuilder, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::object::{self, Fnv};
use crate::sysfs::{self, Entry};

/// How the directories are named in the private one; the number of a week follows.
const NAME: &str = "class-";
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A directory with which no program was started for so long goes when another is made.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The directory in which the tree lies ready, with these directories at least; it is made where it
/// is not there yet.
///
/// # Errors
/// What refused the last place.
pub(crate) fn find(dirs: &[&str], tree: &[(PathBuf, Entry)]) -> io::Result<PathBuf> {
    let uid = linux::user();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for base in object::bases(uid) {
        match find_in(&base, uid, SystemTime::now(), dirs, tree) {
            Ok(ready) => return Ok(ready),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn find_in(
    base: &Path,
    uid: u32,
    now: SystemTime,
    dirs: &[&str],
    tree: &[(PathBuf, Entry)],
) -> io::Result<PathBuf> {
    let mut hash = Fnv::default();
    (NAME, dirs, tree).hash(&mut hash);
    let dir = object::private_dir_of(base, uid, hash.finish())?;
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ready = dir.join(format!("{NAME}{}", since_1970.as_secs() / WEEK.as_secs()));
    if let Ok(there) = File::open(&ready) {
        // When it was last used; a process that can not say so uses it all the same.
        let _ = there.set_modified(now);
        return Ok(ready);
    }
    forget_others(base, uid, now);
    let new = dir.join(format!(".{NAME}{:x}", object::random()));
    let made = make(&new, dirs, tree).and_then(|()| fs::rename(&new, &ready));
    if made.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    // Another one may have been faster.
    if ready.is_dir() { Ok(ready) } else { made.map(|()| ready) }
}

fn make(new: &Path, dirs: &[&str], tree: &[(PathBuf, Entry)]) -> io::Result<()> {
    dirs.iter().try_for_each(|dir| DirBuilder::new().recursive(true).mode(0o755).create(new.join(dir)))?;
    sysfs::write(new, tree)
}

/// Removes those of this user with which no program was started for a month.
fn forget_others(base: &Path, uid: u32, now: SystemTime) {
    let ours = format!("verbena-{uid}-");
    let is_ours = |dir: &fs::DirEntry| {
        dir.file_name().to_string_lossy().starts_with(&ours)
            && dir.metadata().is_ok_and(|m| object::is_private(&m, uid))
    };
    let is_old = |ready: &fs::DirEntry| {
        let used = ready.metadata().and_then(|m| m.modified()).ok();
        let age = used.and_then(|used| now.duration_since(used).ok());
        ready.file_name().to_string_lossy().starts_with(NAME) && age.is_some_and(|age| age > KEPT)
    };
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    for dir in entries(base).filter(is_ours) {
        for ready in entries(&dir.path()).filter(is_old) {
            let _ = fs::remove_dir_all(ready.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> (PathBuf, Entry) {
        (path.into(), Entry::File(text.to_owned()))
    }

    #[test]
    fn what_says_the_same_lies_ready_once_a_week_and_one_not_used_for_a_month_goes() {
        let base = std::env::temp_dir().join(format!("verbena-ready-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir(&base).unwrap();
        let (uid, dirs, week) = (linux::user(), ["a", "b"], |n| SystemTime::UNIX_EPOCH + n * WEEK);
        let find = |n, text| {
            find_in(&base, uid, week(n), &dirs, &[file("a/c/d", text), file("a/c/e", text)]).unwrap()
        };
        let one = find(10, "one");
        assert_eq!(fs::read_to_string(one.join("a/c/e")).unwrap(), "one");
        assert!(one.join("b").is_dir());
        // No process writes it again in its week, and each says when it was used.
        fs::write(one.join("a/c/d"), "still").unwrap();
        assert_eq!(find(10, "one"), one);
        assert_eq!(fs::read_to_string(one.join("a/c/d")).unwrap(), "still");
        let next = find(11, "one");
        assert_eq!(fs::read_to_string(next.join("a/c/d")).unwrap(), "one");
        assert_eq!(find(11, "one"), next);

        // What is another user's, or something else, stays.
        let strange = base.join("verbena-strange").join("class-1");
        fs::create_dir_all(&strange).unwrap();
        File::open(&strange).unwrap().set_modified(week(1)).unwrap();
        let two = find(15, "two");
        let there = [&one, &next, &two, &strange].map(|dir| dir.exists());
        assert_eq!(there, [false, true, true, true]);
        fs::remove_dir_all(&base).unwrap();
    }
}
