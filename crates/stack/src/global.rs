//! InfiniBand packets with a global routing header (GRH), one by one. The header goes to the
//! datagram queue pair that the packet is for, or says which group it is for.

use std::time::Instant;

use wire::Qpn;
use wire::grh::{GRH_LEN, Grh};
use wire::icrc::ICRC_LEN;

use crate::Node;
use crate::env::{Datagram, Env};
use crate::number_blocks::qpn_owner;

impl<W: Env> Node<W> {
    /// A packet that begins with a GRH.
    pub(crate) fn global(&self, now: Instant, d: &Datagram<'_>) {
        let parts = d.bytes.split_first_chunk::<GRH_LEN>();
        let parts = parts.and_then(|(grh, rest)| Some((grh, rest.split_last_chunk::<ICRC_LEN>()?.0, rest)));
        let Some((grh, packet, rest)) = parts else { return self.counters.malformed.add(1) };
        let Ok(grh @ Grh::Ib { .. }) = Grh::parse(grh) else { return self.counters.malformed.add(1) };
        let Some(packet) = self.counters.parse(packet) else { return };
        let dest_qp = packet.header.bth.dest_qp;
        if dest_qp == Qpn::GSI {
            return self.management(now, &Datagram { bytes: rest, forwarded: true, ..*d }, &packet);
        }
        if dest_qp != Qpn::MULTICAST && !self.blocks.owns(qpn_owner(dest_qp)) {
            return self.counters.unknown_owner.add(1);
        }
        let Some(device) = self.device_of_arrival(d.interface) else {
            return self.counters.unknown_device.add(1);
        };
        let ends = (d.source.address(), d.dest.address());
        device.input_global(now, ends, d.ack_delay, &grh, &packet);
        self.data_came(now, dest_qp);
    }
}
