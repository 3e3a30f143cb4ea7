//! The side that is asked: a request, before it is answered (rdma_get_request(3), rdma_reject(3)).

use std::marker::PhantomData;
use std::net::SocketAddr;

use super::below::Event;
use super::events::Identifier;
use super::{Accept, ConnParam, check_private_data, limits};
use crate::error::Result;
use crate::provider::{Device, Pd, Provider};
use crate::qp::{Connected, Rc};

/// A peer wants to connect. Nothing can be sent before it is accepted:
/// ```compile_fail,E0599
/// async fn f(request: verbena::Request) {
///     request.send_inline(b"too early").await.unwrap();
/// }
/// ```
/// Dropping it rejects, without data.
pub struct Request<T: Connected = Rc> {
    pub(super) identifier: Identifier,
    pub(super) provider: Provider,
    pub(super) device: Device,
    pd: Pd,
    param: ConnParam,
    peer_qp_num: u32,
    private_data: Vec<u8>,
    _t: PhantomData<fn() -> T>,
}

impl<T: Connected> Request<T> {
    /// `None` where its device is gone.
    pub(super) fn new(provider: &Provider, identifier: Identifier, event: Event) -> Result<Option<Self>> {
        let adapter = identifier.below().device();
        let Some(device) = adapter.map(|adapter| provider.device(adapter)) else { return Ok(None) };
        let pd = device.pd()?;
        Ok(Some(Self {
            identifier,
            provider: provider.clone(),
            device,
            pd,
            param: ConnParam::told(&event.param),
            peer_qp_num: event.param.qp_num,
            private_data: event.private_data,
            _t: PhantomData,
        }))
    }

    /// What the peer's program said: the whole field, 56 bytes, zero-padded.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
    /// From where.
    pub fn peer_addr(&self) -> SocketAddr {
        self.identifier.peer_addr()
    }
    /// The address it was sent to.
    pub fn local_addr(&self) -> SocketAddr {
        self.identifier.local_addr()
    }
    /// What the peer offers, as it looks from here: at most `responder_resources` READs and atomics
    /// will come at once, and it serves `initiator_depth`. Acceptance with more gets no more.
    pub fn param(&self) -> &ConnParam {
        &self.param
    }
    /// Number of the peer's queue pair, 24 bits.
    pub fn peer_qp_num(&self) -> u32 {
        self.peer_qp_num
    }
    /// The default domain of the device that it came by, for memory to tell the peer of in the
    /// answer.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    /// Accepts it.
    pub fn accept(self) -> Accept<T> {
        Accept::new(self)
    }

    /// Refuses it: reason 28 (consumer defined), with at most [`limits::REJ_PRIVATE_DATA_MAX`]
    /// bytes, which the peer sees padded with zeros.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for more, which refuses it without any; where the peer has given up meanwhile,
    /// how.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        check_private_data("rdma_reject", private_data, limits::REJ_PRIVATE_DATA_MAX)?;
        let rejected = self.identifier.below().reject(private_data);
        self.identifier.called("rdma_reject", rejected)
    }
}

impl<T: Connected> std::fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({} to {})", self.peer_addr(), self.local_addr())
    }
}
