//! Multicast groups of an InfiniBand subnet (IBA 1.4 §15.2.5.17): the administration makes them,
//! gives them a multicast LID, and writes the tables of switches that lead to their members.
//!
//! | group | MGID, with the P_Key of the port |
//! |---|---|
//! | 239.1.2.3 | `ff12:401b:ffff::f01:203` (RFC 4391 §4) |
//! | IPv6 | `ff12:601b:ffff`, then the last ten bytes |
//! | either in RDMA_PS_UDP | with 0x01 in place of 0x1b: no interface of IPoIB hears it |
//! | `ff1x:a01b::`, or an `AF_IB` address | the address itself |

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cm::PortSpace;
use nic::device::Port;
use nic::rdma_cm::{EventKind, UdParam};
use nic::{AddressVector, Device};
use wire::mad::method;
use wire::mad::sa::{self, McMemberRecord, mc_member};
use wire::{Gid, Pkey, Qkey, Qpn};

use crate::cm_agent::plain;
use crate::env::Env;
use crate::event::Event;
use crate::id::Id;
use crate::multicast::{Group, Joining, Membership, enter};
use crate::sa_client::{Answer, Purpose, Request, manager_of};
use crate::{Errno, Error, Node};

/// How long the kernel's ib_sa waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The bits of a P_Key that say of full membership, which the groups of IPoIB always have.
const FULL: u16 = 0x8000;

impl<W: Env> Node<W> {
    /// Asks to join a group, for an identifier on a device.
    pub(crate) fn join_ib_group(
        &self,
        id: &Arc<Id>,
        device: Arc<Device>,
        (group, state): (Group, u8),
        qkey: Qkey,
        context: u64,
    ) -> Result<(), Error> {
        self.attach(&device)?;
        // Without a manager IPoIB has joined no group for broadcasts, which the kernel looks for.
        let known = manager_of(&device).and(device.gid(0));
        let port_gid = known.ok_or(Error::System(Errno::EADDRNOTAVAIL))?.gid;
        let pkey = device.port().pkeys().first().copied().unwrap_or_default();
        let mgid = mgid(group, pkey, id.space);
        let record = McMemberRecord {
            mgid,
            port_gid,
            qkey: qkey.0,
            pkey: pkey.0 | FULL,
            join_state: state,
            ..McMemberRecord::default()
        };
        let mut core = self.cm_agent.lock();
        core.sa_queries.check_room()?;
        enter(id, Membership { group, gid: mgid, states: state, progress: Joining::Asked, context })?;
        let request = Request {
            method: method::SET,
            attribute: sa::attribute::MC_MEMBER_RECORD,
            components: mc_member::JOIN | mc_member::CREATE,
            record: &record.emit(),
        };
        let purpose = Purpose::Join { id: id.clone(), mgid, context };
        self.ask_administration(&mut core, device, purpose, &request, TIMEOUT);
        Ok(())
    }

    /// The question to join a group has its answer, or none. A join that its program has taken back
    /// meanwhile ends in leaving.
    pub(crate) fn join_answered(
        &self,
        id: &Arc<Id>,
        device: &Arc<Device>,
        (mgid, context): (Gid, u64),
        answer: Answer<'_>,
    ) {
        let joined = answer.and_then(|record| {
            let record = McMemberRecord::parse(record).ok().filter(|record| record.mgid == mgid);
            record.ok_or(Errno::EINVAL)
        });
        let channel = {
            let mut inner = id.lock();
            let member = inner.groups.iter_mut().find(|m| m.gid == mgid);
            let is_member = member.is_some();
            match (joined, member) {
                (Ok(_), Some(member)) => member.progress = Joining::Agreed,
                (Err(_), _) => inner.groups.retain(|m| m.gid != mgid || m.progress != Joining::Asked),
                (Ok(_), None) => {}
            }
            is_member.then(|| inner.channel.clone())
        };
        let Some(channel) = channel else {
            if let Ok(record) = joined {
                let group = Group::Gid(mgid);
                let (states, progress) = (record.join_state, Joining::Agreed);
                let member = Membership { group, gid: mgid, states, progress, context };
                self.leave_ib_group(device, &member);
            }
            return;
        };
        let (kind, status, ud) = match joined {
            Ok(record) => (EventKind::MulticastJoin, 0, toward(&record)),
            Err(errno) => (EventKind::MulticastError, -errno.0, UdParam::default()),
        };
        channel.push(Event { ud: Some(UdParam { context, ..ud }), ..plain(id, kind, status) });
    }

    /// The memberships of a device's port are void: MulticastError -ENETRESET for each. A program
    /// that wants to hear joins again. Its queue pairs stay attached.
    pub(crate) fn groups_lost(&self, device: &Arc<Device>) {
        for id in self.cm_agent.everyone.on(device) {
            let (channel, lost) = {
                let mut inner = id.lock();
                let agreed = inner.groups.iter_mut().filter(|m| m.progress == Joining::Agreed);
                let lose = |member: &mut Membership| {
                    member.progress = Joining::Lost;
                    member.context
                };
                let lost: Vec<u64> = agreed.map(lose).collect();
                (inner.channel.clone(), lost)
            };
            for context in lost {
                let ud = Some(UdParam { context, ..UdParam::default() });
                channel.push(Event { ud, ..plain(&id, EventKind::MulticastError, -Errno::ENETRESET.0) });
            }
        }
    }

