//! What the world tells the node: packets to their queue pairs, management datagrams to the connection manager or to the
//! process they are for, and everything that is not a packet.

use std::net::IpAddr;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use nic::Device;
use wire::bth::Bth;
use wire::icrc::{self, Flow};
use wire::mad::{GSI_QKEY, Mad, Message};
use wire::roce::{Op, Packet, SendAt, Service};
use wire::{CommId, Malformed, Qpn};

use crate::number_blocks::{comm_owner, qpn_owner};
use crate::ports::places_for;
use crate::world::{Datagram, Guest, Input, Name, World};
use crate::{Node, id};

/// What became of packets that no queue pair got, one counter a reason.
#[derive(Debug, Default)]
pub struct Counters {
    /// Dropped: too short for an ICRC, or with another than their bytes give.
    pub icrc: AtomicU64,
    /// Dropped: cut short, or with lengths, pad counts or flags that do not fit their opcode.
    pub malformed: AtomicU64,
    /// Dropped: an opcode that the standard does not have.
    pub unknown_opcode: AtomicU64,
    /// Dropped: came by an interface that has no device.
    pub unknown_device: AtomicU64,
    /// Dropped: for a queue pair of a process that there is not, or that could not take it.
    pub unknown_owner: AtomicU64,
    /// Dropped: sent to QP1, and of a partition that the port is no member of.
    pub wrong_pkey: AtomicU64,
    /// Dropped: sent to QP1, and no message of a connection manager.
    pub bad_mad: AtomicU64,
    /// Connection requests refused for want of memory or numbers.
    pub no_resources: AtomicU64,
    /// Messages that nobody knows what to do with, dropped without an answer: there were too many of them.
    pub strangers: AtomicU64,
    /// Messages handed to the connection manager, or refused in its name.
    pub mads: AtomicU64,
    /// Dropped among them: about a connection whose transaction id, address or peer is another.
    pub cm_unmatched: AtomicU64,
}

