//! A link that shows what passes it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nic::{Arrival, Errno, Fate, FrameArrival, Frames, Link, NewStream, Path, Stream, Tap};
use transport::TxBatch;
use wire::bth::Bth;
use wire::icrc::{self, Flow, ICRC_LEN};
use wire::{Address, Endpoint, ROCE_PORT, grh};

use crate::Recorder;
use crate::filter::Filter;
use crate::frames::{self, CaptureFrames};
use crate::message::{Direction, Lids, NOWHERE, Outcome, Packet, Protocol};
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

    /// The ends of a path's packets; `None` where they are of two kinds.
    fn ends(&self, path: &Path) -> Option<Ends> {
        match (path.source, path.dest) {
            (Address::Lid(source), Address::Lid(dest)) => Some(Ends::Lids(Lids::of(source, dest))),
            (Address::Ip(source), Address::Ip(dest)) => {
                let port = self.link.source_port(path).unwrap_or_default();
                let source = SocketAddr::new(source, port);
                Some(Ends::Udp(Flow { source, dest: SocketAddr::new(dest, ROCE_PORT) }))
            }
            _ => None,
        }
    }

    /// Shows a packet that was sent, or would have been.
    fn show(&self, time: u64, path: &Path, ends: Ends, outcome: Outcome<'_>, bytes: &[u8]) {
        if self.filter.shows(path.dest, grh::skip(path.dest, bytes)) {
            let &Path { interface, traffic_class, hop_limit, .. } = path;
            let packet = ends.packet(time, (Direction::Out, interface), outcome, bytes);
            self.recorder.record(&Packet { traffic_class, hop_limit, ..packet });
        }
    }
}

/// Where a packet comes from and goes to.
#[derive(Clone, Copy)]
enum Ends {
    /// From a port, 0 where none has been used.
    Udp(Flow),
    Lids(Lids),
}

impl Ends {
    /// The ends of a packet that has arrived.
    fn of(packet: &Arrival<'_>) -> Option<Self> {
        match (packet.source, packet.dest) {
            (Endpoint::Lid(source), Endpoint::Lid(dest)) => Some(Self::Lids(Lids::of(source, dest))),
            (source, dest) => Flow::between(&source, &dest).map(Self::Udp),
        }
    }

    /// A packet, as a recorder takes it.
    fn packet<'a>(
        self,
        time: u64,
        (direction, interface): (Direction, u32),
        outcome: Outcome<'a>,
        bytes: &'a [u8],
    ) -> Packet<'a> {
        let (source, dest, protocol) = match self {
            Self::Udp(Flow { source, dest }) => (source, dest, Protocol::Roce),
            Self::Lids(lids) => (NOWHERE, NOWHERE, Protocol::Infiniband(lids)),
        };
        let (traffic_class, hop_limit) = (0, 0);
        Packet {
            time,
            direction,
            interface,
            source,
            dest,
            traffic_class,
            hop_limit,
            outcome,
            protocol,
            bytes,
        }
    }
}

impl Link for CaptureLink {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        let time = self.recorder.time();
        let show = |batch: &TxBatch, ends, outcome| {
            batch.iter().for_each(|bytes| self.show(time, path, ends, outcome, bytes));
        };
        if let Some(ends @ Ends::Lids(_)) = self.ends(path) {
            // What a fabric loses has left, and is gone from the batch afterwards.
            show(batch, ends, Outcome::Good);
            return self.link.send(path, batch);
        }
        self.link.send(path, batch);
        // Only now: what was sent is sealed, and has a socket and its port.
        let Some(ends @ Ends::Udp(flow)) = self.ends(path) else { return };
        let outcome = match flow.source.port() {
            0 => Outcome::Dropped("packets_dropped_sending"),
            _ => Outcome::Good,
        };
        show(batch, ends, outcome);
    }
    fn fault(&self, path: &Path, packet: &[u8], what: &'static str) {
        if let Some(ends) = self.ends(path)
            && packet.len() >= Bth::LEN + ICRC_LEN
        {
            let mut bytes = packet.to_vec();
            if let Ends::Udp(flow) = ends {
                icrc::seal(&flow, 0, &mut bytes);
            }
            self.show(self.recorder.time(), path, ends, Outcome::Fault(what), &bytes);
        }
    }
    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        self.link.can_reach(dest)
    }
    fn has_unread(&self, path: &Path) -> bool {
        self.link.has_unread(path)
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
    fn frames(&self, frames: Arc<dyn Frames>) -> Arc<dyn Frames> {
        let frames = self.link.frames(frames);
        match self.filter.shows_frames() {
            true => Arc::new(CaptureFrames::new(frames, self.recorder.clone())),
            false => frames,
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
        if let (Some(outcome), Some(ends)) = (outcome, Ends::of(packet))
            && self.filter.shows(packet.source.address(), grh::skip(packet.dest.address(), packet.bytes))
        {
            let way = (Direction::In, packet.interface);
            self.recorder.record(&ends.packet(time, way, outcome, packet.bytes));
        }
    }
    fn frame_arrived(&self, frame: &FrameArrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        let time = self.recorder.time();
        let outcome = Outcome::of(deliver(frame.bytes)).filter(|_| self.filter.shows_frames());
        if let Some(outcome) = outcome {
            let direction = Direction::In;
            self.recorder.record(&frames::packet(time, direction, frame.interface, outcome, frame.bytes));
        }
    }
}
