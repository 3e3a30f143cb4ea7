//! What a node calls: the connection manager of one device, whatever protocol it speaks.
//!
//! [`Cm`] is what each protocol provides, [`Protocol`] names them all and makes one, and [`Output`]
//! is what comes of calls, messages and time.

use std::time::Instant;

use wire::mad::Mad;
use wire::{Address, CommId, Guid, Qpn};

use crate::event::{ConnId, Error, Event};
use crate::ib::{self, Timing};
use crate::iw;
use crate::mads::Mads;
use crate::parameters::{Accept, Connect, PathRecord, QpAttributes, Refusal, Service, SidrAnswer, SidrAsk};
use crate::streams::{Action, StreamId, Streams};

/// The protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// The InfiniBand connection manager, whose messages are MADs ([`ib`]).
    Ib,
    /// MPA of iWARP, whose messages go by TCP streams ([`iw`]).
    Iw,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ib, Self::Iw];

    /// A connection manager without connections.
    pub fn start(self, setup: Setup) -> Box<dyn Cm> {
        match self {
            Self::Ib => Box::new(ib::start(setup)),
            Self::Iw => Box::new(iw::start(setup)),
        }
    }

    /// Room for the program's private data in its messages.
    pub const fn private_data(self) -> PrivateData {
        match self {
            Self::Ib => ib::PRIVATE_DATA,
            Self::Iw => iw::PRIVATE_DATA,
        }
    }
}

/// What a connection manager is made from, whatever it speaks.
pub struct Setup {
    /// The GUID of the device, the same for all processes of a host that share an address.
    pub guid: Guid,
    /// Durations.
    pub timing: Timing,
    /// Ask for CRCs, where the protocol leaves them open (MPA).
    pub crc: bool,
    /// Incoming requests at most that the consumer has not answered yet.
    pub max_pending_requests: usize,
    /// Whether the connection manager of the device with this GUID is of our kind on another host.
    pub is_kin: fn(Guid) -> bool,
    /// The process of a host that drew a communication id.
    pub process_of: fn(CommId) -> u32,
    /// Gives candidates for communication ids: unpredictable, from the numbers that are this
    /// process's own among those with the same GUID.
    pub comm_ids: Box<dyn FnMut() -> CommId + Send>,
    /// Gives 64 random bits each time, which nothing that does not see our packets can guess.
    pub random: Box<dyn FnMut() -> u64 + Send>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("guid", &self.guid)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

/// Bytes of the program's private data that the messages of a protocol have room for, one limit a
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// rdma_connect(3).
    pub request: usize,
    /// rdma_accept(3).
    pub reply: usize,
    /// rdma_reject(3).
    pub rejection: usize,
    /// rdma_connect(3) for a datagram service.
    pub question: usize,
    /// rdma_accept(3) and rdma_reject(3) for a datagram service.
    pub answer: usize,
}

impl PrivateData {
    /// The most that any protocol has room for.
    pub const MAX: Self = {
        let mut most = Self { request: 0, reply: 0, rejection: 0, question: 0, answer: 0 };
        let mut n = 0;
        while n < Protocol::ALL.len() {
            let one = Protocol::ALL[n].private_data();
            most = Self {
                request: larger(most.request, one.request),
                reply: larger(most.reply, one.reply),
                rejection: larger(most.rejection, one.rejection),
                question: larger(most.question, one.question),
                answer: larger(most.answer, one.answer),
            };
            n += 1;
        }
        most
    };
}

const fn larger(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// What [`Cm::poll`] hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a MAD to QP1 of the far end. Protocols whose messages are MADs put it out.
    Transmit {
        /// The connection it belongs to, if any.
        conn: Option<ConnId>,
        /// The way.
        path: PathRecord,
        /// The message.
        mad: Box<Mad>,
        /// 0 for a message sent the first time, more for every repetition: the sender changes its
        /// source port with it, so that a stuck process which shares the far port does not
        /// get them all.
        attempt: u32,
    },
    /// Do something to a stream. Protocols whose messages go by streams put it out.
    Stream {
        /// The stream.
        stream: StreamId,
        /// What.
        action: Action,
    },
    /// Tell the consumer.
    Event {
        /// The connection whose event it is.
        conn: ConnId,
        /// What.
        event: Event,
    },
    /// The connection no longer holds its queue pair number nor its communication id; comes once
    /// for each connection that had a queue pair, after destroy too.
    Released {
        /// The connection.
        conn: ConnId,
        /// The connection's queue pair.
        qpn: Qpn,
    },
}

