//! Files without a name (memfd_create(2)), named pipes (fifo(7)), and waiting for one descriptor
//! (poll(2)).

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::time::Duration;

use super::check;

/// A file without a name that holds these bytes.
///
/// # Errors
///
/// What memfd_create(2) and write(2) say.
pub fn anonymous(name: &CStr, bytes: &[u8]) -> io::Result<File> {
    // SAFETY: a string that lives across the call.
    let raw = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the call has just returned it as new, and nothing else knows it.
    let mut file = unsafe { File::from_raw_fd(raw as c_int) };
    file.write_all(bytes)?;
    Ok(file)
}

/// Makes a named pipe that only this user may open (mkfifo(3)).
///
/// # Errors
///
/// What mkfifo(3) says.
pub fn make_pipe(path: &CStr) -> io::Result<()> {
    // SAFETY: a string that lives across the call.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).map(drop)
}

/// Waits for events of a descriptor, at most `timeout` (`None`: for ever), and tells which there
/// are: none where the time has passed. A cancellation point, as poll(2) is.
///
/// # Errors
///
/// What poll(2) says, EINTR among it.
pub fn wait_for(fd: impl AsFd, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events, revents: 0 };
    let millis = timeout.map_or(-1, |timeout| c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX));
    // SAFETY: one structure that lives across the call.
    check(unsafe { libc::poll(&raw mut poll, 1, millis) })?;
    Ok(poll.revents)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn a_file_without_a_name_holds_its_bytes() {
        let mut file = anonymous(c"test", b"bytes").unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bytes");
    }

    #[test]
    fn a_wait_ends_with_its_time_or_with_an_event() {
        let (mut one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(wait_for(&two, libc::POLLIN, Some(Duration::ZERO)).unwrap(), 0);
        one.write_all(&[1]).unwrap();
        assert_eq!(wait_for(&two, libc::POLLIN, None).unwrap(), libc::POLLIN);
    }
}
