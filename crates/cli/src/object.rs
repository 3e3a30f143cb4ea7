//! Finds the shared objects, and makes the directory of links through which programs find them.

use std::env;
use std::fs::{self, DirBuilder, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::iter;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::{trusted, unpack};

/// The file's name.
pub(crate) const OBJECT: &str = "libverbena_rdma.so";

/// The name of the file that is librpma. It is an object of its own, so that no program gets its
/// functions that asks for another librpma.
pub(crate) const RPMA: &str = "libverbena_rpma.so";

/// The name of the file that is libibumad, for programs on a simulated host.
pub(crate) const UMAD: &str = "libverbena_umad.so";

/// The name of the file that takes sockets to rsockets, which is preloaded.
pub(crate) const RSPRELOAD: &str = "libverbena_rspreload.so";

/// The names by which programs know the libraries that the object is.
pub(crate) const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The names by which they know the others.
const RPMA_NAME: &str = "librpma.so.0";
const UMAD_NAME: &str = "libibumad.so.3";

/// Where the object may be, given by the user.
const VARIABLE: &str = "VERBENA_LIBRARY";

/// How many names to try for the private directory before giving up.
const TRIES: u32 = 16;

/// The object: what VERBENA_LIBRARY names; or the newest in the build tree the command stands in;
/// or in `../lib/verbena` beside the command's directory; or the one inside the command, see
/// `unpack`.
///
/// # Errors
/// A message that names the places and says what to do.
pub(crate) fn find() -> Result<PathBuf, String> {
    if let Some(given) = env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        return fs::canonicalize(&given)
            .map_err(|e| format!("{VARIABLE} names {}, which cannot be read: {e}", given.display()));
    }
    let exe = own_path();
    let places = places(exe.as_deref());
    // A build tree holds it twice, and either may be the older: a place is a list of equals.
    if let Some(object) = places.iter().find_map(|equals| newest(equals, owner(exe.as_deref()), OBJECT)) {
        return Ok(object);
    }
    unpack::unpack(&unpack::VERBS, linux::user()).map_err(|message| {
        let looked: Vec<_> =
            places.iter().flat_map(|p| &p.dirs).map(|d| format!("  {}", d.join(OBJECT).display())).collect();
        format!("{OBJECT} is not found. Looked for it at\n{}\n{message}", looked.join("\n"))
    })
}

/// The object that is librpma, from where the other is looked for, but for the one that
/// VERBENA_LIBRARY names: beside that.
///
/// # Errors
/// A message that says what to do.
pub(crate) fn find_rpma(object: &Path) -> Result<PathBuf, String> {
    find_beside(object, RPMA, &unpack::LIBRPMA)
        .map_err(|message| format!("{message}\n`--system-librpma` leaves it to the system's."))
}

/// The object that is libibumad, as [`find_rpma`] finds librpma.
///
/// # Errors
/// A message that says what to do.
pub(crate) fn find_umad(object: &Path) -> Result<PathBuf, String> {
    find_beside(object, UMAD, &unpack::LIBUMAD)
}

/// The object that is preloaded for rsockets, as [`find_rpma`] finds librpma.
///
/// # Errors
/// A message that says what to do.
pub(crate) fn find_rspreload(object: &Path) -> Result<PathBuf, String> {
    find_beside(object, RSPRELOAD, &unpack::LIBRSPRELOAD)
}

fn find_beside(object: &Path, name: &str, inside: &unpack::Inside) -> Result<PathBuf, String> {
    let given = env::var_os(VARIABLE).is_some_and(|v| !v.is_empty());
    let beside = object.parent().filter(|_| given).map(|dir| Place::of(dir, &[""]));
    let exe = own_path();
    let mut places = beside.into_iter().chain(places(exe.as_deref()));
    match places.find_map(|equals| newest(&equals, owner(exe.as_deref()), name)) {
        Some(object) => Ok(object),
        None => {
            unpack::unpack(inside, linux::user()).map_err(|message| format!("{name} is not found. {message}"))
        }
    }
}

/// Whose the command is.
fn owner(exe: Option<&Path>) -> u32 {
    exe.and_then(|exe| fs::metadata(exe).ok()).map_or(linux::user(), |m| m.uid())
}

/// The command's own file: without /proc, what it was called by.
pub(crate) fn own_path() -> Option<PathBuf> {
    let called = || {
        let name = PathBuf::from(env::args_os().next()?);
        if name.components().count() > 1 {
            return Some(name);
        }
        let path = env::var_os("PATH")?;
        env::split_paths(&path).map(|dir| dir.join(&name)).find(|file| file.is_file())
    };
    env::current_exe().ok().or_else(called).and_then(|exe| fs::canonicalize(exe).ok())
}

