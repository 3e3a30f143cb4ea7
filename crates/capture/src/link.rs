//! A link that shows what passes it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nic::{Arrival, Errno, Fate, Link, NewStream, Path, Stream, Tap};
use transport::TxBatch;
use wire::bth::Bth;
use wire::icrc::{self, Flow, ICRC_LEN};
use wire::{Address, ROCE_PORT};

use crate::Recorder;
use crate::filter::Filter;
use crate::message::{Direction, Outcome, Packet, Protocol};
use crate::stream::CaptureStream;

/// A link over another one, that shows each packet to a recorder. Processes of one host have no
/// other way past it: all goes as packets.
pub struct CaptureLink {
    link: Arc<dyn Link>,
    recorder: Arc<dyn Recorder>,
    filter: Filter,
}

impl CaptureLink {
    /// A link over `link` that shows packets to `recorder`.
    pub fn new(link: Arc<dyn Link>, recorder: Arc<dyn Recorder>, filter: Filter) -> Self {
        Self { link, recorder, filter }
    }

    /// The flow of a path's packets, from port 0 where none has left; `None` without IP.
    fn flow(&self, path: &Path) -> Option<Flow> {
        let port = self.link.source_port(path).unwrap_or_default();
        let (source, dest) = path.source.ip().zip(path.dest.ip())?;
        Some(Flow { source: SocketAddr::new(source, port), dest: SocketAddr::new(dest, ROCE_PORT) })
    }

    /// Shows a packet that was sent, or would have been.
    fn show(&self, time: u64, path: &Path, flow: Flow, outcome: Outcome<'_>, bytes: &[u8]) {
        let Flow { source, dest } = flow;
        if self.filter.shows(dest.ip(), bytes) {
            let &Path { interface, traffic_class, hop_limit, .. } = path;
            let direction = Direction::Out;
            self.recorder.record(&Packet {
                time,
                direction,
                interface,
                source,
                dest,
                traffic_class,
                hop_limit,
                outcome,
                protocol: Protocol::Roce,
                bytes,
            });
        }
    }
}

impl Link for CaptureLink {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        let time = self.recorder.time();
        self.link.send(path, batch);
        // Only now: what was sent is sealed, and has a socket and its port.
        let Some(flow) = self.flow(path) else { return };
        let outcome = match flow.source.port() {
            0 => Outcome::Dropped("packets_dropped_sending"),
            _ => Outcome::Good,
        };
        batch.iter().for_each(|bytes| self.show(time, path, flow, outcome, bytes));
    }
    fn fault(&self, path: &Path, packet: &[u8], what: &'static str) {
        if let Some(flow) = self.flow(path)
            && packet.len() >= Bth::LEN + ICRC_LEN
        {
            let mut bytes = packet.to_vec();
            icrc::seal(&flow, 0, &mut bytes);
            self.show(self.recorder.time(), path, flow, Outcome::Fault(what), &bytes);
        }
    }
    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        self.link.can_reach(dest)
    }
    fn source_port(&self, path: &Path) -> Option<u16> {
        self.link.source_port(path)
    }
    fn tap(&self) -> Option<&dyn Tap> {
        Some(self)
    }
    fn stream(&self, new: &NewStream, stream: Arc<dyn Stream>) -> Arc<dyn Stream> {
        let stream = self.link.stream(new, stream);
        match self.filter.shows_stream(new.theirs.ip()) {
            true => Arc::new(CaptureStream::new(stream, self.recorder.clone(), new)),
            false => stream,
        }
    }
    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno> {
        self.link.join(interface, group)
    }
    fn leave(&self, interface: u32, group: IpAddr) {
        self.link.leave(interface, group);
    }
}

impl Tap for CaptureLink {
    fn arrived(&self, packet: &Arrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        let time = self.recorder.time();
        let outcome = Outcome::of(deliver(packet.bytes));
        let ends = packet.source.udp().zip(packet.dest.udp());
        if let (Some(outcome), Some((source, dest))) = (outcome, ends)
            && self.filter.shows(source.ip(), packet.bytes)
        {
            self.recorder.record(&Packet {
                time,
                direction: Direction::In,
                interface: packet.interface,
                source,
                dest,
                traffic_class: 0,
                hop_limit: 0,
                outcome,
                protocol: Protocol::Roce,
                bytes: packet.bytes,
            });
        }
    }
}
