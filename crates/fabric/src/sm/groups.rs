//! Multicast groups (IBA 1.4 §15.2.5.17) and the tables of switches that follow from their
//! members: for each group a tree of switches, whose ports towards members and other switches are
//! set.

use std::collections::{BTreeMap, BTreeSet};

use wire::Gid;
use wire::mad::sa::{EXACTLY, McMemberRecord, SaHeader, mc_member, status};
use wire::mad::smp::Data;

use super::Manager;
use super::mads::Job;
use super::topology::{At, Topology};
use crate::subnet::MULTICAST_CAP;

/// The first multicast LID.
const FIRST_MLID: u16 = 0xc000;
/// LIDs of a block, and ports of a position, of a multicast forwarding table.
const BLOCK: u16 = 32;
const POSITION: u8 = 16;
/// The join states (IBA 1.4 §15.2.5.17.1): full members make a group and keep it.
const FULL_MEMBER: u8 = 1;
const SEND_ONLY: u8 = 4;
/// Like a full member, but that nothing is sent to it.
const SEND_ONLY_FULL_MEMBER: u8 = 8;
/// The states of members that keep a group.
const KEEPS: u8 = FULL_MEMBER | SEND_ONLY_FULL_MEMBER;
/// What a group is whose maker does not say it: 2,048 bytes, 10 Gbit/s, a second.
const MTU: u8 = 4;
const RATE: u8 = 3;
const LIFE_TIME: u8 = 18;
/// The group to which IP over InfiniBand sends broadcasts in the default partition (RFC 4391 §4).
const BROADCAST: Gid = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
const BROADCAST_QKEY: u32 = 0xb1b;

/// A group.
#[derive(Debug)]
pub(super) struct Group {
    /// The record of a member, without the member.
    pub(super) record: McMemberRecord,
    /// The join state of each port, by its GUID.
    pub(super) members: BTreeMap<u64, u8>,
    is_permanent: bool,
}

/// All groups, and the blocks of tables that lead to their members, by the GUID of the switch.
#[derive(Debug)]
pub(super) struct Groups {
    groups: BTreeMap<Gid, Group>,
    tables: BTreeMap<u64, BTreeMap<(u8, u16), [u16; 32]>>,
}

impl Default for Groups {
    fn default() -> Self {
        let record = McMemberRecord {
            mgid: BROADCAST,
            qkey: BROADCAST_QKEY,
            mlid: FIRST_MLID,
            mtu: EXACTLY | MTU,
            pkey: u16::MAX,
            rate: EXACTLY | RATE,
            life_time: EXACTLY | LIFE_TIME,
            scope: 2,
            ..McMemberRecord::default()
        };
        let group = Group { record, members: BTreeMap::new(), is_permanent: true };
        Self { groups: BTreeMap::from([(BROADCAST, group)]), tables: BTreeMap::new() }
    }
}

