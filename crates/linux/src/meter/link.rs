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
use transport::{Short, TxBatch};
use wire::bth::Bth;
use wire::{Address, Qpn, Rkey};

use super::{Meter, PathMeter};
use crate::env::{LinuxEnv, pass_on_local};
use crate::packets::{of_copy, of_fragment, of_packets, of_short};

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
    fn has_unread(&self, path: &Path) -> bool {
        self.link().has_unread(path)
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
            meter.xmit.add_alone(of_short(short, bytes.len()));
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
        let (xmit, rcv) = of_copy(transfer);
        if transfer.what == Copy::Pull {
            self.meter.by_shared(transfer.path, &self.env, |meter| meter.rcv.add(rcv));
        } else if let Some(meter) = self.own(transfer.path, cache) {
            meter.xmit.add_alone(xmit);
            meter.rcv.add_alone(rcv);
        }
        outcome
    }

    pass_on_local!();
}
