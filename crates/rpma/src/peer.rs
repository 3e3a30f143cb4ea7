//! A device, and a protection domain of it: what all other objects are made with (rpma_peer_new(3),
//! rpma_utils_get_ibv_context(3)).
//!
//! ```
//! let peer = rpma::Peer::local("127.0.0.1".parse().unwrap())?;
//! println!("{}", peer.pd().device().name());
//! # rpma::Result::Ok(())
//! ```

use std::net::IpAddr;

use verbena::cm::ToAddr;
use verbena::{Pd, Provider};

use crate::error::Result;

/// A peer: a handle, clones are the same one. Any thread may use it.
#[derive(Clone, Debug)]
pub struct Peer {
    pd: Pd,
}

impl Peer {
    /// Over a domain of the program's own.
    pub fn new(pd: &Pd) -> Self {
        Self { pd: pd.clone() }
    }

    /// With a domain of its own on the device that bears this address of ours
    /// (RPMA_UTIL_IBV_CONTEXT_LOCAL), of the current provider.
    ///
    /// # Errors
    ///
    /// `Provider` where no device bears it; `NoMem`.
    pub fn local(address: IpAddr) -> Result<Self> {
        Self::local_of(&Provider::current()?, address)
    }

    /// Like [`Peer::local`], of this provider.
    ///
    /// # Errors
    ///
    /// Likewise.
    pub fn local_of(provider: &Provider, address: IpAddr) -> Result<Self> {
        Ok(Self { pd: provider.device_of(address)?.new_pd()? })
    }

    /// With a domain of its own on the device that leads to an address of a remote host
    /// (RPMA_UTIL_IBV_CONTEXT_REMOTE); its port does not matter.
    ///
    /// # Errors
    ///
    /// `Provider` where there is no way, or no answer within 1 s; `NoMem`.
    pub async fn remote(to: impl ToAddr) -> Result<Self> {
        let timeout = crate::ConnCfg::default().timeout;
        let route = verbena::resolve(to).timeout(timeout).await?;
        Ok(Self { pd: route.pd().device().new_pd()? })
    }

    /// The peer's protection domain: buffers of the program's own are registered there.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    pub(crate) fn provider(&self) -> &Provider {
        self.pd.device().provider()
    }
}
