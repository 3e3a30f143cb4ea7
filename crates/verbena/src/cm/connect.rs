//! The side that connects (rdma_connect(3)).

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use nic::QpType;

use super::connection::Attached;
use super::names::look_up;
use super::resolve::{pick, sources};
use super::{
    Addr, Boxed, ConnParam, Connection, FlowControl, Pending, Properties, RnrRetry, Route, TIMEOUT, ToAddr,
    check_timeout, chosen, first_of, limits, properties, wait,
};
use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::{Pd, Provider};
use crate::qp::{Connected, QueueConfig, Rc, Uc};

/// The C function that this file is about, as errors name it.
const CALL: &str = "rdma_connect";

/// Connects to an address.
///
/// ```no_run
/// # async fn f() -> verbena::Result<()> {
/// let conn = verbena::connect("10.0.0.2:7471").private_data(b"hello").await?;
/// println!("the peer says {:?}", conn.private_data());
/// conn.close().await
/// # }
/// ```
pub fn connect(to: impl ToAddr) -> Connect {
    Connect::new(To::Addr(to.to_addr()))
}

enum To {
    Addr(Addr),
    Route(Box<Route>),
}

/// A connection to be: configure, then `.await` or `.wait()`. It has receives posted before the
/// peer can send. Dropping the future withdraws the request.
///
/// # Errors
///
/// Those of [`Resolve`](super::Resolve); `Rejected` by the peer or its system
/// ([`Error::rejection`]), `TimedOut`, `OutOfRange`, `WrongDomain`, `Exhausted`. Where a name
/// stands for several addresses they are tried in turn, until one works or the program that listens
/// there refuses; the error is the last one's.
///
/// # Examples
///
/// ```no_run
/// # fn f() -> verbena::Result<()> {
/// use std::time::Duration;
/// use verbena::{QueueConfig, RnrRetry};
///
/// let connect = verbena::connect("10.0.0.2:7471").timeout(Duration::from_secs(5));
/// let connect = connect.queues(QueueConfig::default().recv_depth(256)).rnr_retry_count(RnrRetry::Times(6));
/// let conn = connect.wait()?;
/// # drop(conn); Ok(()) }
/// ```
#[must_use = "nothing happens before it is awaited"]
pub struct Connect<T: Connected = Rc> {
    to: To,
    properties: Properties,
    from: Option<Addr>,
    provider: Option<Provider>,
    timeout: Duration,
    tos: Option<u8>,
    _t: PhantomData<fn() -> T>,
}

impl Connect {
    fn new(to: To) -> Self {
        Self {
            to,
            properties: Properties::default(),
            from: None,
            provider: None,
            timeout: TIMEOUT,
            tos: None,
            _t: PhantomData,
        }
    }

    pub(super) fn by(route: Route) -> Self {
        Self::new(To::Route(Box::new(route)))
    }

    /// Asks along a [`Route`], and waits for nothing: for programs that follow the connection step
    /// by step.
    ///
    /// # Errors
    ///
    /// `WrongState` without a route ([`Route::connect`]); `OutOfRange`, `WrongDomain`, `Exhausted`.
    pub fn begin(self) -> Result<Pending> {
        let Self { to, properties, timeout, tos, .. } = self;
        properties.check(CALL, limits::REQ_PRIVATE_DATA_MAX)?;
        check_timeout(CALL, timeout)?;
        let To::Route(route) = to else { return Err(Error::new(ErrorKind::WrongState, CALL)) };
        let ends = Asking { properties: &properties, timeout, tos }.begin::<Rc>(*route)?;
        Ok(Pending::new(ends, None, Some(timeout)))
    }

    /// Over an unreliable connection (UC): no READ, no atomics; messages may be lost, and no sender
    /// waits for receives. The listener must say so too ([`Listen::uc`](super::Listen::uc)): else
    /// the connection is rejected as if there were no listener.
    /// ```compile_fail,E0599
    /// async fn f(buf: verbena::RegBuf, at: verbena::RemoteMemory) -> verbena::Result<()> {
    ///     let conn = verbena::connect("10.0.0.2:7471").uc().await?;
    ///     conn.read(buf, at).await.0.map(drop)
    /// }
    /// ```
    pub fn uc(self) -> Connect<Uc> {
        let Self { to, properties, from, provider, timeout, tos, .. } = self;
        Connect { to, properties, from, provider, timeout, tos, _t: PhantomData }
    }
}

