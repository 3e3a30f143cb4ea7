//! The user namespace that the programs of one ordinary user share (user_namespaces(7)).
//!
//! The kernel lets a process reach the memory of another one of its user only within one user
//! namespace. The other process may be in a child of that namespace, too (ptrace(2)). So a program
//! that needs one for its view of the file system joins the one that another program has made.
//!
//! Which one that is decides which processes may trace this program. So it stands in a directory
//! into which only this user puts files, which is also where the library of its programs is found.
//! It is not asked of the process that answers to a name. There each program that has a view has a
//! file: its name says which process it is, and the file when that started. The namespace lives as
//! long as a process is in it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nic::Errno;

/// How often, and after how long each time, to ask for the directory. A process that stands in the
/// way needs some milliseconds, unless it is stopped.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// The directory, which belongs to this process until it drops this.
#[derive(Debug)]
pub(crate) struct Roster {
    dir: PathBuf,
    /// Which PID namespace the numbers of processes belong to: containers may share the directory.
    numbers: u64,
    _locked: File,
}

impl Roster {
    /// Takes the directory.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT where another process has had it for a second; those of open(2), and of /proc.
    pub(crate) fn take(dir: &Path) -> io::Result<Self> {
        let locked = File::open(dir)?;
        let numbers = fs::metadata("/proc/self/ns/pid")?.ino();
        for _ in 0..TRIES {
            match locked.try_lock() {
                Ok(()) => return Ok(Self { dir: dir.to_owned(), numbers, _locked: locked }),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(Errno::ETIMEDOUT.into())
    }

    /// The namespace to join: of those that are children of this process's, the one of the program
    /// that has run for longest. Files of programs that have ended are removed.
    pub(crate) fn namespace(&self) -> Option<File> {
        let prefix = format!("{}.", self.numbers);
        let mut oldest: Option<(u64, File)> = None;
        for entry in fs::read_dir(&self.dir).ok()?.flatten() {
            let name = entry.file_name();
            let Some(process) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else {
                continue;
            };
            let noted = fs::read_to_string(entry.path()).unwrap_or_default();
            let Some((started, namespace)) = member(process, &noted) else {
                let _ = fs::remove_file(entry.path());
                continue;
            };
            let earlier = oldest.as_ref().is_none_or(|(first, _)| started < *first);
            if earlier && noted == note(started) && is_child_of_ours(&namespace) {
                oldest = Some((started, namespace));
            }
        }
        oldest.map(|(_, namespace)| namespace)
    }

    /// Notes that this process is in a namespace that others can join.
    ///
    /// # Errors
    ///
    /// Those of the file, and of /proc.
    pub(crate) fn add(&self) -> io::Result<()> {
        let started = started("self").ok_or(Errno::ENOENT)?;
        fs::write(self.dir.join(format!("{}.{}", self.numbers, std::process::id())), note(started))
    }
}

/// What stands in the file of a process that started then. The group is in it because a namespace
/// has one only.
fn note(started: u64) -> String {
    format!("{started} {}\n", sys::own_gid())
}

/// When a process started and what namespace it is in, where it is the one that was noted.
fn member(process: &str, noted: &str) -> Option<(u64, File)> {
    let then: u64 = noted.split(' ').next()?.parse().ok()?;
    let namespace = File::open(format!("/proc/{process}/ns/user")).ok()?;
    // Looked at last: the number can not have been given to another one before the file was opened.
    (started(process)? == then).then_some((then, namespace))
}

/// When a process started, in ticks of the system's clock (proc_pid_stat(5)).
fn started(process: &str) -> Option<u64> {
    /// The position of `starttime` after the program's name, which may hold anything.
    const STARTTIME: usize = 19;
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    line.rsplit_once(") ")?.1.split(' ').nth(STARTTIME)?.parse().ok()
}

/// Whether a namespace's parent is the one that this process is in.
fn is_child_of_ours(namespace: &File) -> bool {
    let id = |of: fs::Metadata| (of.dev(), of.ino());
    let parent = sys::parent_user_namespace(namespace).and_then(|parent| parent.metadata());
    match (parent, fs::metadata("/proc/self/ns/user")) {
        (Ok(parent), Ok(own)) => id(parent) == id(own),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("verbena-roster-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn who_is_noted_is_found_and_nobody_else_with_its_number() {
        let dir = scratch("noted");
        let roster = Roster::take(&dir).unwrap();
        roster.add().unwrap();
        let own = std::process::id().to_string();
        let noted = fs::read_to_string(dir.join(format!("{}.{own}", roster.numbers))).unwrap();
        assert!(member(&own, &noted).is_some());
        assert!(member("1", &noted).is_none(), "process 1 started at another time");
        for nonsense in ["", "x", "18446744073709551616 0\n", "\0"] {
            assert!(member(&own, nonsense).is_none(), "{nonsense:?}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn files_of_the_dead_go_and_a_namespace_that_is_no_child_of_ours_is_not_joined() {
        let dir = scratch("dead");
        let roster = Roster::take(&dir).unwrap();
        roster.add().unwrap();
        let (dead, elsewhere) = (dir.join(format!("{}.4194305", roster.numbers)), dir.join("7.1"));
        fs::write(&dead, note(1)).unwrap();
        fs::write(&elsewhere, note(1)).unwrap();
        assert!(roster.namespace().is_none(), "this process is in its own namespace, not in a child");
        assert!(!dead.exists());
        assert!(elsewhere.exists(), "what another PID namespace has noted is not ours to judge");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn one_at_a_time_has_the_directory() {
        let dir = scratch("locked");
        let roster = Roster::take(&dir).unwrap();
        assert_eq!(Roster::take(&dir).unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
        drop(roster);
        Roster::take(&dir).unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}
