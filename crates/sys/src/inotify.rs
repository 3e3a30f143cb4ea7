//! What happens to files (inotify(7)).

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::check;
use crate::fork::Fd;

/// Bytes before the name of an event: watch, mask, cookie, length of the name.
const EVENT: usize = 16;

/// Files that are watched.
pub struct Inotify(Fd);

impl Inotify {
    /// One that watches nothing yet.
    ///
    /// # Errors
    ///
    /// What inotify_init1(2) says.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        Fd::open_raw(|| unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) }).map(Self)
    }

    /// Watches a file for these events; the number of the watch.
    ///
    /// # Errors
    ///
    /// What inotify_add_watch(2) says.
    pub fn watch(&self, path: &CStr, events: u32) -> io::Result<c_int> {
        // SAFETY: a string that lives across the call.
        let watch = check(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), events) })?;
        Ok(watch as c_int)
    }

    /// Reads what has happened: watch and mask of each event, as many as there are room for. None
    /// where there is nothing.
    ///
    /// # Errors
    ///
    /// What read(2) says.
    pub fn read(&self) -> io::Result<Vec<(c_int, u32)>> {
        let mut bytes = [0u8; 4096];
        // SAFETY: the kernel writes at most as many bytes as there are.
        let read = unsafe { libc::read(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        let Ok(read) = usize::try_from(read) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(Vec::new()) } else { Err(error) };
        };
        let mut rest = bytes.get(..read).unwrap_or_default();
        let mut events = Vec::new();
        while let Some((head, more)) = rest.split_first_chunk::<EVENT>() {
            let number = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            events.push((number(0).cast_signed(), number(4)));
            rest = more.get(number(12) as usize..).unwrap_or_default();
        }
        Ok(events)
    }
}

impl AsRawFd for Inotify {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_that_is_opened_is_told_by_its_watch() {
        let path = std::env::temp_dir().join(format!("verbena-inotify-{}", std::process::id()));
        File::create(&path).unwrap();
        let inotify = Inotify::new().unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let watch = inotify.watch(&name, libc::IN_OPEN).unwrap();
        assert_eq!(inotify.read().unwrap(), []);
        drop(File::open(&path).unwrap());
        assert_eq!(inotify.read().unwrap(), [(watch, libc::IN_OPEN)]);
        std::fs::remove_file(path).unwrap();
    }
}
