//! Requests of the manager to nodes, and what comes in at its port.

use std::time::Duration;

use wire::mad::smp::{Data, PERMISSIVE_LID, Smp, attribute};
use wire::mad::{Header, NodeInfo, PortInfo, SmInfo, SwitchInfo, class, method, status};

use super::Manager;
use super::topology::At;
use crate::fabric::Fabric;
use crate::umad::UmadHeader;

/// How long a node may take to answer, and how often it is asked again.
const TIMEOUT_MS: u32 = 200;
const RETRIES: u32 = 3;
/// The version of SMPs.
const VERSION: u8 = 1;

/// A request: to whom it goes follows from the numbers of the topology under work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// What the manager's own node is.
    FirstNode,
    /// What is at the other end of a port.
    NextNode(At),
    Description(u32),
    SwitchInfo(u32),
    PortInfo(At),
    /// What another manager says of itself, in a sweep.
    SmInfo(At),
    /// LID, MTU and lanes; an initialized port becomes armed.
    Configure(At),
    /// The P_Keys of a port, or of the one at the other end of a switch's port.
    PartitionTable(At),
    SetSwitch(u32),
    /// A block of the linear forwarding table.
    Linear(u32, u16),
    /// A block of 32 LIDs for 16 ports, of a switch as the last sweep has left it.
    Multicast(u32, u8, u16),
    Activate(At),
    /// Is the other manager alive? By the topology that the last sweep has left.
    Poll(At),
    /// The other manager shall have the subnet.
    Handover(At),
}

