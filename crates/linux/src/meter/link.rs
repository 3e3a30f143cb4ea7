//! The link that counts what passes it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use local::rings::Passed;
use nic::link::Fill;
use nic::peer_memory::{Copy, Grant, LocalLink, Prepared, Region, Regions};
use nic::{
    Arrival, Errno, Fate, Faults, FrameArrival, Frames, Link, NewStream, Path, PathCache, Stream, Tap,
};
use transport::op::{DirectOutcome, Fault, FragmentOutcome, Remote};
use transport::short::What;
use transport::{Short, TxBatch};
use wire::bth::Bth;
use wire::icrc::ICRC_LEN;
use wire::{Address, Mtu, Qpn, Rkey};

use super::{Meter, PathMeter};
use crate::env::LinuxEnv;

/// Bytes of the headers of a packet in the midst of a message: BTH and ICRC.
const HEADERS: u64 = (Bth::LEN + ICRC_LEN) as u64;
/// Bytes of immediate data, of an RETH and of an AtomicETH with its answer's AtomicAckETH.
const IMMEDIATE: u64 = 4;
const RETH: u64 = 16;
const ATOMIC_ETH: u64 = 28;
const ATOMIC_ANSWER: u64 = 4 + 8;

/// A link over the environment's, or over one that decorates that.
pub(crate) struct MeterLink {
    env: Arc<LinuxEnv>,
    /// Where all goes as packets: the link that decorates the environment's.
    decorated: Option<Arc<dyn Link>>,
    meter: Arc<Meter>,
}

impl MeterLink {
    pub(crate) fn new(env: Arc<LinuxEnv>, decorated: Option<Arc<dyn Link>>, meter: Arc<Meter>) -> Self {
        Self { env, decorated, meter }
    }

    fn link(&self) -> &dyn Link {
        self.decorated.as_deref().unwrap_or(&*self.env)
    }

    /// Sends packets; whether they went by a ring.
    #[inline]
    fn send_by(&self, path: &Path, batch: &mut TxBatch) -> bool {
        match &self.decorated {
            Some(link) => {
                link.send(path, batch);
                false
            }
            None => self.env.send_by(path, batch),
        }
    }

    fn sent_by_network(&self, path: &Path, passed: Passed) {
        let Some(port) = self.meter.port(path.interface) else { return };
        port.xmit.add(passed);
        if path.dest.is_multicast() {
            port.multicast_xmit.fetch_add(passed.packets, Relaxed);
        }
    }

    /// The count of a queue pair's own path.
    #[inline]
    fn own<'a>(&self, path: &Path, cache: &'a mut PathCache) -> Option<&'a PathMeter> {
        cache.beside(|| self.meter.own(path, &self.env)).map(|meter| &**meter)
    }
}

/// What a message of `len` bytes would be as packets.
#[inline]
fn as_packets(len: u64, mtu: Mtu) -> Passed {
    let packets = len.div_ceil(mtu.bytes() as u64).max(1);
    Passed { packets, bytes: len.next_multiple_of(4) + packets * HEADERS, ..Passed::default() }
}

/// One packet with so many bytes between its BTH and its ICRC.
#[inline]
fn one_packet(bytes: u64) -> Passed {
    Passed { packets: 1, bytes: HEADERS + bytes, ..Passed::default() }
}

/// Which message ends with a packet, by the lower bits of its opcode (IBA 1.4 table 38): a SEND, or
/// an RDMA WRITE with immediate data.
#[inline]
fn ends(opcode: u8) -> (u64, u64) {
    match opcode & 0x1f {
        0x02..=0x05 | 0x16 | 0x17 => (1, 0),
        0x09 | 0x0b => (0, 1),
        _ => (0, 0),
    }
}

/// Packets from BTH to ICRC.
fn of_packets<'a>(packets: impl Iterator<Item = &'a [u8]>) -> Passed {
    packets.fold(Passed::default(), |mut passed, packet| {
        let (sends, immediates) = packet.first().map_or((0, 0), |opcode| ends(*opcode));
        passed.packets += 1;
        passed.bytes += packet.len() as u64;
        passed.sends += sends;
        passed.immediates += immediates;
        passed
    })
}

