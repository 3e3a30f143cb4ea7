//! This process on a host of a simulated InfiniBand fabric (`verbena run --on`): its ports are that
//! host's, and its packets go by the plane (`fabric::plane`).
//!
//! | file | what |
//! |---|---|
//! | this one | `FabricHost`: the plane, the ports, and what the fabric says of them |
//! | [`call`] | a question to the process that has the fabric |
//! | `link` | the link that passes each packet through the plane |
//! | `groups` | packets to multicast LIDs |
//! | `ipoib` | addresses of IPoIB, and names of ports that are one host's |
//! | `mads` | questions to the administration of the subnet |

pub mod call;
mod groups;
pub(crate) mod ipoib;
mod link;
mod mads;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use ::fabric::plane::{Layout, MAX_BYTES, Plane};
use ::fabric::protocol::{Reply, Request};
use local::SharedWords;
use socket2::SockRef;
use stack::{Interface, Name, fabric_ports};
use sys::fork::Fd;
use wire::mad::MAD_LEN;
use wire::{Gid, LidAddress};

use groups::Groups;
use ipoib::Ipoib;
pub(crate) use link::PlaneLink;
use link::SharedPaths;
pub(crate) use mads::{MadPort, Said};

/// Where a fabric is, and which of its hosts this process is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPlace {
    /// The socket of the process that has the fabric.
    pub socket: PathBuf,
    /// The host.
    pub host: String,
}

/// The ports of a host as they are now, without entering it.
///
/// # Errors
///
/// As of [`FabricHost::enter`].
pub(crate) fn interfaces(place: &FabricPlace) -> io::Result<Vec<Interface>> {
    match call::ask(&place.socket, &Request::Describe { host: place.host.clone() })?.0 {
        Reply::Host { devices, .. } => {
            Ok(fabric_ports::found(&devices).into_iter().map(|(interface, _)| interface).collect())
        }
        Reply::Refused { errno, .. } => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::from_raw_os_error(libc::EPROTO)),
    }
}

/// The fabric, as a process of a host has it.
pub(crate) struct FabricHost {
    socket: Fd,
    words: SharedWords,
    layout: Layout,
    /// The number of this process with the fabric.
    program: u32,
    /// Ports in the plane, by interface.
    ports: Vec<(u32, u32)>,
    shared: SharedPaths,
    groups: Groups,
    mads: Vec<Arc<MadPort>>,
    ipoib: Ipoib,
}

/// What the fabric says.
pub(crate) enum News {
    /// The ports of the host as they are now.
    Ports(Vec<Interface>),
    /// Nothing yet.
    Nothing,
    /// The fabric has ended.
    Ended,
}

impl FabricHost {
    /// Enters the host: its plane, and its ports as they are now.
    ///
    /// # Errors
    ///
    /// ECONNREFUSED and its like where no fabric runs there, the errno of its refusal, EPROTO where
    /// it says something else, those of mmap(2).
    pub(crate) fn enter(place: &FabricPlace) -> io::Result<(Self, Vec<Interface>)> {
        let request = Request::Attach { host: place.host.clone() };
        let (reply, descriptor, socket) = call::ask(&place.socket, &request)?;
        let protocol = || io::Error::from_raw_os_error(libc::EPROTO);
        let (program, descriptor) = match (reply, descriptor) {
            (Reply::Attached(program), Some(descriptor)) => (program, descriptor),
            (Reply::Refused { errno, .. }, _) => return Err(io::Error::from_raw_os_error(errno)),
            _ => return Err(protocol()),
        };
        let words = SharedWords::open(&descriptor, MAX_BYTES)?;
        let layout = Layout::of(words.as_ref()).ok_or_else(protocol)?;
        let (Reply::Host { devices, .. }, _) = call::answer(&socket)? else { return Err(protocol()) };
        SockRef::from(&socket).set_nonblocking(true)?;
        let found = fabric_ports::found(&devices);
        let numbers = found.iter().map(|(interface, number)| (interface.index, *number)).collect();
        let open = |(interface, _): &(Interface, u32)| {
            let (device, number) = fabric_ports::device_and_port(&devices, interface)?;
            Some(MadPort::open(place, (device, number), interface.index).map(Arc::new))
        };
        let mads = found.iter().filter_map(open).collect::<io::Result<_>>()?;
        let interfaces: Vec<Interface> = found.into_iter().map(|(interface, _)| interface).collect();
        let ipoib = Ipoib::new(place, &interfaces);
        let shared = SharedPaths::default();
        Ok((
            Self {
                socket,
                words,
                layout,
                program,
                ports: numbers,
                shared,
                groups: Groups::default(),
                mads,
                ipoib,
            },
            interfaces,
        ))
    }

    /// What the fabric says next.
    pub(crate) fn news(&self) -> News {
        match call::receive(&self.socket) {
            Ok((Reply::Host { devices, .. }, _)) => News::Ports(
                fabric_ports::found(&devices).into_iter().map(|(interface, _)| interface).collect(),
            ),
            Ok(_) => News::Nothing,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => News::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => News::Nothing,
            Err(_) => News::Ended,
        }
    }

    /// The GID of the port that bears an address of IPoIB.
    pub(crate) fn gid_of(&self, address: IpAddr) -> Option<Gid> {
        self.ipoib.neighbour(address).map(|neighbour| Gid(neighbour.gid))
    }

    /// A name of this host as the table of names has it, or of the host that bears an address.
    pub(crate) fn name(&self, name: Name, at: Option<IpAddr>) -> Name {
        self.ipoib.name(name, at)
    }

    /// A name out of the table of names, where it is one of this host.
    pub(crate) fn own_name(&self, name: Name, own: &[IpAddr]) -> Option<Name> {
        self.ipoib.own_name(name, own)
    }

    /// QP1 of each port.
    pub(crate) fn mads(&self) -> &[Arc<MadPort>] {
        &self.mads
    }

    /// Sends a management datagram from QP1 of a port; false where it is lost.
    pub(crate) fn send_mad(&self, interface: u32, to: LidAddress, mad: &[u8; MAD_LEN]) -> bool {
        let port = self.mads.iter().find(|port| port.interface == interface);
        port.is_some_and(|port| port.send(to, mad))
    }

    #[inline]
    pub(crate) fn plane(&self) -> Plane<'_> {
        Plane::new(self.words.as_ref(), self.layout)
    }

    /// The interface of a port, by its number in the plane.
    pub(crate) fn interface(&self, port: u32) -> Option<u32> {
        self.ports.iter().find(|(_, own)| *own == port).map(|(index, _)| *index)
    }

    /// The port of an interface, by its number in the plane.
    fn port(&self, interface: u32) -> Option<u32> {
        self.ports.iter().find(|(index, _)| *index == interface).map(|(_, port)| *port)
    }
}

impl AsRawFd for FabricHost {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
