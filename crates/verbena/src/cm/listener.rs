//! The side that is asked: listeners (rdma_listen(3)).

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::net::SocketAddr;

use nic::Errno;

use super::events::Identifier;
use super::names::look_up;
use super::{Addr, Boxed, Connection, Request, ToAddr, chosen, first_of, limits, wait};
use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::Provider;
use crate::qp::{Connected, Rc, Uc};

/// The C function that this file is about, as errors name it.
const CALL: &str = "rdma_listen";

/// Listens on an address.
///
/// ```no_run
/// # fn f() -> verbena::Result<()> {
/// let listener = verbena::listen("0.0.0.0:7471").backlog(64).wait()?;
/// let conn = listener.blocking_request()?.accept().wait()?;
/// # Ok(()) }
/// ```
pub fn listen(on: impl ToAddr) -> Listen {
    Listen { on: on.to_addr(), backlog: limits::BACKLOG_MAX, reuse: false, provider: None, _t: PhantomData }
}

/// A listener to be: configure, then `.await` or `.wait()`. `0.0.0.0` is all devices by IPv4,
/// `[::]` all of them by either; port 0 is a free one.
///
/// # Errors
///
/// `AddressInUse` where the port is taken, or the UDP port of the device belongs to another user;
/// `Unreachable` where the address is not ours, both with the address; `NotFound` for a name that
/// does not resolve, `OutOfRange`.
#[must_use = "nothing happens before it is awaited"]
pub struct Listen<T: Connected = Rc> {
    on: Addr,
    backlog: u32,
    reuse: bool,
    provider: Option<Provider>,
    _t: PhantomData<fn() -> T>,
}

impl Listen {
    /// For unreliable connections (UC) alone, those of [`Connect::uc`](super::Connect::uc): they
    /// have ports of their own (RDMA_PS_IB).
    pub fn uc(self) -> Listen<Uc> {
        let Self { on, backlog, reuse, provider, .. } = self;
        Listen { on, backlog, reuse, provider, _t: PhantomData }
    }
}

impl<T: Connected> Listen<T> {
    /// Requests that may wait until they are looked at, 1 to [`limits::BACKLOG_MAX`], which is the
    /// default. Further ones wait for up to 2 s for a place, then they are refused.
    pub fn backlog(mut self, n: u32) -> Self {
        self.backlog = n;
        self
    }
    /// Others may be bound to the port, but for listeners (RDMA_OPTION_ID_REUSEADDR).
    pub fn reuse_addr(mut self) -> Self {
        self.reuse = true;
        self
    }
    /// Listens over this provider, not the current one.
    pub fn provider(mut self, provider: &Provider) -> Self {
        self.provider = Some(provider.clone());
        self
    }
    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(mut self) -> Result<Listener<T>> {
        let provider = chosen(self.provider.take())?;
        wait(&provider, CALL, self.provider(&provider).into_future())
    }
}

impl<T: Connected> IntoFuture for Listen<T> {
    type Output = Result<Listener<T>>;
    type IntoFuture = Boxed<Listener<T>>;

    fn into_future(self) -> Boxed<Listener<T>> {
        Box::pin(async move {
            if !(1..=limits::BACKLOG_MAX).contains(&self.backlog) {
                return Err(Error::number(
                    CALL,
                    "backlog",
                    self.backlog.into(),
                    1..=limits::BACKLOG_MAX.into(),
                ));
            }
            let provider = chosen(self.provider)?;
            let addresses = look_up(provider.stack(), &self.on).await?;
            let (provider, backlog, reuse) = (&provider, self.backlog, self.reuse);
            let begin = |on| async move { Listener::begin(provider, on, backlog, reuse) };
            first_of(CALL, addresses, begin).await
        })
    }
}