impl Link for MeterLink {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        let is_by_ring = self.send_by(path, batch);
        let passed = of_packets(batch.iter());
        if is_by_ring {
            self.meter.by_shared(path, &self.env, |meter| meter.xmit.add(passed));
        } else {
            self.sent_by_network(path, passed);
        }
    }
    fn send_connected(&self, path: &Path, batch: &mut TxBatch, cache: &mut PathCache) {
        let is_by_ring = self.send_by(path, batch);
        let passed = of_packets(batch.iter());
        if !is_by_ring {
            self.sent_by_network(path, passed);
        } else if let Some(meter) = self.own(path, cache) {
            meter.xmit.add_alone(passed);
        }
    }
    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        self.link().can_reach(dest)
    }
    fn local(&self) -> Option<&dyn LocalLink> {
        let is_local = self.decorated.is_none() && self.env.local().is_some();
        is_local.then_some(self)
    }
    fn source_port(&self, path: &Path) -> Option<u16> {
        self.link().source_port(path)
    }
    fn fault(&self, path: &Path, packet: &[u8], what: &'static str) {
        self.link().fault(path, packet, what);
    }
    fn tap(&self) -> Option<&dyn Tap> {
        Some(self)
    }
    fn faults(&self) -> Option<&dyn Faults> {
        self.link().faults()
    }
    fn stream(&self, new: &NewStream, stream: Arc<dyn Stream>) -> Arc<dyn Stream> {
        self.link().stream(new, stream)
    }
    fn frames(&self, frames: Arc<dyn Frames>) -> Arc<dyn Frames> {
        self.link().frames(frames)
    }
    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno> {
        self.link().join(interface, group)
    }
    fn leave(&self, interface: u32, group: IpAddr) {
        self.link().leave(interface, group);
    }
}

impl Tap for MeterLink {
    fn arrive(&self, run: &Arrival<'_>, size: usize) {
        let Some(port) = self.meter.port(run.interface) else { return };
        let passed = of_packets(run.bytes.chunks(size.max(1)));
        port.rcv.add(passed);
        if Bth::peek_dest_qp(run.bytes) == Some(Qpn::MULTICAST) {
            port.multicast_rcv.fetch_add(passed.packets, Relaxed);
        }
    }
    fn sees_each(&self) -> bool {
        self.link().tap().is_some_and(Tap::sees_each)
    }
    fn arrived(&self, packet: &Arrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        match self.link().tap() {
            Some(tap) => tap.arrived(packet, deliver),
            None => _ = deliver(packet.bytes),
        }
    }
    fn frame_arrived(&self, frame: &FrameArrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        match self.link().tap() {
            Some(tap) => tap.frame_arrived(frame, deliver),
            None => _ = deliver(frame.bytes),
        }
    }
}

impl LocalLink for MeterLink {
    fn send_short(&self, path: &Path, short: &Short, bytes: &[u8], cache: &mut PathCache) -> bool {
        let is_sent = self.env.send_short(path, short, bytes, cache);
        if is_sent && let Some(meter) = self.own(path, cache) {
            let (more, sends) = match short.what {
                What::Send => (0, 1),
                What::SendImmediate(_) => (IMMEDIATE, 1),
                What::WriteImmediate(..) => (RETH + IMMEDIATE, 0),
            };
            let packet = one_packet((bytes.len() as u64).next_multiple_of(4) + more);
            meter.xmit.add_alone(Passed { sends, immediates: 1 - sends, ..packet });
        }
        is_sent
    }

