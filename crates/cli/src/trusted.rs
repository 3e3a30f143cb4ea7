//! Which directories may hold what programs of this user load: those in which no other user can
//! replace a file.
//!
//! A private directory is not enough. Its parent's owner, and any user who may write to the parent
//! where that has no sticky bit, can move it away and put another one in its place (rename(2),
//! unlink(2)). So all directories above count as well.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Writable by the group or by others. An access control list shows in the group's bits (acl(5)).
const WRITABLE: u32 = 0o022;
/// Only the owner of an entry, or of the directory, may move or remove it (S_ISVTX, inode(7)).
const STICKY: u32 = 0o1000;

/// Directories that are root's on every system (hier(7)). In a user namespace without a number for
/// root their owner is the overflow uid, as that of any other unknown user is (user_namespaces(7)).
const OF_ROOT: [&str; 7] = ["/", "/home", "/run", "/run/user", "/tmp", "/var", "/var/tmp"];

/// The path of a directory without symbolic links, where no user but root and `uid` can replace
/// what lies in it.
///
/// # Errors
/// PermissionDenied, with the directory that others can change; those of realpath(3).
pub(crate) fn directory(dir: &Path, uid: u32) -> io::Result<PathBuf> {
    let dir = fs::canonicalize(dir)?;
    dir.ancestors().try_for_each(|dir| check(dir, &[uid]))?;
    Ok(dir)
}

/// Whether a file without symbolic links in its path belongs to root or one of these users, and no
/// other user can replace it but one that may write to `top`. For what stands beside the command:
/// such a user could replace the command itself.
///
/// # Errors
/// As [`directory`].
pub(crate) fn file(file: &Path, top: &Path, users: &[u32]) -> io::Result<Metadata> {
    let about = fs::symlink_metadata(file)?;
    if !about.is_file() || !is_of(&about, users) || about.mode() & 0o002 != 0 {
        return refuse(file, "is no file of root or this user that others cannot write");
    }
    let above = file.ancestors().skip(1).take_while(|dir| *dir != top);
    above.into_iter().try_for_each(|dir| check(dir, users))?;
    Ok(about)
}

fn check(dir: &Path, users: &[u32]) -> io::Result<()> {
    let about = fs::symlink_metadata(dir)?;
    let is_roots = OF_ROOT.map(Path::new).contains(&dir) && linux::is_unknown_user(about.uid());
    if !is_of(&about, users) && !is_roots {
        return refuse(dir, &format!("belongs to user {}", about.uid()));
    }
    if about.mode() & WRITABLE != 0 && about.mode() & STICKY == 0 {
        return refuse(dir, "may be written by other users and has no sticky bit");
    }
    Ok(())
}

fn is_of(about: &Metadata, users: &[u32]) -> bool {
    about.uid() == 0 || users.contains(&about.uid())
}

fn refuse<T>(path: &Path, why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {why}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// An empty directory of this test's own, and a setter of modes.
    fn scratch(name: &str) -> (PathBuf, impl Fn(&Path, u32)) {
        let dir = std::env::temp_dir().join(format!("verbena-trusted-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(&dir, 0o755);
        (fs::canonicalize(dir).unwrap(), mode)
    }

    #[test]
    fn a_directory_that_others_may_write_is_taken_only_with_a_sticky_bit_wherever_it_stands_in_the_path() {
        let (base, mode) = scratch("sticky");
        let (uid, inner) = (linux::user(), base.join("shared/inner"));
        fs::create_dir_all(&inner).unwrap();
        mode(&inner, 0o700);
        for (bits, taken) in
            [(0o755, true), (0o777, false), (0o775, false), (0o1777, true), (0o1775, true), (0o700, true)]
        {
            mode(&base.join("shared"), bits);
            assert_eq!(directory(&base.join("shared"), uid).is_ok(), taken, "{bits:o}");
            assert_eq!(directory(&inner, uid).is_ok(), taken, "{bits:o}, one above");
        }
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_link_leads_to_the_directory_that_is_judged_and_named() {
        let (base, mode) = scratch("links");
        let (uid, open, own) = (linux::user(), base.join("open"), base.join("own"));
        [&open, &own].iter().for_each(|dir| fs::create_dir(dir).unwrap());
        mode(&open, 0o777);
        mode(&own, 0o700);
        symlink(&own, open.join("to-own")).unwrap();
        symlink(&open, own.join("to-open")).unwrap();
        assert_eq!(directory(&open.join("to-own"), uid).unwrap(), own);
        let error = directory(&own.join("to-open"), uid).unwrap_err().to_string();
        assert!(error.contains(&format!("{} may be written", open.display())), "{error}");
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_directory_of_another_user_is_not_taken_nor_is_one_below_it() {
        let (base, mode) = scratch("strange");
        if linux::user() != 0 {
            println!("left out: only root gives directories away");
            return fs::remove_dir_all(base).unwrap();
        }
        let below = base.join("below");
        fs::create_dir(&below).unwrap();
        mode(&below, 0o700);
        chown(&base, Some(4242), None).unwrap();
        mode(&base, 0o1777);
        for dir in [&base, &below] {
            let error = directory(dir, 0).unwrap_err().to_string();
            assert!(error.contains("belongs to user 4242"), "{error}");
        }
        // What root put there is that user's to load no more than root's to be trusted with.
        assert!(directory(&below, 4242).is_ok());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_file_is_judged_up_to_the_directory_from_which_the_command_itself_could_be_replaced() {
        let (base, mode) = scratch("file");
        let (users, top, object) = ([linux::user()], base.join("top"), base.join("top/lib/object"));
        fs::create_dir_all(base.join("top/lib")).unwrap();
        fs::write(&object, "").unwrap();
        mode(&top, 0o777);
        mode(&top.join("lib"), 0o755);
        mode(&object, 0o755);
        assert!(file(&object, &top, &users).is_ok());
        assert!(file(&object, &base, &users).is_err(), "top is open to others");
        mode(&top.join("lib"), 0o777);
        assert!(file(&object, &top, &users).is_err());
        mode(&top.join("lib"), 0o755);
        mode(&object, 0o757);
        assert!(file(&object, &top, &users).is_err(), "others may write it");
        fs::remove_dir_all(base).unwrap();
    }
}
