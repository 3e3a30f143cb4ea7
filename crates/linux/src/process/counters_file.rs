//! What this process has counted, written to a file when it ends: `VERBENA_COUNTERS` names the
//! file, in which `%p` stands for the process's number.
//!
//! | name | what |
//! |---|---|
//! | `host.NAME` | [`crate::Counters`]: packets and system calls |
//! | `node.NAME` | [`stack::Counters`]: packets that no queue pair got, by reason |
//! | `DEVICE.NAME` | [`nic::device::Counters`]: packets for queue pairs |
//!
//! One `name value` a line. A process that made no device writes nothing, and so does one that a
//! signal kills.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sys::file_size::without_signal;
use sys::per_process::Kept;

use super::{Instance, environment};

/// The file as it was named at first. A forked child inherits it.
static FILE: Kept<Option<PathBuf>> = Kept::new();

/// Remembers the file that the environment asks for.
pub(super) fn remember() {
    FILE.get_or_make(environment::counters_file);
}

/// Writes the counters if the environment asked for it. Waits 100 ms at most, for the lock over the
/// rings.
pub(super) fn write(instance: &Instance) {
    let Some(Some(file)) = FILE.get() else { return };
    let name = file.to_string_lossy();
    let file = match name.contains("%p") {
        true => PathBuf::from(name.replace("%p", &std::process::id().to_string())),
        false => file.clone(),
    };
    let text = text(instance);
    if let Err(e) = without_signal(|| open(&file)?.write_all(text.as_bytes())) {
        let message = format!("verbena: VERBENA_COUNTERS: {}: {e}\n", file.display());
        // SAFETY: bytes of ours. Not by `eprintln`, which takes a lock.
        unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
    }
}

/// Opens the file, emptied. It may lie where other users put files, by a name that they foresee: so
/// a link of theirs is not followed, a file that has other names is left alone, and a pipe without
/// a reader is not waited for.
fn open(path: &Path) -> io::Result<File> {
    let open = |flags| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | flags).open(path)
    };
    let file = match open(libc::O_NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            let owner = std::fs::symlink_metadata(path)?.uid();
            if ![0, sys::own_uid()].contains(&owner) {
                return Err(io::Error::other(format!("is a link of user {owner}")));
            }
            open(0)?
        }
        opened => opened?,
    };
    // SAFETY: integers only. From here on it is written as any other file.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
    let about = file.metadata()?;
    if about.is_file() {
        if about.nlink() > 1 {
            return Err(io::Error::other("has other names"));
        }
        file.set_len(0)?;
    }
    Ok(file)
}

fn text(instance: &Instance) -> String {
    let host = instance.host.env().counters().snapshot();
    let host = host.into_iter().map(|(name, n)| (format!("host.{name}"), n));
    let mut text = String::new();
    for (name, n) in host.chain(instance.node().counted()) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {n}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    fn written(path: &Path, text: &str) -> io::Result<()> {
        open(path)?.write_all(text.as_bytes())
    }

    #[test]
    fn the_file_is_written_anew_by_a_link_of_ours_too_and_nothing_that_another_user_has_put_there_is() {
        let dir = std::env::temp_dir().join(format!("verbena-counters-file-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let [file, link, fifo, other] = ["file", "link", "fifo", "other"].map(|name| dir.join(name));
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        written(&file, "a long text").unwrap();
        symlink(&file, &link).unwrap();
        written(&link, "short").unwrap();
        assert_eq!(read(&file), "short");
        written(Path::new("/dev/null"), "nothing").unwrap();

        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: a string that lives across the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(written(&fifo, "").unwrap_err().raw_os_error(), Some(libc::ENXIO));
        std::fs::hard_link(&file, &other).unwrap();
        assert!(written(&other, "").is_err());
        if sys::own_uid() == 0 {
            std::fs::remove_file(&other).unwrap();
            lchown(&link, Some(4242), None).unwrap();
            assert!(written(&link, "").unwrap_err().to_string().contains("user 4242"));
        }
        assert_eq!(read(&file), "short");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
