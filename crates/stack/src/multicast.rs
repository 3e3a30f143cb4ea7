//! Multicast groups of datagram identifiers (rdma_join_multicast(3)). RoCE has no subnet manager to
//! ask: the group's GID is its address (IPv4: mapped), and joining is a membership of the
//! interface, IGMP or MLD.
//!
//! A join is complete when its event is fetched: then the identifier's queue pair, if it has one,
//! is attached to the group and the interface joins it. A send-only member is never attached.

use std::net::IpAddr;
use std::sync::Arc;

use nic::Qp;
use nic::rdma_cm::{EventKind, UdParam};
use wire::Qpn;

use crate::address::normal;
use crate::cm_agent::plain;
use crate::datagram::address_vector;
use crate::env::Env;
use crate::event::Event;
use crate::id::{Id, Progress};
use crate::{Errno, Error, Node};

/// A group that an identifier belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    group: IpAddr,
    /// The identifier sends to the group and gets nothing of it.
    send_only: bool,
}

impl<W: Env> Node<W> {
    /// `rdma_join_multicast_ex`: MulticastJoin follows, with `context`. Of a group that the
    /// identifier belongs to already, only another event. EINVAL where it is not of
    /// RDMA_PS_UDP, has no device, is beyond address resolution, or `group` is no
    /// multicast address or of another family than the identifier's; ENOMEM at
    /// [`nic::limits::MAX_GROUPS`] groups.
    pub fn join_multicast(
        &self,
        id: &Arc<Id>,
        group: IpAddr,
        send_only: bool,
        context: u64,
    ) -> Result<(), Error> {
        let group = normal(group);
        if !id.is_datagram() {
            return Err(Error::name("only datagram identifiers join multicast groups", id.kind.name()));
        }
        if !group.is_multicast() {
            return Err(Error::address("not a multicast address", group));
        }
        let qkey = id.qkey()?;
        let (device, av) = {
            let inner = id.lock();
            if !matches!(inner.progress, Progress::Bound | Progress::AddressResolved) {
                return Err(inner.progress.refuses());
            }
            let (Some(source), Some(device)) = (inner.source, &inner.device) else {
                return Err(inner.progress.refuses());
            };
            if source.is_ipv4() != group.is_ipv4() {
                return Err(Error::address(
                    "the group is of another address family than the identifier",
                    group,
                ));
            }
            let sgid_index = device.port().gids.index_of(source.ip());
            let sgid_index = sgid_index.ok_or(Error::System(Errno::EADDRNOTAVAIL))?;
            let av = address_vector(group, sgid_index, inner.tos);
            (device.clone(), av)
        };
        self.attach(&device)?;
        {
            let mut inner = id.lock();
            let full = inner.groups.len() >= nic::limits::MAX_GROUPS;
            match inner.groups.iter_mut().find(|m| m.group == group) {
                Some(member) => member.send_only &= send_only,
                None if full => return Err(Error::Limit("multicast groups")),
                None => inner.groups.push(Membership { group, send_only }),
            }
        }
        let ud = UdParam { av, qpn: Qpn::MULTICAST, qkey, context };
        let channel = id.lock().channel.clone();
        channel.push(Event { ud: Some(ud), ..plain(id, EventKind::MulticastJoin, 0) });
        Ok(())
    }

    /// The program fetches the event of a join: the queue pair is attached. Where that fails the
    /// event says so, and the identifier belongs to the group no more.
    pub(crate) fn complete_join(&self, event: &mut Event) {
        let Some(group) = event.ud.map(|ud| ud.av.dgid.ip()) else { return };
        let full_member = |id: &Id| {
            let inner = id.lock();
            let member = inner.groups.iter().find(|m| m.group == group && !m.send_only).copied();
            member.zip(inner.qp.clone())
        };
        let Some((member, qp)) = full_member(&event.id) else { return };
        match qp.attach_group(group.into()) {
            // Another thread left meanwhile, or took the queue pair away.
            Ok(()) if full_member(&event.id).is_none() => detach(&qp, &member),
            Ok(()) => {}
            Err(error) => {
                event.kind = EventKind::MulticastError;
                event.status = -error.errno().0;
                event.id.lock().groups.retain(|m| m.group != group);
            }
        }
    }

    /// `rdma_leave_multicast`: the queue pair is detached; joins whose events the program did not
    /// fetch are forgotten. EADDRNOTAVAIL where the identifier does not belong to the group.
    pub fn leave_multicast(&self, id: &Arc<Id>, group: IpAddr) -> Result<(), Error> {
        let group = normal(group);
        let (member, qp, channel) = {
            let mut inner = id.lock();
            let at = inner.groups.iter().position(|m| m.group == group);
            let at = at.ok_or(Error::System(Errno::EADDRNOTAVAIL))?;
            (inner.groups.swap_remove(at), inner.qp.clone(), inner.channel.clone())
        };
        channel.take_back(|e| {
            e.kind == EventKind::MulticastJoin
                && Arc::ptr_eq(&e.id, id)
                && e.ud.is_some_and(|ud| ud.av.dgid.ip() == group)
        });
        if let Some(qp) = qp {
            detach(&qp, &member);
        }
        Ok(())
    }

    /// Takes a queue pair that leaves its identifier, or whose identifier ends, out of the
    /// identifier's groups.
    pub(crate) fn detach_all(&self, id: &Id) {
        let (groups, qp) = {
            let inner = id.lock();
            (inner.groups.clone(), inner.qp.clone())
        };
        if let Some(qp) = qp {
            groups.iter().for_each(|member| detach(&qp, member));
        }
    }
}

fn detach(qp: &Arc<Qp>, member: &Membership) {
    if !member.send_only {
        // An error says that the join's event was never fetched, or the program has detached it.
        _ = qp.detach_group(member.group.into());
    }
}