/// Directories to look in that are equals. A user who may write to `top` could replace the command
/// as well.
struct Place {
    top: PathBuf,
    dirs: Vec<PathBuf>,
}

impl Place {
    fn of(top: &Path, dirs: &[&str]) -> Self {
        Self { top: top.to_owned(), dirs: dirs.iter().map(|dir| top.join(dir)).collect() }
    }
}

/// Directories to look in, best first.
fn places(exe: Option<&Path>) -> Vec<Place> {
    let mut places = Vec::new();
    if let Some(dir) = exe.and_then(Path::parent) {
        places.push(Place::of(dir, &["", "deps"]));
        if let Some(prefix) = dir.parent() {
            places.push(Place::of(prefix, &["lib/verbena"]));
        }
    }
    places
}

/// The newest object of a place, without symbolic links in its path. One that another user can
/// replace is not taken, neither the owner of the command nor this user nor root: what stands
/// beside the command may be anyone's, as in /tmp.
fn newest(place: &Place, owner: u32, name: &str) -> Option<PathBuf> {
    let dated = place.dirs.iter().filter_map(|dir| {
        let object = fs::canonicalize(dir.join(name)).ok()?;
        let about = trusted::file(&object, &place.top, &[owner, linux::user()]).ok()?;
        Some((about.modified().ok()?, object))
    });
    dated.max().map(|(_, object)| object)
}

/// A directory, private to this user, in which the names of the two libraries are links to
/// `object`, and librpma's and libibumad's are links to `rpma` and `umad`, where those are shown.
/// It is the same one every time, so that nothing is left behind by each run.
///
/// # Errors
/// A message, where no such directory can be made.
pub(crate) fn links(object: &Path, rpma: Option<&Path>, umad: Option<&Path>) -> Result<PathBuf, String> {
    let uid = linux::user();
    let mut refused = Vec::new();
    for base in bases(uid).into_iter().chain(iter::once_with(|| unpack::cache(uid)).flatten()) {
        let dir = match private_dir(&base, uid, object, [rpma, umad]) {
            Ok(dir) => dir,
            Err(e) => {
                refused.push(format!("  {}: {e}", base.display()));
                continue;
            }
        };
        let linked = NAMES.iter().try_for_each(|name| link(&dir, name, object));
        let linked = linked.and_then(|()| {
            [(RPMA_NAME, rpma), (UMAD_NAME, umad)].into_iter().try_for_each(|(name, other)| match other {
                Some(other) => link(&dir, name, other),
                // Earlier commands left one.
                None => unlink(&dir.join(name)),
            })
        });
        return linked
            .map(|()| dir.clone())
            .map_err(|e| format!("cannot make links in {}: {e}", dir.display()));
    }
    Err(format!("cannot make a private directory in any of\n{}\n{}", refused.join("\n"), unpack::ADVICE))
}

/// A directory, private to this user, of the programs that share a user namespace
/// (`linux::mount_namespace`); `None` where it can not be made. It is the same one whatever the
/// objects.
pub(crate) fn roster() -> Option<PathBuf> {
    let uid = linux::user();
    let mut hash = Fnv::default();
    hash.write(b"user namespace");
    bases(uid).iter().find_map(|base| private_dir_of(base, uid, hash.finish()).ok())
}

/// A directory, beside the links, of commands that stand before the system's: `rdma`, which is this
/// command. `None` where it cannot be made; programs then find the system's.
pub(crate) fn commands(links: &Path) -> Option<PathBuf> {
    let exe = own_path()?;
    let dir = links.join("bin");
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => link(&dir, "rdma", &exe).ok()?,
    }
    Some(dir)
}

/// Whether a directory of LD_LIBRARY_PATH shows this command's librpma.
pub(crate) fn shows_rpma(dir: &Path) -> bool {
    fs::read_link(dir.join(RPMA_NAME)).is_ok_and(|object| object.ends_with(RPMA))
}

/// Whether a path can stand in LD_LIBRARY_PATH, which a colon or a semicolon would split.
pub(crate) fn fits(dir: &Path) -> bool {
    !dir.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b':' | b';'))
}

/// Where the directory may be: the user's runtime directory (0700 by the XDG specification), or one
/// for temporary files.
pub(crate) fn bases(uid: u32) -> Vec<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|d| d.is_absolute() && fs::metadata(d).is_ok_and(|m| is_private(&m, uid)));
    let temporary = [env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")];
    let mut bases: Vec<_> = runtime.into_iter().chain(temporary).filter(|d| fits(d)).collect();
    bases.dedup();
    bases
}

