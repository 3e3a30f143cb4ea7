//! The ways of packets: by LID as the forwarding tables say, and along directed routes (IBA 1.4
//! §14.2.2, §18.2.4.3).

use wire::mad::PhysicalState;
use wire::mad::PortState;
use wire::mad::smp::{MAX_HOPS, PERMISSIVE_LID, Smp};

use crate::subnet::{NO_PORT, PortId, Subnet};

/// Hops after which a packet is lost: more than any way without a circle has.
pub const MAX_ROUTE: usize = 64;

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// An adapter without this LID was reached, or the LID is none of a port.
    #[error("no port has the LID there")]
    WrongLid,
    /// The LID is that of a port of another subnet, and leads to another port in this one.
    #[error("the LID is that of a port of another subnet")]
    OtherSubnet,
    /// The forwarding table of a switch has no port for the LID.
    #[error("the forwarding table has no port for the LID")]
    Unrouted,
    /// A port on the way has no link.
    #[error("the port has no link")]
    LinkDown,
    /// A port on the way is not active.
    #[error("the port is not active")]
    NotActive,
    /// The packet went in a circle.
    #[error("the forwarding tables lead in a circle")]
    Circle,
    /// A fault rule took the packet.
    #[error("a fault rule took the packet")]
    Dropped,
    /// A fault rule has damaged the packet.
    #[error("a fault rule damaged the packet")]
    Damaged,
    /// The hops of a directed route lead to no port.
    #[error("the hops lead to no port")]
    BadHop,
    /// A node on a directed route is frozen.
    #[error("the node is frozen")]
    Frozen,
}

/// A packet as far as the way knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Words of 4 bytes, all packets together.
    pub(crate) words: u64,
    /// Packets.
    pub(crate) packets: u64,
    pub(crate) kind: LoadKind,
}

/// What kind of packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadKind {
    /// Subnet management: passes ports that are not active, and is not counted.
    Smp,
    /// All others.
    Data,
    /// None: a question about the way.
    Trace,
}

/// What becomes of a packet at a node.
enum Step {
    Arrived(PortId),
    Out(PortId),
}

impl Subnet {
    /// Follows the forwarding tables from a port, counts at each port, and gives the port at the
    /// end. `trace` is told each port out of a node and the one into the next.
    pub(crate) fn route(
        &mut self,
        from: PortId,
        lid: u16,
        load: Load,
        mut trace: impl FnMut(PortId, PortId),
    ) -> Result<PortId, Lost> {
        let mut at = from;
        for hop in 0..MAX_ROUTE {
            let out = match self.step(at, lid, hop == 0) {
                Ok(Step::Arrived(end)) => return Ok(end),
                Ok(Step::Out(out)) => out,
                Err(lost) => {
                    if load.kind == LoadKind::Data && lost == Lost::Unrouted {
                        let errors = &mut self.port_mut(at).counters.switch_relay_errors;
                        *errors = errors.saturating_add(1);
                    }
                    return Err(lost);
                }
            };
            let next = self.pass(out, load)?;
            trace(out, next);
            at = next;
        }
        if load.kind == LoadKind::Data {
            let errors = &mut self.port_mut(at).counters.switch_relay_errors;
            *errors = errors.saturating_add(1);
        }
        Err(Lost::Circle)
    }

    /// Where a packet goes that is in the node of a port.
    fn step(&self, at: PortId, lid: u16, is_first: bool) -> Result<Step, Lost> {
        let node = self.node_at(at);
        let Some(switch) = &node.switch else {
            return match (self.has_lid(at, lid), is_first) {
                (true, _) => Ok(Step::Arrived(at)),
                (false, true) => Ok(Step::Out(at)),
                (false, false) => Err(Lost::WrongLid),
            };
        };
        let port_0 = PortId(node.first);
        if self.has_lid(port_0, lid) {
            return Ok(Step::Arrived(port_0));
        }
        match switch.linear.get(usize::from(lid)).copied().unwrap_or(NO_PORT) {
            out if (1..=node.ports).contains(&out) => Ok(Step::Out(PortId(node.first + u32::from(out)))),
            _ => Err(Lost::Unrouted),
        }
    }