    /// A port leaves a group, unless another identifier of this process is a member in the same
    /// way. Nothing where the group is none of InfiniBand.
    pub(crate) fn leave_ib_group(&self, device: &Arc<Device>, left: &Membership) {
        let (Some(_), Some(port_gid)) = (manager_of(device), device.gid(0)) else { return };
        let others = self.cm_agent.everyone.on(device);
        let states = others.iter().fold(0, |states, id| {
            let inner = id.lock();
            let same = |m: &&Membership| m.gid == left.gid && m.progress != Joining::Lost;
            inner.groups.iter().filter(same).fold(states, |states, m| states | m.states)
        });
        let join_state = left.states & !states;
        let mut core = self.cm_agent.lock();
        if left.progress != Joining::Agreed || join_state == 0 || core.sa_queries.check_room().is_err() {
            return;
        }
        let record = McMemberRecord {
            mgid: left.gid,
            port_gid: port_gid.gid,
            join_state,
            ..McMemberRecord::default()
        };
        let request = Request {
            method: sa::method::DELETE,
            attribute: sa::attribute::MC_MEMBER_RECORD,
            components: mc_member::JOIN,
            record: &record.emit(),
        };
        self.ask_administration(&mut core, device.clone(), Purpose::Leave, &request, TIMEOUT);
    }
}

/// Whether the memberships of a port that was one and is another are void. The kernel's ib_sa takes
/// them for void when the link was down, with another LID, and when clients are to register again:
/// then a manager that knows none has the subnet.
pub(crate) fn are_lost(before: &Port, now: &Port) -> bool {
    let (Some(old), Some(new)) = (&before.ib, &now.ib) else { return false };
    before.up && !now.up
        || (old.lid, old.lmc) != (new.lid, new.lmc)
        || old.client_reregister != new.client_reregister
}

/// How to send to a group that a port has joined.
fn toward(record: &McMemberRecord) -> UdParam {
    let av = AddressVector {
        dgid: record.mgid,
        flow_label: record.sl_flow_hops >> 8 & 0xf_ffff,
        hop_limit: record.sl_flow_hops as u8,
        traffic_class: record.traffic_class,
        sl: (record.sl_flow_hops >> 28) as u8,
        dlid: record.mlid,
        // Below the selector.
        static_rate: record.rate & 0x3f,
        is_global: true,
        port: 1,
        ..AddressVector::default()
    };
    UdParam { av, qpn: Qpn::MULTICAST, qkey: Qkey(record.qkey), context: 0 }
}

/// The GID of a group in a partition, as the kernel's rdma_cm forms it.
pub(crate) fn mgid(group: Group, pkey: Pkey, space: PortSpace) -> Gid {
    /// The first four bytes, but for the scope, of a group of IPv6 that a manager has chosen.
    const CHOSEN: u32 = 0xff10_a01b;
    const NO_SCOPE: u32 = 0xfff0_ffff;
    let ip = match group {
        Group::Gid(gid) => return gid,
        Group::Ip(ip) => ip,
    };
    // Link-local, as the group for broadcasts is.
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xff, 0x12]);
    match ip {
        IpAddr::V4(v4) => {
            gid[2] = 0x40;
            gid[12..].copy_from_slice(&(v4.to_bits() & 0x0fff_ffff).to_be_bytes());
        }
        IpAddr::V6(v6) => {
            let bytes = v6.octets();
            if (v6.to_bits() >> 96) as u32 & NO_SCOPE == CHOSEN {
                return Gid(bytes);
            }
            gid[2] = 0x60;
            gid[6..].copy_from_slice(&bytes[6..]);
        }
    }
    gid[3] = if space == PortSpace::Udp { 0x01 } else { 0x1b };
    gid[4..6].copy_from_slice(&(pkey.0 | FULL).to_be_bytes());
    Gid(gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gid_of_a_group_is_that_of_rfc_4391_or_of_rdma_cm_alone() {
        let ip = |text: &str| Group::Ip(text.parse().unwrap());
        let gid = |text: &str| Gid(text.parse::<std::net::Ipv6Addr>().unwrap().octets());
        for (group, space, expected) in [
            (ip("239.1.2.3"), PortSpace::Ipoib, "ff12:401b:8005::f01:203"),
            (ip("239.1.2.3"), PortSpace::Udp, "ff12:4001:8005::f01:203"),
            (ip("ff15::1:2:3"), PortSpace::Ib, "ff12:601b:8005::1:2:3"),
            (ip("ff15::1:2:3"), PortSpace::Udp, "ff12:6001:8005::1:2:3"),
            (ip("ff1e:a01b::7"), PortSpace::Udp, "ff1e:a01b::7"),
            (Group::Gid(gid("ff12:abcd::1")), PortSpace::Udp, "ff12:abcd::1"),
        ] {
            assert_eq!(mgid(group, Pkey(5), space), gid(expected), "{group:?} in {space:?}");
        }
    }
}
