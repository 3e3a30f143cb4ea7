//! The link that passes each packet through the plane: whatever form it takes between two
//! processes, it follows the forwarding tables first, and is counted or lost there.
//!
//! Packets meet drop rules one by one, so short messages, fragments and copies are for ways without
//! rules. On every other way a queue pair sends packets, of which [`Link::send`] decides.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ::fabric::plane::{PacketInfo, Passage, Plane, Verdict};
use local::rings::Passed;
use locks::{Mutex, Rank};
use nic::link::Fill;
use nic::peer_memory::{Copy, Grant, LocalLink, Prepared, Region, Regions, Transfer};
use nic::{Errno, Link, Path, PathCache};
use transport::op::{DirectOutcome, Fault, FragmentOutcome, Remote};
use transport::{Short, TxBatch};
use wire::lrh::LRH_LEN;
use wire::{Address, LidAddress, Pkey, Qpn, Rkey};

use super::FabricHost;
use crate::counters::add;
use crate::env::{LinuxEnv, pass_on_local};
use crate::packets::{ACK, of_copy, of_fragment, of_packets, of_short, one_packet};

/// Paths at most that are kept for packets of queue pairs that have none of their own.
const MAX_SHARED: usize = 1024;

/// A link over the environment's.
pub(crate) struct PlaneLink {
    env: Arc<LinuxEnv>,
    fabric: Arc<FabricHost>,
}

/// Paths that senders share: those of datagrams and of management.
pub(super) struct SharedPaths(Mutex<BTreeMap<(u32, Address), Ways>>);

impl Default for SharedPaths {
    fn default() -> Self {
        Self(Mutex::new(Rank::Meters, BTreeMap::new()))
    }
}

/// A path there and back.
struct Ways {
    there: Passage,
    /// From the port at the end of the way there.
    back: Option<(u32, Passage)>,
}

/// The path of one queue pair.
struct OwnPath {
    fabric: Arc<FabricHost>,
    ways: Ways,
}

impl Drop for OwnPath {
    fn drop(&mut self) {
        self.ways.give_back(self.fabric.plane());
    }
}

impl Ways {
    fn give_back(&mut self, plane: Plane<'_>) {
        self.there.give_back(plane);
        self.back.iter_mut().for_each(|(_, back)| back.give_back(plane));
    }

    #[inline]
    fn is_clear(&mut self, fabric: &FabricHost) -> bool {
        self.there.verdict(fabric.plane()) == Verdict::Arrive
    }

    /// Whether nothing is lost on the way there, nor on the way back to the sender's LID.
    fn are_clear(&mut self, fabric: &FabricHost, lid: u16) -> bool {
        let plane = fabric.plane();
        self.is_clear(fabric)
            && self.way_back(fabric, lid).is_some_and(|back| back.verdict(plane) == Verdict::Arrive)
    }

    /// The way back to the sender's LID, where there is one there.
    fn way_back(&mut self, fabric: &FabricHost, lid: u16) -> Option<&mut Passage> {
        let (plane, from) = (fabric.plane(), self.there.end()?);
        if self.back.as_ref().is_none_or(|(port, _)| *port != from) {
            self.back.iter_mut().for_each(|(_, back)| back.give_back(plane));
            self.back = Some((from, Passage::new(plane, fabric.program, from, lid)));
        }
        self.back.as_mut().map(|(_, back)| back)
    }

    /// Counts a copy: the data one way, what answers the other way.
    fn count_copy(&mut self, fabric: &FabricHost, transfer: &Transfer<'_>) {
        let (xmit, rcv) = of_copy(transfer);
        count(&mut self.there, fabric, xmit);
        let answer = if rcv.packets == 0 { one_packet(ACK) } else { rcv };
        if let Some((_, back)) = &mut self.back {
            count(back, fabric, answer);
        }
    }
}

/// Words of 4 bytes of packets, which have so many bytes from BTH to ICRC (IBA 1.4 §16.1.3.5,
/// PortXmitData).
#[inline]
fn words(packets: u64, bytes: u64) -> u64 {
    (bytes + packets * LRH_LEN as u64) / 4
}

