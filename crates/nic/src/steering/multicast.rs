//! Multicast groups: which datagram queue pairs of a device get what is sent to a group (`ibv_attach_mcast(3)`).
//!
//! The world takes the group's packets off the wire, those of this host included, so a queue pair that is attached to
//! the group it sends to gets its own datagrams too (IBA 1.4 §10.5.2).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use wire::Gid;
use wire::roce::Packet;

use crate::{Device, Error, Qp, QpType, limits};

/// The groups of a device. Never empty of queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<BTreeMap<IpAddr, Vec<Arc<Qp>>>>);

impl Groups {
    /// The queue pairs attached to a group.
    fn of(&self, group: IpAddr) -> Vec<Arc<Qp>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&group).cloned().unwrap_or_default()
    }
}

/// The address of a group's GID.
fn address(group: Gid) -> Result<IpAddr, Error> {
    let address = group.ip();
    if address.is_multicast() {
        Ok(address)
    } else {
        Err(Error::Invalid("the GID is not a multicast group's"))
    }
}

impl Qp {
    /// `ibv_attach_mcast`: from now on it gets the datagrams of the group. Attaching again does nothing.
    ///
    /// # Errors
    ///
    /// `Invalid`: not a datagram queue pair, not a group. `Limit`: more groups, or queue pairs in one, than the device has.
    /// `System`: the world refused to join.
    pub fn attach_group(self: &Arc<Self>, group: Gid) -> Result<(), Error> {
        if self.init().kind != QpType::Ud {
            return Err(Error::Invalid("only datagram queue pairs belong to multicast groups"));
        }
        let address = address(group)?;
        let device = &self.pd().device;
        let mut groups = device.groups.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(members) = groups.get_mut(&address) {
            if members.iter().any(|m| Arc::ptr_eq(m, self)) {
                return Ok(());
            }
            if members.len() >= limits::MAX_GROUP_QP {
                return Err(Error::Limit("queue pairs of a multicast group"));
            }
            members.push(self.clone());
            return Ok(());
        }
        if groups.len() >= limits::MAX_GROUPS {
            return Err(Error::Limit("multicast groups"));
        }
        device.link.join(device.config.interface, address).map_err(Error::System)?;
        groups.insert(address, vec![self.clone()]);
        Ok(())
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    ///
    /// `Invalid`: not a group, or not attached to it.
    pub fn detach_group(self: &Arc<Self>, group: Gid) -> Result<(), Error> {
        let address = address(group)?;
        let device = &self.pd().device;
        let mut groups = device.groups.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(members) = groups.get_mut(&address) else { return Err(NOT_ATTACHED) };
        let place = members.iter().position(|m| Arc::ptr_eq(m, self)).ok_or(NOT_ATTACHED)?;
        members.swap_remove(place);
        if members.is_empty() {
            groups.remove(&address);
            device.link.leave(device.config.interface, address);
        }
        Ok(())
    }

    /// Whether it is attached to any group.
    pub fn is_attached(self: &Arc<Self>) -> bool {
        let groups = self.pd().device.groups.0.read().unwrap_or_else(PoisonError::into_inner);
        groups.values().flatten().any(|m| Arc::ptr_eq(m, self))
    }

    /// Takes it out of all groups.
    pub(crate) fn leave_groups(self: &Arc<Self>) {
        let device = &self.pd().device;
        let mut groups = device.groups.0.write().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|&address, members| {
            members.retain(|m| !Arc::ptr_eq(m, self));
            if members.is_empty() {
                device.link.leave(device.config.interface, address);
            }
            !members.is_empty()
        });
    }
}

const NOT_ATTACHED: Error = Error::Invalid("the queue pair is not attached to the group");

impl Device {
    /// A packet to a multicast group (queue pair [`wire::Qpn::MULTICAST`]) whose ICRC is good: a copy to everyone attached.
    pub fn input_group(&self, now: Instant, source: IpAddr, group: IpAddr, packet: &Packet<'_>) {
        for qp in self.groups.of(group) {
            qp.input_datagram(now, source, group, packet);
        }
    }
}
