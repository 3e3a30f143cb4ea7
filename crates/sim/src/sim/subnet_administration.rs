//! The administration of a simulated InfiniBand subnet: it knows a path between any two ports that
//! are members of a partition, and which ports are members of multicast groups.

use std::collections::BTreeMap;

use nic::device::IbPort;
use wire::mad::rmpp::Rmpp;
use wire::mad::sa::{self, McMemberRecord, PathRecord};
use wire::mad::{Header, MAD_LEN, class, method};
use wire::{Gid, LidAddress, Pkey};

use super::{Sim, What};
use crate::env::{Host, ProcessId};

/// The LID of the first multicast group.
const FIRST_MLID: u16 = 0xc001;
/// 4.096 us * 2^18, about a second.
const LIFE_TIME: u8 = 18;

impl Sim {
    /// Whether the administration of the InfiniBand subnet answers questions. It does, unless this
    /// said no: then it is as where the subnet manager has ended.
    pub fn set_subnet_administration(&mut self, answers: bool) {
        self.administers = answers;
    }

    /// Whether the administration refuses ports that want to join a multicast group.
    pub fn refuse_members(&mut self, refuses: bool) {
        self.groups.refuses = refuses;
    }

    /// The GIDs of the ports that are members of a multicast group, each with its join state.
    pub fn group_members(&self, mgid: Gid) -> Vec<(Gid, u8)> {
        let members =
            self.groups.known.iter().filter(|(group, _)| *group == mgid).flat_map(|(_, members)| members);
        members.map(|(port, state)| (*port, *state)).collect()
    }

    pub(super) fn ask_administration(&mut self, from: ProcessId, to: LidAddress, mad: &[u8; MAD_LEN]) {
        self.counters.sent += 1;
        if self.fabric.is_some() {
            if !self.administers || !self.ask_fabric(from, to, mad) {
                self.counters.lost += 1;
            }
            return;
        }
        let faults = self.network.faults;
        let lost = [(); 2].iter().any(|()| self.dice.chance(faults.loss));
        let answer = match lost || !self.administers {
            true => None,
            false => answer(&self.shared.hosts(), &mut self.groups, mad),
        };
        let Some(answer) = answer else {
            self.counters.lost += 1;
            return self.note("unheard", &[from.0 as u64]);
        };
        let time = 2 * faults.delay + self.dice.duration(faults.jitter);
        self.schedule(time, What::Mad { to: from, mad: Box::new(answer) });
    }
}

/// The join states of ports in multicast groups. A group lives on without members, and keeps its
/// LID.
#[derive(Debug, Default)]
pub(super) struct Groups {
    known: Vec<(Gid, BTreeMap<Gid, u8>)>,
    refuses: bool,
}

/// The answer to a question for a path, or to join or leave a group; `None` for what is none.
fn answer(hosts: &[Host], groups: &mut Groups, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let header = Header::parse(mad).ok()?;
    match (header.class, header.method, header.attribute) {
        (class::SUBN_ADM, method::GET, sa::attribute::PATH_RECORD) => path_answer(hosts, header, mad),
        (class::SUBN_ADM, method::SET | sa::method::DELETE, sa::attribute::MC_MEMBER_RECORD) => {
            member_answer(hosts, groups, header, mad)
        }
        _ => None,
    }
}

fn member_answer(
    hosts: &[Host],
    groups: &mut Groups,
    header: Header,
    mad: &[u8; MAD_LEN],
) -> Option<[u8; MAD_LEN]> {
    let asked = McMemberRecord::parse(&mad[sa::DATA..]).ok()?;
    let is_join = header.method == method::SET;
    let port = port_of(hosts, asked.port_gid)?;
    let is_of_partition = port.pkeys.iter().any(|own| own.matches(Pkey(asked.pkey)));
    let is_member = !is_join || is_of_partition && !groups.refuses;
    let at = groups.known.iter().position(|(mgid, _)| *mgid == asked.mgid).unwrap_or_else(|| {
        groups.known.push((asked.mgid, BTreeMap::new()));
        groups.known.len() - 1
    });
    let members = &mut groups.known[at].1;
    let state = is_member.then(|| {
        let state = members.entry(asked.port_gid).or_default();
        *state = if is_join { *state | asked.join_state } else { *state & !asked.join_state };
        *state
    });
    members.retain(|_, state| *state != 0);
    let mlid = FIRST_MLID + u16::try_from(at).ok()?;
    let method = if is_join { method::GET_RESP } else { sa::method::DELETE_RESP };
    let status = if state.is_some() { 0 } else { sa::status::INVALID };
    let mut answer = *mad;
    answer[..Header::LEN].copy_from_slice(&Header { method, status, ..header }.emit());
    let record = McMemberRecord { mlid, join_state: state.unwrap_or(0), ..asked };
    answer[sa::DATA..sa::DATA + McMemberRecord::LEN].copy_from_slice(&record.emit());
    Some(answer)
}

fn path_answer(hosts: &[Host], header: Header, mad: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let asked = PathRecord::parse(&mad[sa::DATA..]).ok()?;
    let ends = [asked.sgid, asked.dgid].map(|gid| port_of(hosts, gid));
    let path = match ends {
        [Some(source), Some(dest)] => path(&asked, source, dest),
        _ => None,
    };
    let status = if path.is_some() { 0 } else { sa::status::NO_RECORDS };
    let header = Header { method: method::GET_RESP, status, ..header };
    let mut answer = *mad;
    answer[..Header::LEN].copy_from_slice(&header.emit());
    answer[Header::LEN..Header::LEN + Rmpp::LEN].fill(0);
    if let Some(path) = path {
        answer[sa::DATA..sa::DATA + PathRecord::LEN].copy_from_slice(&path.emit());
    }
    Some(answer)
}

/// The path between two ports, where both are members of the partition that is asked for.
fn path(asked: &PathRecord, source: &IbPort, dest: &IbPort) -> Option<PathRecord> {
    let is_member = |port: &IbPort| port.pkeys.iter().any(|own| own.matches(Pkey(asked.pkey | 0x8000)));
    (is_member(source) && is_member(dest)).then(|| PathRecord {
        slid: source.lid,
        dlid: dest.lid,
        reversible_and_count: PathRecord::REVERSIBLE | 1,
        mtu: sa::EXACTLY | source.mtu_active.min(dest.mtu_active).code(),
        life_time: sa::EXACTLY | LIFE_TIME,
        ..*asked
    })
}

/// The port that bears a GID.
fn port_of(hosts: &[Host], gid: Gid) -> Option<&IbPort> {
    let ports = hosts.iter().filter_map(|host| Some(&host.interface.infiniband.as_ref()?.port));
    ports.into_iter().find(|port| (0..port.guids.len()).any(|index| port.gid(index) == Some(gid)))
}
