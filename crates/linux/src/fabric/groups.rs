//! Packets to multicast LIDs: to each program at the ports where their tree ends, by the ring to
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::fabric::plane::{Arrival, GroupPassage, Member, PacketInfo};
use locks::{Mutex, Rank};
use nic::Path;
use stack::Name;
use stack::env::{Claim, ClaimError};
use transport::TxBatch;
use wire::Address;

use super::FabricHost;

/// Groups at most whose trees are kept.
const MAX_GROUPS: usize = 1024;

/// The trees of groups, which senders share.
pub(super) struct Groups(Mutex<BTreeMap<(u32, Address), GroupPassage>>);

impl Default for Groups {
    fn default() -> Self {
        Self(Mutex::new(Rank::Meters, BTreeMap::new()))
    }
}

/// A block of queue pair numbers, and where programs find its process at the ports of this host.
struct FabricClaim {
    fabric: Arc<FabricHost>,
    members: Vec<Member>,
    _claim: Box<dyn Claim>,
}

impl Claim for FabricClaim {}

impl Drop for FabricClaim {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| self.fabric.plane().remove_member(member));
    }
}

impl FabricHost {
    /// Has packets to groups come to the process that has claimed a name, where it is a block.
    pub(crate) fn claimed(
        self: &Arc<Self>,
        name: Name,
        claim: Box<dyn Claim>,
    ) -> Result<Box<dyn Claim>, ClaimError> {
        let Name::Block(block) = name else { return Ok(claim) };
        let member = |(_, port): &(u32, u32)| self.plane().add_member(self.program, *port, block);
        let members: Option<Vec<Member>> = self.ports.iter().map(member).collect();
        let members = members.ok_or(ClaimError::System(nic::Errno::ENOMEM))?;
        Ok(Box::new(FabricClaim { fabric: self.clone(), members, _claim: claim }))
    }

    /// The ports that packets to a group come to, which count on their ways: each with those that
    /// come to it.
    pub(crate) fn ends_of(&self, path: &Path, batch: &TxBatch) -> Vec<Arrival> {
        let (Address::Lid(group_lid), Some(from)) = (path.dest, self.port(path.interface)) else {
            return Vec::new();
        };
        let mut groups = self.groups.0.lock();
        if groups.len() >= MAX_GROUPS {
            groups.values_mut().for_each(|group| group.give_back(self.plane()));
            groups.clear();
        }
        let make = || GroupPassage::new(self.program, from, group_lid.lid());
        let group = groups.entry((path.interface, path.dest)).or_insert_with(make);
        let packets: Vec<_> =
            batch.iter().map(|packet| PacketInfo::of(packet, group_lid.has_grh())).collect();
        let mut ends = group.pass(self.plane(), &packets);
        if !path.no_multicast_loop {
            ends.push(Arrival { port: from, packets: None });
        }
        ends
    }
}
