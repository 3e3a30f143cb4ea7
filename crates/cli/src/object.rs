//! Finds the shared object, and makes the directory of links through which programs find it.

use std::env;
use std::fs::{self, DirBuilder, Metadata};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// The file's name.
const OBJECT: &str = "libverbena_rdma.so";

/// The names by which programs know the libraries that the object is.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// A name that earlier commands linked too: librpma is not built, and the system's runs on the other two.
const FORMER: &str = "librpma.so.0";

/// Where the object may be, given by the user.
const VARIABLE: &str = "VERBENA_LIBRARY";

/// How many names to try for the private directory before giving up.
const TRIES: u32 = 16;

/// The object: what VERBENA_LIBRARY names; or the newest in the build tree the command stands in; or in
/// `../lib/verbena` beside the command's directory; or in the tree that built the command.
///
/// # Errors
/// A message that names the places and says what to do.
pub fn find() -> Result<PathBuf, String> {
    if let Some(given) = env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        return fs::canonicalize(&given)
            .map_err(|e| format!("{VARIABLE} names {}, which cannot be read: {e}", given.display()));
    }
    let places = places();
    // A build tree holds it twice, and either may be the older: a place is a list of equals.
    let found = places.iter().find_map(|equals| newest(equals));
    found.and_then(|path| fs::canonicalize(path).ok()).ok_or_else(|| {
        let looked: Vec<_> = places.iter().flatten().map(|d| format!("  {}", d.join(OBJECT).display())).collect();
        format!(
            "{OBJECT} is not found. Looked for it at\n{}\nBuild it with `cargo build --release -p verbena-lib`, copy \
             it beside this command or to ../lib/verbena from there, or name it in {VARIABLE}.",
            looked.join("\n")
        )
    })
}

/// Directories to look in, best first; those of one list are equals.
fn places() -> Vec<Vec<PathBuf>> {
    let mut places = Vec::new();
    let exe = env::current_exe().ok().and_then(|exe| fs::canonicalize(exe).ok());
    if let Some(dir) = exe.as_deref().and_then(Path::parent) {
        places.push(vec![dir.to_owned(), dir.join("deps")]);
        if let Some(prefix) = dir.parent() {
            places.push(vec![prefix.join("lib/verbena")]);
        }
    }
    let tree = Path::new(env!("VERBENA_BUILD_TREE"));
    if tree.is_absolute() {
        places.push(vec![tree.to_owned(), tree.join("deps")]);
    }
    places
}

/// The newest object in these directories.
fn newest(dirs: &[PathBuf]) -> Option<PathBuf> {
    let objects = dirs.iter().map(|d| d.join(OBJECT));
    let dated =
        objects.filter_map(|o| Some((fs::metadata(&o).ok().filter(Metadata::is_file)?.modified().ok()?, o)));
    dated.max().map(|(_, object)| object)
}

/// A directory, private to this user, in which the names of the two libraries are links to `object`. It is the same
/// one every time, so that nothing is left behind by each run.
///
/// # Errors
/// A message, where no such directory can be made.
pub fn links(object: &Path) -> Result<PathBuf, String> {
    let uid =
        effective_uid().map_err(|e| format!("cannot tell the user's id from /proc/self/status: {e}"))?;
    let mut last = String::from("no directory for temporary files is known");
    for base in bases(uid) {
        let dir = match private_dir(&base, uid, object) {
            Ok(dir) => dir,
            Err(e) => {
                last = format!("cannot make a private directory in {}: {e}", base.display());
                continue;
            }
        };
        let linked = unlink(&dir.join(FORMER))
            .and_then(|()| NAMES.iter().try_for_each(|name| link(&dir, name, object)));
        return linked
            .map(|()| dir.clone())
            .map_err(|e| format!("cannot make links in {}: {e}", dir.display()));
    }
    Err(last)
}

/// A directory, beside the links, of commands that stand before the system's: `rdma`, which is this command. `None` where it
/// cannot be made; programs then find the system's.
pub fn commands(links: &Path) -> Option<PathBuf> {
    let exe = env::current_exe().ok().and_then(|exe| fs::canonicalize(exe).ok())?;
    let dir = links.join("bin");
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => link(&dir, "rdma", &exe).ok()?,
    }
    Some(dir)
}

