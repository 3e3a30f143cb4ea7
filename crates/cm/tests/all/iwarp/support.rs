//! Connection managers of MPA, joined by streams that come in pieces of any size, and MPA frames
//! for ends that a test plays itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::support::{World, service};
use cm::iw::{Cm, Config};
use cm::{
    Accept, Accepted, Action, Close, ConnId, Connect, Event, HandOver, Open, Output, Parameters, PathRecord,
    Request, StreamId,
};
use wire::Qpn;
use wire::iwarp::mpa::{self, Enhanced, Frame, Kind};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const ECONNRESET: i32 = 104;

/// One process, and what its connection manager has put out.
pub(super) struct End {
    pub cm: Cm,
    pub now: Instant,
    pub events: Vec<(ConnId, Event)>,
    pub opens: Vec<(StreamId, Open)>,
    pub written: BTreeMap<StreamId, Vec<u8>>,
    pub given: BTreeMap<StreamId, HandOver>,
    pub closed: BTreeMap<StreamId, Close>,
    pub released: Vec<(ConnId, Qpn)>,
}

impl End {
    pub(super) fn new(config: Config) -> Self {
        Self {
            cm: Cm::new(config),
            now: World::new(&[]).now,
            events: Vec::new(),
            opens: Vec::new(),
            written: BTreeMap::new(),
            given: BTreeMap::new(),
            closed: BTreeMap::new(),
            released: Vec::new(),
        }
    }

    /// Takes out what the connection manager has to say; whether that was anything.
    pub(super) fn take(&mut self) -> bool {
        let mut said = false;
        while let Some(output) = self.cm.poll() {
            said = true;
            match output {
                Output::Event { conn, event } => self.events.push((conn, event)),
                Output::Released { conn, qpn } => self.released.push((conn, qpn)),
                Output::Stream { stream, action } => self.act(stream, action),
                Output::Transmit { .. } => panic!("MPA sends no MADs"),
            }
        }
        said
    }

    fn act(&mut self, stream: StreamId, action: Action) {
        assert!(!self.closed.contains_key(&stream), "{action:?} to a closed stream");
        match action {
            Action::Open(open) => self.opens.push((stream, *open)),
            Action::Write(bytes) => {
                assert!(!bytes.is_empty() && !self.given.contains_key(&stream));
                self.written.entry(stream).or_default().extend(bytes);
            }
            Action::HandOver(given) => assert_eq!(self.given.insert(stream, *given), None),
            Action::Close(close) => assert_eq!(self.closed.insert(stream, close), None),
        }
    }

    /// Asks for a connection; its stream.
    pub(super) fn connect(&mut self, connect: &Connect) -> (ConnId, StreamId) {
        let id = self.cm.connect(self.now, connect).expect("room for a connection");
        self.take();
        let (stream, open) = *self.opens.last().expect("a stream to open");
        assert_eq!(open.conn, id);
        (id, stream)
    }

    /// A connection whose request has left; what it said.
    pub(super) fn asking(&mut self, connect: &Connect) -> (ConnId, StreamId, Vec<u8>) {
        let (id, stream) = self.connect(connect);
        self.cm.opened(self.now, stream);
        (id, stream, self.says(stream))
    }

    /// A stream from a listener.
    pub(super) fn accept_stream(&mut self) -> StreamId {
        let path = PathRecord { lids: None, ..connect().path };
        let path = PathRecord::new(path.remote_gid, path.local_gid, 7, path.mtu);
        let stream = self.cm.accepted(self.now, &Accepted { path, service: service(), peer_port: 0xc983 });
        self.take();
        stream
    }

    /// A stream from a listener on which these bytes came, cut into pieces.
    pub(super) fn asked_by(&mut self, bytes: &[u8], cut: usize) -> StreamId {
        let stream = self.accept_stream();
        self.hear(stream, bytes, cut);
        stream
    }

    /// Bytes come on a stream, cut into pieces; none once it is closed, or the queue pair's.
    pub(super) fn hear(&mut self, stream: StreamId, bytes: &[u8], cut: usize) {
        for piece in bytes.chunks(cut) {
            if self.closed.contains_key(&stream) {
                break;
            }
            match self.given.get_mut(&stream) {
                Some(given) => given.behind.extend(piece),
                None => self.cm.received(self.now, stream, piece),
            }
            self.take();
        }
    }

    /// What was written to a stream since the last time.
    pub(super) fn says(&mut self, stream: StreamId) -> Vec<u8> {
        self.take();
        self.written.remove(&stream).unwrap_or_default()
    }

