//! Sending from and reading into several pieces of memory by one call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use libc::{iovec, msghdr, ssize_t};

use crate::fork::Fd;

/// Most pieces of one call: those behind are left.
const MAX: usize = 64;

/// sendmsg(2) without SIGPIPE, from pieces of (address, bytes); how many bytes it took.
///
/// # Errors
///
/// What sendmsg(2) says: EFAULT for memory that is not there.
///
/// # Safety
///
/// The pieces may be read, or are not mapped.
pub unsafe fn send_pieces(fd: &Fd, pieces: impl Iterator<Item = (u64, u64)>) -> io::Result<usize> {
    with_message(pieces, |message| {
        // SAFETY: the message names its pieces, of which the caller says that they may be read.
        unsafe { libc::sendmsg(fd.as_raw_fd(), message, libc::MSG_NOSIGNAL) }
    })
}

/// recvmsg(2) to pieces of (address, bytes); how many bytes came.
///
/// # Errors
///
/// What recvmsg(2) says: EFAULT for memory that is not there.
///
/// # Safety
///
/// The pieces may be written to, or are not mapped.
pub unsafe fn receive_pieces(fd: &Fd, pieces: impl Iterator<Item = (u64, u64)>) -> io::Result<usize> {
    with_message(pieces, |message| {
        // SAFETY: the message names its pieces, of which the caller says that they may be written.
        unsafe { libc::recvmsg(fd.as_raw_fd(), message, 0) }
    })
}

fn with_message(
    pieces: impl Iterator<Item = (u64, u64)>,
    call: impl Fn(*mut msghdr) -> ssize_t,
) -> io::Result<usize> {
    let mut iovecs = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX];
    let mut count = 0;
    for (iovec, (addr, len)) in iovecs.iter_mut().zip(pieces) {
        (iovec.iov_base, iovec.iov_len) = (addr as *mut libc::c_void, len as usize);
        count += 1;
    }
    // SAFETY: all of its fields are numbers and pointers, for which zero is a value.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = count as _;
    loop {
        if let Ok(bytes) = usize::try_from(call(&raw mut message)) {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn pieces_are_sent_and_read_in_order_and_memory_that_is_not_there_is_efault() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let [ours, theirs] = [ours, theirs].map(|end| Fd::open(|| Ok::<_, io::Error>(end)).unwrap());
        let [a, b] = [*b"verb", *b"ena!"];
        let piece = |bytes: &[u8]| (bytes.as_ptr() as u64, bytes.len() as u64);
        // SAFETY: borrowed bytes.
        let sent = unsafe { send_pieces(&ours, [piece(&a), piece(&b)].into_iter()) };
        assert_eq!(sent.unwrap(), 8);
        let (mut c, mut d) = ([0_u8; 5], [0_u8; 9]);
        let into = [(c.as_mut_ptr() as u64, 5), (d.as_mut_ptr() as u64, 9)];
        // SAFETY: arrays of ours, which are not used meanwhile.
        let read = unsafe { receive_pieces(&theirs, into.into_iter()) };
        assert_eq!((read.unwrap(), &c, &d[..3]), (8, b"verbe", &b"na!"[..]));
        // SAFETY: no memory is mapped there.
        let absent = unsafe { send_pieces(&ours, [(8, 8)].into_iter()) };
        assert_eq!(absent.unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
}
