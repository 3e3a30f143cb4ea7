//! A device without an environment: what it sends is kept, numbers come in order, randomness counts
//! up.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nic::device::Port;
use nic::device::async_events::AsyncEventQueue;
use nic::{
    Cq, Device, DeviceConfig, DeviceId, Errno, Error, Frames, GidTable, Link, Numbers, Path, Pd, Persist,
    Platform, Qp, QpAttr, QpCap, QpInit, QpState, QpType, Signal, Transport, mask,
};
use transport::TxBatch;
use transport::op::Completion;
use wire::{Guid, Mtu, Qpn};

use crate::start;

/// Hardware address of the device.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// The adapter's address, and that of all its peers.
pub const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
/// The peers' address.
pub const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Most packets kept: what is not looked at is not kept for ever.
const MAX_KEPT: usize = 4_096;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the device's packets go.
#[derive(Default)]
pub struct Kept {
    packets: Mutex<Vec<Vec<u8>>>,
    frames: AtomicU32,
    random: AtomicU32,
}

impl Link for Kept {
    fn send(&self, _: &Path, batch: &mut TxBatch) {
        let mut packets = lock(&self.packets);
        packets.extend(batch.iter().map(|packet| packet[..packet.len() - 4].to_vec()));
        assert!(packets.len() < MAX_KEPT, "sending does not end");
    }
    fn join(&self, _: u32, _: IpAddr) -> Result<(), Errno> {
        Ok(())
    }
    fn leave(&self, _: u32, _: IpAddr) {}
}

impl Platform for Kept {
    fn persist(&self, _: Persist) {}
    fn wake_at(&self, _: Instant) {}
    fn fill_random(&self, bytes: &mut [u8]) {
        let next = self.random.fetch_add(0x0101, Ordering::Relaxed).to_ne_bytes();
        bytes.iter_mut().zip(next.iter().cycle()).for_each(|(to, from)| *to = *from);
    }
}

impl Frames for Kept {
    fn open_frames(&self, _: u32) -> Result<(), Errno> {
        Ok(())
    }
    fn send_frame(&self, _: u32, frame: &[u8]) -> Result<(), Errno> {
        self.frames.fetch_add(1, Ordering::Relaxed);
        if frame.len() < 14 { Err(Errno::EINVAL) } else { Ok(()) }
    }
    fn watch_frames(&self, _: u32, _: bool) -> Result<(), Errno> {
        Ok(())
    }
}

#[derive(Default)]
struct InOrder(Mutex<BTreeSet<u32>>);

impl Numbers for InOrder {
    fn take(&self) -> Result<Qpn, Error> {
        let mut taken = lock(&self.0);
        let next = (0x100..0x1000).find(|n| !taken.contains(n)).ok_or(Error::Limit("queue pairs"))?;
        taken.insert(next);
        Ok(Qpn::new(next))
    }
    fn give(&self, qpn: Qpn) {
        lock(&self.0).remove(&qpn.get());
    }
}

struct Nobody;

impl Signal for Nobody {
    fn signal(&self) {}
    fn take_back(&self) {}
}

/// A device with a protection domain.
pub struct Adapter {
    env: Arc<Kept>,
    /// The device.
    pub device: Arc<Device>,
    /// The adapter's domain.
    pub pd: Arc<Pd>,
    /// Where events go.
    pub events: Arc<AsyncEventQueue>,
    /// The time.
    pub now: Instant,
}

/// One for all inputs of a thread, because its table of keys takes longer to make than an input
/// takes: every input gives back all that it took.
fn device() -> (Arc<Device>, Arc<Kept>) {
    thread_local! {
        static DEVICE: OnceCell<(Arc<Device>, Arc<Kept>)> = const { OnceCell::new() };
    }
    let make = || {
        let env = Arc::new(Kept::default());
        let config = DeviceConfig {
            id: DeviceId(0),
            name: "fuzz".to_owned(),
            transport: Transport::Roce,
            guid: Guid(1),
            interface: 7,
            interface_name: "fuzz0".to_owned(),
            mac: MAC,
        };
        let gids = GidTable::updated(&GidTable::default(), MAC, &[HERE]);
        let port = Port { up: true, mtu: Mtu::M1024, speed_mbps: None, gids, ib: None };
        (Device::new(config, port, env.clone(), Arc::new(InOrder::default())), env)
    };
    DEVICE.with(|device| device.get_or_init(make).clone())
}

impl Default for Adapter {
    fn default() -> Self {
        let (device, env) = device();
        env.random.store(0, Ordering::Relaxed);
        let pd = Arc::new(device.alloc_pd().expect("the domains of earlier inputs are gone"));
        let events = AsyncEventQueue::new(Box::new(Nobody));
        Self { env, device, pd, events, now: start() }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // Where an assertion failed more is left, and that is of no interest.
        if !std::thread::panicking() {
            assert!(self.device.qps().is_empty(), "queue pairs that were destroyed are still there");
            lock(&self.env.packets).clear();
        }
    }
}

impl Adapter {
    /// A completion queue.
    pub fn cq(&self, cqe: u32) -> Arc<Cq> {
        Cq::new(cqe, None, self.events.clone()).expect("a small completion queue")
    }

    /// A queue pair of a kind in state RTS; an RC one is connected to queue pair 2 at [`THERE`],
    /// all PSNs being 0.
    pub fn qp(&self, init: QpInit) -> Arc<Qp> {
        let (kind, now) = (init.kind, self.now);
        let qp = Qp::create(&self.device, &self.pd, init).expect("a small queue pair");
        let sgid_index = self.device.port().gids.index_of(HERE).expect("its own address");
        let mut attr = QpAttr { port: 1, path_mtu: Mtu::M256, dest_qpn: Qpn::new(2), ..QpAttr::default() };
        attr.av.dgid = THERE.into();
        (attr.av.is_global, attr.av.port, attr.av.sgid_index, attr.av.hop_limit) = (true, 1, sgid_index, 64);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer, attr.timeout) = (4, 4, 1, 14);
        let (init, rtr, rts) = match kind {
            QpType::Rc => (
                mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
                mask::AV
                    | mask::PATH_MTU
                    | mask::DEST_QPN
                    | mask::RQ_PSN
                    | mask::MAX_DEST_RD_ATOMIC
                    | mask::MIN_RNR_TIMER,
                mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC,
            ),
            _ => (mask::PORT, 0, 0),
        };
        for (state, bits) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            qp.modify(now, &attr.with_state(state), mask::STATE | bits).expect("the usual way to RTS");
        }
        qp
    }

    /// What makes a queue pair of a kind, with so many receives, that completes in one queue.
    pub fn init(&self, kind: QpType, cq: &Arc<Cq>, receives: u32) -> QpInit {
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: receives,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let (send_cq, recv_cq, events) = (cq.clone(), cq.clone(), self.events.clone());
        QpInit { kind, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, events }
    }

    /// The packets sent since the last call, without their ICRC.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut lock(&self.env.packets))
    }

    /// Time passes. Nothing that is over stays due.
    pub fn pass(&mut self, time: std::time::Duration) {
        self.now += time;
        self.device.expire(self.now);
        let idle = self.device.deadline().is_none_or(|at| at > self.now);
        assert!(idle, "a deadline that is over after expire");
    }
}

/// All completions that lie in a queue.
pub fn completions(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    while cq.poll(16, |completion| all.push(completion)).is_ok_and(|n| n > 0) {}
    all
}
