//! The datagram ways of a queue pair: no peer is fixed, so each request says where it goes, and
//! each packet where it came from.

use std::sync::atomic::Ordering;
use std::time::Instant;

use transport::op::SendOp;
use transport::ud::Taken;
use wire::Address;
use wire::grh::Grh;
use wire::icrc::ICRC_LEN;
use wire::roce::{Packet, SendTail};
use wire::run::Run;

use crate::error::PostError;
use crate::link::Path;
use crate::qp::attr::QpType;
use crate::qp::engine::Engine;
use crate::qp::scratch::with_batch;
use crate::qp::{Inner, Qp};

/// Bytes of a UDP header (RFC 768).
const UDP_LEN: usize = 8;
/// Time to live and hop limit in the header that is delivered. Sockets do not tell the real one of
/// each packet; this is what senders begin with.
const HOP_LIMIT: u8 = 64;

impl QpType {
    /// Whether the service carries the operation at all (IBA 1.4 table 38).
    #[inline]
    pub(crate) fn check_operation(self, op: &SendOp) -> Result<(), PostError> {
        let plain_send = matches!(op, SendOp::Send(SendTail::None | SendTail::Immediate(_)));
        let carried = match self {
            Self::Rc | Self::XrcSend => true,
            Self::XrcRecv => false,
            Self::Uc => plain_send || matches!(op, SendOp::Write { .. }),
            Self::Ud => plain_send,
            Self::RawPacket => matches!(op, SendOp::Send(SendTail::None)),
        };
        if carried { Ok(()) } else { Err(PostError::Invalid("the transport service has no such operation")) }
    }
}

impl Qp {
    /// A packet for this datagram queue pair, from any sender, and those that came with it.
    pub(crate) fn input_datagrams<'a>(
        &self,
        now: Instant,
        source: Address,
        dest: Address,
        first: &Run<'a>,
        mut more: impl FnMut() -> Option<Run<'a>>,
    ) {
        let mut inner = self.lock();
        let mut next = Some(*first);
        while let Some(run) = next {
            run.packets().for_each(|packet| inner.receive_datagram(self, source, dest, &packet));
            next = more();
        }
        self.finish_step(inner, now);
    }
}

impl Inner {
    /// A datagram, for the engine.
    fn receive_datagram(&mut self, qp: &Qp, source: Address, dest: Address, packet: &Packet<'_>) {
        let device = &qp.pd().device;
        if !crate::device::port::is_of_partition(packet.header.bth.pkey) {
            device.counters.wrong_pkey.add(1);
            return;
        }
        let grh = header(source, dest, packet).filter(|_| !self.destroyed);
        let (Engine::Ud(ud), mut context) = self.split(qp) else { return };
        let taken = grh.map_or(Taken::NotForUs, |grh| ud.receive(&grh, packet, &mut context));
        device.count(taken);
    }

    /// Sends what the engine has, address by address.
    pub(crate) fn transmit_datagrams(&mut self, qp: &Qp, now: Instant) {
        with_batch(|batch| {
            loop {
                batch.clear();
                let (Engine::Ud(ud), mut context) = self.split(qp) else { break };
                let Some(path) = ud.fill(now, batch, &mut context) else { break };
                let path = Path { no_multicast_loop: qp.no_multicast_loop.load(Ordering::Relaxed), ..path };
                qp.pd().device.link.send(&path, batch);
            }
        });
    }
}

/// What goes before the payload; `None` where the addresses are of two families, which no packet's
/// are, or bear no such header.
fn header(source: Address, dest: Address, packet: &Packet<'_>) -> Option<Grh> {
    let padded = packet.payload.len().next_multiple_of(4);
    let payload_len = u16::try_from(UDP_LEN + packet.header.len() + padded + ICRC_LEN).ok()?;
    Grh::between(source, dest, payload_len, HOP_LIMIT)
}
