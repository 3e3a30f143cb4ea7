//! Connection requests, outgoing and incoming (rpma_conn_req_new(3), rpma_conn_req_connect(3)).
//! [`Ep`](crate::Ep) shows both.
//!
//! Upstream's rpma_conn_req_recv(3) has no counterpart: all receives of a connection are posted
//! before its peer can send.
//!
//! ```
//! use rpma::{ConnCfg, ConnEvent, ConnReq, Peer};
//!
//! let peer = Peer::local("127.0.0.1".parse().unwrap())?;
//! let request = ConnReq::blocking_new(&peer, "127.0.0.1:1", &ConnCfg::default())?;
//! let conn = request.connect(&[])?;
//! assert_eq!(conn.blocking_next_event()?, ConnEvent::Rejected, "nobody listens there");
//! # rpma::Result::Ok(())
//! ```

use verbena::cm::ToAddr;
use verbena::{Request, Route};

use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::error::{Error, Result};
use crate::log::{Level, log};
use crate::peer::Peer;

/// A connection request, not answered or not sent yet. Dropping one that came rejects it.
#[derive(Debug)]
pub struct ConnReq {
    which: Which,
    peer: Peer,
    cfg: ConnCfg,
}

#[derive(Debug)]
enum Which {
    Outgoing(Route),
    Incoming(Request),
}

impl ConnReq {
    /// A request to an address: finds the way there.
    ///
    /// # Errors
    ///
    /// `Provider` where there is no way, or no answer in time, or the configuration has a size of 0
    /// for the completion queue; `Inval` where the way leads over another device than the peer's;
    /// `NoMem`.
    pub async fn new(peer: &Peer, to: impl ToAddr, cfg: &ConnCfg) -> Result<Self> {
        if cfg.cq_size == 0 {
            return Err(Error::Inval("a completion queue of size 0"));
        }
        let found = verbena::resolve(to).provider(peer.provider()).timeout(cfg.timeout).await;
        let route = found.inspect_err(|error| log!(Level::Error, "no way to the peer: {error}"))?;
        if route.pd().device() != peer.pd().device() {
            return Err(Error::Inval("the way to the address leads over another device than the peer's"));
        }
        Ok(Self { which: Which::Outgoing(route), peer: peer.clone(), cfg: cfg.clone() })
    }
    /// Like [`ConnReq::new`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_new(peer: &Peer, to: impl ToAddr, cfg: &ConnCfg) -> Result<Self> {
        peer.provider().wait(Self::new(peer, to, cfg))?
    }

    pub(crate) fn incoming(peer: &Peer, cfg: &ConnCfg, request: Request) -> Self {
        Self { which: Which::Incoming(request), peer: peer.clone(), cfg: cfg.clone() }
    }

    /// What the peer's program said with an incoming request: 56 bytes, zero-padded; `None` of an
    /// outgoing one. Nothing protects it on its way: see rpma_conn_get_private_data(3).
    pub fn private_data(&self) -> Option<&[u8]> {
        match &self.which {
            Which::Incoming(request) => Some(request.private_data()),
            Which::Outgoing(_) => None,
        }
    }

    /// Sends or accepts it, with bytes for the peer's program, at most 56 or 196. It waits for
    /// nothing: [`Conn::next_event`] says the outcome of it.
    ///
    /// # Errors
    ///
    /// `Provider` for too many bytes, for sizes out of range, where the request came by another
    /// device than the peer's, or the other side has given up; `NoMem`. The request is gone.
    pub fn connect(self, private_data: &[u8]) -> Result<Conn> {
        let Self { which, peer, cfg } = self;
        let (pd, queues) = (peer.pd(), cfg.queues());
        let begun = match which {
            Which::Outgoing(route) => {
                let connect = route.connect().pd(pd).queues(queues).timeout(cfg.timeout);
                connect.private_data(private_data).begin()
            }
            Which::Incoming(request) => {
                request.accept().pd(pd).queues(queues).private_data(private_data).begin()
            }
        };
        let pending = begun.inspect_err(|error| log!(Level::Error, "no connection: {error}"))?;
        Conn::new(pending, &cfg)
    }

    /// Rejects an incoming request, with at most 148 bytes for the peer's program; an outgoing one
    /// is dropped (rpma_conn_req_delete(3)).
    ///
    /// # Errors
    ///
    /// `Provider` for more, or where the peer has given up meanwhile.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        match self.which {
            Which::Incoming(request) => Ok(request.reject(private_data)?),
            Which::Outgoing(_) => Ok(()),
        }
    }
}
