//! A question to the process that has a fabric, and what it says.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use ::fabric::MAX_MESSAGE;
use ::fabric::protocol::{self, MAX_INLINE, Reply, Request};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use sys::fork::Fd;
use sys::{ControlBuffer, Room};

use crate::user;

/// How long an answer may take: one process serves all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks, and waits for the answer: what it is, a descriptor that came along, and the connection.
///
/// # Errors
///
/// What the system says of the socket, PermissionDenied where another user has it, TimedOut, and
/// those of [`receive`].
pub fn ask(socket: &Path, request: &Request) -> io::Result<(Reply, Option<Fd>, Fd)> {
    let fd = Fd::open(|| {
        let connection = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        connection.connect(&SockAddr::unix(socket)?)?;
        Ok::<_, io::Error>(connection)
    })?;
    user::check(&fd)?;
    SockRef::from(&fd).send_with_flags(&protocol::encode(request), libc::MSG_NOSIGNAL)?;
    let (reply, descriptor) = answer(&fd)?;
    Ok((reply, descriptor, fd))
}

/// Waits for what the fabric says next.
///
/// # Errors
///
/// TimedOut, and those of [`receive`].
pub fn answer(fd: &Fd) -> io::Result<(Reply, Option<Fd>)> {
    if sys::files::wait_for(fd, libc::POLLIN, Some(PATIENCE))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    receive(fd)
}

/// What has come, and the descriptor that came along. The end of a long message lies in a file.
///
/// # Errors
///
/// UnexpectedEof where the fabric has ended, InvalidData for what is no reply.
pub fn receive(fd: &Fd) -> io::Result<(Reply, Option<Fd>)> {
    let (mut room, mut control) = (Room::new(MAX_INLINE), ControlBuffer::new());
    let received = room.receive(fd, &mut control, libc::MSG_CMSG_CLOEXEC)?;
    let file = sys::take_descriptors(received.control).into_iter().next();
    let mut bytes = room.to_vec();
    if bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match protocol::decode(&bytes) {
        Ok(reply) => return Ok((reply, file)),
        Err(unreadable) if file.is_none() => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, unreadable));
        }
        Err(_) => {}
    }
    if let Some(file) = file {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(MAX_MESSAGE);
        let head = bytes.len();
        bytes.resize(head + len, 0);
        file.read_exact_at(&mut bytes[head..], 0)?;
    }
    let whole = protocol::decode(&bytes);
    Ok((whole.map_err(|unreadable| io::Error::new(io::ErrorKind::InvalidData, unreadable))?, None))
}