#[inline]
fn count(passage: &mut Passage, fabric: &FabricHost, passed: Passed) {
    if passed.packets > 0 {
        passage.count(fabric.plane(), passed.packets, words(passed.packets, passed.bytes));
    }
}

impl FabricHost {
    /// A path from the port of an interface to a LID; `None` for what is none.
    fn ways(&self, path: &Path) -> Option<Ways> {
        let Address::Lid(dest) = path.dest else { return None };
        let from = self.port(path.interface)?;
        let there = Passage::new(self.plane(), self.program, from, dest.lid());
        Some(Ways { there, back: None })
    }

    /// Has packets take their way; those that are lost on it are gone from the batch.
    fn pass(&self, path: &Path, passage: &mut Passage, batch: &mut TxBatch) {
        let plane = self.plane();
        let verdict = passage.verdict(plane);
        let has_grh = path.dest.lid().is_some_and(LidAddress::has_grh);
        // What is no packet is of the default partition: queue pairs of others send packets alone.
        // A batch is one queue pair's, so the first packet tells of all.
        let pkey = || batch.iter().next().map(|packet| PacketInfo::of(packet, has_grh).pkey);
        let is_of_another = verdict == Verdict::Arrive
            && passage.looks_at_partitions()
            && pkey().is_some_and(|pkey| pkey != Pkey::default());
        if verdict == Verdict::Dice || is_of_another {
            return batch.retain(|packet| passage.throw(plane, &PacketInfo::of(packet, has_grh)));
        }
        count(passage, self, of_packets(batch.iter()));
        if verdict == Verdict::Lost {
            batch.clear();
        }
    }

    /// Does something with the path that senders share; `None` where there is none.
    fn with_shared<T>(&self, path: &Path, act: impl FnOnce(&mut Ways) -> T) -> Option<T> {
        let mut shared = self.shared.0.lock();
        let key = (path.interface, path.dest);
        if let Some(ways) = shared.get_mut(&key) {
            return Some(act(ways));
        }
        let mut ways = self.ways(path)?;
        if shared.len() >= MAX_SHARED {
            shared.values_mut().for_each(|ways| ways.give_back(self.plane()));
            shared.clear();
        }
        let done = act(&mut ways);
        shared.insert(key, ways);
        Some(done)
    }

    /// Has packets take the path that senders share. Those that are lost on it are gone from the
    /// batch; all are where there is no such path.
    pub(crate) fn pass_shared(&self, path: &Path, batch: &mut TxBatch) {
        if self.with_shared(path, |ways| self.pass(path, &mut ways.there, batch)).is_none() {
            batch.clear();
        }
    }

    /// Whether a MAD that has taken the path that senders share came to a host, and the answer of
    /// that host comes back. The answer is as long as the MAD, and takes its way through the plane.
    pub(crate) fn is_answered(&self, path: &Path, mad: &mut TxBatch) -> bool {
        let Some(lid) = source_lid(path) else { return false };
        let answer = |ways: &mut Ways| {
            let is_host = ways.there.end().is_some_and(|end| self.plane().is_adapter(end));
            let Some(back) = ways.way_back(self, lid).filter(|_| is_host) else { return false };
            self.pass(path, back, mad);
            !mad.is_empty()
        };
        self.with_shared(path, answer) == Some(true)
    }
}

impl PlaneLink {
    pub(crate) fn new(env: Arc<LinuxEnv>, fabric: Arc<FabricHost>) -> Self {
        Self { env, fabric }
    }

    /// Sends what is left of a batch of so many packets.
    fn carry(&self, path: &Path, before: usize, batch: &mut TxBatch) {
        add(&self.env.counters.packets_dropped_sending, before - batch.len());
        if !batch.is_empty() {
            self.env.send(path, batch);
        }
    }

    /// The path of a queue pair.
    #[inline]
    fn own<'a>(&self, path: &Path, cache: &'a mut PathCache) -> Option<&'a mut Ways> {
        let make = || {
            let ways = self.fabric.ways(path)?;
            Some(OwnPath { fabric: self.fabric.clone(), ways })
        };
        cache.beside_mut(make)?.as_mut().map(|own| &mut own.ways)
    }
}