    fn send_fragment(
        &self,
        path: &Path,
        headers: &[u8],
        len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<FragmentOutcome, Fault> {
        let outcome = self.env.send_fragment(path, headers, len, fill)?;
        if outcome == FragmentOutcome::Sent
            && let Some(passed) = of_fragment(headers, len)
        {
            self.meter.by_shared(path, &self.env, |meter| meter.xmit.add(passed));
        }
        Ok(outcome)
    }

    fn copy(&self, prepared: &Prepared<'_>, cache: &mut PathCache) -> DirectOutcome {
        let outcome = self.env.copy(prepared, cache);
        if outcome != DirectOutcome::Done {
            return outcome;
        }
        let transfer = prepared.transfer();
        let passed = as_packets(transfer.remote.length, transfer.mtu);
        if transfer.what == Copy::Pull {
            self.meter.by_shared(transfer.path, &self.env, |meter| meter.rcv.add(passed));
        } else if let Some(meter) = self.own(transfer.path, cache) {
            match transfer.what {
                Copy::Write | Copy::Put => meter.xmit.add_alone(passed),
                Copy::Read => {
                    meter.xmit.add_alone(one_packet(RETH));
                    meter.rcv.add_alone(passed);
                }
                Copy::Atomic(_) => {
                    meter.xmit.add_alone(one_packet(ATOMIC_ETH));
                    meter.rcv.add_alone(one_packet(ATOMIC_ANSWER));
                }
                Copy::Flush(_) => meter.xmit.add_alone(one_packet(RETH + 4)),
                Copy::Pull => {}
            }
        }
        outcome
    }

    fn max_fragment(&self) -> usize {
        self.env.max_fragment()
    }
    fn has_unread(&self, path: &Path) -> bool {
        LocalLink::has_unread(&*self.env, path)
    }
    fn table(&self, regions: &Regions) -> Option<u8> {
        self.env.table(regions)
    }
    fn publish(&self, table: u8, slot: u16, region: &Region) {
        self.env.publish(table, slot, region);
    }
    fn withdraw(&self, table: u8, slot: u16) {
        self.env.withdraw(table, slot);
    }
    fn prepare(&self, path: &Path) {
        self.env.prepare(path);
    }
    fn open(&self, grant: &Grant<'_>) -> bool {
        LocalLink::open(&*self.env, grant)
    }
    fn close(&self, qpn: Qpn, wait: bool) {
        LocalLink::close(&*self.env, qpn, wait);
    }
    fn is_closed(&self, qpn: Qpn) -> bool {
        self.env.is_closed(qpn)
    }
    fn named(&self, qpn: Qpn, key: Rkey, access: u32) {
        self.env.named(qpn, key, access);
    }
    fn has_received(&self, qpn: Qpn) -> bool {
        self.env.has_received(qpn)
    }
    fn told(&self, qpn: Qpn, key: Rkey) -> bool {
        self.env.told(qpn, key)
    }
    fn is_local(&self, path: &Path) -> bool {
        self.env.is_local(path)
    }
    fn carries(&self, path: &Path) -> bool {
        self.env.carries(path)
    }
    fn channel(&self, path: &Path) -> Option<(u16, u32)> {
        self.env.channel(path)
    }
    fn reaches(&self, path: &Path) -> bool {
        self.env.reaches(path)
    }
    fn is_mapped(&self, path: &Path, remote: Remote, cache: &PathCache) -> bool {
        self.env.is_mapped(path, remote, cache)
    }
    fn shares_from(&self) -> Option<u32> {
        self.env.shares_from()
    }
}

/// Several packets as one fragment, of which the headers and the path MTU's code are before `len`
/// bytes. Bytes that are elsewhere (`len` 0) the end counts that copies them. `None` for what says
/// where, and is no packet.
fn of_fragment(headers: &[u8], len: usize) -> Option<Passed> {
    let (opcode, mtu) = (*headers.first()?, Mtu::from_code(*headers.last()?)?);
    match opcode & 0x1f {
        0x0c => Some(one_packet(RETH)),
        0x11 => None,
        _ => {
            let (sends, immediates) = ends(opcode);
            let passed = if len == 0 { Passed::default() } else { as_packets(len as u64, mtu) };
            Some(Passed { sends, immediates, ..passed })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_by_memory_counts_as_the_packets_that_it_would_be() {
        let passed = |packets, bytes| Passed { packets, bytes, ..Passed::default() };
        assert_eq!(as_packets(1, Mtu::M4096), passed(1, 4 + 16));
        assert_eq!(as_packets(0, Mtu::M256), passed(1, 16));
        assert_eq!(as_packets(4097, Mtu::M4096), passed(2, 4100 + 32));
        assert_eq!(as_packets(1 << 20, Mtu::M1024), passed(1024, (1 << 20) + 1024 * 16));
    }

    #[test]
    fn messages_are_counted_with_their_last_packets() {
        let packets: [&[u8]; 6] = [&[0x00; 20], &[0x02; 24], &[0x64; 20], &[0x2b; 28], &[0x11; 20], &[]];
        let passed = of_packets(packets.into_iter());
        assert_eq!(passed, Passed { packets: 6, bytes: 112, sends: 2, immediates: 1 });
    }

    #[test]
    fn a_fragment_counts_its_packets_and_one_whose_bytes_are_elsewhere_its_message() {
        let of = |opcode, len| of_fragment(&[opcode, 0, 0, Mtu::M1024.code()], len);
        assert_eq!(of(0x04, 3000), Some(Passed { sends: 1, ..as_packets(3000, Mtu::M1024) }));
        assert_eq!(of(0x02, 0), Some(Passed { sends: 1, ..Passed::default() }));
        assert_eq!(of(0x0c, 17), Some(one_packet(16)));
        assert_eq!(of(0x11, 17), None);
    }
}
