//! Connections: their events and their end (rpma_conn_next_event(3), rpma_conn_disconnect(3)).
//! Operations are in [`op`](crate::op); [`Ep`](crate::Ep) shows a connection from its request to
//! its end.
//!
//! ```
//! use rpma::ConnEvent;
//!
//! assert_eq!(ConnEvent::Lost.text(), "Connection lost");
//! ```

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use verbena::cm::Pending;
use verbena::{ErrorKind, Memory, Message, Pd, QueuePair, RemoteWrite};

use crate::conn_cfg::ConnCfg;
use crate::cq::{Cq, Posted};
use crate::error::{Error, Result};
use crate::log::{Level, log};
use crate::peer_cfg::PeerCfg;

/// What becomes of a connection (`enum rpma_conn_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnEvent {
    /// The connection stands.
    Established,
    /// Either side has disconnected it.
    Closed,
    /// The connection failed: an operation did, the device is gone, or the peer fell silent while
    /// it was made.
    Lost,
    /// The peer, or its system, refused it.
    Rejected,
    /// The peer did not answer.
    Unreachable,
}

impl ConnEvent {
    /// Upstream's text (rpma_utils_conn_event_2str(3)).
    pub fn text(self) -> &'static str {
        match self {
            Self::Established => "Connection established",
            Self::Closed => "Connection closed",
            Self::Lost => "Connection lost",
            Self::Rejected => "Connection rejected",
            Self::Unreachable => "Connection unreachable",
        }
    }

    /// How one ended.
    fn of_end(error: &verbena::Error) -> Self {
        match error.kind() {
            ErrorKind::Disconnected => Self::Closed,
            ErrorKind::Rejected => Self::Rejected,
            ErrorKind::Unreachable | ErrorKind::TimedOut => Self::Unreachable,
            _ => Self::Lost,
        }
    }
}

impl Display for ConnEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A connection: a handle, clones are the same one, any thread may use any of them. The last one
/// dropped disconnects: no call waits, what is under way is flushed, memory follows.
#[derive(Clone)]
pub struct Conn(Arc<Inner>);

struct Inner {
    pending: Pending,
    private_data: OnceLock<Vec<u8>>,
    /// What [`Conn::next_event`] has said: one of the constants below.
    told: AtomicU8,
    /// What the peer says of itself: its descriptor's first two bytes.
    remote: [AtomicU8; 2],
    /// Where READs that stand for a FLUSH go.
    flushed: Memory<RemoteWrite>,
    posted: Posted,
}

const NOTHING: u8 = 0;
const ESTABLISHED: u8 = 1;
const ENDED: u8 = 2;

impl Conn {
    pub(crate) fn new(pending: Pending, cfg: &ConnCfg) -> Result<Self> {
        let flushed = Memory::zeroed(crate::op::FLUSH_READ)?;
        let (private_data, told) = (OnceLock::new(), AtomicU8::new(NOTHING));
        let (remote, posted) = (Default::default(), Posted::new(cfg));
        Ok(Self(Arc::new(Inner { pending, private_data, told, remote, flushed, posted })))
    }

    /// The next event: whether it was established, and then how it ended. Cancelling loses none;
    /// each comes once, to one of the callers that wait.
    ///
    /// # Errors
    ///
    /// `NoEvent` after the last one.
    pub async fn next_event(&self) -> Result<ConnEvent> {
        let Inner { pending, private_data, told, .. } = &*self.0;
        loop {
            let before = told.load(Ordering::Acquire);
            let (after, event) = match before {
                NOTHING => match pending.established().await {
                    Ok(data) => {
                        _ = private_data.set(data);
                        (ESTABLISHED, ConnEvent::Established)
                    }
                    Err(error) => {
                        log!(Level::Warning, "{}: {error}", ConnEvent::of_end(&error));
                        (ENDED, ConnEvent::of_end(&error))
                    }
                },
                ESTABLISHED => match ConnEvent::of_end(&pending.ended().await) {
                    // It stood.
                    ConnEvent::Rejected | ConnEvent::Unreachable => (ENDED, ConnEvent::Lost),
                    event => (ENDED, event),
                },
                _ => return Err(Error::NoEvent),
            };
            // Another caller that waits may have been first.
            if told.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                log!(Level::Notice, "{event}");
                return Ok(event);
            }
        }
    }
    /// Like [`Conn::next_event`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_next_event(&self) -> Result<ConnEvent> {
        self.0.pending.queue_pair().pd().device().provider().wait(self.next_event())?
    }

    /// What the peer's program said, once [`ConnEvent::Established`] was told: with its request (56
    /// bytes) or its acceptance (196), zero-padded. Nothing protects it on its way.
    pub fn private_data(&self) -> Option<&[u8]> {
        self.0.private_data.get().map(Vec::as_slice)
    }
    /// What the peer says of itself, from its descriptor, holds for this connection from now on.
    pub fn apply_remote_peer_cfg(&self, cfg: &PeerCfg) {
        for (has, byte) in self.0.remote.iter().zip(cfg.bytes()) {
            has.store(byte, Ordering::Release);
        }
    }
    pub(crate) fn remote_peer_cfg(&self) -> PeerCfg {
        PeerCfg::of_bytes(self.0.remote.each_ref().map(|byte| byte.load(Ordering::Acquire)))
    }

    /// Begins to end the connection; [`ConnEvent::Closed`] says that it has ended. After that,
    /// there is nothing to do.
    ///
    /// # Errors
    ///
    /// `Provider` before it was established or refused: dropping it ends it then.
    pub fn disconnect(&self) -> Result<()> {
        Ok(self.0.pending.disconnect()?)
    }

    /// The next message, in the order in which they came. Cancelling loses nothing. `None` after
    /// the connection has ended, and all that came before was taken. Dropping the message posts
    /// its receive again: a peer that finds none posted waits.
    ///
    /// # Errors
    ///
    /// `Provider`: what the connection failed by, once.
    pub async fn recv(&self) -> Result<Option<Message>> {
        Ok(self.qp().recv().await?)
    }
    /// Like [`Conn::recv`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_recv(&self) -> Result<Option<Message>> {
        Ok(self.qp().blocking_recv()?)
    }

    /// The connection's completion queue, for operations that are posted to it; once.
    pub fn take_cq(&self) -> Option<Cq> {
        self.posted().take().then(|| Cq::new(self.clone()))
    }
    /// The protection domain that it is in: its peer's.
    pub fn pd(&self) -> &Pd {
        self.qp().pd()
    }
    /// Number of its queue pair, 24 bits.
    pub fn qp_num(&self) -> u32 {
        self.qp().number()
    }
    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.pending.peer_addr()
    }
    /// What the connection failed by.
    pub fn failure(&self) -> Option<Error> {
        self.qp().failure().map(Error::Provider)
    }
    pub(crate) fn qp(&self) -> &QueuePair {
        self.0.pending.queue_pair()
    }
    pub(crate) fn posted(&self) -> &Posted {
        &self.0.posted
    }
    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        self.0.pending.ended().await;
    }
    pub(crate) fn flushed(&self) -> &Memory<RemoteWrite> {
        &self.0.flushed
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Conn({:#x} to {})", self.qp_num(), self.peer_addr())
    }
}
