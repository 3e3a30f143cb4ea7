//! A connection that stands, and how it ends (rdma_disconnect(3), rdma_destroy_id(3)).

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use super::events::Identifier;
use super::{ConnParam, FlowControl, wait};
use crate::error::{Error, ErrorKind, IntoPolledError, Result};
use crate::polled::PolledConnection;
use crate::provider::{Device, Pd};
use crate::qp::inner::QpInner;
use crate::qp::{Connected, QueueConfig, QueuePair, Rc, Transport};

/// An identifier with its queue pair. They end in the order of the fields: an ACK held back leaves,
/// then the peer is told, then what is under way is flushed.
pub(crate) struct Attached {
    pub identifier: Identifier,
    qp: OwnQp,
}

/// Destroyed when its connection is, whatever other handles of it there are.
struct OwnQp(Arc<QpInner>);

impl Drop for OwnQp {
    fn drop(&mut self) {
        self.0.ended(Error::new(ErrorKind::Disconnected, "rdma_destroy_qp"));
        self.0.destroy();
    }
}

impl Attached {
    /// Makes a queue pair for an identifier on a device, in INIT and with its receives posted.
    pub(crate) fn new<T: Transport>(
        identifier: Identifier,
        device: &Device,
        pd: &Pd,
        queues: &QueueConfig,
    ) -> Result<Self> {
        if pd.device() != device {
            return Err(Error::new(ErrorKind::WrongDomain, "rdma_create_qp"));
        }
        let ends = Self { identifier, qp: OwnQp(QpInner::create(pd, queues, T::KIND)?) };
        ends.identifier.set_qp(&ends.qp.0)?;
        ends.qp.0.post_receives()?;
        Ok(ends)
    }

    /// The queue pair.
    pub(crate) fn qp(&self) -> &Arc<QpInner> {
        &self.qp.0
    }
}

/// A connection: a handle, clones are the same one. Its operations are those of its [`QueuePair`].
/// The last handle disconnects: the peer is told, no call waits, what is under way is flushed,
/// memory follows.
pub struct Connection<T: Connected = Rc> {
    inner: Arc<ConnectionInner>,
    qp: QueuePair<T>,
}

struct ConnectionInner {
    ends: Attached,
    private_data: Vec<u8>,
    param: ConnParam,
}

impl<T: Connected> Connection<T> {
    /// A connection that stands. `told` is the peer's, `asked` ours.
    pub(super) fn new(
        ends: Attached,
        told: nic::rdma_cm::ConnParam,
        private_data: Vec<u8>,
        asked: &ConnParam,
    ) -> Self {
        let agreed = ends.qp.0.carrier().agreed();
        let param = ConnParam {
            responder_resources: Some(agreed.responder_resources),
            initiator_depth: Some(agreed.initiator_depth),
            flow_control: FlowControl::told(told.flow_control),
            retry_count: agreed.retry_count,
            rnr_retry_count: asked.rnr_retry_count,
        };
        let qp = QueuePair::new(ends.qp.0.clone());
        Self { inner: Arc::new(ConnectionInner { ends, private_data, param }), qp }
    }

    fn identifier(&self) -> &Identifier {
        &self.inner.ends.identifier
    }

    /// What the peer's program said: with its request (56 bytes) or its acceptance (196),
    /// zero-padded.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.private_data
    }
    /// As agreed: the depths are what either side can do, `retry_count` what our queue pair does,
    /// `flow_control` what the peer told, `rnr_retry_count` what we told it.
    pub fn param(&self) -> &ConnParam {
        &self.inner.param
    }
    /// The connection's queue pair. A handle of it keeps the queue pair's memory, and does not keep
    /// the connection.
    pub fn queue_pair(&self) -> &QueuePair<T> {
        &self.qp
    }
    /// The peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.identifier().peer_addr()
    }
    /// Our own address.
    pub fn local_addr(&self) -> SocketAddr {
        self.identifier().local_addr()
    }

    /// Waits until sends are complete, disconnects, and waits until the peer has answered, or does
    /// not for 2 s. Other handles of it find it ended. Where the peer has disconnected already
    /// there is nothing to wait for.
    ///
    /// # Errors
    ///
    /// Why the queue pair failed before: what was under way then is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use verbena::prelude::*;
    /// # let listener = verbena::listen("127.0.0.1:0").wait()?;
    /// # let to = listener.local_addr();
    /// # let connecting = std::thread::spawn(move || verbena::connect(to).wait());
    /// # let peer = listener.blocking_request()?.accept().wait()?;
    /// # let conn = connecting.join().expect("no panic")?;
    /// conn.send_inline(b"last words").wait()?;
    /// verbena::block_on(conn.close())?;
    /// assert_eq!(&peer.blocking_recv()?.expect("a message")[..], b"last words");
    /// assert!(peer.blocking_recv()?.is_none(), "the end");
    /// # Ok::<(), verbena::Error>(())
    /// ```
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn close(self) -> impl Future<Output = Result<()>> + Send {
        async move {
            let ends = &self.inner.ends;
            ends.qp.0.idle().await;
            let failure = ends.qp.0.failure();
            if !ends.identifier.has_ended() {
                ends.identifier.disconnect(&ends.qp.0);
                ends.identifier.until_ended().await;
            }
            match failure {
                Some(failure) if failure.kind() != ErrorKind::Disconnected => Err(failure),
                _ => Ok(()),
            }
        }
    }

    /// Like [`Connection::close`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `BlockingInSimulation` in a task of a simulated host.
    pub fn blocking_close(self) -> Result<()> {
        let provider = self.inner.ends.qp.0.pd().device().provider().clone();
        wait(&provider, "rdma_disconnect", self.close())
    }

    /// The name of [`Connection::blocking_close`] before 0.1.0.
    ///
    /// # Errors
    ///
    /// Likewise.
    #[doc(hidden)]
    #[deprecated(note = "renamed to `blocking_close`")]
    pub fn close_wait(self) -> Result<()> {
        self.blocking_close()
    }

    /// Waits until it has ended, by either side or cause, and says how: `Disconnected`;
    /// `Completion` with what made the queue pair fail, of which the peer is told; `TimedOut`
    /// and its like where the connection manager gave up; `Unreachable` when the device is gone.
    pub fn ended(&self) -> impl Future<Output = Error> + Send + '_ {
        self.identifier().until(|seen| seen.ended.clone())
    }
}

impl Connection {
    /// Gives the connection to one thread that polls, for latency: completions come when that
    /// thread asks, and wake no thread. Other handles of its queue pair, and what waits on them,
    /// get theirs then.
    ///
    /// # Errors
    ///
    /// [`IntoPolledError`], with the connection: it has clones, or its completions come to a queue
    /// that other queue pairs share.
    pub fn into_polled(self) -> Result<PolledConnection, IntoPolledError> {
        let shared = Arc::strong_count(&self.inner) > 1 || self.qp.inner().shares_completions();
        if shared { Err(IntoPolledError(self)) } else { Ok(PolledConnection::new(self)) }
    }
}

impl<T: Connected> Clone for Connection<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), qp: self.qp.clone() }
    }
}

impl<T: Connected> std::fmt::Debug for Connection<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({} to {})", self.local_addr(), self.peer_addr())
    }
}
