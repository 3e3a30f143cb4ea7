//! A view of the file system that belongs to this process and what it starts: a mount namespace of
//! its own (mount_namespaces(7)), in which directories that the kernel fills can hold something
//! else.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nic::Errno;

use crate::user_namespace::Roster;

/// What makes a mount read-only; it holds nothing to run and no device.
const SEALED: libc::c_ulong =
    libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_REMOUNT | libc::MS_RDONLY;

/// The view while it is being made: what is mounted in it, oldest first.
#[derive(Debug, Default)]
pub struct View {
    mounted: Vec<PathBuf>,
}

/// Leaves for a private view and has `build` furnish it.
///
/// A privileged process takes a mount namespace alone: a user namespace would cost it its
/// capabilities over the network namespace (CAP_NET_RAW for raw sockets). Without privileges it
/// takes both, with the same user and group ids inside. That way there is no way back from, so a
/// child tries it first. The process must have one thread.
///
/// Programs that name one directory as their `roster`, into which only their user may put files,
/// are in one user namespace while any of them runs.
///
/// # Errors
///
/// What the kernel or `build` refused. The process then sees the file system as before.
pub fn enter(roster: Option<&Path>, build: impl Fn(&mut View) -> io::Result<()>) -> io::Result<()> {
    match sys::unshare(libc::CLONE_NEWNS) {
        Ok(()) => furnish(build),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && may_change_user_namespace() => {
            as_user(roster.and_then(|dir| Roster::take(dir).ok()).as_ref(), build)
        }
        Err(error) => Err(error),
    }
}

/// Whether nothing is lost with the user namespace: neither root's capabilities nor ambient ones,
/// which programs inherit (capabilities(7)).
fn may_change_user_namespace() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ambient = status.lines().find_map(|line| line.strip_prefix("CapAmb:"));
    sys::own_uid() != 0 && ambient.is_some_and(|bits| bits.trim().bytes().all(|digit| digit == b'0'))
}

/// The way for a process without privileges.
fn as_user(roster: Option<&Roster>, build: impl Fn(&mut View) -> io::Result<()>) -> io::Result<()> {
    let shared = roster.and_then(Roster::namespace);
    let joined = |namespace: &File| {
        sys::join_user_namespace(namespace)?;
        sys::unshare(libc::CLONE_NEWNS)?;
        furnish(&build)
    };
    let own = || {
        own_user_namespace()?;
        furnish(&build)
    };
    match shared.filter(|namespace| sys::try_in_child(|| joined(namespace)).is_ok()) {
        Some(namespace) => joined(&namespace)?,
        None => {
            sys::try_in_child(own)?;
            own()?;
        }
    }
    // Where that fails, programs that start later have another namespace, and reach this one's
    // memory by packets.
    let _ = roster.map(Roster::add);
    Ok(())
}

