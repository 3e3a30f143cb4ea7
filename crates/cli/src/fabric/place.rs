//! Where a fabric lies: a directory below the user's private one, with the socket, a lock that its
//! process holds, and the files of hosts. A fabric is a name in that directory, so that several run
//! side by side and none is met by accident.

use std::env;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::object::{self, Fnv};

/// Names the fabric: its name, or in a program that `verbena run --on` started the path of its
/// socket.
pub(crate) const VARIABLE: &str = "VERBENA_FABRIC";

const SOCKET: &str = "socket";
const LOCK: &str = "lock";
/// Bytes of a name at most: the path of a socket has 107.
const MAX_NAME: usize = 32;
/// How often a lock is tried, and how long apart.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The directory of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: String,
    dir: PathBuf,
}

impl Place {
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    pub(crate) fn hosts(&self) -> PathBuf {
        self.dir.join("hosts")
    }

    /// Takes the place for this process, until the lock is dropped; what an ended process has left
    /// there goes.
    ///
    /// # Errors
    ///
    /// A message: a fabric of this name runs, or no directory can be had.
    pub(crate) fn take(name: &str) -> Result<(Self, File), String> {
        check(name)?;
        let uid = linux::user();
        let base = roots(uid).into_iter().next().ok_or("there is no private directory for the fabric")?;
        let place = Self { name: name.to_owned(), dir: base.join(name) };
        let failed = |error: io::Error| format!("{}: {error}", place.dir.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&place.dir).map_err(failed)?;
        let lock = File::create(place.dir.join(LOCK)).map_err(failed)?;
        // A command that looks which fabrics run holds the lock for a moment.
        for patience in (0..TRIES).rev() {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if patience > 0 => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err(format!("a fabric of the name {name} runs already"));
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let _ = fs::remove_file(place.socket());
        let _ = fs::remove_dir_all(place.hosts());
        Ok((place, lock))
    }

    /// Removes all that lies there.
    pub(crate) fn clear(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }

    /// The fabric of a name; without one that of [`VARIABLE`], or the only one that runs.
    ///
    /// # Errors
    ///
    /// A message: there is none, or there are several.
    pub(crate) fn find(name: Option<&str>) -> Result<Self, String> {
        let given = env::var(VARIABLE).ok().filter(|given| !given.is_empty());
        let name = name.map(str::to_owned).or(given);
        let running = running();
        match name {
            Some(path) if path.starts_with('/') => {
                let dir = Path::new(&path).parent().unwrap_or(Path::new("/")).to_owned();
                let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Ok(Self { name, dir })
            }
            Some(name) => running.into_iter().find(|place| place.name == name).ok_or_else(|| {
                format!("no fabric of the name {name:?} runs; `verbena fabric run` starts one")
            }),
            None => {
                let names: Vec<_> = running.iter().map(|place| place.name.clone()).collect();
                match <[Self; 1]>::try_from(running) {
                    Ok([only]) => Ok(only),
                    Err(none) if none.is_empty() => {
                        Err("no fabric runs; `verbena fabric run` starts one".into())
                    }
                    Err(_) => Err(format!("several fabrics run; say --fabric NAME: {}", names.join(", "))),
                }
            }
        }
    }
}

/// All fabrics of this user that run.
pub(crate) fn running() -> Vec<Place> {
    let mut places = Vec::new();
    for root in roots(linux::user()) {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let dir = entry.path();
            let is_held = File::open(dir.join(LOCK))
                .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)));
            if is_held && let Ok(name) = entry.file_name().into_string() {
                places.push(Place { name, dir });
            }
        }
    }
    places.sort_by(|one, two| one.name.cmp(&two.name));
    places
}

/// The directories in which fabrics may lie, best first.
fn roots(uid: u32) -> Vec<PathBuf> {
    let mut hash = Fnv::default();
    hash.write(b"fabric");
    let bases = object::bases(uid);
    bases.iter().filter_map(|base| object::private_dir_of(base, uid, hash.finish()).ok()).collect()
}

/// Whether a word can be a fabric's name.
fn check(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fits = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain) && !name.starts_with('.');
    if fits {
        Ok(())
    } else {
        Err(format!(
            "{name:?} is no name of a fabric: it has up to {MAX_NAME} letters, digits, `-`, `_` and `.`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_directory() {
        for good in ["cluster", "a.b-c_d1"] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ü", &"x".repeat(33)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_place_is_taken_once_and_free_when_its_process_lets_go() {
        let name = format!("test-{}", std::process::id());
        let (place, lock) = Place::take(&name).unwrap();
        assert!(Place::take(&name).unwrap_err().contains("runs already"));
        assert!(running().contains(&place));
        drop(lock);
        assert!(!running().contains(&place));
        let (place, _lock) = Place::take(&name).unwrap();
        place.clear();
    }
}
