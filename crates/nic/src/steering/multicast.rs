//! Multicast groups of a device, and which queue pairs are attached to each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use locks::{Rank, RwLock};

use crate::error::Error;
use crate::limits;

/// The members of each group, which the list keeps until they leave. Never empty of members.
#[derive(Debug)]
pub(crate) struct Groups<T>(RwLock<BTreeMap<IpAddr, Vec<Arc<T>>>>);

impl<T> Default for Groups<T> {
    fn default() -> Self {
        Self(RwLock::new(Rank::MulticastGroups, BTreeMap::new()))
    }
}

impl<T> Groups<T> {
    /// The members of a group.
    pub(crate) fn of(&self, group: IpAddr) -> Vec<Arc<T>> {
        self.0.read().get(&group).cloned().unwrap_or_default()
    }

    /// Adds a member; nothing where it is one. `join` takes the group's packets in where it is the
    /// first.
    ///
    /// # Errors
    ///
    /// `Limit`: more groups, or members of one, than a device has. That of `join`.
    pub(crate) fn attach(
        &self,
        group: IpAddr,
        member: &Arc<T>,
        join: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut groups = self.0.write();
        if let Some(members) = groups.get_mut(&group) {
            if members.iter().any(|m| Arc::ptr_eq(m, member)) {
                return Ok(());
            }
            if members.len() >= limits::MAX_GROUP_QP {
                return Err(Error::Limit("queue pairs of a multicast group"));
            }
            members.push(member.clone());
            return Ok(());
        }
        if groups.len() >= limits::MAX_GROUPS {
            return Err(Error::Limit("multicast groups"));
        }
        join()?;
        groups.insert(group, vec![member.clone()]);
        Ok(())
    }

    /// Removes a member. `leave` undoes `join` where it was the last.
    ///
    /// # Errors
    ///
    /// `Value`: it is none.
    pub(crate) fn detach(&self, group: IpAddr, member: &Arc<T>, leave: impl FnOnce()) -> Result<(), Error> {
        let not_attached = Error::address("the queue pair is not attached to the group", group);
        let mut groups = self.0.write();
        let Some(members) = groups.get_mut(&group) else { return Err(not_attached) };
        let place = members.iter().position(|m| Arc::ptr_eq(m, member)).ok_or(not_attached)?;
        members.swap_remove(place);
        if members.is_empty() {
            groups.remove(&group);
            leave();
        }
        Ok(())
    }

    /// Whether it is a member of any group.
    pub(crate) fn has(&self, member: &Arc<T>) -> bool {
        let groups = self.0.read();
        groups.values().flatten().any(|m| Arc::ptr_eq(m, member))
    }

    /// Removes a member from all groups; `leave` undoes `join` for each where it was the last.
    pub(crate) fn forget(&self, member: &Arc<T>, leave: impl Fn(IpAddr)) {
        let mut groups = self.0.write();
        groups.retain(|&group, members| {
            members.retain(|m| !Arc::ptr_eq(m, member));
            if members.is_empty() {
                leave(group);
            }
            !members.is_empty()
        });
    }
}
