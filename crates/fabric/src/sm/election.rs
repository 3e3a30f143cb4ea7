//! Other subnet managers (IBA 1.4 §14.4): the one of the higher priority is the master, and of
//! equal ones that whose port has the lower GUID.

use std::time::Duration;

use wire::mad::smp::{PERMISSIVE_LID, Smp};
use wire::mad::{SmInfo, SmState, capability, class, method, status};

use super::mads::Job;
use super::services::Services;
use super::topology::At;
use super::{Manager, POLL_PERIOD, PRIORITY, Phase, SmEvent};
use crate::fabric::Fabric;
use crate::umad::UmadHeader;

/// OpenSM's default; it does not listen to a manager with another one.
const SM_KEY: u64 = 1;
/// Questions to the master that may stay without an answer, or find it no master.
const MISSES: u32 = 3;

/// The master that a standby watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    at: At,
    misses: u32,
}

impl Manager {
    pub(super) fn is_master(&self) -> bool {
        self.state == SmState::Master
    }

    pub(super) fn own_info(&self) -> SmInfo {
        let Self { guid, activity, state, .. } = *self;
        SmInfo { guid, sm_key: SM_KEY, activity, priority: PRIORITY, state }
    }

    /// Whether another manager comes before this one.
    fn is_outranked_by(&self, other: &SmInfo) -> bool {
        (other.priority, self.guid) > (PRIORITY, other.guid)
    }

    /// At the end of discovery: whether this manager is the master, or becomes it now.
    pub(super) fn is_to_configure(&mut self, now: Duration) -> bool {
        let heard = std::mem::take(&mut self.heard);
        if self.is_master() {
            return true;
        }
        let is_before = |other: &SmInfo| other.state != SmState::NotActive && self.is_outranked_by(other);
        let before = heard.iter().find(|(_, other)| other.state == SmState::Master || is_before(other));
        if let Some((at, other)) = before.copied() {
            self.known = std::mem::take(&mut self.found);
            self.give_way(now, at, &other);
            return false;
        }
        self.become_master();
        true
    }

    fn become_master(&mut self) {
        self.state = SmState::Master;
        self.is_new = true;
        self.written.clear();
        self.groups.clear();
        self.services = Services::default();
    }

    /// Leaves the subnet to the manager at a port of the last sweep.
    fn give_way(&mut self, now: Duration, at: At, other: &SmInfo) {
        if self.state != SmState::Standby {
            self.say(SmEvent::GaveWay { guid: other.guid, priority: other.priority });
        }
        self.state = SmState::Standby;
        self.phase = Phase::Idle;
        self.jobs.clear();
        self.pending.clear();
        self.others.clear();
        self.next_sweep = None;
        self.master = Some(Watched { at, misses: 0 });
        self.next_poll = Some(now + POLL_PERIOD);
    }

    /// Asks every port of which it is told that a manager is there.
    pub(super) fn watch_others(&mut self, now: Duration) {
        self.others = self.known.managers(self.own).into_iter().collect();
        self.poll(now);
    }

    /// Asks the other managers, or as a standby the master.
    pub(super) fn poll(&mut self, now: Duration) {
        let ports: Vec<At> = match self.master {
            Some(master) => vec![master.at],
            None => self.others.iter().copied().collect(),
        };
        self.next_poll = (!ports.is_empty()).then(|| now + POLL_PERIOD);
        self.jobs.extend(ports.into_iter().map(Job::Poll));
    }

    /// Another manager has said how it is.
    pub(super) fn on_manager(&mut self, now: Duration, job: Job, at: At, other: SmInfo) {
        if matches!(job, Job::SmInfo(_)) {
            self.heard.push((at, other));
            return;
        }
        if let Some(master) = &mut self.master {
            master.misses = if other.state == SmState::Master { 0 } else { master.misses + 1 };
            return self.look_for_master(now);
        }
        if !self.is_master() {
            return;
        }
        let is_before = self.is_outranked_by(&other);
        match other.state {
            SmState::Standby if is_before => self.jobs.push_back(Job::Handover(at)),
            SmState::Master if is_before => self.give_way(now, at, &other),
            SmState::Standby => _ = self.others.remove(&at),
            // Those that still look around, and a master that is to give way, are asked again.
            _ => {}
        }
    }

    /// The other manager has taken the subnet.
    pub(super) fn handed_over(&mut self, now: Duration, at: At, other: SmInfo) {
        if self.is_master() {
            self.give_way(now, at, &other);
        }
    }

    /// Another manager has not answered, or has refused: one that has just begun takes no requests
    /// yet. As long as its port says that it is there, it is asked again.
    pub(super) fn other_is_silent(&mut self, now: Duration) {
        if let Some(master) = &mut self.master {
            master.misses += 1;
            self.look_for_master(now);
        }
    }

    /// A standby whose master is silent for too long looks which managers there are.
    fn look_for_master(&mut self, now: Duration) {
        if self.master.is_some_and(|master| master.misses >= MISSES) {
            self.master = None;
            self.next_poll = None;
            self.state = SmState::Discovering;
            self.sweep(now);
        }
    }

    /// Trap 144: a manager has come to a port, or has gone.
    pub(super) fn capabilities_changed(&mut self, now: Duration, lid: u16, mask: u32) {
        let Some(at) = self.known.at_lid(lid) else { return };
        if let Some(info) = self.known.port_mut(at).and_then(|port| port.info.as_mut()) {
            info.capabilities = mask;
        }
        if mask & capability::IS_SM == 0 {
            self.others.remove(&at);
        } else if at != self.own && self.is_master() && self.others.insert(at) {
            self.poll(now);
        }
    }

    /// Another manager asks for SMInfo or sets it.
    pub(super) fn on_manager_request(
        &mut self,
        now: Duration,
        fabric: &mut Fabric,
        umad: &UmadHeader,
        mut smp: Smp,
    ) {
        self.activity = self.activity.wrapping_add(1);
        let is_set = smp.header.method == method::SET;
        let modifier = smp.header.modifier;
        let is_legal = !is_set || self.obey(now, modifier);
        smp.header.method = method::GET_RESP;
        smp.header.status = if is_legal { status::OK } else { status::BAD_FIELD };
        smp.data = self.own_info().emit();
        let is_directed = smp.header.class == class::SUBN_DIRECTED_ROUTE;
        let (agent, lid) = if is_directed {
            smp.header.status |= status::DIRECTION;
            (self.agents.directed, PERMISSIVE_LID)
        } else {
            (self.agents.by_lid, umad.lid)
        };
        let to = UmadHeader { agent, lid, sl: umad.sl, ..UmadHeader::default() };
        self.write(now, fabric, to, &smp.emit());
    }

    /// A Set of SMInfo (IBA 1.4 §14.4.1): whether the state allows it.
    fn obey(&mut self, now: Duration, modifier: u32) -> bool {
        match (modifier, self.state) {
            (SmInfo::HANDOVER, SmState::Standby) => {
                (self.master, self.next_poll) = (None, None);
                self.become_master();
                self.sweep(now);
            }
            (SmInfo::HANDOVER, SmState::Master) | (SmInfo::ACKNOWLEDGE, _) => {}
            (SmInfo::DISABLE, SmState::Standby) => {
                (self.master, self.next_poll) = (None, None);
                self.state = SmState::NotActive;
            }
            (SmInfo::STANDBY, SmState::NotActive) | (SmInfo::DISCOVER, SmState::Standby) => {
                (self.master, self.next_poll) = (None, None);
                self.state = SmState::Discovering;
                self.sweep(now);
            }
            _ => return false,
        }
        true
    }
}