impl Groups {
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Forgets all members and all groups but the one for broadcasts.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.groups.get(&mgid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// The block that a switch is to have.
    pub(super) fn block(&self, switch: u64, position: u8, block: u16) -> Data {
        let masks = self.tables.get(&switch).and_then(|table| table.get(&(position, block)));
        let mut data = [0; 64];
        for (bytes, mask) in data.as_chunks_mut::<2>().0.iter_mut().zip(masks.unwrap_or(&[0; 32])) {
            *bytes = mask.to_be_bytes();
        }
        data
    }

    /// Members whose ports are gone leave.
    pub(super) fn retain_ports(&mut self, topology: &Topology) {
        self.groups.retain(|_, group| {
            group.members.retain(|guid, _| topology.at_guid(*guid).is_some());
            group.is_permanent || !group.members.is_empty()
        });
    }

    fn free_mlid(&self) -> Option<u16> {
        let taken: BTreeSet<u16> = self.iter().map(|group| group.record.mlid).collect();
        (FIRST_MLID..FIRST_MLID + MULTICAST_CAP).find(|mlid| !taken.contains(mlid))
    }
}

impl Manager {
    /// A port joins a group, which its first full member makes; the member's record.
    ///
    /// # Errors
    ///
    /// A status of subnet administration.
    pub(super) fn join(&mut self, asked: &SaHeader, wanted: &McMemberRecord) -> Result<McMemberRecord, u16> {
        let guid = self.member(asked, wanted)?;
        let has = |component: u64| asked.components & component != 0;
        if !self.groups.groups.contains_key(&wanted.mgid) {
            self.make_group(guid, asked, wanted)?;
        }
        let group = self.groups.groups.get_mut(&wanted.mgid).ok_or(status::INVALID)?;
        let record = group.record;
        let differs = has(mc_member::PKEY) && (wanted.pkey ^ record.pkey) & 0x7fff != 0
            || has(mc_member::QKEY) && wanted.qkey != record.qkey
            || has(mc_member::TRAFFIC_CLASS) && wanted.traffic_class != record.traffic_class
            || has(mc_member::SL) && (wanted.sl_flow_hops ^ record.sl_flow_hops) >> 28 != 0;
        if differs || !self.partitions.is_member(guid, record.pkey) {
            return Err(status::INVALID);
        }
        let state = group.members.entry(guid).or_default();
        *state |= wanted.join_state;
        let joined = McMemberRecord { port_gid: wanted.port_gid, join_state: *state, ..record };
        self.write_group(record.mlid);
        Ok(joined)
    }

    fn make_group(&mut self, guid: u64, asked: &SaHeader, wanted: &McMemberRecord) -> Result<(), u16> {
        let is_full = wanted.join_state & KEEPS != 0;
        if !is_full || asked.components & mc_member::CREATE != mc_member::CREATE {
            return Err(status::INSUFFICIENT_COMPONENTS);
        }
        if !self.partitions.is_member(guid, wanted.pkey) {
            return Err(status::INVALID);
        }
        let mlid = self.groups.free_mlid().ok_or(status::NO_RESOURCES)?;
        let exactly = |asked: u8, default: u8| EXACTLY | if asked & 63 == 0 { default } else { asked & 63 };
        let record = McMemberRecord {
            port_gid: Gid::default(),
            mlid,
            mtu: exactly(wanted.mtu, MTU),
            rate: exactly(wanted.rate, RATE),
            life_time: exactly(wanted.life_time, LIFE_TIME),
            scope: wanted.mgid.0[1] & 15,
            join_state: 0,
            ..*wanted
        };
        let group = Group { record, members: BTreeMap::new(), is_permanent: false };
        self.groups.groups.insert(wanted.mgid, group);
        Ok(())
    }

    /// A port leaves a group, wholly or as the join state says; what is left of its record.
    ///
    /// # Errors
    ///
    /// A status of subnet administration.
    pub(super) fn leave(&mut self, asked: &SaHeader, wanted: &McMemberRecord) -> Result<McMemberRecord, u16> {
        let guid = self.member(asked, wanted)?;
        let group = self.groups.groups.get_mut(&wanted.mgid).ok_or(status::INVALID)?;
        let record = group.record;
        let state = group.members.get_mut(&guid).filter(|state| **state & wanted.join_state != 0);
        let state = state.ok_or(status::INVALID)?;
        *state &= !wanted.join_state;
        let join_state = *state;
        if join_state == 0 {
            group.members.remove(&guid);
        }
        if !group.is_permanent && group.members.values().all(|state| state & KEEPS == 0) {
            self.groups.groups.remove(&wanted.mgid);
        }
        self.write_group(record.mlid);
        Ok(McMemberRecord { port_gid: wanted.port_gid, join_state, ..record })
    }

    /// The GUID of the port that a request is about.
    fn member(&self, asked: &SaHeader, wanted: &McMemberRecord) -> Result<u64, u16> {
        if asked.components & mc_member::JOIN != mc_member::JOIN {
            return Err(status::INSUFFICIENT_COMPONENTS);
        }
        if wanted.mgid.0[0] != 0xff || wanted.join_state & 15 == 0 {
            return Err(status::INVALID);
        }
        let guid = guid_of(wanted.port_gid);
        self.known.at_guid(guid).map(|_| guid).ok_or(status::INVALID_GID)
    }