impl Manager {
    /// Sends the request of a job, if there is a way and something to say.
    pub(super) fn send_job(&mut self, now: Duration, fabric: &mut Fabric, job: Job) {
        let Some((path, method, attribute, modifier, data)) = self.request(job) else { return };
        let mut initial_path = [0; 64];
        let Some(hops) = initial_path.get_mut(1..=path.len()) else { return self.fail() };
        hops.copy_from_slice(&path);
        self.last_tid = self.last_tid.wrapping_add(1);
        let header = Header {
            base_version: VERSION,
            class: class::SUBN_DIRECTED_ROUTE,
            class_version: VERSION,
            method,
            class_specific: path.len() as u16,
            transaction_id: self.last_tid.into(),
            attribute,
            modifier,
            ..Header::default()
        };
        let (dr_slid, dr_dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
        let smp = Smp { header, m_key: 0, dr_slid, dr_dlid, data, initial_path, return_path: [0; 64] };
        self.pending.insert(self.last_tid, job);
        self.status.requests += 1;
        let umad = UmadHeader {
            agent: self.agents.directed,
            timeout_ms: TIMEOUT_MS,
            retries: RETRIES,
            lid: PERMISSIVE_LID,
            ..UmadHeader::default()
        };
        self.write(now, fabric, umad, &smp.emit());
    }

    pub(super) fn write(&self, now: Duration, fabric: &mut Fabric, umad: UmadHeader, mad: &[u8]) {
        fabric.write(now, self.client, &[&umad.emit()[..], mad].concat());
    }

    /// Way, method, attribute, modifier and data of a job's request; `None` where its port is not
    /// there any more, or what it asks is known by now.
    fn request(&self, job: Job) -> Option<(Vec<u8>, u8, u16, u32, Data)> {
        let get = |at: At, attribute: u16, modifier: u8| {
            Some((self.found.path(at)?.to_vec(), method::GET, attribute, modifier.into(), [0; 64]))
        };
        match job {
            Job::FirstNode => Some((Vec::new(), method::GET, attribute::NODE_INFO, 0, [0; 64])),
            Job::NextNode(at) => {
                if self.found.port(at)?.peer.is_some() {
                    return None;
                }
                let mut path = self.found.path(at)?.to_vec();
                path.push(at.1);
                Some((path, method::GET, attribute::NODE_INFO, 0, [0; 64]))
            }
            Job::Description(node) => get((node, 0), attribute::NODE_DESCRIPTION, 0),
            Job::SwitchInfo(node) => get((node, 0), attribute::SWITCH_INFO, 0),
            Job::PortInfo(at) => get(at, attribute::PORT_INFO, at.1),
            Job::SmInfo(at) => get(at, attribute::SM_INFO, 0),
            Job::Poll(at) | Job::Handover(at) => {
                let path = self.known.path(at)?.to_vec();
                let (method, modifier, data) = match job {
                    Job::Poll(_) => (method::GET, 0, [0; 64]),
                    _ => (method::SET, SmInfo::HANDOVER, self.own_info().emit()),
                };
                Some((path, method, attribute::SM_INFO, modifier, data))
            }
            _ => self.set_request(job),
        }
    }

    fn on_answer(&mut self, now: Duration, job: Job, smp: &Smp) {
        if smp.header.status & !status::DIRECTION != status::OK {
            return self.on_failure(now, job);
        }
        match job {
            Job::FirstNode | Job::NextNode(_) => match NodeInfo::parse(&smp.data) {
                Ok(info) => self.on_node(job, info, smp),
                Err(_) => self.fail(),
            },
            Job::Description(node) => {
                if let Some(node) = self.found.node_mut(node) {
                    node.description = smp.data;
                }
            }
            Job::SwitchInfo(node) | Job::SetSwitch(node) => {
                if let (Some(node), Ok(info)) = (self.found.node_mut(node), SwitchInfo::parse(&smp.data)) {
                    node.switch = Some(info);
                }
            }
            Job::PortInfo(at) | Job::Configure(at) | Job::Activate(at) => match PortInfo::parse(&smp.data) {
                Ok(info) => self.on_port(job, at, info),
                Err(_) => self.fail(),
            },
            Job::SmInfo(at) | Job::Poll(at) => match SmInfo::parse(&smp.data) {
                Ok(info) => self.on_manager(now, job, at, info),
                Err(_) => self.fail(),
            },
            Job::Handover(at) => match SmInfo::parse(&smp.data) {
                Ok(info) => self.handed_over(now, at, info),
                Err(_) => self.other_is_silent(now),
            },
            Job::Linear(node, block) => self.linear_written(node, block),
            Job::Multicast(node, position, block) => self.multicast_written(node, position, block),
            Job::PartitionTable(_) => {}
        }
    }

    fn on_failure(&mut self, now: Duration, job: Job) {
        match job {
            Job::Poll(_) | Job::SmInfo(_) | Job::Handover(_) => self.other_is_silent(now),
            _ => self.fail(),
        }
    }

    /// Takes a message from the manager's port.
    pub(super) fn on_message(&mut self, now: Duration, fabric: &mut Fabric, message: &[u8]) {
        let Some(umad) = UmadHeader::parse(message) else { return };
        let mad = &message[UmadHeader::LEN..];
        let Ok(header) = Header::parse(mad) else { return };
        if umad.agent == self.agents.administration {
            return self.administrate(now, fabric, &umad, &header, mad);
        }
        if umad.status != 0 {
            if let Some(job) = self.pending.remove(&(header.transaction_id as u32)) {
                self.on_failure(now, job);
            }
            return;
        }
        let Ok(smp) = Smp::parse(mad) else { return };
        if header.method == method::TRAP {
            return self.on_trap(now, fabric, &umad, smp);
        }
        if !header.is_response() {
            return self.on_manager_request(now, fabric, &umad, smp);
        }
        if let Some(job) = self.pending.remove(&(header.transaction_id as u32)) {
            self.on_answer(now, job, &smp);
        }
    }

    /// A node tells of a change. The answer ends the repetition.
    fn on_trap(&mut self, now: Duration, fabric: &mut Fabric, umad: &UmadHeader, mut smp: Smp) {
        /// The number of the trap in a notice, and the LID and capabilities of a port in that of
        /// trap 144.
        const CAPABILITY_CHANGE: u16 = 144;
        const LINK_STATE_CHANGE: u16 = 128;
        let data = smp.data;
        let number = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
        smp.header.method = method::TRAP_REPRESS;
        let to =
            UmadHeader { agent: self.agents.by_lid, lid: umad.lid, sl: umad.sl, ..UmadHeader::default() };
        self.write(now, fabric, to, &smp.emit());
        match number(4) {
            LINK_STATE_CHANGE if self.is_master() => self.sweep(now),
            CAPABILITY_CHANGE => {
                let mask = u32::from_be_bytes([data[16], data[17], data[18], data[19]]);
                self.capabilities_changed(now, number(12), mask);
            }
            _ => {}
        }
    }
}
