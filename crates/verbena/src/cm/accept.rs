//! The side that is asked: an acceptance (rdma_accept(3)).

use std::future::IntoFuture;

use super::connection::Attached;
use super::{
    Boxed, ConnParam, Connection, FlowControl, Pending, Properties, Request, RnrRetry, limits, properties,
    wait,
};
use crate::error::Result;
use crate::provider::Pd;
use crate::qp::{Connected, QueueConfig, Rc};

/// The C function that this file is about, as errors name it.
const CALL: &str = "rdma_accept";

/// An acceptance to be: configure, then `.await` or `.wait()`; either waits until the connection
/// stands, which the peer has 66 s for. It has receives posted before the peer can send. Dropping
/// it, or its future, rejects.
///
/// # Errors
///
/// `OutOfRange`, `WrongDomain`, `Exhausted`; `Rejected`, `TimedOut` or `Disconnected` where the
/// peer has thought better of it.
///
/// # Examples
///
/// ```no_run
/// # fn f(request: verbena::Request) -> verbena::Result<()> {
/// use verbena::{Memory, QueueConfig, RemoteWrite};
///
/// let table = Memory::<RemoteWrite>::zeroed(4096)?;
/// let mr = table.mr(request.pd())?;
/// let accept = request.accept().queues(QueueConfig::default().recv_size(1 << 20));
/// let conn = accept.private_data(mr.remote().to_bytes()).wait()?;
/// # drop(conn); Ok(()) }
/// ```
#[must_use = "dropping it rejects the request"]
pub struct Accept<T: Connected = Rc> {
    request: Request<T>,
    properties: Properties,
}

impl<T: Connected> Accept<T> {
    pub(super) fn new(request: Request<T>) -> Self {
        Self { request, properties: Properties::default() }
    }

    properties!();

    /// Blocks; `BlockingInSimulation` in a task of a simulated host.
    pub fn wait(self) -> Result<Connection<T>> {
        let provider = self.request.provider.clone();
        wait(&provider, CALL, self.into_future())
    }

    fn start(self) -> Result<Begun> {
        let Self { request, properties } = self;
        properties.check(CALL, limits::REP_PRIVATE_DATA_MAX)?;
        let Properties { data, param, queues, pd, ack_timeout } = properties;
        let private_data = request.private_data().to_vec();
        let (pd, mut granted) = (pd.unwrap_or_else(|| request.pd().clone()), param.to_node());
        if let Some(offered) = request.param().responder_resources {
            granted.responder_resources = granted.responder_resources.min(offered);
        }
        request.identifier.below().set_options(None, ack_timeout);
        let ends = Attached::new::<T>(request.identifier, &request.device, &pd, &queues)?;
        ends.identifier.accepts();
        let begun = ends.identifier.below().accept(&granted, &data);
        ends.identifier.called(CALL, begun)?;
        Ok(Begun { ends, private_data, param })
    }
}

/// What is accepted, with what the peer said and what we did.
struct Begun {
    ends: Attached,
    private_data: Vec<u8>,
    param: ConnParam,
}

impl Accept {
    /// Accepts, and waits for nothing: for programs that follow the connection step by step.
    ///
    /// # Errors
    ///
    /// `OutOfRange`, `WrongDomain`, `Exhausted`; `Disconnected` and its like where the peer has
    /// thought better of it. Each rejects.
    pub fn begin(self) -> Result<Pending> {
        let Begun { ends, private_data, .. } = self.start()?;
        Ok(Pending::new(ends, Some(private_data), None))
    }
}

impl<T: Connected> IntoFuture for Accept<T> {
    type Output = Result<Connection<T>>;
    type IntoFuture = Boxed<Connection<T>>;

    fn into_future(self) -> Boxed<Connection<T>> {
        Box::pin(async move {
            let Begun { ends, private_data, param } = self.start()?;
            let answer = ends.identifier.answer().await?;
            Ok(Connection::new(ends, answer.param, private_data, &param))
        })
    }
}
