//! A registration: a chunk in one protection domain, with a key.
//!
//! The address by which work requests and peers name the first byte (iova) is not where it lies,
//! whatever the provider: it is the next free one of the domain's counter, from [`FIRST_IOVA`] on.
//! In a simulation addresses travel in packets, so they must be the same in each run of a seed; and
//! a peer need not learn where this process keeps its memory. Within a page it is the same, so what
//! is aligned here is aligned for peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use transport::Sge;
use wire::Rkey;

use super::chunk::{Chunk, PAGE};
#[cfg(feature = "system")]
use super::opaque::Outside;
use crate::error::{Error, Result};
use crate::provider::{Domain, Pd};

/// Where a domain's addresses begin.
pub(crate) const FIRST_IOVA: u64 = 0x1000_0000;
/// Where they begin again: keys tell regions apart, addresses need not.
const LAST_IOVA: u64 = 1 << 62;

/// A chunk registered in a domain. It keeps both. Dropped, it takes the key back and waits for
/// copies under way (microseconds); where that is refused, or in a forked child, the bytes are
/// never freed.
pub(super) struct Region {
    mr: Registered,
    iova: u64,
    /// The key is good.
    live: AtomicBool,
    pd: Pd,
    chunk: Arc<Chunk>,
}

/// What the stack below has of it.
enum Registered {
    Ours(nic::Mr),
    #[cfg(feature = "system")]
    System(rdma_core::Mr),
}

impl Region {
    /// Registers all of a chunk; `access` as `enum ibv_access_flags`.
    ///
    /// # Safety
    ///
    /// From now until the region has ended, a peer that names the key reads the bytes and, as
    /// `access` says, writes them: no reference to bytes that may change so is made meanwhile.
    pub(super) unsafe fn new(pd: &Pd, chunk: &Arc<Chunk>, access: u32) -> Result<Self, nic::Error> {
        let iova = |at: u64| next_iova(pd.next_iova(), at, chunk.len() as u64);
        let here = || chunk.ptr().expose_provenance() as u64;
        let (mr, iova) = match pd.domain() {
            Domain::Ours(nic) => {
                let (at, beside) = match chunk.as_outside() {
                    Some(outside) => outside.address()?,
                    None => (here(), 0),
                };
                let iova = iova(at);
                // SAFETY: as the caller says; and the region keeps the chunk, so the bytes stay
                // until `end`.
                let mr = unsafe { nic.register(at, chunk.len() as u64, iova, access | beside)? };
                (Registered::Ours(mr), iova)
            }
            #[cfg(feature = "system")]
            Domain::System(domain) => {
                if pd.device().possible(access) != access {
                    return Err(nic::Error::Unsupported("a right that the device does not have"));
                }
                let len = chunk.len();
                let mr = match chunk.as_outside() {
                    // SAFETY: as above.
                    None => unsafe {
                        rdma_core::Mr::register(domain, here(), len as u64, iova(here()), access)?
                    },
                    Some(Outside::System(_, memory)) => {
                        rdma_core::Mr::on_device(domain, memory, len, access)?
                    }
                    Some(Outside::DmaBuf(buf)) => {
                        let (fd, offset) = buf.place();
                        rdma_core::Mr::of_dmabuf(domain, (fd, offset), len, iova(offset), access)?
                    }
                    Some(Outside::Ours(..)) => {
                        return Err(nic::Error::Invalid("memory of another stack's device"));
                    }
                };
                let iova = mr.iova();
                (Registered::System(mr), iova)
            }
        };
        Ok(Self { mr, iova, live: AtomicBool::new(true), pd: pd.clone(), chunk: chunk.clone() })
    }

    /// The region's domain.
    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }
    /// The bytes.
    pub(super) fn chunk(&self) -> &Arc<Chunk> {
        &self.chunk
    }
    /// Remote key.
    pub(super) fn key(&self) -> Rkey {
        match &self.mr {
            Registered::Ours(mr) => mr.key,
            #[cfg(feature = "system")]
            Registered::System(mr) => mr.rkey(),
        }
    }
    /// Local key.
    fn lkey(&self) -> Rkey {
        match &self.mr {
            Registered::Ours(mr) => mr.key,
            #[cfg(feature = "system")]
            Registered::System(mr) => mr.lkey(),
        }
    }
    /// The address of the first byte, as work requests and peers name it.
    pub(super) fn iova(&self) -> u64 {
        self.iova
    }
    /// The element that names `len` bytes from `at` on; the caller knows that they are there.
    #[inline]
    pub(super) fn sge(&self, at: usize, len: u32) -> Sge {
        Sge { addr: self.iova.wrapping_add(at as u64), length: len, lkey: self.lkey() }
    }

    /// The key dies now. Once: later calls do nothing.
    ///
    /// # Errors
    ///
    /// `Forked`; `WrongState` while a window is bound. Then the bytes are never freed.
    pub(super) fn end(&self) -> Result<()> {
        if !self.live.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let deregister = || match (self.pd.domain(), &self.mr) {
            (Domain::Ours(nic), Registered::Ours(mr)) => nic.deregister(*mr),
            #[cfg(feature = "system")]
            (_, Registered::System(mr)) => mr.deregister(),
            #[cfg(feature = "system")]
            (Domain::System(_), Registered::Ours(_)) => Err(nic::Error::Invalid("a region of another stack")),
        };
        let failed = |e| Error::of_nic("ibv_dereg_mr", e);
        let ended = self.pd.stack().check("ibv_dereg_mr").and_then(|()| deregister().map_err(failed));
        if ended.is_err() {
            // A key may still lead there: the count of a handle that never goes.
            std::mem::forget(self.chunk.clone());
        }
        ended
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        _ = self.end();
    }
}

/// The address for `len` bytes that lie at `at`, from a domain's counter. A page stays free after
/// each.
fn next_iova(counter: &AtomicU64, at: u64, len: u64) -> u64 {
    let inside = at % PAGE as u64;
    let size = inside.saturating_add(len).saturating_add(PAGE as u64).checked_next_multiple_of(PAGE as u64);
    let after = |first: u64| size.and_then(|size| first.checked_add(size)).filter(|end| *end <= LAST_IOVA);
    let next = |first: u64| Some(after(first).or_else(|| after(FIRST_IOVA)).unwrap_or(FIRST_IOVA));
    let first = counter.try_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(FIRST_IOVA);
    (if after(first).is_some() { first } else { FIRST_IOVA }) + inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_each_other_and_begin_again_before_they_wrap() {
        let counter = AtomicU64::new(FIRST_IOVA);
        assert_eq!(next_iova(&counter, 0x7000_0000_0000, 10), FIRST_IOVA);
        assert_eq!(next_iova(&counter, 0x7000_0000_0008, 5000), FIRST_IOVA + 0x2008);
        counter.store(LAST_IOVA - 1, Ordering::Relaxed);
        assert_eq!(next_iova(&counter, 0, 4096), FIRST_IOVA);
        assert_eq!(next_iova(&counter, 0, 4096), FIRST_IOVA + 0x2000);
        assert_eq!(next_iova(&counter, 0, u64::MAX), FIRST_IOVA);
    }
}
