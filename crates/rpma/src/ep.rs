//! Listening for connection requests (rpma_ep_listen(3), rpma_ep_next_conn_req(3)).
//!
//! ```
//! use rpma::{ConnCfg, ConnEvent, ConnReq, Ep, Peer};
//!
//! let peer = Peer::local("127.0.0.1".parse().unwrap())?;
//! let ep = Ep::blocking_listen(&peer, "127.0.0.1:0")?;
//! let to = ep.local_addr();
//! let server = std::thread::spawn(move || {
//!     let conn = ep.blocking_next_conn_req(&ConnCfg::default())?.connect(b"welcome")?;
//!     assert_eq!(conn.blocking_next_event()?, ConnEvent::Established);
//!     assert_eq!(conn.blocking_next_event()?, ConnEvent::Closed);
//!     rpma::Result::Ok(())
//! });
//! let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default())?.connect(b"hello")?;
//! assert_eq!(conn.blocking_next_event()?, ConnEvent::Established);
//! assert!(conn.private_data().unwrap().starts_with(b"welcome"));
//! conn.disconnect()?;
//! assert_eq!(conn.blocking_next_event()?, ConnEvent::Closed);
//! server.join().unwrap()?;
//! # rpma::Result::Ok(())
//! ```

use std::net::SocketAddr;

use verbena::Listener;
use verbena::cm::ToAddr;

use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::error::Result;
use crate::peer::Peer;

/// A listening endpoint. Dropping it is upstream's shutdown: requests that wait are refused,
/// connections go on.
#[derive(Debug)]
pub struct Ep {
    listener: Listener,
    peer: Peer,
}

impl Ep {
    /// Listens on an address of the peer's; port 0 is a free one.
    ///
    /// # Errors
    ///
    /// `Provider` where the port is taken, or the address is not ours; `NoMem`.
    pub async fn listen(peer: &Peer, on: impl ToAddr) -> Result<Self> {
        let listener = verbena::listen(on).provider(peer.provider()).await?;
        Ok(Self { listener, peer: peer.clone() })
    }
    /// Like [`Ep::listen`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_listen(peer: &Peer, on: impl ToAddr) -> Result<Self> {
        peer.provider().wait(Self::listen(peer, on))?
    }

    /// The next request, whose connection will have this configuration. Cancelling loses none;
    /// several tasks may take turns.
    ///
    /// # Errors
    ///
    /// `Provider` when the device is gone; `NoMem`, which refuses the request.
    pub async fn next_conn_req(&self, cfg: &ConnCfg) -> Result<ConnReq> {
        Ok(ConnReq::incoming(&self.peer, cfg, self.listener.request().await?))
    }
    /// Like [`Ep::next_conn_req`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `Provider` (`BlockingInSimulation`) on a simulated host.
    pub fn blocking_next_conn_req(&self, cfg: &ConnCfg) -> Result<ConnReq> {
        self.peer.provider().wait(self.next_conn_req(cfg))?
    }

    /// The address, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
    /// Stops listening (rpma_ep_shutdown(3)).
    pub fn shutdown(self) {}
}