    /// Sends packets out of a port; the port at the other end of the link.
    fn pass(&mut self, out: PortId, load: Load) -> Result<PortId, Lost> {
        let port = self.port(out);
        let lost = match port.peer {
            Some(_) if port.info.physical_state != PhysicalState::LinkUp => Err(Lost::LinkDown),
            None => Err(Lost::LinkDown),
            Some(_) if load.kind != LoadKind::Smp && port.info.state != PortState::Active => {
                Err(Lost::NotActive)
            }
            Some(peer) => Ok((peer, port.drop_ppm, port.damage_ppm)),
        };
        let count = |subnet: &mut Self| {
            if load.kind == LoadKind::Data {
                let discards = &mut subnet.port_mut(out).counters.transmit_discards;
                *discards = discards.saturating_add(1);
            }
        };
        let (peer, ppm, damage_ppm) = lost.inspect_err(|_| count(self))?;
        if load.kind != LoadKind::Trace && self.is_dropped(ppm) {
            count(self);
            return Err(Lost::Dropped);
        }
        if load.kind != LoadKind::Trace && self.is_dropped(damage_ppm) {
            // The link counts damage to packets of any kind.
            if load.kind == LoadKind::Data {
                self.count_sent(out, load.packets, load.words);
            }
            self.count_damaged(peer, 1);
            return Err(Lost::Damaged);
        }
        if load.kind == LoadKind::Data {
            self.count_passing(out, peer, load.packets, load.words);
        }
        Ok(peer)
    }

    /// Counts packets at both ends of a link.
    pub(crate) fn count_passing(&mut self, out: PortId, into: PortId, packets: u64, words: u64) {
        self.count_sent(out, packets, words);
        let received = &mut self.port_mut(into).counters;
        received.receive_words = received.receive_words.saturating_add(words);
        received.receive_packets = received.receive_packets.saturating_add(packets);
    }

    /// Counts packets that have left a port.
    pub(crate) fn count_sent(&mut self, out: PortId, packets: u64, words: u64) {
        let sent = &mut self.port_mut(out).counters;
        sent.transmit_words = sent.transmit_words.saturating_add(words);
        sent.transmit_packets = sent.transmit_packets.saturating_add(packets);
    }

    /// Counts packets that have arrived at a port damaged.
    pub(crate) fn count_damaged(&mut self, at: PortId, packets: u64) {
        let many = u16::try_from(packets).unwrap_or(u16::MAX);
        let received = &mut self.port_mut(at).counters;
        received.symbol_errors = received.symbol_errors.saturating_add(many);
        received.receive_errors = received.receive_errors.saturating_add(many);
    }

    /// Takes a request along its directed route and writes the way back into it.
    pub(crate) fn follow(&mut self, from: PortId, smp: &mut Smp) -> Result<PortId, Lost> {
        if smp.hop_pointer() != 0 || smp.dr_dlid != PERMISSIVE_LID {
            return Err(Lost::BadHop);
        }
        let mut at = from;
        for hop in 1..=usize::from(smp.hop_count().min(MAX_HOPS)) {
            let node = self.node_at(at);
            let number = smp.initial_path[hop];
            let out = PortId(node.first + u32::from(number));
            let leaves_an_adapter = node.switch.is_some() || (hop == 1 && out == at);
            if number == 0 || number > node.ports || !leaves_an_adapter {
                return Err(Lost::BadHop);
            }
            if hop > 1 && node.frozen {
                return Err(Lost::Frozen);
            }
            at = self.pass(out, SMP)?;
            smp.return_path[hop] = self.port(at).number;
        }
        smp.set_hop_pointer(smp.hop_count() + 1);
        Ok(at)
    }

    /// Takes an answer along the way back.
    pub(crate) fn follow_back(&mut self, from: PortId, smp: &mut Smp) -> Result<PortId, Lost> {
        if smp.hop_pointer() != smp.hop_count() + 1 {
            return Err(Lost::BadHop);
        }
        let mut at = from;
        for hop in (1..=usize::from(smp.hop_count().min(MAX_HOPS))).rev() {
            let node = self.node_at(at);
            let number = smp.return_path[hop];
            if number == 0 || number > node.ports {
                return Err(Lost::BadHop);
            }
            if hop != usize::from(smp.hop_count()) && node.frozen {
                return Err(Lost::Frozen);
            }
            at = self.pass(PortId(node.first + u32::from(number)), SMP)?;
        }
        smp.set_hop_pointer(0);
        Ok(at)
    }
}

/// A subnet management packet.
pub(crate) const SMP: Load = Load { words: 72, packets: 1, kind: LoadKind::Smp };
/// No packet.
pub(crate) const TRACE: Load = Load { words: 0, packets: 0, kind: LoadKind::Trace };
