//! Management datagrams of this process: from QP1 of a port to other ports of the subnet, such as
//! the one with the subnet's administration. They go by a umad port, as those of libibumad.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use ::fabric::protocol::{self, Reply, Request};
use ::fabric::questions;
use ::fabric::umad::UmadHeader;
use socket2::SockRef;
use sys::fork::Fd;
use sys::{ControlBuffer, Room};
use wire::LidAddress;
use wire::mad::MAD_LEN;

use super::{FabricPlace, call};

/// QP1 of a port.
pub(crate) struct MadPort {
    fd: Fd,
    pub(crate) interface: u32,
    agent: u32,
}

/// What a port says.
pub(crate) enum Said {
    /// A datagram for QP1.
    Mad(Box<[u8; MAD_LEN]>),
    /// Nothing of use yet, or that a question has had no answer.
    Nothing,
    /// The fabric has ended.
    Ended,
}

impl MadPort {
    /// Opens a port for questions to the subnet's administration.
    ///
    /// # Errors
    ///
    /// Those of [`call::ask`], EPROTO where the fabric refuses.
    pub(super) fn open(place: &FabricPlace, (device, port): (&str, u8), interface: u32) -> io::Result<Self> {
        let refused = || io::Error::from_raw_os_error(libc::EPROTO);
        let open = Request::Open { host: place.host.clone(), device: device.to_owned(), port };
        let (Reply::Done, _, fd) = call::ask(&place.socket, &open)? else { return Err(refused()) };
        let register = protocol::encode(&Request::Register(questions::registration()));
        SockRef::from(&fd).send_with_flags(&register, libc::MSG_NOSIGNAL)?;
        let (Reply::Agent(agent), _) = call::answer(&fd)? else { return Err(refused()) };
        SockRef::from(&fd).set_nonblocking(true)?;
        Ok(Self { fd, interface, agent })
    }

    /// Sends a datagram; false where it is lost.
    pub(super) fn send(&self, to: LidAddress, mad: &[u8; MAD_LEN]) -> bool {
        let message = questions::question(self.agent, to, mad);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        SockRef::from(&self.fd).send_with_flags(&message, flags).is_ok()
    }

    /// What the port says next.
    pub(crate) fn hear(&self) -> Said {
        let (mut room, mut control) = (Room::new(UmadHeader::LEN + MAD_LEN), ControlBuffer::new());
        match room.receive(&self.fd, &mut control, libc::MSG_CMSG_CLOEXEC) {
            Ok(_) if room.is_empty() => Said::Ended,
            Ok(_) => questions::answer(&room).map_or(Said::Nothing, Said::Mad),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Said::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Said::Nothing,
            Err(_) => Said::Ended,
        }
    }
}

impl AsRawFd for MadPort {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
