//! The engine of an iWARP queue pair: RDMAP over DDP over MPA (RFC 5040, 5041, 5044) on one ordered
//! stream of bytes, such as a TCP connection.
//!
//! [`Iwarp`] takes what came from the stream in pieces of any size ([`Iwarp::receive`]), and gives
//! what is to leave as headers and ranges of registered memory ([`Iwarp::fill`], [`StreamBatch`]).
//! The stream loses nothing and keeps the order. So there are no sequence numbers to repeat, no
//! acknowledgements, and no clock.
//!
//! | file | what |
//! |---|---|
//! | `requester` | send requests: what leaves for them, and when they complete |
//! | `reader` | READ requests of the peer, and the READ responses that answer them |
//! | `receiver` | FPDUs that come, whatever the cuts |
//! | `refused` | what a refused segment means: TERMINATE, event |
//! | `batch` | what leaves |
//! | `carried` | what the stream has carried so far |
//!
//! ```text
//!          ready                    close, nothing under way
//!  Idle ──────────▶ Rts ──────────────────────────────────────▶ Closing
//!                    │ refused segment: TERMINATE leaves            │
//!                    │ TERMINATE came, stream ended, fail           │ stream ended
//!                    ▼                                              ▼
//!                  Error ◀───────────────────────────────────────  Error
//! ```
//!
//! A request completes when the stream has taken its last byte; a READ when its last byte has come.
//! That says less than an acknowledgement of RC does: the peer may still refuse what it gets (RFC
//! 5040 §5.5).

mod batch;
mod carried;
mod reader;
mod receiver;
mod refused;
mod requester;

use wire::Qpn;
use wire::iwarp::ddp::Header;
use wire::iwarp::fpdu::{LENGTH_LEN, MAX_ULPDU};
use wire::iwarp::rdmap::{Cause, Terminate};

use crate::execute::Ends;
use crate::op::{Context, SendWr};
pub use batch::{Piece, StreamBatch};
pub use carried::{Carried, Way};
use reader::Reader;
use receiver::Receiver;
pub use receiver::Sink;
use requester::Requester;

/// Most bytes of payload in an FPDU: what its length field can say, in whole words.
pub const MAX_PAYLOAD: usize = (MAX_ULPDU as usize - (Header::UNTAGGED_LEN - LENGTH_LEN)) & !3;

/// What both sides agreed on when the stream was set up (RFC 5044 §7, RFC 6581).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// FPDUs bear a CRC-32C, both ways.
    pub crc: bool,
    /// IRD: READs that the peer may have outstanding.
    pub ird: u16,
    /// ORD: READs that may be outstanding here. 0: none may.
    pub ord: u16,
    /// Bytes of payload in an FPDU, 1 to [`MAX_PAYLOAD`].
    pub max_payload: usize,
}

/// How the side that connected says that its stream is ready, where the two are peers (RFC 6581
/// §5): by an operation of no bytes, which completes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An RDMA WRITE.
    Write,
    /// An RDMA READ, which is answered. It counts against the ORD.
    Read,
    /// A SEND, which takes no receive.
    Send,
}

/// The state of a queue pair (RFC 5040 §6.1, without what the connection manager does).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No stream yet; receives may be posted.
    Idle,
    /// Both sides work.
    Rts,
    /// Nothing more leaves; the peer's end of the stream is awaited.
    Closing,
    /// Everything is flushed.
    Error,
}

/// One iWARP queue pair.
#[derive(Debug)]
pub struct Iwarp {
    state: State,
    ends: Ends,
    attr: Attr,
    requester: Requester,
    reader: Reader,
    receiver: Receiver,
    /// Bytes of the stream that have come.
    came: u64,
    /// What the peer is told before the stream ends.
    terminate: Option<Terminate>,
    /// What the peer said before it ended the stream.
    terminated_by: Option<Cause>,
}

/// Why the queue pair fails: what the peer is told, where it is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Broken(Option<Terminate>);

impl Iwarp {
    /// A queue pair without a stream.
    pub fn new(qpn: Qpn) -> Self {
        Self {
            state: State::Idle,
            ends: Ends { local: qpn, peer: Qpn::default() },
            attr: Attr { crc: false, ird: 0, ord: 0, max_payload: MAX_PAYLOAD },
            requester: Requester::default(),
            reader: Reader::default(),
            receiver: Receiver::default(),
            came: 0,
            terminate: None,
            terminated_by: None,
        }
    }

    /// Current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The stream is set up: both sides have said what they had to say in MPA frames.
    pub fn ready(&mut self, attr: Attr) {
        if self.state == State::Idle {
            let max_payload = attr.max_payload.clamp(1, MAX_PAYLOAD);
            self.attr = Attr { max_payload, ..attr };
            self.state = State::Rts;
        }
    }

    /// Has the peer told that this side is ready, before all else that leaves. Follow with
    /// [`Iwarp::fill`].
    pub fn send_rtr(&mut self, rtr: Rtr) {
        self.requester.send_rtr(rtr);
    }

    /// The peer's first message is to be this one, and completes nothing. Before any has come
    /// nothing leaves (RFC 6581 §9).
    pub fn expect_rtr(&mut self, rtr: Rtr) {
        self.receiver.expect_rtr(rtr);
    }

