//! Datagram queue pairs as members of multicast groups (ibv_attach_mcast(3)).

use std::net::IpAddr;
use std::sync::Arc;

use wire::Gid;

use crate::error::Error;
use crate::qp::Qp;
use crate::qp::attr::QpType;

/// The address of a group's GID.
fn address(group: Gid) -> Result<IpAddr, Error> {
    let address = group.ip();
    if address.is_multicast() {
        Ok(address)
    } else {
        Err(Error::address("the GID is not a multicast group's", address))
    }
}

impl Qp {
    /// `ibv_attach_mcast`: from now on it gets the datagrams of the group. Attaching again does
    /// nothing.
    ///
    /// # Errors
    ///
    /// `Value`: not a datagram queue pair, not a group. `Limit`: more groups, or queue pairs in
    /// one, than the device has. `System`: the environment refused to join.
    pub fn attach_group(self: &Arc<Self>, group: Gid) -> Result<(), Error> {
        let kind = self.init().kind;
        if kind != QpType::Ud {
            return Err(Error::name("only datagram queue pairs belong to multicast groups", kind.name()));
        }
        let (address, device) = (address(group)?, self.device());
        let join = || device.link.join(device.config.interface, address).map_err(Error::System);
        device.groups.attach(address, self, join)
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    ///
    /// `Value`: not a group, or not attached to it.
    pub fn detach_group(self: &Arc<Self>, group: Gid) -> Result<(), Error> {
        let (address, device) = (address(group)?, self.device());
        device.groups.detach(address, self, || device.link.leave(device.config.interface, address))
    }

    /// Whether it is attached to any group.
    pub fn is_attached(self: &Arc<Self>) -> bool {
        self.device().groups.has(self)
    }

    /// Takes it out of all groups.
    pub(crate) fn leave_groups(self: &Arc<Self>) {
        let device = self.device();
        device.groups.forget(self, |address| device.link.leave(device.config.interface, address));
    }
}
