//! Sending, receiving and waiting at a port's socket.
//!
//! A message that is longer than fits a socket everywhere is its header and a descriptor of a file
//! with the MAD. A message that the program has no room for stays where it is, as at the kernel's
//! port: its header tells its length.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fabric::protocol::{MAX_INLINE, is_request};
use fabric::umad::UmadHeader;
use socket2::SockRef;
use sys::per_process::PerProcess;
use sys::thread::not_cancelled;

use crate::set_errno;

const HEADER: usize = UmadHeader::LEN;
/// How long a call that does not wait takes where the fabric has ended: a program that calls it in
/// a circle must not use a processor up.
const NAP_MS: c_int = 100;
/// How long a message waits for room: the fabric reads at once, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between the look at a message and its reading no other thread may take it.
static TAKING: PerProcess<Mutex<()>> = PerProcess::new(|| Mutex::new(()));

// The libc crate declares it as a function that never unwinds; a thread that is cancelled does.
unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// umad_send(3).
pub unsafe extern "C" fn umad_send(
    fd: c_int,
    agent_id: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let len = HEADER.saturating_add(usize::try_from(length).unwrap_or(0));
    // SAFETY: the caller's message is a header and `length` bytes.
    let message = unsafe { std::slice::from_raw_parts_mut(umad.cast::<u8>(), len) };
    set_errno(0);
    // What umad_send writes of the header: agent, status is left, timeout, retries.
    for (at, value) in [(0, agent_id), (8, timeout_ms), (12, retries)] {
        if let Some(field) = message.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
            *field = value.to_ne_bytes();
        }
    }
    // SAFETY: the crate's contract.
    match not_cancelled(|| unsafe { send(fd, message) }) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            libc::EIO.saturating_neg()
        }
    }
}

/// # Safety
///
/// The descriptor is open, or none.
unsafe fn send(fd: c_int, message: &[u8]) -> io::Result<()> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // A message of a program cannot be taken for a request: no agent has that number.
    if message.len() < HEADER || is_request(message) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: it is not -1, and the caller keeps it open; a call on one that is closed fails.
    let port = unsafe { BorrowedFd::borrow_raw(fd) };
    loop {
        let sent = match message.split_at_checked(HEADER) {
            Some((header, rest)) if message.len() > MAX_INLINE => send_file(port, header, rest),
            _ => SockRef::from(&port)
                .send_with_flags(message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
                .map(drop),
        };
        match sent {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let events = sys::files::wait_for(port, libc::POLLOUT, Some(PATIENCE)).or_else(again)?;
                if events == 0 {
                    return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                return Err(io::Error::from_raw_os_error(libc::ENODEV));
            }
            done => return done,
        }
    }
}

/// A wait that a signal has ended is tried again.
fn again(error: io::Error) -> io::Result<i16> {
    if error.kind() == ErrorKind::Interrupted { Ok(libc::POLLOUT) } else { Err(error) }
}

fn send_file(port: BorrowedFd<'_>, header: &[u8], rest: &[u8]) -> io::Result<()> {
    let mut header = UmadHeader::parse(header).unwrap_or_default();
    header.length = u32::try_from(rest.len().saturating_add(HEADER)).unwrap_or(0);
    let file = sys::files::anonymous(c"verbena message", rest)?;
    sys::send_descriptor(port, &header.emit(), file)
}

/// umad_poll(3).
pub extern "C-unwind" fn umad_poll(fd: c_int, timeout_ms: c_int) -> c_int {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure that lives across the call.
    match unsafe { poll(&raw mut asked, 1, timeout_ms) } {
        0 => libc::ETIMEDOUT.saturating_neg(),
        1 if has_ended(asked.revents) && !not_cancelled(|| has_message(fd)) => {
            // As a dead port, it has nothing to read.
            rest(timeout_ms);
            libc::ETIMEDOUT.saturating_neg()
        }
        1 => 0,
        _ => libc::EIO.saturating_neg(),
    }
}

