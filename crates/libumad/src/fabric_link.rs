//! Questions to the process that has the fabric. VERBENA_FABRIC names its socket and VERBENA_HOST
//! the host of this program, as `verbena run --on` sets them.

use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use fabric::describe::DeviceDescription;
use fabric::protocol::{self, MAX_INLINE, Reply, Request};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

/// How long an answer may take: one process serves all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The fabric refuses, by this errno.
    Refused(i32),
    /// No fabric is named, or none answers.
    NoFabric,
}

pub(crate) fn host() -> String {
    env::var("VERBENA_HOST").unwrap_or_default()
}

fn connect() -> io::Result<OwnedFd> {
    let path = env::var_os("VERBENA_FABRIC").ok_or(io::ErrorKind::NotFound)?;
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Waits for a reply.
fn reply(from: BorrowedFd<'_>) -> Result<Reply, Failure> {
    let mut bytes = [0; MAX_INLINE];
    let is_there = sys::files::wait_for(from, libc::POLLIN, Some(PATIENCE));
    let mut control = sys::ControlBuffer::new();
    let read = match is_there {
        Ok(events) if events != 0 => sys::receive(&from, &mut bytes, &mut control, 0),
        _ => return Err(Failure::NoFabric),
    };
    let len = read.map_err(|_| Failure::NoFabric)?.len;
    match bytes.get(..len).map(protocol::decode) {
        Some(Ok(Reply::Refused { errno, .. })) => Err(Failure::Refused(errno)),
        Some(Ok(reply)) => Ok(reply),
        _ => Err(Failure::NoFabric),
    }
}

/// Asks on a connection of its own, which it gives back.
pub(crate) fn ask(request: &Request) -> Result<(Reply, OwnedFd), Failure> {
    let failed = |_| Failure::NoFabric;
    let socket = connect().map_err(failed)?;
    let flags = libc::MSG_NOSIGNAL;
    SockRef::from(&socket).send_with_flags(&protocol::encode(request), flags).map_err(failed)?;
    Ok((reply(socket.as_fd())?, socket))
}

/// Asks on an open port. The answer comes by a socket that goes along, because on the port itself
/// it would lie among messages.
pub(crate) fn ask_at(port: BorrowedFd<'_>, request: &Request) -> Result<Reply, Failure> {
    let failed = |_| Failure::NoFabric;
    let (own, other) = UnixDatagram::pair().map_err(failed)?;
    let bytes = protocol::encode(request);
    loop {
        match sys::send_descriptor(port, &bytes, &other) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sys::files::wait_for(port, libc::POLLOUT, Some(PATIENCE)).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Failure::NoFabric),
        }
    }
    drop(other);
    reply(own.as_fd())
}

/// The devices of this program's host; none where there is no fabric.
pub(crate) fn devices() -> Vec<DeviceDescription> {
    match ask(&Request::Describe { host: host() }) {
        Ok((Reply::Host { devices, .. }, _)) => devices,
        _ => Vec::new(),
    }
}

/// The directory of the host's files.
pub(crate) fn directory() -> Option<String> {
    match ask(&Request::Enter { host: host() }) {
        Ok((Reply::Host { directory, .. }, _)) => directory,
        _ => None,
    }
}
