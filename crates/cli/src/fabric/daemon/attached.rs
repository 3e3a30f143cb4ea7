//! Programs with queue pairs on hosts of the fabric: they have the plane, and are told of their
//! ports. The files of hosts say once a second what has passed these.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use ::fabric::protocol::{self, Reply};
use ::fabric::{ClientId, Fabric};
use local::SharedWords;
use sys::fork::Fd;

use super::{Daemon, FIRST_CONNECTION, no_device, send};

/// How often the files of counters are written.
const REFRESH: Duration = Duration::from_secs(1);

/// A program that has the plane.
pub(super) struct Attached {
    host: String,
    /// The program has not been told of the last change: its socket was full.
    is_behind: bool,
}

/// Makes the plane of a fabric; the descriptor for programs.
///
/// # Errors
///
/// EFBIG for a fabric that is too large; what the system refused.
pub(super) fn map_plane(fabric: &mut Fabric) -> io::Result<Fd> {
    let bytes = fabric.plane_layout().bytes().ok_or(ErrorKind::FileTooLarge)?;
    let (words, fd) = SharedWords::create(c"verbena plane", bytes)?;
    fabric.map_plane(Arc::new(words));
    Ok(fd)
}

impl Daemon {
    /// Gives a program the plane, and tells it of its ports.
    pub(super) fn attach(&mut self, id: ClientId, host: String) -> Option<Reply> {
        if self.fabric.describe(&host).is_none() {
            return Some(no_device(&host));
        }
        let program = u32::try_from(id.0).unwrap_or(u32::MAX);
        let connection = self.connections.get_mut(&id)?;
        let plane = match &self.plane {
            Ok(plane) => plane,
            Err(error) => {
                let why = format!("the plane of the fabric cannot be made: {error}");
                return Some(Reply::Refused { errno: error.raw_os_error().unwrap_or(libc::ENOMEM), why });
            }
        };
        let reply = protocol::encode(&Reply::Attached(program));
        if sys::send_descriptor(&connection.fd, &reply, plane).is_err() {
            self.close(id);
            return None;
        }
        connection.attached = Some(Attached { host, is_behind: true });
        self.tell(id);
        None
    }

    /// Tells the programs of a host of its ports.
    pub(super) fn tell_host(&mut self, host: &str) {
        let on_host = |attached: &Attached| attached.host == host;
        let mut programs = Vec::new();
        for (id, connection) in &mut self.connections {
            if let Some(attached) = connection.attached.as_mut().filter(|attached| on_host(attached)) {
                attached.is_behind = true;
                programs.push(*id);
            }
        }
        programs.into_iter().for_each(|id| self.tell(id));
    }

    /// Tells a program of its ports as they are now, once there is room.
    pub(super) fn tell(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(attached) = connection.attached.as_mut().filter(|attached| attached.is_behind) else {
            return;
        };
        let devices = self.fabric.describe(&attached.host).unwrap_or_default();
        let is_full = match send(&connection.fd, &protocol::encode(&Reply::Host { devices, directory: None }))
        {
            Ok(()) => {
                attached.is_behind = false;
                false
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(_) => return self.close(id),
        };
        if connection.waits_for_room != is_full {
            connection.waits_for_room = is_full;
            let events = libc::EPOLLIN | if is_full { libc::EPOLLOUT } else { 0 };
            let _ = self.epoll.change(connection.fd.as_raw_fd(), events as u32, FIRST_CONNECTION + id.0);
        }
    }

    /// When the files of counters are written next; `None` while no host has files.
    pub(super) fn refresh_at(&self) -> Option<Duration> {
        (!self.hosts.is_empty()).then_some(self.refreshed + REFRESH)
    }

    /// Writes the files of counters that have changed, once they are due.
    pub(super) fn refresh(&mut self, now: Duration) {
        if self.refresh_at().is_none_or(|at| at > now) {
            return;
        }
        self.refreshed = now;
        for (host, files) in &mut self.hosts {
            let counters = self.fabric.host_counters(host);
            if let Err(error) = files.update_counters(&counters) {
                eprintln!("verbena: the counters of {host} are not up to date: {error}");
            }
        }
    }
}