    /// Send work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.requester.outstanding()
    }

    /// What the peer's TERMINATE gave as its reason, where one came and RFC 6580 knows it.
    pub fn terminated_by(&self) -> Option<Cause> {
        self.terminated_by
    }

    /// What the stream has carried so far.
    pub fn carried(&self) -> Carried {
        let received = Way { bytes: self.came, ..self.receiver.received() };
        Carried { sent: self.requester.sent_so_far(self.reader.framed()), received }
    }

    /// Queues a request; the caller has checked queue depth and state. In the error state it is
    /// flushed at once. Follow with [`Iwarp::fill`].
    pub fn post(&mut self, wr: SendWr, cx: &mut impl Context) {
        self.requester.post(wr);
        if matches!(self.state, State::Closing | State::Error) {
            self.requester.flush(self.ends, cx);
        }
    }

    /// Bytes of the stream, in its order. Follow with [`Iwarp::fill`].
    pub fn receive(&mut self, bytes: &[u8], cx: &mut impl Context) {
        self.came += bytes.len() as u64;
        if matches!(self.state, State::Rts | State::Closing)
            && let Err(broken) = self.take(bytes, cx)
        {
            self.break_off(broken, cx);
        }
    }

    /// Where the next bytes of the stream belong, where they are many: the caller may put them
    /// there by itself, and says so by [`Iwarp::placed`]. What follows them goes to
    /// [`Iwarp::receive`].
    pub fn sink(&self) -> Option<Sink<'_>> {
        if self.state == State::Rts { self.receiver.sink(&self.requester) } else { None }
    }

    /// So many bytes of the stream are where [`Iwarp::sink`] says, as many or fewer.
    pub fn placed(&mut self, len: usize) {
        self.came += len as u64;
        self.receiver.placed(len, &mut self.requester);
    }

    /// The peer has ended its half of the stream, or the stream is lost: no more comes, and nothing
    /// more leaves.
    pub fn end_of_stream(&mut self, cx: &mut impl Context) {
        if self.state != State::Idle {
            self.terminate = None;
            self.fail(cx);
        }
    }

    /// Ends the stream where nothing is under way, and tells whether it did: this half may be ended
    /// when all that was given by [`Iwarp::fill`] has left. Else call [`Iwarp::fail`].
    pub fn close(&mut self) -> bool {
        let is_at_rest = self.state == State::Rts
            && self.requester.outstanding() == 0
            && self.reader.is_idle()
            && self.receiver.is_between_messages();
        if is_at_rest {
            self.state = State::Closing;
        }
        is_at_rest
    }

    /// To the error state: everything outstanding on the send queue, and a receive half filled,
    /// completes with `WrFlush`, in order. Receives that no segment has touched are the caller's to
    /// flush.
    pub fn fail(&mut self, cx: &mut impl Context) {
        self.state = State::Error;
        self.reader.clear();
        self.requester.flush(self.ends, cx);
        self.receiver.flush(self.ends, cx);
    }

    /// Whether the stream is to be ended once all that [`Iwarp::fill`] gave has left.
    pub fn ends_stream(&self) -> bool {
        matches!(self.state, State::Closing | State::Error) && self.terminate.is_none()
    }

    /// Appends whole FPDUs, as many as there are to send and as there is room for. The caller hands
    /// the batch to the stream, and says by [`Iwarp::sent`] how much of it was taken.
    pub fn fill(&mut self, batch: &mut StreamBatch, cx: &mut impl Context) {
        if self.state == State::Rts
            && let Err(broken) = self.fill_rts(batch, cx)
        {
            self.break_off(broken, cx);
        }
        if let Some(terminate) = self.terminate.take() {
            self.requester.terminate(&self.attr, &terminate, batch);
        }
    }

    fn fill_rts(&mut self, batch: &mut StreamBatch, cx: &mut impl Context) -> Result<(), Broken> {
        if self.receiver.awaits_rtr() {
            return Ok(());
        }
        self.requester.lead(&self.attr, batch);
        self.reader.fill(&self.attr, &mut self.requester.framed, batch, cx)?;
        self.requester.fill(&self.attr, self.ends, batch, cx)
    }

    /// The stream has taken so many bytes more of what [`Iwarp::fill`] gave; requests complete.
    pub fn sent(&mut self, bytes: u64, cx: &mut impl Context) {
        self.requester.sent(bytes, self.ends, cx);
    }

    /// Memory that a piece of the batch names is gone: the oldest request that has not left fails,
    /// and the queue pair with it. The stream, in the midst of an FPDU, is of no use.
    pub fn lost_memory(&mut self, cx: &mut impl Context) {
        self.requester.fail_oldest(crate::op::Status::LocalProtection, self.ends, cx);
        self.terminate = None;
        self.fail(cx);
    }

    fn take(&mut self, bytes: &[u8], cx: &mut impl Context) -> Result<(), Broken> {
        let Self { attr, ends, requester, reader, receiver, terminated_by, .. } = self;
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut step = receiver::Step { attr, ends: *ends, requester, reader, terminated_by };
            rest = receiver.take(rest, &mut step, cx)?;
        }
        Ok(())
    }

    fn break_off(&mut self, broken: Broken, cx: &mut impl Context) {
        let Broken(terminate) = broken;
        self.fail(cx);
        self.terminate = terminate;
    }
}