/// The private directory in `base` for an object and others, named after a hash of the paths.
fn private_dir(base: &Path, uid: u32, object: &Path, others: [Option<&Path>; 2]) -> io::Result<PathBuf> {
    let mut hash = Fnv::default();
    hash.write(object.as_os_str().as_encoded_bytes());
    for other in others.into_iter().flatten() {
        hash.write(b":");
        hash.write(other.as_os_str().as_encoded_bytes());
    }
    private_dir_of(base, uid, hash.finish())
}

/// Makes `verbena-<uid>-<hash>` in `base`, or takes the one that is there if it is ours. Where
/// another user has taken the name, as anyone may in /tmp, the next name is tried. A base in which
/// others can move it away is not taken ([`trusted::directory`]).
pub(crate) fn private_dir_of(base: &Path, uid: u32, hash: u64) -> io::Result<PathBuf> {
    let base = trusted::directory(base, uid)?;
    if !fits(&base) {
        return Err(io::Error::other("its path holds a colon or a semicolon"));
    }
    let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..TRIES {
        let number = if number == 0 { String::new() } else { format!("-{number}") };
        let dir = base.join(format!("verbena-{uid}-{hash:016x}{number}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            // symlink_metadata: a link that another user has put there is not followed.
            _ => match fs::symlink_metadata(&dir) {
                Ok(m) if is_private(&m, uid) => return Ok(dir),
                Ok(_) => refused = io::Error::other(format!("{} belongs to another user", dir.display())),
                Err(e) => refused = e,
            },
        }
    }
    Err(refused)
}

/// Whether this is a directory of the user's own into which no other user can put anything.
pub(crate) fn is_private(m: &Metadata, uid: u32) -> bool {
    m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0
}

/// Makes `dir/name` a link to `object`, in one step, so that a program that starts meanwhile finds
/// one or the other.
fn link(dir: &Path, name: &str, object: &Path) -> io::Result<()> {
    let path = dir.join(name);
    if fs::read_link(&path).is_ok_and(|there| there == object) {
        return Ok(());
    }
    let new = dir.join(format!(".{name}.{:x}", random()));
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

/// A number for a name that no other process chooses. A process's number is not: containers that
/// share a directory each have their own 1.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// FNV-1a, 64 bits: a hash that is the same in every build of the command.
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
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
        let (base, uid) = (scratch("same"), linux::user());
        let object = base.join(OBJECT);
        let dir = private_dir(&base, uid, &object, [None; 2]).unwrap();
        assert_eq!(private_dir(&base, uid, &object, [None; 2]).unwrap(), dir);
        assert_ne!(private_dir(&base, uid, Path::new("/another"), [None; 2]).unwrap(), dir);
        assert_ne!(private_dir(&base, uid, &object, [Some(Path::new("/rpma")), None]).unwrap(), dir);
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
        let (base, uid) = (scratch("taken"), linux::user());
        let object = Path::new("/object");
        let first = private_dir(&base, uid, object, [None; 2]).unwrap();
        fs::set_permissions(&first, Permissions::from_mode(0o777)).unwrap();
        let second = private_dir(&base, uid, object, [None; 2]).unwrap();
        assert_ne!(second, first);
        fs::remove_dir(&first).unwrap();
        symlink(&second, &first).unwrap();
        assert_eq!(private_dir(&base, uid, object, [None; 2]).unwrap(), second);
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
        let newest = |dirs| newest(&Place::of(&base, dirs), 0, OBJECT);
        assert_eq!(newest(&["old", "new"]), Some(new.join(OBJECT)));
        assert_eq!(newest(&["new", "old"]), Some(new.join(OBJECT)));
        assert_eq!(newest(&[""]), None);
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn an_object_that_belongs_to_another_user_is_not_taken() {
        let base = scratch("other-user");
        fs::File::create(base.join(OBJECT)).unwrap();
        let newest = |owner| newest(&Place::of(&base, &[""]), owner, OBJECT);
        assert!(newest(0).is_some());
        if linux::user() != 0 {
            println!("left out: only root gives files away");
        } else {
            std::os::unix::fs::chown(base.join(OBJECT), Some(4242), None).unwrap();
            assert_eq!(newest(0), None);
            assert!(newest(4242).is_some(), "the command is the other user's, too");
        }
        fs::remove_dir_all(base).unwrap();
    }
}