    /// Computes and writes the ways to the members of all groups anew.
    pub(super) fn write_groups(&mut self) {
        // Tables of LIDs without a group are cleared, too.
        let mlids = FIRST_MLID..FIRST_MLID + MULTICAST_CAP;
        let is_used = |mlid: &u16| {
            let (block, place) = place(*mlid);
            self.groups.iter().any(|group| group.record.mlid == *mlid)
                || self
                    .groups
                    .tables
                    .values()
                    .flatten()
                    .any(|((_, of), masks)| *of == block && masks[place] != 0)
        };
        let used: Vec<u16> = mlids.filter(is_used).collect();
        used.into_iter().for_each(|mlid| self.write_group(mlid));
    }

    /// Computes the ways to the members of a group, and writes the blocks that change.
    fn write_group(&mut self, mlid: u16) {
        let (block, place) = place(mlid);
        for table in self.groups.tables.values_mut() {
            for (_, masks) in table.iter_mut().filter(|((_, of), _)| *of == block) {
                masks[place] = 0;
            }
        }
        for (switch, port) in self.tree(mlid) {
            let table = self.groups.tables.entry(self.graph.guids[switch]).or_default();
            table.entry((port / POSITION, block)).or_insert([0; 32])[place] |= 1 << (port % POSITION);
        }
        for (switch, node) in self.graph.nodes.iter().enumerate() {
            let guid = self.graph.guids[switch];
            let written = self.written.get(&guid);
            for ((position, of), masks) in self.groups.tables.get(&guid).into_iter().flatten() {
                let old = written.and_then(|written| written.multicast.get(&(*position, *of)));
                if *of == block && old.unwrap_or(&[0; 32]) != masks {
                    self.jobs.push_front(Job::Multicast(*node, *position, *of));
                }
            }
        }
    }

    /// The ports of switches that packets of a group leave by. The switch of the first member is
    /// the root. A member that only sends has a way to the tree, and none from there.
    fn tree(&self, mlid: u16) -> BTreeSet<(usize, u8)> {
        let mut ports = BTreeSet::new();
        let Some(group) = self.groups.iter().find(|group| group.record.mlid == mlid) else { return ports };
        let members = group.members.iter().filter_map(|(guid, state)| {
            let at = self.known.at_guid(*guid)?;
            let end = if self.known.is_port_0(at) { at } else { self.known.port(at)?.peer? };
            let switch = *self.graph.places.get(end.0 as usize)?;
            (switch != u32::MAX).then_some((switch as usize, end.1, *state))
        });
        let members: Vec<(usize, u8, u8)> = members.collect();
        let Some((root, ..)) = members.first() else { return ports };
        let tree = self.graph.spanning_tree(*root);
        let mut joined = vec![false; tree.len()];
        for (switch, port, state) in members {
            if state & !(SEND_ONLY | SEND_ONLY_FULL_MEMBER) != 0 {
                ports.insert((switch, port));
            }
            let mut at = switch;
            while !std::mem::replace(&mut joined[at], true)
                && let Some((next, out)) = tree[at]
            {
                ports.insert((at, out));
                let here: At = (self.graph.nodes[at], out);
                if let Some((_, back)) = self.known.port(here).and_then(|port| port.peer) {
                    ports.insert((next, back));
                }
                at = next;
            }
        }
        ports
    }

    /// A switch has acknowledged a block of its table.
    pub(super) fn multicast_written(&mut self, node: u32, position: u8, block: u16) {
        let Some(node) = self.known.node(node) else { return };
        let guid = node.info.node.0;
        let masks = self.groups.tables.get(&guid).and_then(|table| table.get(&(position, block)));
        let masks = masks.copied().unwrap_or([0; 32]);
        self.written.entry(guid).or_default().multicast.insert((position, block), masks);
    }
}

/// Block and place of a multicast LID in a table.
fn place(mlid: u16) -> (u16, usize) {
    let index = mlid.saturating_sub(FIRST_MLID);
    (index / BLOCK, usize::from(index % BLOCK))
}

/// The GUID of the port that has a GID.
pub(super) fn guid_of(gid: Gid) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = gid.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}