/// The connection manager of a device.
///
/// Calls do not wait. What comes of them, of messages and of time is fetched by [`Cm::poll`]. A
/// call about a connection that is unknown or has ended fails with [`Error::Unknown`] or
/// [`Error::State`], and is harmless where it returns nothing.
pub trait Cm: Send {
    /// Asks for a connection. [`Event::Reply`], [`Event::Rejected`] or [`Event::Unreachable`]
    /// follows.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `Gid` or `PrivateData` for what no message can say; `Full`, `CommIds`.
    fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, Error>;
    /// The consumer waits for the answer to its request until `at` and no longer.
    fn give_up_at(&mut self, id: ConnId, at: Instant);
    /// The consumer's side of the handshake is done: after [`Event::Reply`] the peer is told so;
    /// after [`Cm::accept`] data has arrived, and [`Event::Established`] follows.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State` before there is a reply.
    fn established(&mut self, now: Instant, id: ConnId) -> Result<(), Error>;
    /// Accepts a request. [`Event::Established`], [`Event::Rejected`] or [`Event::Unreachable`]
    /// follows.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not an unanswered request; `OutOfRange`, `PrivateData`.
    fn accept(&mut self, now: Instant, id: ConnId, accept: &Accept) -> Result<(), Error>;
    /// Refuses a request, or a reply that does not suit.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: neither of these; `PrivateData`.
    fn reject(&mut self, now: Instant, id: ConnId, why: Refusal, private_data: &[u8]) -> Result<(), Error>;
    /// Ends a connection. [`Event::Disconnected`] follows, and [`Event::TimewaitExit`] where the
    /// protocol has a time wait.
    ///
    /// # Errors
    ///
    /// `Unknown`, or `State`: not connected.
    fn disconnect(&mut self, now: Instant, id: ConnId) -> Result<(), Error>;
    /// The consumer forgets a connection; its peer is told what it needs.
    fn destroy(&mut self, now: Instant, id: ConnId);
    /// The process ends: every connection as by [`Cm::destroy`], once. Nothing is repeated.
    fn leave(&mut self, now: Instant);

    /// Asks for the queue pair of a datagram service. [`Event::SidrReply`] or
    /// [`Event::Unreachable`] follows.
    ///
    /// # Errors
    ///
    /// Those of [`Cm::connect`]; `NoDatagrams` where the protocol has no such services.
    fn sidr_request(&mut self, _now: Instant, _ask: &SidrAsk) -> Result<ConnId, Error> {
        Err(Error::NoDatagrams)
    }
    /// Answers such a question.
    ///
    /// # Errors
    ///
    /// Those of [`Cm::accept`]; `NoDatagrams` where the protocol has no such services.
    fn sidr_reply(&mut self, _now: Instant, _id: ConnId, _answer: &SidrAnswer) -> Result<(), Error> {
        Err(Error::NoDatagrams)
    }

    /// Whether a request still waits for its answer.
    fn is_unanswered(&self, id: ConnId) -> bool;
    /// The connections that requests for a service began and that are not established yet.
    fn half_open(&self, service: Service) -> Vec<ConnId>;
    /// Whether a connection that a request began is not established yet.
    fn is_half_open(&self, id: ConnId) -> bool;
    /// What the queue pair wants for RTR and RTS; `None` before the peer's numbers are known and
    /// after the end.
    fn qp_attr(&self, id: ConnId) -> Option<QpAttributes>;
    /// What a queue pair wants that is moved before its request is accepted. `None` once it is
    /// answered.
    fn requested_qp_attr(&self, id: ConnId) -> Option<QpAttributes>;
    /// Connections that are held, in whatever state.
    fn connections(&self) -> usize;

    /// The connections whose peer `is_it` knows, by its process, as
    /// [`Request::process`](crate::Request::process) says it, and its address.
    fn with_peer(&self, is_it: &dyn Fn(u32, Address) -> bool) -> Vec<ConnId>;
    /// The process at the other end of one connection is no more.
    fn end_of_peer(&mut self, now: Instant, id: ConnId);
    /// An ICMP error says that no process takes what was sent to `process` at `peer`.
    fn process_unreachable(&mut self, now: Instant, peer: Address, process: u32);

    /// The next thing to send or to tell.
    fn poll(&mut self) -> Option<Output>;
    /// When [`Cm::expire`] has something to do.
    fn deadline(&self) -> Option<Instant>;
    /// Does what is due at `now`.
    fn expire(&mut self, now: Instant);

    /// The protocol's end of QP1, where its messages are MADs. One whose messages go by streams has
    /// none.
    fn mads(&mut self) -> Option<&mut dyn Mads> {
        None
    }
    /// The protocol's end of the streams, where its messages go by them. One whose messages are
    /// MADs has none.
    fn streams(&mut self) -> Option<&mut dyn Streams> {
        None
    }
}