impl<T: Connected> Connect<T> {
    properties!();

    /// From this address of ours; of several the first of the destination's family. Port 0: any.
    /// `WrongState` for a [`Route`], which has its source.
    pub fn bind(mut self, from: impl ToAddr) -> Self {
        self.from = Some(from.to_addr());
        self
    }
    /// Connects over this provider, not the current one. `WrongState` for a [`Route`] of another
    /// one.
    pub fn provider(mut self, provider: &Provider) -> Self {
        self.provider = Some(provider.clone());
        self
    }
    /// How long the neighbour may take to answer, and then the peer, up to 2^31 - 1 ms, for each
    /// address; 2 s where it is not said. How long a name takes the system's resolver says.
    pub fn timeout(mut self, each: Duration) -> Self {
        self.timeout = each;
        self
    }
    /// Type of service: the traffic class of all packets (RDMA_OPTION_ID_TOS).
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = Some(tos);
        self
    }
    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(mut self) -> Result<Connection<T>> {
        let provider = match (&self.to, self.provider.take()) {
            (To::Route(route), None) => route.provider.clone(),
            (_, provider) => chosen(provider)?,
        };
        wait(&provider, CALL, self.provider(&provider).into_future())
    }
}

impl<T: Connected> IntoFuture for Connect<T> {
    type Output = Result<Connection<T>>;
    type IntoFuture = Boxed<Connection<T>>;

    fn into_future(self) -> Boxed<Connection<T>> {
        Box::pin(async move {
            let Self { to, properties, from, provider, timeout, tos, .. } = self;
            properties.check(CALL, limits::REQ_PRIVATE_DATA_MAX)?;
            check_timeout(CALL, timeout)?;
            let request = Asking { properties: &properties, timeout, tos };
            let to = match to {
                To::Route(route) => {
                    let other = provider.is_some_and(|provider| provider != route.provider);
                    if other || from.is_some() {
                        let why = "a route has its source and its provider: say them where it is resolved";
                        return Err(Error::new(ErrorKind::WrongState, CALL).with(Value::Text(why.to_owned())));
                    }
                    let mut route = *route;
                    if T::KIND != QpType::Rc {
                        // Its identifier is for reliable ones.
                        let (from, to) = (route.local_addr(), route.peer_addr());
                        route = Route::find(T::KIND, &route.provider, Some(from), to, timeout).await?;
                    }
                    return request.ask(route).await;
                }
                To::Addr(to) => to,
            };
            let provider = chosen(provider)?;
            let to = look_up(provider.stack(), &to).await?;
            let from = sources(&provider, from.as_ref()).await?;
            let (provider, from, request) = (&provider, &from, &request);
            first_of(CALL, to, |to| async move {
                request.ask(Route::find(T::KIND, provider, pick(from, to)?, to, timeout).await?).await
            })
            .await
        })
    }
}

/// What is asked of each address.
struct Asking<'a> {
    properties: &'a Properties,
    timeout: Duration,
    tos: Option<u8>,
}

impl Asking<'_> {
    async fn ask<T: Connected>(&self, route: Route) -> Result<Connection<T>> {
        let ends = self.begin::<T>(route)?;
        let answer = ends.identifier.answer_in(self.timeout).await?;
        Ok(Connection::new(ends, answer.param, answer.private_data, &self.properties.param))
    }

    fn begin<T: Connected>(&self, route: Route) -> Result<Attached> {
        let Properties { data, param, queues, pd, ack_timeout } = self.properties;
        route.identifier.below().set_options(self.tos, *ack_timeout);
        let pd = pd.as_ref().unwrap_or(route.pd()).clone();
        let ends = Attached::new::<T>(route.identifier, &route.device, &pd, queues)?;
        let begun = ends.identifier.below().connect(param, data, self.timeout);
        ends.identifier.called(CALL, begun)?;
        Ok(ends)
    }
}