    /// The request that came last.
    pub(super) fn request(&self) -> (ConnId, &Request) {
        let request = |(id, event): &'_ (ConnId, Event)| match event {
            Event::Request(_) => Some(*id),
            _ => None,
        };
        let id = self.events.iter().rev().find_map(request).expect("a request");
        let Some((_, Event::Request(request))) = self.events.iter().find(|(of, _)| *of == id) else {
            unreachable!("it was just found")
        };
        (id, request)
    }

    pub(super) fn events_of(&self, id: ConnId) -> Vec<&Event> {
        self.events.iter().filter(|(of, _)| *of == id).map(|(_, event)| event).collect()
    }

    /// The last event of a connection.
    pub(super) fn last(&self, id: ConnId) -> &Event {
        self.events_of(id).last().expect("an event")
    }

    /// Time passes, and what is due happens.
    pub(super) fn wait(&mut self, span: Duration) {
        self.now += span;
        self.cm.expire(self.now);
        assert!(self.cm.deadline().is_none_or(|at| at > self.now), "expire leaves nothing due");
        self.take();
    }
}

/// Two processes, the first of which connects.
pub(super) struct Pair {
    pub ends: [End; 2],
    /// Bytes that come at a time.
    pub cut: usize,
    links: Vec<[StreamId; 2]>,
    told: BTreeSet<(usize, StreamId)>,
}

impl Pair {
    pub(super) fn new(cut: usize) -> Self {
        Self::with(cut, Config::default(), Config::default())
    }

    pub(super) fn with(cut: usize, active: Config, passive: Config) -> Self {
        let ends = [active, passive].map(End::new);
        Self { ends, cut, links: Vec::new(), told: BTreeSet::new() }
    }

    /// Carries bytes and ends of streams until both ends have nothing to say.
    pub(super) fn settle(&mut self) {
        loop {
            let mut said = self.ends[0].take() | self.ends[1].take();
            for (stream, _) in std::mem::take(&mut self.ends[0].opens) {
                let far = self.ends[1].accept_stream();
                self.links.push([stream, far]);
                self.ends[0].cm.opened(self.ends[0].now, stream);
                said = true;
            }
            for link in self.links.clone() {
                said |= self.carry(0, link) | self.carry(1, link);
            }
            if !said {
                break;
            }
        }
    }

    /// Carries what end `from` said on a stream to the other.
    fn carry(&mut self, from: usize, link: [StreamId; 2]) -> bool {
        let (near, far) = (link[from], link[1 - from]);
        let bytes = self.ends[from].says(near);
        self.ends[1 - from].hear(far, &bytes, self.cut);
        let Some(close) = self.ends[from].closed.get(&near).copied() else { return !bytes.is_empty() };
        let to = &mut self.ends[1 - from];
        if !self.told.insert((from, near)) || to.closed.contains_key(&far) {
            return !bytes.is_empty();
        }
        match close {
            Close::Gracefully => to.cm.ended(far),
            Close::Reset => to.cm.lost(far, ECONNRESET),
        }
        true
    }

    /// A connection, established on both ends, and its streams.
    pub(super) fn connected(&mut self) -> [ConnId; 2] {
        let (active, _) = self.ends[0].connect(&connect());
        self.settle();
        let (passive, _) = self.ends[1].request();
        let now = self.ends[1].now;
        self.ends[1].cm.accept(now, passive, &accept()).unwrap();
        self.settle();
        assert!(matches!(self.ends[0].last(active), Event::Reply(_)), "{:?}", self.ends[0].events);
        self.ends[0].cm.established(now, active).unwrap();
        self.settle();
        [active, passive]
    }

    /// The streams of the connection that was made last.
    pub(super) fn link(&self) -> [StreamId; 2] {
        *self.links.last().expect("a stream")
    }
}

/// What the first host asks for.
pub(super) fn connect() -> Connect {
    let connect = World::new(&[2, 3]).connect_params(0, 1);
    let parameters = Parameters { responder_resources: 4, initiator_depth: 3, ..connect.parameters };
    Connect { parameters, private_data: b"asks".to_vec(), ..connect }
}

/// What the second host grants.
pub(super) fn accept() -> Accept {
    let parameters = Parameters {
        qpn: Qpn::new(0x2_0001),
        responder_resources: 4,
        initiator_depth: 3,
        ..Parameters::default()
    };
    Accept { parameters, private_data: b"grants".to_vec() }
}

/// An enhanced request without private data.
pub(super) const REQUEST: Frame<'_> = Frame {
    kind: Kind::Request,
    markers: false,
    crc: false,
    rejected: false,
    revision: 2,
    enhanced: Some(DEPTHS),
    private_data: &[],
};
/// The reply to [`REQUEST`].
pub(super) const REPLY: Frame<'_> = Frame { kind: Kind::Reply, ..REQUEST };

pub(super) const DEPTHS: Enhanced =
    Enhanced { peer_to_peer: false, send_rtr: false, write_rtr: false, read_rtr: false, ird: 8, ord: 9 };

pub(super) fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = [0; mpa::MAX_LEN];
    let len = frame.emit(&mut out);
    out[..len].to_vec()
}

/// The frame that these bytes are, with nothing behind it.
pub(super) fn parsed(kind: Kind, bytes: &[u8]) -> Frame<'_> {
    let frame = Frame::parse(kind, bytes).unwrap().whole().expect("a whole frame");
    assert_eq!(frame.len(), bytes.len(), "nothing comes behind it");
    frame
}

pub(super) fn rejected(reason: i32) -> Event {
    Event::Rejected { reason, private_data: Vec::new() }
}
