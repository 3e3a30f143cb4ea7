//! An adapter: one port over one network interface, with its queue pairs. Packets, frames and the
//! time come in here, and find the queue pairs that they are for.

pub mod adapter;
pub mod async_events;
pub mod event_queue;
pub mod gid;
pub mod ib_port;
pub(crate) mod listed;
pub mod mishaps;
pub mod objects;
pub mod observed;
pub mod port;
mod port_changes;
mod presence;
pub(crate) mod timers;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use locks::{Rank, RwLock};
use transport::Short;
use transport::op::Payload;
use transport::rc::AckDelay;
use wire::grh::Grh;
use wire::roce::{Header, Packet};
use wire::run::Run;
use wire::{Address, Mtu, Qpn};

pub use crate::device::adapter::{Adapter, Counters, CqSlot, DeviceConfig, DeviceId, Numbers, Transport};
use crate::device::async_events::{Element, EventKind};
pub use crate::device::ib_port::IbPort;
pub use crate::device::port::Port;
use crate::device::timers::Timers;
use crate::error::Error;
use crate::link::{Frames, Link, Platform};
use crate::memory::pd::Pd;
use crate::qp::Qp;
use crate::qp::attr::QpType;
use crate::qp::delayed_ack::DelayedAcks;
use crate::qp::run_queue::RunQueue;
use crate::qp::xrc::domain::{Domains, Inode, Xrcd};
use crate::steering::flow::{FlowId, Flows};
use crate::steering::multicast::Groups;

/// Timers that are looked after before others are served; each may send a window again.
const TIMERS_AT_ONCE: usize = 16;
/// Turns that are taken before others are served; each is a few hundred KiB of READ responses.
const MAX_QUANTA_PER_EXPIRY: usize = 4;

/// A device: what its objects share ([`Adapter`], to which it dereferences), and its queue pairs.
///
/// Queue pairs keep their device, and it keeps them until [`Qp::destroy`]: so does a flow rule and
/// the membership of a multicast group, which end there too. All else that it lists it does not
/// keep.
pub struct Device {
    adapter: Arc<Adapter>,
    qps: RwLock<BTreeMap<u32, Arc<Qp>>>,
    pub(crate) timers: Timers,
    pub(crate) run_queue: RunQueue<Qp>,
    pub(crate) delayed_acks: DelayedAcks<Qp>,
    pub(crate) groups: Groups<Qp>,
    pub(crate) flows: Flows<Qp>,
    domains: Domains,
}

impl Deref for Device {
    type Target = Arc<Adapter>;
    fn deref(&self) -> &Arc<Adapter> {
        &self.adapter
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.config.name).finish_non_exhaustive()
    }
}

impl Device {
    /// A device on a port, in an environment whose link carries its packets.
    pub fn new<W: Link + Frames + Platform>(
        config: DeviceConfig,
        port: Port,
        env: Arc<W>,
        numbers: Arc<dyn Numbers>,
    ) -> Arc<Self> {
        Self::on_link(config, port, env.clone(), env, numbers)
    }

    /// A device on a port, in an environment. `link` carries its packets: that of the environment,
    /// or one that decorates it.
    pub fn on_link<W: Frames + Platform>(
        config: DeviceConfig,
        port: Port,
        env: Arc<W>,
        link: Arc<dyn Link>,
        numbers: Arc<dyn Numbers>,
    ) -> Arc<Self> {
        Arc::new(Self {
            adapter: Adapter::new(config, port, env, link, numbers),
            qps: RwLock::new(Rank::Qps, BTreeMap::new()),
            timers: Timers::default(),
            run_queue: RunQueue::default(),
            delayed_acks: DelayedAcks::default(),
            groups: Groups::default(),
            flows: Flows::default(),
            domains: Domains::default(),
        })
    }

