//! A connection whose program follows it step by step, as one of librdmacm or librpma does: begun,
//! established or refused, ended.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use super::connection::Attached;
use crate::error::{Error, ErrorKind, Result};
use crate::qp::{QueuePair, Rc};

/// A connection from the moment on that it is asked for or accepted
/// ([`Connect::begin`](super::Connect::begin), [`Accept::begin`](super::Accept::begin)): no call
/// needs to wait for it to come to be. Its queue pair is there, but takes no sends (`WrongState`)
/// before [`Pending::established`]. Dropping it tells the peer what its state calls for: no call
/// waits, and what is under way is flushed.
pub struct Pending {
    ends: Attached,
    qp: QueuePair,
    /// What the peer's program said with its request; `None` where we asked.
    request: Option<Vec<u8>>,
    timeout: Option<Duration>,
}

impl Pending {
    /// `timeout` is that of the side that asks.
    pub(super) fn new(ends: Attached, request: Option<Vec<u8>>, timeout: Option<Duration>) -> Self {
        let qp = QueuePair::new(ends.qp().clone());
        Self { ends, qp, request, timeout }
    }

    /// The connection's queue pair, with its receives posted.
    pub fn queue_pair(&self) -> &QueuePair<Rc> {
        &self.qp
    }
    /// The peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.ends.identifier.peer_addr()
    }
    /// Our own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.identifier.local_addr()
    }

    /// Waits until it is established, and says what the peer's program said: with its request (56
    /// bytes) or its acceptance (196), zero-padded. Any number of tasks may wait, at any time;
    /// cancelling changes nothing.
    ///
    /// # Errors
    ///
    /// `Rejected` by the peer or its system ([`Error::rejection`]), `TimedOut`, `Unreachable`, or
    /// `Disconnected` where either side has thought better of it.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn established(&self) -> impl Future<Output = Result<Vec<u8>>> + Send + '_ {
        async {
            let identifier = &self.ends.identifier;
            let answer = match self.timeout {
                Some(timeout) => identifier.answer_in(timeout).await,
                None => identifier.answer().await,
            }?;
            Ok(self.request.clone().unwrap_or(answer.private_data))
        }
    }

    /// Waits until it has ended, before or after it was established, and says how: as
    /// [`Connection::ended`](super::Connection::ended), and with the errors of
    /// [`Pending::established`].
    pub fn ended(&self) -> impl Future<Output = Error> + Send + '_ {
        self.ends.identifier.until(|seen| seen.ended.clone())
    }

    /// Begins to end it: the peer is told, what is under way is flushed; [`Pending::ended`] waits
    /// until the peer has answered. Where it has ended already there is nothing to do.
    ///
    /// # Errors
    ///
    /// `WrongState` before it is established: dropping it ends it then. `Forked`.
    pub fn disconnect(&self) -> Result<()> {
        const CALL: &str = "rdma_disconnect";
        self.qp.pd().stack().check(CALL)?;
        let identifier = &self.ends.identifier;
        match (identifier.has_ended(), identifier.has_answer()) {
            (true, _) => Ok(()),
            (false, false) => Err(Error::new(ErrorKind::WrongState, CALL)),
            (false, true) => {
                identifier.disconnect(self.ends.qp());
                Ok(())
            }
        }
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pending({} to {})", self.local_addr(), self.peer_addr())
    }
}