/// Where the directory may be: the user's runtime directory (0700 by the XDG specification), or that of temporary
/// files. A path with a colon or a semicolon cannot stand in LD_LIBRARY_PATH.
fn bases(uid: u32) -> Vec<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|d| d.is_absolute() && fs::metadata(d).is_ok_and(|m| is_private(&m, uid)));
    let fits = |d: &PathBuf| !d.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b':' | b';'));
    runtime.into_iter().chain([env::temp_dir(), PathBuf::from("/tmp")]).filter(fits).collect()
}

/// Makes `verbena-<uid>-<hash of the object's path>` in `base`, or takes the one that is there if it is ours. Where a
/// stranger has taken the name, as anyone may in /tmp, the next name is tried.
fn private_dir(base: &Path, uid: u32, object: &Path) -> io::Result<PathBuf> {
    let mut hash = Fnv::default();
    hash.write(object.as_os_str().as_encoded_bytes());
    let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..TRIES {
        let number = if number == 0 { String::new() } else { format!("-{number}") };
        let dir = base.join(format!("verbena-{uid}-{:016x}{number}", hash.finish()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            // symlink_metadata: a link that a stranger has put there is not followed.
            _ => match fs::symlink_metadata(&dir) {
                Ok(m) if is_private(&m, uid) => return Ok(dir),
                Ok(_) => refused = io::Error::other(format!("{} belongs to somebody else", dir.display())),
                Err(e) => refused = e,
            },
        }
    }
    Err(refused)
}

/// Whether this is a directory of the user's own into which nobody else can put anything.
fn is_private(m: &Metadata, uid: u32) -> bool {
    m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0
}

/// Makes `dir/name` a link to `object`, in one step, so that a program that starts meanwhile finds one or the other.
fn link(dir: &Path, name: &str, object: &Path) -> io::Result<()> {
    let path = dir.join(name);
    if fs::read_link(&path).is_ok_and(|there| there == object) {
        return Ok(());
    }
    let new = dir.join(format!(".{name}.{}", std::process::id()));
    unlink(&new)?;
    symlink(object, &new)?;
    fs::rename(&new, &path)
}

/// Removes a file that need not be there.
fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The effective user id: the second number of the line `Uid:` (proc_pid_status(5)).
fn effective_uid() -> io::Result<u32> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ids = status.lines().find_map(|l| l.strip_prefix("Uid:"));
    let id = ids.and_then(|ids| ids.split_whitespace().nth(1)).and_then(|id| id.parse().ok());
    id.ok_or_else(|| io::Error::other("no line `Uid:`"))
}

/// FNV-1a, 64 bits: a hash that is the same in every build of the command.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// An empty directory of this test's own.
    fn scratch(name: &str) -> PathBuf {
        let dir = env::temp_dir().join(format!("verbena-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn the_same_object_gets_the_same_directory_with_0700_and_two_links() {
        let (base, uid) = (scratch("same"), effective_uid().unwrap());
        let object = base.join(OBJECT);
        let dir = private_dir(&base, uid, &object).unwrap();
        assert_eq!(private_dir(&base, uid, &object).unwrap(), dir);
        assert_ne!(private_dir(&base, uid, Path::new("/another")).unwrap(), dir);
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        for name in NAMES {
            symlink("/stale", dir.join(name)).unwrap();
            link(&dir, name, &object).unwrap();
            link(&dir, name, &object).unwrap();
            assert_eq!(fs::read_link(dir.join(name)).unwrap(), object);
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_name_taken_by_a_link_or_by_a_directory_open_to_others_is_not_used() {
        let (base, uid) = (scratch("taken"), effective_uid().unwrap());
        let object = Path::new("/object");
        let first = private_dir(&base, uid, object).unwrap();
        fs::set_permissions(&first, Permissions::from_mode(0o777)).unwrap();
        let second = private_dir(&base, uid, object).unwrap();
        assert_ne!(second, first);
        fs::remove_dir(&first).unwrap();
        symlink(&second, &first).unwrap();
        assert_eq!(private_dir(&base, uid, object).unwrap(), second);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn of_two_objects_in_a_build_tree_the_newer_is_taken() {
        let base = scratch("newest");
        let (old, new) = (base.join("old"), base.join("new"));
        for (dir, age_s) in [(&old, 100), (&new, 1)] {
            fs::create_dir(dir).unwrap();
            let file = fs::File::create(dir.join(OBJECT)).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age_s)).unwrap();
        }
        assert_eq!(newest(&[old.clone(), new.clone()]), Some(new.join(OBJECT)));
        assert_eq!(newest(&[new.clone(), old]), Some(new.join(OBJECT)));
        assert_eq!(newest(std::slice::from_ref(&base)), None);
        fs::remove_dir_all(base).unwrap();
    }
}