    /// What its objects share.
    pub fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// `Limit` at [`limits::MAX_PD`](crate::limits::MAX_PD).
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::alloc(&self.adapter)
    }

    /// Opens the XRC domain of an inode, or a new one that no other caller can open. `create`: it
    /// need not exist; `exclusive`: it must not.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] for one that is not there and not to be created, [`Error::Invalid`] for
    /// one that is there and must not be, or neither named nor to be created; [`Error::Limit`];
    /// [`Error::Unsupported`] on an iWARP device.
    pub fn open_xrcd(&self, inode: Option<Inode>, create: bool, exclusive: bool) -> Result<Arc<Xrcd>, Error> {
        self.adapter.needs_packets("XRC domains")?;
        self.domains.open(&self.adapter, inode, create, exclusive)
    }

    pub(crate) fn insert_qp(&self, qp: Arc<Qp>) {
        self.qps.write().insert(qp.qpn().get(), qp);
    }

    /// Takes a queue pair off the device: packets for it are unknown from now on.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        if self.qps.write().remove(&qpn.get()).is_some() {
            self.give_qpn(qpn);
        }
    }

    /// The queue pair of a number.
    pub fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps.read().get(&qpn.get()).cloned()
    }

    /// The outcome of its packets, with the names of the counters; waits for no lock.
    pub fn counted(&self) -> [(&'static str, u64); 7] {
        let mut from = 0;
        while let Some(qps) = self.qps.try_read() {
            let Some((number, qp)) = qps.range(from..).next().map(|(n, qp)| (*n, qp.clone())) else { break };
            drop(qps);
            from = number + 1;
            qp.tell_received();
        }
        self.counters.snapshot()
    }

    /// All queue pairs.
    pub fn qps(&self) -> Vec<Arc<Qp>> {
        self.qps.read().values().cloned().collect()
    }

    /// The queue pairs by number, one after the other: their list is locked for one look-up each.
    pub fn qps_one_by_one(&self) -> impl Iterator<Item = Arc<Qp>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let (number, qp) = self.qps.read().range(from..).next().map(|(n, qp)| (*n, qp.clone()))?;
            from = number + 1;
            Some(qp)
        })
    }

    /// Packets whose ICRC is good, and those to the same queue pair that came with them, as `more`
    /// gives them; `source` and `dest` as on the wire. `ack_delay`: whether ACKs may wait until
    /// [`Device::release`].
    pub fn input<'a>(
        &self,
        now: Instant,
        source: Address,
        dest: Address,
        ack_delay: AckDelay,
        first: &Run<'a>,
        mut more: impl FnMut() -> Option<Run<'a>>,
    ) {
        match self.qp(first.first().header.bth.dest_qp) {
            Some(qp) => qp.input(now, source, dest, ack_delay, first, more),
            None => {
                let count = first.count() + std::iter::from_fn(&mut more).map(|run| run.count()).sum::<u32>();
                self.counters.unknown_qp.add(count);
            }
        }
    }

    /// An InfiniBand packet with a GRH. Only datagram queue pairs look at that; to a multicast
    /// group (queue pair [`Qpn::MULTICAST`]) a copy goes to each queue pair attached.
    pub fn input_global(
        &self,
        now: Instant,
        (source, dest): (Address, Address),
        ack_delay: AckDelay,
        grh: &Grh,
        packet: &Packet<'_>,
    ) {
        let dest_qp = packet.header.bth.dest_qp;
        match (self.qp(dest_qp), grh) {
            (_, Grh::Ib { dgid, .. }) if dest_qp == Qpn::MULTICAST => {
                let members = self.groups.of(dgid.ip());
                members.iter().for_each(|qp| qp.input_global(now, source, dest, grh, packet));
            }
            (Some(qp), _) if qp.init().kind == QpType::Ud => qp.input_global(now, source, dest, grh, packet),
            (Some(qp), _) => qp.input(now, source, dest, ack_delay, &Run::from(*packet), || None),
            (None, _) => self.counters.unknown_qp.add(1),
        }
    }

    /// A short message from a process of this host, in place of a packet and an ACK; the rest is as
    /// with [`Device::input`]. The queue pair that it is for: those that follow may go there at
    /// once ([`Qp::input_short`]).
    pub fn input_short(
        &self,
        now: Instant,
        ends: (Address, Address),
        ack_delay: AckDelay,
        short: &Short,
        bytes: &[u8],
    ) -> Option<Arc<Qp>> {
        let qp = self.qp(short.dest_qp);
        let taken = qp.as_ref().is_some_and(|qp| qp.input_short(now, ends, ack_delay, short, bytes));
        if !taken {
            self.counters.unknown_qp.add(1);
        }
        qp
    }

    /// Several packets from a process of this host as one piece, with the sender's path MTU; the
    /// rest is as with [`Device::input`].
    pub fn input_fragment(
        &self,
        now: Instant,
        ends: (Address, Address),
        ack_delay: AckDelay,
        (header, mtu): (&Header, Mtu),
        payload: Payload<'_>,
    ) {
        match self.qp(header.bth.dest_qp) {
            Some(qp) => qp.input_fragment(now, ends, ack_delay, (header, mtu), payload),
            None => {
                self.counters.unknown_qp.add(1);
            }
        }
    }

    /// A packet to a multicast group (queue pair [`Qpn::MULTICAST`]) whose ICRC is good: a copy to
    /// each queue pair attached.
    pub fn input_group(&self, now: Instant, source: Address, group: Address, packet: &Packet<'_>) {
        // Groups are those of IP, by which queue pairs are attached.
        let Some(ip) = group.ip() else { return };
        for qp in self.groups.of(ip) {
            qp.input_datagrams(now, source, group, &Run::from(*packet), || None);
        }
    }

    /// A frame on the device's interface. `outgoing`: this host sent it, and nothing brings it
    /// back; like an adapter, the device returns those to multicast groups and to itself.
    pub fn input_frame(&self, now: Instant, outgoing: bool, frame: &[u8]) {
        for qp in self.flows.takers(frame, self.returns(outgoing, frame)) {
            qp.input_frame(now, frame);
        }
    }

    /// Whether a rule matches a frame, which counts nothing.
    pub fn steers_frame(&self, outgoing: bool, frame: &[u8]) -> bool {
        self.flows.match_any(frame, self.returns(outgoing, frame))
    }

    /// Whether rules other than sniffers see a frame.
    fn returns(&self, outgoing: bool, frame: &[u8]) -> bool {
        let dest = frame.first_chunk::<6>();
        !outgoing || dest.is_some_and(|d| d[0] & 1 != 0 || *d == self.config.mac)
    }

    /// `ibv_destroy_flow`. Nothing where it is taken back already.
    pub fn remove_flow(&self, id: FlowId) {
        self.flows.remove(id, || self.unwatch_frames());
    }

    /// Forgets all rules of a queue pair.
    pub(crate) fn forget_flows(&self, qp: &Arc<Qp>) {
        self.flows.forget(qp, || self.unwatch_frames());
    }

    fn unwatch_frames(&self) {
        // To stop listening is never refused.
        let _ = self.frames.watch_frames(self.config.interface, false);
    }

    /// ACKs held back leave: with `all` because the program is back, unless they left with what it
    /// did; without because everything was read that was there, and then not those that wait
    /// for the program. The program, being back, helps with a turn that a peer waits
    /// for.
    pub fn release(&self, now: impl FnOnce() -> Instant, all: bool) {
        let turn = all && !self.run_queue.is_empty();
        let acks = !self.delayed_acks.is_empty() && (all || !self.delayed_acks.none_is_brief());
        if !acks && !turn {
            return;
        }
        let now = now();
        if acks {
            self.delayed_acks.visit(|qp| qp.release(now, |_| all));
        }
        if turn {
            self.run_queue.take(now, 1, |qp| qp.run_quantum(now));
        }
    }

    /// The process ends, while other threads go on and may hold any lock: ACKs held back leave as
    /// far as none must be waited for. Peers would ask in vain for what was done.
    pub fn on_exit(&self) {
        self.delayed_acks.try_each(|qp| qp.on_exit());
    }

    /// Timers that are set: of a queue pair one at most.
    pub fn timers(&self) -> usize {
        self.timers.len()
    }

    /// When [`Device::expire`] wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let event = self.moderated().deadline();
        let own = [self.timers.next(), self.run_queue.deadline(), self.delayed_acks.deadline(), event];
        own.into_iter().flatten().min()
    }

    /// Looks after queue pairs whose timers may have run out or whose turn it is, a few of them:
    /// others want to be served too. Afterwards [`Device::deadline`] is later than `now`.
    pub fn expire(&self, now: Instant) {
        self.moderated().expire(now);
        for (at, qpn) in self.timers.due(now, TIMERS_AT_ONCE) {
            if let Some(qp) = self.qp(qpn) {
                qp.expire(now, at);
            }
        }
        self.run_queue.take(now, MAX_QUANTA_PER_EXPIRY, |qp| qp.run_quantum(now));
        if self.delayed_acks.deadline().is_some_and(|until| until <= now) {
            self.delayed_acks.visit(|qp| qp.release(now, |until| until <= now));
        }
    }

    /// The device is gone. Its openings are told by IBV_EVENT_DEVICE_FATAL, and nothing after it.
    /// Its queue pairs go to the error state.
    pub fn remove(&self, now: Instant) {
        self.presence.leave();
        self.qps().iter().for_each(|qp| qp.fail(now));
        self.announce(EventKind::DeviceFatal, Element::Device);
        self.forget_openings();
    }

    /// The device is there, and may be opened. Nothing where it was.
    pub fn restore(&self) {
        self.presence.come_back();
    }

    /// Whether the device is there.
    pub fn is_there(&self) -> bool {
        self.presence.is_there()
    }

    /// How often the device was removed so far. What was opened before a removal is of no use after
    /// it.
    pub fn removals(&self) -> u64 {
        self.presence.removals()
    }
}
