//! QP1, the general services interface: management datagrams come in and are handed to the
//! connection manager, or to the process of this host that they are for; the connection manager's
//! leave (IBA 1.4 §13.5).

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use cm::PathRecord;
use cm::mads::{self, Destination, Origin};
use nic::{Device, DeviceId, Path};
use transport::TxBatch;
use wire::bth::{Bth, Deth};
use wire::icrc;
use wire::mad::{GSI_QKEY, MAD_LEN, Mad};
use wire::roce::{Header, Op, Packet, SendAt, SendTail, Service};
use wire::{Address, CommId, Psn, Qpn};

use crate::address_vector::pkey_index;
use crate::cm_agent::Core;
use crate::dispatch::count;
use crate::env::{Datagram, Env, HandedOver, Name};
use crate::number_blocks::{block_of, comm_owner, qpn_owner};
use crate::ports::places_for;
use crate::unsolicited::{PORTS, PassedOn};
use crate::{Node, graceful_close};

impl<W: Env> Node<W> {
    /// A packet for QP1 (IBA 1.4 §13.5.1): checked, then to the connection manager of the process
    /// it is for.
    pub(crate) fn management(&self, now: Instant, d: &Datagram<'_>, packet: &Packet<'_>) {
        let device = self.device_of_arrival(d.interface);
        // IBA 1.4 §9.6.1.1.3: any P_Key of the port's table.
        if device.is_some_and(|device| !device.port().is_of_partition(packet.header.bth.pkey)) {
            return self.counters.wrong_pkey.add(1);
        }
        let legal = matches!(packet.header.op, Op::Send(SendAt::Only(_)))
            && matches!(packet.header.service, Service::Ud(deth) if deth.qkey == GSI_QKEY);
        let Some(mad) = legal.then(|| Mad::parse(packet.payload).ok()).flatten() else {
            return self.counters.bad_mad.add(1);
        };
        let from = origin(d);
        let Some(device) = device else {
            // Handed on by a process that has a device there: no program can listen where this one
            // has none.
            self.counters.unknown_device.add(1);
            return self.refuse_unknown_service(now, from, &mad);
        };
        match mads::destination(&mad) {
            Destination::Service(service) => self.request(now, device, d, &mad, service),
            Destination::CommId(id) => {
                let owner = comm_owner(id);
                if self.blocks.owns(owner) || self.pass_message_on(now, &[owner], d) == PassedOn::NotBorne {
                    // Ours, or no process's: the answer for an unknown identifier is ours to give.
                    self.on_mad(now, device, from, &mad);
                }
            }
        }
    }

    /// A request goes to the process that bears the name of the service; where none does, it is
    /// refused here.
    fn request(
        &self,
        now: Instant,
        device: &Device,
        d: &Datagram<'_>,
        mad: &Mad,
        service: Option<cm::Service>,
    ) {
        let from = origin(d);
        if self.cm_agent.expects(device, from, mad, service) {
            return self.on_mad(now, device, from, mad);
        }
        if self.keeps(device, d, mad, service) {
            return self.refuse_unknown_service(now, from, mad);
        }
        let at = asked_at(device, d.dest.address(), mad);
        if self.pass_message_on(now, &owner_names(at, mad), d) == PassedOn::NotBorne {
            self.refuse_unknown_service(now, from, mad);
        }
    }

    /// Whether another process has a message now, or the sender may not have this one looked for.
    pub(crate) fn is_message_handed_on(&self, now: Instant, d: &Datagram<'_>, packet: &Packet<'_>) -> bool {
        let Ok(mad) = Mad::parse(packet.payload) else { return false };
        let names = match mads::destination(&mad) {
            Destination::CommId(id) if self.blocks.owns(comm_owner(id)) => return false,
            Destination::CommId(id) => vec![comm_owner(id)],
            Destination::Service(service) => {
                let Some(device) = self.device_of_arrival(d.interface) else { return false };
                if self.is_own(device, d, &mad, service) {
                    return false;
                }
                owner_names(asked_at(device, d.dest.address(), &mad), &mad)
            }
        };
        self.pass_message_on(now, &names, d) != PassedOn::NotBorne
    }

    /// Whether this process answers a request itself.
    fn is_own(&self, device: &Device, d: &Datagram<'_>, mad: &Mad, service: Option<cm::Service>) -> bool {
        self.cm_agent.expects(device, origin(d), mad, service) || self.keeps(device, d, mad, service)
    }

    /// Whether the name of the service would lead to this process, which has no listener for it any
    /// more.
    fn keeps(&self, device: &Device, d: &Datagram<'_>, mad: &Mad, service: Option<cm::Service>) -> bool {
        let at = asked_at(device, d.dest.address(), mad);
        service.zip(at).is_some_and(|(service, at)| self.cm_agent.lock().keeps(service, at))
    }

    /// Refuses a request for a service that no process here has.
    fn refuse_unknown_service(&self, now: Instant, from: Origin, request: &Mad) {
        let Some(refusal) = mads::refuse_unknown_service(request) else { return };
        count(&self.counters.mads);
        self.answer_unsolicited(now, &from.path(), &refusal);
    }

    /// Sends an answer that belongs to no connection, where that is allowed.
    pub(crate) fn answer_unsolicited(&self, now: Instant, path: &PathRecord, mad: &Mad) {
        if self.unsolicited.answers.take(now, path.dest()) {
            let source_port = self.cm_agent.gsi_psn.load(Ordering::Relaxed) % PORTS;
            let way = graceful_close::way(path, mad, source_port, None);
            self.send_mad(&way, path, mad, &mut TxBatch::new());
        } else {
            count(&self.counters.unsolicited);
        }
    }

