//! Multicast groups of datagram identifiers (rdma_join_multicast(3)). RoCE has no subnet manager to
//! ask: the group's GID is its address (IPv4: mapped), and joining is a membership of the
//! interface, IGMP or MLD. On InfiniBand the subnet's administration is asked
//! ([`crate::ib_groups`]).
//!
//! A join is complete when its event is fetched: then the identifier's queue pair, if it has one,
//! is attached to the group and the interface joins it. A send-only member is never attached.

use std::net::IpAddr;
use std::sync::Arc;

use nic::rdma_cm::{EventKind, UdParam};
use nic::{Qp, Transport};
use wire::{Gid, Qpn};

use crate::address::normal;
use crate::cm_agent::plain;
use crate::datagram::address_vector;
use crate::env::Env;
use crate::event::Event;
use crate::id::{Id, Progress};
use crate::{Errno, Error, Node};

/// A multicast group, as a program names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A group of IP. Its GID on InfiniBand follows from it and from the partition.
    Ip(IpAddr),
    /// A group by its GID: an `AF_IB` address.
    Gid(Gid),
}

impl From<IpAddr> for Group {
    fn from(group: IpAddr) -> Self {
        Self::Ip(normal(group))
    }
}

impl Group {
    /// The address that the group has on RoCE.
    fn address(self) -> IpAddr {
        match self {
            Self::Ip(ip) => ip,
            Self::Gid(gid) => gid.ip(),
        }
    }
}

/// The join states of a full member, and of one that sends and is sent nothing.
pub(crate) const FULL_MEMBER: u8 = 1;
pub(crate) const SEND_ONLY_FULL_MEMBER: u8 = 8;

/// A group that an identifier belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    pub(crate) group: Group,
    /// On RoCE the address of the group.
    pub(crate) gid: Gid,
    /// How it has joined: [`FULL_MEMBER`], [`SEND_ONLY_FULL_MEMBER`], or once so and once so.
    pub(crate) states: u8,
    pub(crate) progress: Joining,
    /// What the program gave with its last call.
    pub(crate) context: u64,
}

/// What the administration of an InfiniBand subnet knows of a membership. On RoCE nothing is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    /// No answer has come.
    Asked,
    /// The administration has agreed.
    Agreed,
    /// The administration had agreed, and may know the port no more
    /// ([`crate::ib_groups::are_lost`]).
    Lost,
}

impl<W: Env> Node<W> {
    /// `rdma_join_multicast_ex`: MulticastJoin follows, with `context`; on InfiniBand
    /// MulticastError where the administration of the subnet refuses or does not answer. Of a
    /// group that the identifier belongs to already, only another event. EINVAL where it is not
    /// of RDMA_PS_UDP, has no device, is beyond address resolution, or `group` is no
    /// multicast address or on RoCE of another family than the identifier's; ENOMEM at
    /// [`nic::limits::MAX_GROUPS`] groups; EADDRNOTAVAIL on an InfiniBand port without a subnet
    /// manager.
    pub fn join_multicast(
        &self,
        id: &Arc<Id>,
        group: impl Into<Group>,
        send_only: bool,
        context: u64,
    ) -> Result<(), Error> {
        let group = group.into();
        let state = if send_only { SEND_ONLY_FULL_MEMBER } else { FULL_MEMBER };
        if !id.is_datagram() {
            return Err(Error::name("only datagram identifiers join multicast groups", id.kind.name()));
        }
        if !group.address().is_multicast() {
            return Err(Error::address("not a multicast address", group.address()));
        }
        let qkey = id.qkey()?;
        let (device, av) = {
            let inner = id.lock();
            if !matches!(inner.progress, Progress::Bound | Progress::AddressResolved) {
                return Err(inner.progress.refuses());
            }
            let (Some(source), Some(device)) = (inner.source, inner.device.clone()) else {
                return Err(inner.progress.refuses());
            };
            if device.config.transport == Transport::Ib {
                drop(inner);
                return self.join_ib_group(id, device, (group, state), qkey, context);
            }
            let group = group.address();
            if source.is_ipv4() != group.is_ipv4() {
                return Err(Error::address(
                    "the group is of another address family than the identifier",
                    group,
                ));
            }
            let sgid_index = device.port().gids.index_of(source.ip());
            let sgid_index = sgid_index.ok_or(Error::System(Errno::EADDRNOTAVAIL))?;
            let av = address_vector(group, sgid_index, inner.tos);
            (device, av)
        };
        self.attach(&device)?;
        enter(id, Membership { group, gid: av.dgid, states: state, progress: Joining::Agreed, context })?;
        let ud = UdParam { av, qpn: Qpn::MULTICAST, qkey, context };
        let channel = id.lock().channel.clone();
        channel.push(Event { ud: Some(ud), ..plain(id, EventKind::MulticastJoin, 0) });
        Ok(())
    }