/// Moves into a new user namespace, with the same ids inside, and a new mount namespace.
fn own_user_namespace() -> io::Result<()> {
    let (uid, gid) = (sys::own_uid(), sys::own_gid());
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    // Without privileges a group map may be written only once setgroups(2) is given up
    // (user_namespaces(7)).
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn furnish(build: impl Fn(&mut View) -> io::Result<()>) -> io::Result<()> {
    View::default().attempt(build)
}

impl View {
    /// Takes a step that leaves nothing behind where it fails.
    ///
    /// # Errors
    ///
    /// Those of the step.
    pub fn attempt(&mut self, step: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let before = self.mounted.len();
        let done = step(self);
        if done.is_err() {
            for at in self.mounted.drain(before..).rev() {
                // One that does not go stays in a namespace that only this process sees.
                let _ = c_path(&at).and_then(|at| sys::unmount(&at));
            }
        }
        done
    }

    /// Covers a directory with an empty one.
    ///
    /// # Errors
    ///
    /// Those of mount(2); ENOENT where there is no such directory.
    pub fn cover(&mut self, dir: &Path) -> io::Result<()> {
        private_above(dir)?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        sys::mount(c"verbena", &c_path(dir)?, Some(c"tmpfs"), flags, Some(c"mode=0755"))?;
        self.mounted.push(dir.to_owned());
        Ok(())
    }

    /// Covers a directory with one that has the same entries, so that others can be added: each is
    /// bound to what it was.
    ///
    /// # Errors
    ///
    /// As for [`View::cover`].
    pub fn extend(&mut self, dir: &Path) -> io::Result<()> {
        // The descriptor leads to what the directory was once it is covered.
        let before =
            OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(dir)?;
        let hidden = PathBuf::from(format!("/proc/self/fd/{}", before.as_raw_fd()));
        let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
        self.cover(dir)?;
        for entry in entries {
            let (from, to) = (hidden.join(entry.file_name()), dir.join(entry.file_name()));
            let kind = entry.file_type()?;
            if kind.is_symlink() {
                symlink(fs::read_link(&from)?, &to)?;
            } else if kind.is_char_device() && entry.file_name() == "ptmx" {
                symlink(self.keep(&hidden, dir)?.join("ptmx"), &to)?;
            } else if kind.is_dir() {
                DirBuilder::new().mode(0o755).create(&to)?;
                self.bind(&from, &to)?;
            } else {
                self.show(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Shows a covered directory as it was in a directory inside, whose name it returns. A process
    /// that opens /dev/ptmx needs that: the kernel looks for `pts` beside it, in the mount through
    /// which it was opened (pts(4)). A file that is bound alone has nothing beside it.
    fn keep(&mut self, hidden: &Path, dir: &Path) -> io::Result<&'static Path> {
        let name = Path::new(".before");
        let at = dir.join(name);
        DirBuilder::new().mode(0o755).create(&at)?;
        self.bind(hidden, &at)?;
        // What covers the directory is mounted in it, and was bound with it.
        sys::unmount(&c_path(&at)?)?;
        Ok(name)
    }

    /// Shows a file of another place as `at`, which must not be there yet, in a directory that is
    /// covered.
    ///
    /// # Errors
    ///
    /// Those of mount(2) and creat(2).
    pub fn show(&mut self, file: &Path, at: &Path) -> io::Result<()> {
        File::create_new(at)?;
        self.bind(file, at)
    }

    /// Shows a directory of another place in the place of one, read-only.
    ///
    /// # Errors
    ///
    /// Those of mount(2); ENOENT where there is no such directory.
    pub fn show_dir(&mut self, dir: &Path, at: &Path) -> io::Result<()> {
        private_above(at)?;
        self.bind(dir, at)?;
        sys::mount(c"none", &c_path(at)?, None, libc::MS_BIND | SEALED, None)
    }

    /// Shows an open directory in the place of one, as it is there.
    ///
    /// # Errors
    ///
    /// Those of mount(2); ENOENT where there is no such directory.
    pub fn share(&mut self, dir: &File, at: &Path) -> io::Result<()> {
        private_above(at)?;
        self.bind(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())), at)
    }

    fn bind(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        sys::mount(&c_path(from)?, &c_path(to)?, None, libc::MS_BIND | libc::MS_REC, None)?;
        self.mounted.push(to.to_owned());
        Ok(())
    }

    /// Makes a covered directory read-only: no file system answers to what would be written there.
    ///
    /// # Errors
    ///
    /// Those of mount(2).
    pub fn seal(&self, dir: &Path) -> io::Result<()> {
        sys::mount(c"verbena", &c_path(dir)?, None, SEALED, None)
    }
}

/// Cuts the mount that holds `dir` off those of other namespaces, so that what is mounted in it
/// stays here. All other mounts go on as they were: what the program mounts elsewhere is seen where
/// it would have been.
fn private_above(dir: &Path) -> io::Result<()> {
    for above in dir.ancestors() {
        match sys::mount(c"none", &c_path(above)?, None, libc::MS_PRIVATE, None) {
            // Not a mount point: the one that holds it is further up.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            done => return done,
        }
    }
    Err(Errno::EINVAL.into())
}

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
