//! A question to the process that has a fabric.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use ::fabric::MAX_MESSAGE;
use ::fabric::protocol::{self, MAX_INLINE, Reply, Request};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use sys::fork::Fd;
use sys::{ControlBuffer, Room};

use super::place::Place;

/// How long an answer may take: one process serves all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks, and waits for the answer.
///
/// # Errors
///
/// A message: no fabric answers, or it refuses.
pub(crate) fn call(place: &Place, request: &Request) -> Result<Reply, String> {
    let failed = |error: io::Error| format!("fabric {}: {error}", place.name);
    let fd = Fd::open(|| {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.connect(&SockAddr::unix(place.socket())?)?;
        Ok::<_, io::Error>(socket)
    });
    let fd = fd.map_err(failed)?;
    linux::check_user(&fd).map_err(failed)?;
    SockRef::from(&fd).send(&protocol::encode(request)).map_err(failed)?;
    match protocol::decode(&answer(&fd).map_err(failed)?) {
        Ok(Reply::Refused { why, .. }) => Err(why),
        Ok(reply) => Ok(reply),
        Err(unreadable) => Err(format!("fabric {}: {unreadable}", place.name)),
    }
}

/// One message, whose end may lie in a file.
fn answer(fd: &Fd) -> io::Result<Vec<u8>> {
    if sys::files::wait_for(fd, libc::POLLIN, Some(PATIENCE))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (mut room, mut control) = (Room::new(MAX_INLINE), ControlBuffer::new());
    let received = room.receive(fd, &mut control, libc::MSG_CMSG_CLOEXEC)?;
    let files = sys::take_descriptors(received.control);
    let mut bytes = room.to_vec();
    if let Some(file) = files.into_iter().next() {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(MAX_MESSAGE);
        let head = bytes.len();
        bytes.resize(head + len, 0);
        file.read_exact_at(&mut bytes[head..], 0)?;
    }
    Ok(bytes)
}
