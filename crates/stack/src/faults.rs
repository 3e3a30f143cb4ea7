//! Faults that the link brings about on purpose ([`nic::Faults`]): the node does what it would do
//! if they were real.

use std::time::Instant;

use cm::mads::{self, Origin};
use nic::faults::{Due, Named, Object, PortFault, RejectedRequest, Told};
use nic::{Arrival, Errno, Error, FrameArrival, Transport};
use transport::rc::AckDelay;
use wire::icrc::ICRC_LEN;
use wire::mad::Mad;
use wire::roce::Packet;

use crate::Node;
use crate::env::{Datagram, Env, StreamInput};

impl<W: Env> Node<W> {
    /// Tells the link which devices there are.
    pub(crate) fn introduce_devices(&self) {
        let Some(faults) = self.link.faults() else { return };
        let named = self.devices.iter().map(|device| Named {
            device: device.config.name.clone(),
            interface_name: device.config.interface_name.clone(),
            interface: device.config.interface,
            has_streams: device.config.transport == Transport::Iwarp,
        });
        faults.know(named.collect());
    }

    /// Does what faults have due now. True where the node stands still: then no timer runs out.
    pub(crate) fn faults_stop(&self, now: Instant) -> bool {
        let Some(faults) = self.link.faults() else { return false };
        if faults.stopped_until().is_some() {
            return true;
        }
        faults.expire(now, &mut |due| match due {
            Due::Arrival(packet) => {
                self.held_packet(now, &packet);
                Told::Done
            }
            Due::Frame(FrameArrival { interface, outgoing, bytes }) => {
                let device = self.device_of_arrival(interface);
                device.inspect(|device| device.input_frame(now, outgoing, bytes));
                Told::Done
            }
            Due::Request(fault) => {
                let device = self.device_of_arrival(fault.interface);
                device.map_or(Told::Done, |device| device.fail_request(now, fault))
            }
            Due::Reject(request) => {
                self.reject_lost(now, &request);
                Told::Done
            }
            Due::Stream(token, has_room) => {
                self.on_readable(now, token);
                if has_room {
                    self.on_stream(now, token, StreamInput::Writable);
                }
                Told::Done
            }
            Due::Ports => {
                self.update_ports(now);
                Told::Done
            }
        });
        false
    }

    /// What is wrong on purpose with the port over an interface.
    pub(crate) fn port_fault(&self, interface: u32) -> Option<PortFault> {
        self.link.faults()?.port(interface)
    }

    /// Whether an identifier may be made.
    ///
    /// # Errors
    ///
    /// ENOMEM, by a fault.
    pub fn allow_id(&self) -> Result<(), Error> {
        match self.link.faults() {
            Some(faults) if faults.refuses(None, Object::CmId) => Err(Error::System(Errno::ENOMEM)),
            _ => Ok(()),
        }
    }

    fn held_packet(&self, now: Instant, packet: &Arrival<'_>) {
        let &Arrival { source, dest, interface, forwarded, bytes } = packet;
        let ack_delay = AckDelay::No;
        let datagram = Datagram { source, dest, interface, forwarded, ack_delay, bytes };
        let size = bytes.len().max(1);
        match dest.address().lid() {
            None => self.datagrams(now, &datagram, size),
            Some(lid) => self.by_lid_untapped(now, &datagram, size, lid.has_grh()),
        }
    }

    /// A connection request was lost: its sender hears that it was rejected.
    fn reject_lost(&self, now: Instant, request: &RejectedRequest<'_>) {
        let &RejectedRequest { is_out, ours, peer, interface, packet, reason } = request;
        let Some((packet, _icrc)) = packet.split_last_chunk::<ICRC_LEN>() else { return };
        let Some(mad) = Packet::parse(packet).ok().and_then(|packet| Mad::parse(packet.payload).ok()) else {
            return;
        };
        let Some(refusal) = mads::refuse(&mad, reason) else { return };
        let from = Origin { source: peer.bare(), dest: ours.bare(), link: interface };
        match (is_out, self.device_of_arrival(interface)) {
            (true, Some(device)) => self.on_mad(now, device, from, &refusal),
            (true, None) => {}
            (false, _) => self.answer_unsolicited(now, &from.path(), &refusal),
        }
    }
}