impl Counters {
    /// All of them with their names.
    pub fn snapshot(&self) -> [(&'static str, u64); 11] {
        [
            ("icrc", &self.icrc),
            ("malformed", &self.malformed),
            ("unknown_opcode", &self.unknown_opcode),
            ("unknown_device", &self.unknown_device),
            ("unknown_owner", &self.unknown_owner),
            ("wrong_pkey", &self.wrong_pkey),
            ("bad_mad", &self.bad_mad),
            ("no_resources", &self.no_resources),
            ("strangers", &self.strangers),
            ("mads", &self.mads),
            ("cm_unmatched", &self.cm_unmatched),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<W: World> Guest for Node<W> {
    fn input(&self, now: Instant, input: Input<'_>) {
        match input {
            Input::Datagram(d) => self.datagram(now, &d),
            Input::Frame { interface, outgoing, bytes } => match self.device_of_arrival(interface) {
                Some(device) => device.input_frame(now, outgoing, bytes),
                None => count(&self.counters.unknown_device),
            },
            Input::Resolved { ticket, result } => {
                if let Some(id) = self.cm_agent.take_resolving(ticket) {
                    self.finish_resolve(&id, result);
                }
            }
            Input::Unreachable { dest, errno, sent, .. } => {
                if let Some(packet) = Offending::parse(sent) {
                    let nobody = (errno == id::libc_errno::ECONNREFUSED).then_some(packet.process);
                    self.peer_unreachable(now, dest, packet.ours, nobody.flatten());
                }
            }
            Input::Interfaces(interfaces) => self.update_interfaces(now, interfaces),
            Input::Gone(name) => self.peer_gone(now, name),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let devices = self.devices();
        devices.iter().filter_map(|d| d.deadline()).chain(self.cm_agent.deadline()).min()
    }

    fn expire(&self, now: Instant) {
        for device in self.devices() {
            device.expire(now);
        }
        for id in self.cm_agent.overdue(now) {
            self.finish_resolve(&id, Err(id::libc_errno::ETIMEDOUT));
        }
        self.expire_manager(now);
    }

    fn release(&self, all: bool) {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.iter().for_each(|d| d.release(|| self.world.now(), all));
    }
}

impl<W: World> Node<W> {
    fn datagram(&self, now: Instant, d: &Datagram<'_>) {
        let flow = Flow { source: d.source, dest: d.dest };
        let bytes = match icrc::open(&flow, d.bytes) {
            Ok(bytes) => bytes,
            Err(_) => return count(&self.counters.icrc),
        };
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(Malformed::Opcode(_)) => return count(&self.counters.unknown_opcode),
            Err(_) => return count(&self.counters.malformed),
        };
        let dest_qp = packet.header.bth.dest_qp;
        if dest_qp == Qpn::GSI {
            return self.management(now, d, &packet);
        }
        if dest_qp == Qpn::MULTICAST {
            return self.multicast(now, d, &packet);
        }
        let owner = qpn_owner(dest_qp);
        if !self.blocks.owns(owner) {
            return self.pass_on(now, owner, d);
        }
        match self.device_of_arrival(d.interface) {
            Some(device) => device.input(now, d.source.ip(), d.dest.ip(), d.hold, &packet),
            None => return count(&self.counters.unknown_device),
        }
        self.manager_heard(now, dest_qp);
    }

    /// A packet to a group: every process that joined gets its own copy from the world.
    fn multicast(&self, now: Instant, d: &Datagram<'_>, packet: &Packet<'_>) {
        match self.device_of_arrival(d.interface) {
            Some(device) => device.input_group(now, d.source.ip(), d.dest.ip(), packet),
            None => count(&self.counters.unknown_device),
        }
    }

    /// A packet for QP1 (IBA 1.4 §13.5.1): checked, then to the connection manager of the process it is for.
    fn management(&self, now: Instant, d: &Datagram<'_>, packet: &Packet<'_>) {
        // IBA 1.4 §9.6.1.1.3: any P_Key of the port's table.
        if !nic::device::port::is_of_partition(packet) {
            return count(&self.counters.wrong_pkey);
        }
        let legal = matches!(packet.header.op, Op::Send(SendAt::Only(_)))
            && matches!(packet.header.service, Service::Ud(deth) if deth.qkey == GSI_QKEY);
        let Some(mad) = legal.then(|| Mad::parse(packet.payload).ok()).flatten() else {
            return count(&self.counters.bad_mad);
        };
        let Some(device) = self.device_of_arrival(d.interface) else {
            // Handed on by a process that has a device there: nobody can listen where this one has none.
            count(&self.counters.unknown_device);
            return self.refuse_unknown_service(now, d, &mad);
        };
        let owner = match &mad.message {
            Message::Req(m) => return self.request(now, &device, d, &mad, m.service_id),
            Message::SidrReq(m) => return self.request(now, &device, d, &mad, m.service_id),
            Message::SidrRep(m) => m.request_id,
            Message::Rep(m) => m.remote_comm_id,
            Message::Rtu(m) => m.remote_comm_id,
            Message::Rej(m) => m.remote_comm_id,
            Message::Mra(m) => m.remote_comm_id,
            Message::Dreq(m) => m.remote_comm_id,
            Message::Drep(m) => m.remote_comm_id,
            Message::Lap(m) => m.remote_comm_id,
            Message::Apr(m) => m.remote_comm_id,
        };
        let owner = comm_owner(owner);
        if self.blocks.owns(owner) || self.pass_message_on(now, &[owner], d) == Some(false) {
            // Ours, or nobody's: the answer for an unknown identifier is ours to give.
            self.manager_input(now, &device, d, &mad);
        }
    }

    /// A request goes to whoever bears the name of the service; where nobody does, it is refused here.
    fn request(&self, now: Instant, device: &Device, d: &Datagram<'_>, mad: &Mad, service: wire::ServiceId) {
        let target = service.ip_port();
        if self.cm_agent.expects(device.config.id, d, mad, target) {
            return self.manager_input(now, device, d, mad);
        }
        let names =
            target.map(|(space, port)| places_for(d.dest.ip()).map(|addr| Name::Port { space, addr, port }));
        let names = names.as_ref().map_or(&[][..], |names| &names[..]);
        if self.pass_message_on(now, names, d) == Some(false) {
            self.refuse_unknown_service(now, d, mad);
        }
    }
}

/// What is known of a packet that could not be delivered.
struct Offending {
    /// Our communication id, in a message that waits for an answer.
    ours: Option<CommId>,
    /// The block of the process it was for.
    process: Option<u32>,
}

impl Offending {
    /// Only the first bytes of the packet may be there: of one that is not for QP1 they are enough.
    fn parse(sent: &[u8]) -> Option<Offending> {
        let dest_qp = Bth::peek_dest_qp(sent)?;
        if dest_qp != Qpn::GSI {
            return Some(Offending { ours: None, process: Some(block_of(qpn_owner(dest_qp))?) });
        }
        let bytes = sent.get(..sent.len().checked_sub(icrc::ICRC_LEN)?)?;
        let packet = Packet::parse(bytes).ok()?;
        let (ours, theirs) = match Mad::parse(packet.payload).ok()?.message {
            Message::Req(m) => (Some(m.local_comm_id), None),
            Message::Rep(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
            Message::Rtu(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
            Message::Dreq(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
            Message::Mra(m) => (None, Some(m.remote_comm_id)),
            Message::Lap(m) => (None, Some(m.remote_comm_id)),
            Message::SidrReq(m) => (Some(m.request_id), None),
            _ => (None, None),
        };
        Some(Offending { ours, process: theirs.and_then(|id| block_of(comm_owner(id))) })
    }
}

fn block_of(name: Name) -> Option<u32> {
    if let Name::Block(block) = name { Some(block.into()) } else { None }
}

/// Whether an address is one of the family-specific wildcards' kind that a listener on all addresses takes.
pub(crate) fn family_fits(listener: IpAddr, v6_only: bool, dest: IpAddr) -> bool {
    match (listener, dest) {
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
        (IpAddr::V6(_), IpAddr::V4(_)) => !v6_only,
        _ => true,
    }
}
