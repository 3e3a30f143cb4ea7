//! The datagram ways of a queue pair: no peer is fixed, so each request says where it goes, and
//! each packet where it came from.

use std::sync::atomic::Ordering;
use std::time::Instant;

use transport::op::SendOp;
use transport::ud::Taken;
use wire::grh::Grh;
use wire::icrc::ICRC_LEN;
use wire::roce::{Packet, SendTail};
use wire::run::Run;
use wire::{Address, LidAddress};

use crate::device::adapter::Adapter;
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
            run.packets().for_each(|packet| inner.receive_datagram(self, source, dest, None, &packet));
            next = more();
        }
        self.finish_step(inner, now);
    }

    /// An InfiniBand packet with a GRH, for this datagram queue pair.
    pub(crate) fn input_global(
        &self,
        now: Instant,
        source: Address,
        dest: Address,
        grh: &Grh,
        packet: &Packet<'_>,
    ) {
        let mut inner = self.lock();
        inner.receive_datagram(self, source, dest, Some(grh), packet);
        self.finish_step(inner, now);
    }
}

impl Inner {
    /// A datagram, for the engine.
    fn receive_datagram(
        &mut self,
        qp: &Qp,
        source: Address,
        dest: Address,
        grh: Option<&Grh>,
        packet: &Packet<'_>,
    ) {
        let device = &qp.pd().device;
        if !self.pkey.matches(packet.header.bth.pkey) {
            device.counters.wrong_pkey.add(1);
            return;
        }
        let (lrh, header) = match (source, dest) {
            (Address::Lid(source), Address::Lid(dest)) => match lrh(device, source, dest, grh) {
                Some(lrh) => (Some(lrh), None),
                None => return device.counters.wrong_peer.add(1),
            },
            _ => (None, header(source, dest, packet)),
        };
        let is_good = !self.destroyed && (lrh.is_some() || header.is_some());
        let (Engine::Ud(ud), mut context) = self.split(qp) else { return };
        let taken = match is_good {
            true => ud.receive(lrh, header.as_ref().or(grh), packet, &mut context),
            false => Taken::NotForUs,
        };
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

/// What the completion says of a datagram from a LID; `None` where it went to none of the port's
/// LIDs, nor to a group.
fn lrh(device: &Adapter, source: LidAddress, dest: LidAddress, grh: Option<&Grh>) -> Option<LidAddress> {
    let port = device.port();
    let ib = port.ib.as_ref().filter(|ib| dest.is_multicast() || ib.bears(dest.lid()))?;
    let bits = if dest.is_multicast() { 0 } else { ib.path_bits(dest.lid()) };
    let lrh = LidAddress::new(source.lid(), source.service_level(), bits).ok()?;
    Some(if grh.is_some() { lrh.with_grh() } else { lrh })
}

/// What goes before the payload; `None` where the addresses are of two families, which no packet's
/// are, or bear no such header.
fn header(source: Address, dest: Address, packet: &Packet<'_>) -> Option<Grh> {
    let padded = packet.payload.len().next_multiple_of(4);
    let payload_len = u16::try_from(UDP_LEN + packet.header.len() + padded + ICRC_LEN).ok()?;
    Grh::between(source, dest, payload_len, HOP_LIMIT)
}
