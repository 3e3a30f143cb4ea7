//! Memory that belongs to its registration: what safe code registers. It is made of atomics, since
//! peers write to it while the program reads, and is freed only when no key leads to it any more.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use transport::Sge;
use wire::Rkey;

use super::pd::Pd;
use super::table::Mr;
use crate::error::Error;

/// Made whole, because a debug build takes its time for single bytes.
type Page = [AtomicU8; 4096];

/// Bytes on the heap, registered for as long as they live. Peers and work requests name them by
/// addresses from [`Buffer::addr`] on, which the owner chooses.
///
/// Its end: dropping it takes the region back, waits for copies under way, then frees the bytes. A
/// queue pair that still works on it fails with a protection error, as the keys die with it. While
/// a memory window is bound to it the region can not be taken back: then the bytes are never freed.
/// It keeps its protection domain.
pub struct Buffer {
    pages: ManuallyDrop<Vec<Page>>,
    len: usize,
    pd: Arc<Pd>,
    mr: Mr,
    iova: u64,
}

impl Buffer {
    /// `len` zero bytes, registered for `pd` as beginning at `iova`, with rights `access`
    /// ([`Access`](super::Access) bits).
    ///
    /// # Errors
    ///
    /// Those of [`Pd::register`].
    pub fn new(pd: &Arc<Pd>, len: usize, iova: u64, access: u32) -> Result<Self, Error> {
        let mut pages: Vec<Page> = Vec::new();
        pages.resize_with(len.div_ceil(size_of::<Page>()), || [const { AtomicU8::new(0) }; _]);
        let at = pages.as_ptr().expose_provenance() as u64;
        // SAFETY: the bytes are atomics; `drop` frees them only after it has taken the region back,
        // and nothing moves or grows the vector before.
        let mr = unsafe { pd.register(at, len as u64, iova, access)? };
        Ok(Self { pages: ManuallyDrop::new(pages), len, pd: pd.clone(), mr, iova })
    }

    /// Address of the first byte, as work requests name it.
    pub fn addr(&self) -> u64 {
        self.iova
    }
    /// Local and remote key.
    pub fn key(&self) -> Rkey {
        self.mr.key
    }
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The element that names `len` bytes from `at` on; whether the buffer has them is checked when
    /// it is used.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.iova + at as u64, length: len as u32, lkey: self.key() }
    }
    /// A copy of `len` bytes from `at` on; fewer where the buffer ends.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.from(at).iter().take(len).map(|b| b.load(Ordering::Relaxed)).collect()
    }
    /// Whether the bytes from `at` on are these.
    pub fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        let mine = self.from(at);
        mine.len() >= bytes.len() && mine.iter().zip(bytes).all(|(m, b)| m.load(Ordering::Relaxed) == *b)
    }
    /// Writes `bytes` from `at` on; those beyond the end are dropped.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        for (to, from) in self.from(at).iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
    }
    fn from(&self, at: usize) -> &[AtomicU8] {
        let bytes = self.pages.as_flattened();
        bytes.get(at..self.len).unwrap_or_default()
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes at {:#x}, {:?})", self.len, self.iova, self.key())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.pd.deregister(self.mr).is_ok() {
            // SAFETY: the last use; no key leads to the bytes any more.
            unsafe { ManuallyDrop::drop(&mut self.pages) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Instant;

    use transport::op::Bind;
    use transport::{Memory, Remote, TxBatch};
    use wire::{Guid, Mtu, Qpn};

    use super::super::{Access, WindowType};
    use super::*;
    use crate::device::Device;
    use crate::device::adapter::{DeviceConfig, DeviceId, Numbers, Transport};
    use crate::device::gid::GidTable;
    use crate::device::port::Port;
    use crate::errno::Errno;
    use crate::link::{Frames, Link, Path, Persist, Platform};

    struct Nowhere;
    impl Link for Nowhere {
        fn send(&self, _: &Path, _: &mut TxBatch) {}
        fn join(&self, _: u32, _: IpAddr) -> Result<(), Errno> {
            Ok(())
        }
        fn leave(&self, _: u32, _: IpAddr) {}
    }
    impl Frames for Nowhere {}
    impl Platform for Nowhere {
        fn wake_at(&self, _: Instant) {}
        fn fill_random(&self, bytes: &mut [u8]) {
            bytes.fill(0x5a);
        }
        fn persist(&self, _: Persist) {}
    }
    impl Numbers for Nowhere {
        fn take(&self) -> Result<Qpn, Error> {
            Err(Error::Limit("queue pairs"))
        }
        fn give(&self, _: Qpn) {}
    }

    fn domain() -> Arc<Pd> {
        let config = DeviceConfig {
            id: DeviceId(0),
            name: "none".to_owned(),
            transport: Transport::Roce,
            guid: Guid(1),
            interface: 1,
            interface_name: "none0".to_owned(),
            mac: [2, 0, 0, 0, 0, 1],
        };
        let port = Port { up: true, mtu: Mtu::M1024, speed_mbps: None, gids: GidTable::default(), ib: None };
        Arc::new(Device::new(config, port, Arc::new(Nowhere), Arc::new(Nowhere)).alloc_pd().unwrap())
    }

    #[test]
    fn a_window_keeps_the_bytes_of_a_buffer_that_is_dropped() {
        let pd = domain();
        let buffer = Buffer::new(&pd, 64, 0x1000, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
        buffer.write(0, &[7; 64]);
        let mw = pd.alloc_window(WindowType::One).unwrap();
        let key = pd.window_key(mw);
        let view = pd.device.memory.view(pd.id, Access::REMOTE_READ);
        let access = Access::REMOTE_READ;
        let bind = Bind { window: mw.name(), key, region: buffer.key(), addr: 0x1000, length: 64, access };
        view.bind(&bind).unwrap();
        drop(buffer);
        let mut byte = [0];
        view.read(Remote { addr: 0x1000, length: 1, rkey: key }, 0, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        pd.free_window(mw).unwrap();
    }
}
