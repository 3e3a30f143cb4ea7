//! What a peer says of itself to peers that write to it (rpma_peer_cfg_new(3)), and its descriptor:
//!
//! | byte | what |
//! |---|---|
//! | 0 | whether writes reach persistent memory directly: 0, or anything else |
//! | 1 | absent in upstream's; bit 0: FLUSH is executed, bit 1: ATOMIC WRITE is |
//!
//! Upstream reads the first byte and ignores others, so either side understands the other's. The
//! second byte is there only where it says something.
//!
//! ```
//! use rpma::PeerCfg;
//!
//! let mut cfg = PeerCfg::new();
//! assert_eq!(cfg.descriptor(), [0]);
//! cfg.set_direct_write_to_pmem(true);
//! assert_eq!(cfg.descriptor(), [1]);
//! assert!(PeerCfg::from_descriptor(&[1])?.direct_write_to_pmem());
//! # rpma::Result::Ok(())
//! ```

use verbena::Access;

use crate::error::{Error, Result};
use crate::peer::Peer;

const FLUSH: u8 = 1;
const ATOMIC_WRITE: u8 = 2;

/// Configuration of a peer, which others apply to their connections with it
/// ([`Conn::apply_remote_peer_cfg`](crate::Conn::apply_remote_peer_cfg)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCfg {
    direct_write_to_pmem: bool,
    native: u8,
}

impl PeerCfg {
    /// Upstream's defaults: no direct write to persistent memory; nothing that upstream does not
    /// have.
    pub fn new() -> Self {
        Self::default()
    }

    /// Like [`PeerCfg::new`], with the word that this peer executes FLUSH and ATOMIC WRITE, where
    /// its device does: they need no emulation then, and a persistent FLUSH needs no direct write.
    pub fn of(peer: &Peer) -> Self {
        let device = peer.pd().device();
        let has_flush = device.supports(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        let has_write = device.has_atomic_write();
        let native = if has_flush { FLUSH } else { 0 } | if has_write { ATOMIC_WRITE } else { 0 };
        Self { direct_write_to_pmem: false, native }
    }

    /// Declares whether what is written reaches persistent memory with no more ado (librpma(7),
    /// DIRECT WRITE TO PMEM). A program that declares it falsely loses data.
    pub fn set_direct_write_to_pmem(&mut self, supported: bool) {
        self.direct_write_to_pmem = supported;
    }
    /// What was declared.
    pub fn direct_write_to_pmem(&self) -> bool {
        self.direct_write_to_pmem
    }
    /// Whether the peer executes FLUSH.
    pub fn native_flush(&self) -> bool {
        self.native & FLUSH != 0
    }
    /// Whether the peer executes ATOMIC WRITE.
    pub fn native_atomic_write(&self) -> bool {
        self.native & ATOMIC_WRITE != 0
    }

    /// The configuration's descriptor, 1 or 2 bytes: see the module.
    pub fn descriptor(&self) -> Vec<u8> {
        let direct = u8::from(self.direct_write_to_pmem);
        if self.native == 0 { vec![direct] } else { vec![direct, self.native] }
    }

    pub(crate) fn bytes(&self) -> [u8; 2] {
        [u8::from(self.direct_write_to_pmem), self.native]
    }
    pub(crate) fn of_bytes([direct, native]: [u8; 2]) -> Self {
        Self { direct_write_to_pmem: direct != 0, native: native & (FLUSH | ATOMIC_WRITE) }
    }

    /// From a descriptor; bytes after it are ignored, but for the second.
    ///
    /// An attacker that can change it on its way can have data lost: private data of connections is
    /// not protected.
    ///
    /// # Errors
    ///
    /// `Inval` for no bytes.
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Self> {
        let direct = *descriptor.first().ok_or(Error::Inval("a descriptor of no bytes"))?;
        let native = descriptor.get(1).copied().unwrap_or(0);
        Ok(Self::of_bytes([direct, native]))
    }
}