    /// The program fetches the event of a join: the queue pair is attached. Where that fails the
    /// event says so, and the identifier belongs to the group no more.
    pub(crate) fn complete_join(&self, event: &mut Event) {
        let Some(gid) = event.ud.map(|ud| ud.av.dgid) else { return };
        let full_member = |id: &Id| {
            let inner = id.lock();
            let is_it = |m: &&Membership| m.gid == gid && m.states & FULL_MEMBER != 0;
            let member = inner.groups.iter().find(is_it).copied();
            member.zip(inner.qp.clone())
        };
        let Some((member, qp)) = full_member(&event.id) else { return };
        match qp.attach_group(gid) {
            // Another thread left meanwhile, or took the queue pair away.
            Ok(()) if full_member(&event.id).is_none() => detach(&qp, &member),
            Ok(()) => {}
            Err(error) => {
                event.kind = EventKind::MulticastError;
                event.status = -error.errno().0;
                self.forget_group(&event.id, gid);
            }
        }
    }

    /// `rdma_leave_multicast`: the queue pair is detached; joins whose events the program did not
    /// fetch are forgotten. EADDRNOTAVAIL where the identifier does not belong to the group.
    pub fn leave_multicast(&self, id: &Arc<Id>, group: impl Into<Group>) -> Result<(), Error> {
        let group = group.into();
        let (member, qp, device, channel) = {
            let mut inner = id.lock();
            let at = inner.groups.iter().position(|m| m.is_of(group));
            let at = at.ok_or(Error::System(Errno::EADDRNOTAVAIL))?;
            let member = inner.groups.swap_remove(at);
            (member, inner.qp.clone(), inner.device.clone(), inner.channel.clone())
        };
        channel.take_back(|e| {
            e.kind == EventKind::MulticastJoin
                && Arc::ptr_eq(&e.id, id)
                && e.ud.is_some_and(|ud| ud.av.dgid == member.gid)
        });
        if let Some(qp) = qp {
            detach(&qp, &member);
        }
        if let Some(device) = device {
            self.leave_ib_group(&device, &member);
        }
        Ok(())
    }

    /// An identifier is no member any more, after all.
    fn forget_group(&self, id: &Arc<Id>, gid: Gid) {
        let (left, device) = {
            let mut inner = id.lock();
            let left: Vec<Membership> = inner.groups.extract_if(.., |m| m.gid == gid).collect();
            (left, inner.device.clone())
        };
        if let Some(device) = device {
            left.iter().for_each(|member| self.leave_ib_group(&device, member));
        }
    }

    /// An identifier that ends leaves its groups.
    pub(crate) fn leave_all(&self, id: &Arc<Id>) {
        self.detach_all(id);
        let gids: Vec<Gid> = id.lock().groups.iter().map(|member| member.gid).collect();
        gids.into_iter().for_each(|gid| self.forget_group(id, gid));
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

impl Membership {
    /// Whether a program that names a group so means this one. IPv6 and `AF_IB` have the same bytes
    /// on RoCE.
    fn is_of(&self, group: Group) -> bool {
        self.group == group || self.gid == Gid::from(group.address())
    }
}

/// An identifier becomes a member, or one in another way, too.
pub(crate) fn enter(id: &Id, new: Membership) -> Result<(), Error> {
    let mut inner = id.lock();
    let full = inner.groups.len() >= nic::limits::MAX_GROUPS;
    match inner.groups.iter_mut().find(|m| m.gid == new.gid) {
        Some(member) => {
            member.states |= new.states;
            member.context = new.context;
        }
        None if full => return Err(Error::Limit("multicast groups")),
        None => inner.groups.push(new),
    }
    Ok(())
}

fn detach(qp: &Arc<Qp>, member: &Membership) {
    if member.states & FULL_MEMBER != 0 {
        // An error says that the join's event was never fetched, or the program has detached it.
        _ = qp.detach_group(member.gid);
    }
}