    /// Sends a MAD from QP1 to QP1, on the way of a path; `batch` is what it is made in, whatever
    /// was in it before. Done, or unclaimed.
    pub(crate) fn send_mad(
        &self,
        way: &Path,
        path: &PathRecord,
        mad: &Mad,
        batch: &mut TxBatch,
    ) -> HandedOver {
        // No receiver looks at the sequence number, but it counts.
        let psn = Psn::new(self.cm_agent.gsi_psn.fetch_add(1, Ordering::Relaxed));
        // A limited member hears our own P_Key, which is not the one that it asked with.
        let own = self.device_of_arrival(path.link).map(|device| device.port());
        let pkey = own.and_then(|port| {
            let index = pkey_index(&port, path.pkey).ok()?;
            port.pkeys().get(usize::from(index)).copied()
        });
        let pkey = pkey.unwrap_or(path.pkey);
        let header = Header {
            bth: Bth { dest_qp: Qpn::GSI, psn, pkey, ..Bth::default() },
            service: Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI }),
            op: Op::Send(SendAt::Only(SendTail::None)),
        };
        let bytes = mad.emit();
        batch.clear();
        let filled = batch.push(&header, MAD_LEN, |to| {
            to.copy_from_slice(&bytes);
            Ok(())
        });
        let is_local = way.dest_qpn == Qpn::GSI && self.link.local().is_some();
        if filled.is_err() {
            return HandedOver::Done;
        }
        let outcome = if is_local { self.hand_over(way, path, mad, batch) } else { HandedOver::NotHere };
        if outcome == HandedOver::NotHere {
            self.link.send(way, batch);
            return HandedOver::Done;
        }
        outcome
    }

    /// A message of a connection manager has come to a host where no process takes it. A request is
    /// refused, as the kernel of such a host refuses it: its connection manager needs no process.
    pub(crate) fn unclaimed(
        &self,
        core: &mut Core,
        now: Instant,
        device: DeviceId,
        sent: (&PathRecord, &Mad),
    ) {
        let (path, mad) = sent;
        let device = self.devices.iter().find(|own| own.config.id == device);
        if let (Some(refusal), Some(device)) = (mads::refuse_unknown_service(mad), device) {
            let from = Origin { source: path.dest().bare(), dest: path.source().bare(), link: path.link };
            self.hear(core, now, device, from, &refusal);
        }
    }

    /// Hands a message to the process that it is for, where that is one of this host and can be had
    /// so.
    fn hand_over(&self, way: &Path, path: &PathRecord, mad: &Mad, batch: &mut TxBatch) -> HandedOver {
        let at = way.dest.ip().unwrap_or(path.remote_ip());
        self.env.hand_over(&owner_names(Some(at), mad), way, batch)
    }
}

/// The names of which the process that a message is for bears one. `packet` is a message to QP1
/// from its BTH to its ICRC. Empty for what is no message, and for a service that none can have.
pub fn owner_names_of(dest: Address, packet: &[u8]) -> Vec<Name> {
    let packet =
        packet.split_last_chunk::<{ icrc::ICRC_LEN }>().and_then(|(rest, _)| Packet::parse(rest).ok());
    let mad = packet.and_then(|packet| Mad::parse(packet.payload).ok());
    mad.map_or_else(Vec::new, |mad| owner_names(dest.ip().or_else(|| mads::asked_ip(&mad)), &mad))
}

/// Likewise, of a message about a service at this address.
fn owner_names(at: Option<IpAddr>, mad: &Mad) -> Vec<Name> {
    match mads::destination(mad) {
        Destination::CommId(id) => vec![comm_owner(id)],
        Destination::Service(service) => {
            let names = service.zip(at).map(|(service, at)| names_of(service, at));
            names.into_iter().flatten().collect()
        }
    }
}

/// The names under which a listener for requests to a service at an address may have claimed its
/// port.
fn names_of(service: cm::Service, at: IpAddr) -> [Name; 3] {
    let cm::Service { space, port } = service;
    places_for(at).map(|addr| Name::Port { space, addr, port })
}

/// The IP address or GID that a request to a device is for: the one that it was sent to, or between
/// LIDs the one that it names, else the GID of the port.
pub(crate) fn asked_at(device: &Device, dest: Address, request: &Mad) -> Option<IpAddr> {
    let own = || device.gid(0).map(|own| own.gid.ip());
    dest.ip().or_else(|| mads::asked_ip(request)).or_else(own)
}

/// Where a packet came from, as the connection manager wants it. Of an address between LIDs only
/// the LID tells peers apart.
fn origin(d: &Datagram<'_>) -> Origin {
    Origin { source: d.source.address().bare(), dest: d.dest.address().bare(), link: d.interface }
}

/// What is known of a packet of ours that could not be delivered.
pub(crate) struct Offending {
    /// Our communication id, in a message that waits for an answer.
    pub ours: Option<CommId>,
    /// The block of the process it was for.
    pub process: Option<u32>,
}

impl Offending {
    /// Only the first bytes of the packet may be there: of one that is not for QP1 they are enough.
    pub(crate) fn parse(sent: &[u8]) -> Option<Self> {
        let dest_qp = Bth::peek_dest_qp(sent)?;
        if dest_qp != Qpn::GSI {
            return Some(Self { ours: None, process: Some(block_of(qpn_owner(dest_qp))?) });
        }
        let bytes = sent.get(..sent.len().checked_sub(icrc::ICRC_LEN)?)?;
        let packet = Packet::parse(bytes).ok()?;
        let message = mads::undelivered(&Mad::parse(packet.payload).ok()?);
        let process = message.theirs.and_then(|id| block_of(comm_owner(id)));
        Some(Self { ours: message.ours, process })
    }
}