fn has_ended(events: i16) -> bool {
    events & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Whether a message is there that came before the fabric ended.
fn has_message(fd: c_int) -> bool {
    let mut byte = 0u8;
    // SAFETY: room for one byte.
    let len = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    len > 0
}

/// Waits the time out; -1 for ever.
extern "C-unwind" fn rest(timeout_ms: c_int) {
    // SAFETY: no descriptor is asked about.
    unsafe { poll(std::ptr::null_mut(), 0, timeout_ms) };
}

/// umad_recv(3).
pub unsafe extern "C-unwind" fn umad_recv(
    fd: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    set_errno(0);
    // SAFETY: the crate's contract.
    let (Some(length), false) = (unsafe { length.as_mut() }, umad.is_null()) else {
        set_errno(libc::EINVAL);
        return libc::EINVAL.saturating_neg();
    };
    if timeout_ms != 0 {
        let waited = umad_poll(fd, timeout_ms);
        if waited < 0 {
            set_errno(waited.saturating_neg());
            return waited;
        }
    }
    let room = HEADER.saturating_add(usize::try_from(*length).unwrap_or(0));
    // SAFETY: the caller's buffer is a header and `length` bytes.
    let buffer = unsafe { std::slice::from_raw_parts_mut(umad.cast::<u8>(), room) };
    // SAFETY: the crate's contract.
    let (errno, taken) = match not_cancelled(|| unsafe { take(fd, buffer) }) {
        Ok(len) => (0, len),
        Err(Untaken::TooLong(len)) => (libc::ENOSPC, len),
        Err(Untaken::Failed(errno)) => (errno, HEADER),
    };
    if errno == 0 {
        *length = c_int::try_from(taken.saturating_sub(HEADER)).unwrap_or(0);
        let agent = UmadHeader::parse(buffer).map_or(0, |header| header.agent);
        return c_int::try_from(agent).unwrap_or(libc::EIO.saturating_neg());
    }
    if errno == libc::ENOSPC {
        *length = c_int::try_from(taken.saturating_sub(HEADER)).unwrap_or(0);
    }
    if errno == libc::EIO {
        rest(NAP_MS);
    }
    set_errno(errno);
    errno.saturating_neg()
}

/// Why a message is not taken.
enum Untaken {
    /// The program has no room for so many bytes.
    TooLong(usize),
    /// By this errno.
    Failed(c_int),
}

impl From<io::Error> for Untaken {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Takes the next message; its length with the header.
///
/// # Safety
///
/// The descriptor is open, or none.
unsafe fn take(fd: c_int, buffer: &mut [u8]) -> Result<usize, Untaken> {
    if fd < 0 {
        return Err(Untaken::Failed(libc::EBADF));
    }
    // SAFETY: it is not -1, and the caller keeps it open; a call on one that is closed fails.
    let port = unsafe { BorrowedFd::borrow_raw(fd) };
    let mutex = TAKING.get();
    let _taking = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let mut head = [0; HEADER];
    let mut control = sys::ControlBuffer::new();
    // Without room for descriptors the kernel gives none to a look.
    // SAFETY: room for as many bytes.
    let seen =
        unsafe { libc::recv(fd, head.as_mut_ptr().cast(), HEADER, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    match usize::try_from(seen) {
        Err(_) => return Err(io::Error::last_os_error().into()),
        Ok(HEADER) => {}
        // The fabric has ended.
        Ok(_) => return Err(Untaken::Failed(libc::EIO)),
    }
    let len = UmadHeader::parse(&head).map_or(HEADER, |header| header.length as usize).max(HEADER);
    if len > buffer.len() {
        // The program learns the length from the header, too.
        if let Some(to) = buffer.first_chunk_mut() {
            *to = head;
        }
        return Err(Untaken::TooLong(len));
    }
    let received = sys::receive(&port, buffer, &mut control, libc::MSG_CMSG_CLOEXEC)?;
    let (inline, files) = (received.len, sys::take_descriptors(received.control));
    if inline < len {
        let file = files.into_iter().next().ok_or(Untaken::Failed(libc::EIO))?;
        let rest = buffer.get_mut(inline..len).unwrap_or_default();
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        file.read_exact_at(rest, 0).map_err(|_| Untaken::Failed(libc::EIO))?;
    }
    Ok(len)
}
