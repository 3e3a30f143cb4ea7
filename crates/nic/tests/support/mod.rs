//! A device without an environment: packets are lost, frames kept, numbers come in order,
//! randomness counts up.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use nic::device::Port;
use nic::{
    Device, DeviceConfig, DeviceId, Errno, Error, Frames, GidTable, Link, LocalLink, Numbers, Path, Persist,
    Platform, Signal, Transport,
};
use transport::TxBatch;
use wire::{Guid, Mtu, Qpn};

/// A link that keeps the frames, and says no to those below 14 bytes.
#[derive(Default)]
pub(crate) struct Kept {
    pub sent: Mutex<Vec<Vec<u8>>>,
    /// Packets that were lost.
    pub lost: AtomicUsize,
    pub open: AtomicU32,
    pub watched: AtomicU32,
    random: AtomicU32,
    /// Regions lie in large pages where they can.
    pub large_pages: AtomicBool,
    /// How memory of other processes is reached, if it is.
    pub reach: OnceLock<Box<dyn LocalLink>>,
}

impl Link for Kept {
    fn send(&self, _path: &Path, batch: &mut TxBatch) {
        self.lost.fetch_add(batch.len(), Ordering::Relaxed);
    }
    fn local(&self) -> Option<&dyn LocalLink> {
        self.reach.get().map(|reach| &**reach)
    }
    fn join(&self, _interface: u32, _group: IpAddr) -> Result<(), Errno> {
        Err(Errno::ENODEV)
    }
    fn leave(&self, _interface: u32, _group: IpAddr) {}
}

impl Platform for Kept {
    fn persist(&self, _work: Persist) {}
    fn wake_at(&self, _at: Instant) {}
    fn large_pages(&self) -> bool {
        self.large_pages.load(Ordering::Relaxed)
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        let next = self.random.fetch_add(0x0101, Ordering::Relaxed).to_ne_bytes();
        bytes.iter_mut().zip(next.iter().cycle()).for_each(|(to, from)| *to = *from);
    }
}

impl Frames for Kept {
    fn open_frames(&self, _interface: u32) -> Result<(), Errno> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn close_frames(&self, _interface: u32) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
    fn send_frame(&self, interface: u32, frame: &[u8]) -> Result<(), Errno> {
        assert_eq!(interface, 7);
        if frame.len() < 14 {
            return Err(Errno::EINVAL);
        }
        self.sent.lock().unwrap().push(frame.to_vec());
        Ok(())
    }
    fn watch_frames(&self, _interface: u32, watch: bool) -> Result<(), Errno> {
        self.watched.store(watch.into(), Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct InOrder(Mutex<BTreeSet<u32>>);

impl Numbers for InOrder {
    fn take(&self) -> Result<Qpn, Error> {
        let mut taken = self.0.lock().unwrap();
        let next = (0x100..).find(|n| !taken.contains(n)).unwrap();
        taken.insert(next);
        Ok(Qpn::new(next))
    }
    fn give(&self, qpn: Qpn) {
        self.0.lock().unwrap().remove(&qpn.get());
    }
}

pub(crate) struct Nobody;
impl Signal for Nobody {
    fn signal(&self) {}
    fn take_back(&self) {}
}

pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A device on an interface of that environment.
pub(crate) fn device(env: Arc<Kept>) -> Arc<Device> {
    device_of(env, &[])
}

/// Like [`device`], with an interface of these addresses.
pub(crate) fn device_of(env: Arc<Kept>, addresses: &[IpAddr]) -> Arc<Device> {
    let config = DeviceConfig {
        id: DeviceId(0),
        name: "raw".to_owned(),
        transport: Transport::Roce,
        guid: Guid(1),
        interface: 7,
        interface_name: "raw0".to_owned(),
        mac: MAC,
    };
    let gids = match addresses {
        [] => GidTable::default(),
        _ => GidTable::updated(&GidTable::default(), MAC, addresses),
    };
    let port = Port { up: true, mtu: Mtu::M1024, speed_mbps: None, gids, ib: None };
    Device::new(config, port, env, Arc::new(InOrder::default()))
}