/// The LID that a path is from.
fn source_lid(path: &Path) -> Option<u16> {
    if let Address::Lid(lid) = path.source { Some(lid.lid()) } else { None }
}

impl Link for PlaneLink {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        let before = batch.len();
        if !self.env.is_ours() {
            return;
        }
        // A packet to a group has many ways, which `send_by_fabric` finds.
        if !path.dest.is_multicast() {
            self.fabric.pass_shared(path, batch);
        }
        self.carry(path, before, batch);
    }
    fn send_connected(&self, path: &Path, batch: &mut TxBatch, cache: &mut PathCache) {
        let before = batch.len();
        if !self.env.is_ours() {
            return;
        }
        match self.own(path, cache) {
            Some(own) => self.fabric.pass(path, &mut own.there, batch),
            None => batch.clear(),
        }
        self.carry(path, before, batch);
    }
    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        self.env.can_reach(dest)
    }
    fn local(&self) -> Option<&dyn LocalLink> {
        self.env.local().is_some().then_some(self)
    }
    fn has_unread(&self, path: &Path) -> bool {
        self.env.has_unread(path)
    }
    /// What a port takes in is said by the tables of switches.
    fn join(&self, _interface: u32, _group: IpAddr) -> Result<(), Errno> {
        Ok(())
    }
    fn leave(&self, _interface: u32, _group: IpAddr) {}
}

impl LocalLink for PlaneLink {
    #[inline]
    fn send_short(&self, path: &Path, short: &Short, bytes: &[u8], cache: &mut PathCache) -> bool {
        if !self.own(path, cache).is_some_and(|own| own.is_clear(&self.fabric))
            || !self.env.send_short(path, short, bytes, cache)
        {
            return false;
        }
        if let Some(own) = self.own(path, cache) {
            let (message, ack) = (of_short(short, bytes.len()), one_packet(ACK));
            let acks = u64::from(short.acknowledged.is_some());
            let (packets, bytes) = (message.packets + acks, message.bytes + acks * ack.bytes);
            own.there.count(self.fabric.plane(), packets, words(packets, bytes));
        }
        true
    }

    fn send_fragment(
        &self,
        path: &Path,
        headers: &[u8],
        len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<FragmentOutcome, Fault> {
        if self.fabric.with_shared(path, |ways| ways.is_clear(&self.fabric)) != Some(true) {
            return Ok(FragmentOutcome::Unavailable);
        }
        let outcome = self.env.send_fragment(path, headers, len, fill)?;
        if outcome == FragmentOutcome::Sent
            && let Some(passed) = of_fragment(headers, len)
        {
            self.fabric.with_shared(path, |ways| count(&mut ways.there, &self.fabric, passed));
        }
        Ok(outcome)
    }

    /// What is copied counts as packets of the path MTU, and what it asks for is answered. A queue
    /// pair that fetches a piece of a message has no path of its own for that.
    fn copy(&self, prepared: &Prepared<'_>, cache: &mut PathCache) -> DirectOutcome {
        let (transfer, fabric) = (prepared.transfer(), &*self.fabric);
        let Some(lid) = source_lid(transfer.path) else { return DirectOutcome::Unavailable };
        if transfer.what == Copy::Pull {
            if fabric.with_shared(transfer.path, |ways| ways.are_clear(fabric, lid)) != Some(true) {
                return DirectOutcome::Unavailable;
            }
            let outcome = self.env.copy(prepared, cache);
            if outcome == DirectOutcome::Done {
                fabric.with_shared(transfer.path, |ways| ways.count_copy(fabric, transfer));
            }
            return outcome;
        }
        if !self.own(transfer.path, cache).is_some_and(|own| own.are_clear(fabric, lid)) {
            return DirectOutcome::Unavailable;
        }
        let outcome = self.env.copy(prepared, cache);
        if outcome == DirectOutcome::Done
            && let Some(own) = self.own(transfer.path, cache)
        {
            own.count_copy(fabric, transfer);
        }
        outcome
    }

    pass_on_local!();
}