/// The C functions say EADDRNOTAVAIL, as the kernel does, where a port is taken and either address
/// is a wildcard or loopback one; and where the address is not ours.
pub(crate) fn taken(provider: &Provider, on: SocketAddr, error: Error) -> Error {
    let is_ours = || on.ip().is_unspecified() || provider.device_of(on.ip()).is_ok();
    match error.errno().map(Errno) {
        Some(Errno::EADDRNOTAVAIL) if is_ours() => {
            Error::new(ErrorKind::AddressInUse, error.call()).errno_is(Errno::EADDRNOTAVAIL)
        }
        _ => error,
    }
    .with(Value::Address(on))
}

/// Takes connection requests. Dropping it refuses those that wait; connections that came by it go
/// on.
pub struct Listener<T: Connected = Rc> {
    identifier: Identifier,
    provider: Provider,
    _t: PhantomData<fn() -> T>,
}

impl<T: Connected> Listener<T> {
    fn begin(provider: &Provider, on: SocketAddr, backlog: u32, reuse: bool) -> Result<Self> {
        let identifier = Identifier::listener(provider.stack(), T::KIND)?;
        let id = identifier.below();
        identifier.called("rdma_set_option", id.set_reuse(reuse))?;
        identifier.called("rdma_bind_addr", id.bind(on)).map_err(|e| taken(provider, on, e))?;
        identifier.called(CALL, id.listen(backlog)).map_err(|e| taken(provider, on, e))?;
        Ok(Self { identifier, provider: provider.clone(), _t: PhantomData })
    }

    /// The next request. Cancelling loses none. Only `&self`: several tasks or threads may take
    /// turns.
    ///
    /// # Errors
    ///
    /// `Exhausted` where there is no domain for it, which refuses it. `Unreachable` when the device
    /// is gone.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f() -> verbena::Result<()> {
    /// let listener = verbena::listen("0.0.0.0:7471").await?;
    /// loop {
    ///     let request = listener.request().await?;
    ///     match request.peer_addr().ip().is_loopback() {
    ///         true => verbena::spawn(async { request.accept().await?.close().await })?,
    ///         false => request.reject(b"from this host only")?,
    ///     }
    /// }
    /// # }
    /// ```
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn request(&self) -> impl Future<Output = Result<Request<T>>> + Send + '_ {
        async {
            loop {
                let (identifier, event) = self.identifier.next_request().await?;
                // None where its device has gone meanwhile: the peer hears of that otherwise.
                if let Some(request) = Request::new(&self.provider, identifier, event)? {
                    return Ok(request);
                }
            }
        }
    }

    /// Like [`Listener::request`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `BlockingInSimulation` in a task of a simulated host.
    pub fn blocking_request(&self) -> Result<Request<T>> {
        wait(&self.provider, "rdma_get_request", self.request())
    }

    /// The name of [`Listener::blocking_request`] before 0.1.0.
    ///
    /// # Errors
    ///
    /// Likewise.
    #[doc(hidden)]
    #[deprecated(note = "renamed to `blocking_request`")]
    pub fn request_wait(&self) -> Result<Request<T>> {
        self.blocking_request()
    }

    /// Takes the next request and accepts it. Cancelling rejects the request that was being
    /// accepted.
    ///
    /// # Errors
    ///
    /// Those of [`Listener::request`] and [`Accept`](super::Accept): a peer that gives up meanwhile
    /// is none of the listener's.
    ///
    /// # Examples
    ///
    /// ```
    /// # verbena::block_on(async {
    /// let listener = verbena::listen("127.0.0.1:0").await?;
    /// let to = listener.local_addr();
    /// verbena::spawn(async move { verbena::connect(to).await?.send_inline(b"hello").await })?;
    /// let conn = listener.accept().await?;
    /// assert_eq!(&conn.recv().await?.expect("a message")[..], b"hello");
    /// # Ok::<(), verbena::Error>(()) }).unwrap();
    /// ```
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn accept(&self) -> impl Future<Output = Result<Connection<T>>> + Send + '_ {
        async { self.request().await?.accept().await }
    }

    pub(super) fn identifier(&self) -> &Identifier {
        &self.identifier
    }
    pub(super) fn provider(&self) -> &Provider {
        &self.provider
    }
    /// The address, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.identifier.local_addr()
    }
}

impl<T: Connected> std::fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({})", self.local_addr())
    }
}
