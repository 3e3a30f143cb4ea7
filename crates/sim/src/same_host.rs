//! What the processes of one host are to each other: channels between them, which keep the order
//! and lose nothing while no way is cut, and memory that they reach by themselves. A process that
//! dies takes back what it exported at once, in the middle of whatever it did or others did with
//! it.
//!
//! | real host | here |
//! |---|---|
//! | a ring to the process that bears a block of queue pair numbers | [`Channel`], from the first packet on |
//! | tables that are exported in return for a ring, some time later | `regions` and `grants`, reached from [`Channel::exported_at`] on |
//! | a process that uses what is taken back is waited for | no process does between two calls: all of a simulation is one thread |
//! | the end of the connection to a name | [`Channel::ends_at`]; until then what is sent goes to the dead |

use std::collections::BTreeMap;
use std::time::Duration;

use nic::peer_memory::{Copy, Grant, Region, Regions, Transfer};
use transport::op::Remote;
use wire::{Address, Qpn};

use crate::clock::nanos;
use crate::env::ProcessId;
use crate::{Dice, Faults};

/// Tables of regions that a process lends.
const TABLES: usize = 4;
/// Time until a record of a channel is read: at least, and at most beyond that where no process
/// polls.
const FASTEST: Duration = Duration::from_micros(1);
const SLOWEST: Duration = Duration::from_micros(9);
/// Until a process that was sent to has exported its memory, at most.
const LENDING: Duration = Duration::from_micros(200);
/// Until the end of a process is known to those that sent to it.
pub(crate) const NEWS: Duration = Duration::from_micros(50);

/// The way from a process to the one that bears a block of queue pair numbers.
#[derive(Debug)]
pub(crate) struct Channel {
    pub to: ProcessId,
    /// When the memory of that process can be reached.
    exported_at: u64,
    /// When the last record arrives.
    last: u64,
    /// When it is known that it has ended.
    ends_at: Option<u64>,
    /// All that is sent before that is lost.
    cut_until: u64,
}

/// A queue pair that lets its peer reach memory.
#[derive(Clone, Copy, Debug)]
struct Granted {
    peer: Qpn,
    here: Address,
    there: Address,
    pd: u32,
    table: u8,
    access: u32,
}

/// A region that a process lends.
#[derive(Debug)]
struct Published {
    region: Region,
    /// The others map its memory.
    is_mapped: bool,
}

/// Channels between the processes of one host, and memory that they reach by themselves.
#[derive(Debug)]
pub(crate) struct SameHost {
    /// Whether processes that start have all this.
    pub on: bool,
    /// How often a copy does not come about, or only a part of it.
    pub unreached: f64,
    /// How often a region lies in memory that the others map.
    mapped: f64,
    /// How often a piece is one that both ends copy, whatever is faster.
    shared: f64,
    /// How often the way to another process is cut, and for how long at most.
    cut: (f64, Duration),
    pub dice: Dice,
    /// The regions of each adapter, by the number of their table.
    tables: BTreeMap<ProcessId, Vec<Regions>>,
    regions: BTreeMap<(ProcessId, u8, u16), Published>,
    grants: BTreeMap<(ProcessId, u32), Granted>,
    /// By the block it leads to.
    channels: BTreeMap<(ProcessId, u16), Channel>,
    /// Steps that processes have left.
    fuses: BTreeMap<ProcessId, u64>,
}

/// The block of a queue pair number.
pub(crate) fn block(qpn: Qpn) -> u16 {
    (qpn.get() >> 12) as u16
}

impl SameHost {
    pub(crate) fn new(dice: Dice, faults: &Faults) -> Self {
        let Faults { unreached, mapped, shared, cut, cut_time, .. } = *faults;
        Self {
            on: true,
            unreached,
            mapped,
            shared,
            cut: (cut, cut_time),
            dice,
            tables: BTreeMap::new(),
            regions: BTreeMap::new(),
            grants: BTreeMap::new(),
            channels: BTreeMap::new(),
            fuses: BTreeMap::new(),
        }
    }

    /// Copies fail, and ways are cut, as these say from now on.
    pub(crate) fn set_faults(&mut self, faults: &Faults) {
        (self.unreached, self.cut) = (faults.unreached, (faults.cut, faults.cut_time));
    }

    /// Whether the next piece is one that both ends copy.
    pub(crate) fn shares(&mut self) -> bool {
        self.shared > 0.0 && self.dice.chance(self.shared)
    }

    /// A process dies at its step of this number from now on (1: the next).
    pub(crate) fn light(&mut self, process: ProcessId, steps: u64) {
        self.fuses.insert(process, steps.max(1));
    }

    /// A process does a step; whether it dies of it.
    pub(crate) fn burn(&mut self, process: ProcessId) -> bool {
        let Some(left) = self.fuses.get_mut(&process) else { return false };
        *left -= 1;
        let dies = *left == 0;
        if dies {
            self.fuses.remove(&process);
        }
        dies
    }

    /// The channel from a process to the owner of a block, made where there is none.
    pub(crate) fn channel(
        &mut self,
        now: u64,
        from: ProcessId,
        block: u16,
        owner: Option<ProcessId>,
    ) -> Option<&mut Channel> {
        let key = (from, block);
        if self.channels.get(&key).is_some_and(|channel| channel.ends_at.is_some_and(|at| at <= now)) {
            self.channels.remove(&key);
        }
        if !self.channels.contains_key(&key) {
            let exported_at = now + nanos(self.dice.duration(LENDING));
            let channel = Channel { to: owner?, exported_at, last: 0, ends_at: None, cut_until: 0 };
            self.channels.insert(key, channel);
        }
        self.channels.get_mut(&key)
    }

    /// When a record that is put into a channel now is read, and by which process; not before
    /// `clogged`.
    pub(crate) fn put(
        &mut self,
        [now, clogged]: [u64; 2],
        from: ProcessId,
        block: u16,
        owner: Option<ProcessId>,
    ) -> Option<(u64, ProcessId)> {
        let after = nanos(FASTEST + self.dice.duration(SLOWEST));
        let channel = self.channel(now, from, block, owner)?;
        channel.last = channel.last.max(now + after).max(clogged);
        Some((channel.last, channel.to))
    }

    /// Whether what a process sends now to the owner of a block is lost.
    pub(crate) fn is_cut(&mut self, now: u64, from: ProcessId, block: u16) -> bool {
        let Self { cut: (share, most), dice, channels, .. } = self;
        let Some(channel) = channels.get_mut(&(from, block)) else { return false };
        if *share > 0.0 && channel.cut_until <= now && dice.chance(*share) {
            channel.cut_until = now + nanos(dice.duration(*most));
        }
        now < channel.cut_until
    }

    /// Whether the owner of a block has not read all that a process has sent to it.
    pub(crate) fn has_unread(&self, now: u64, from: ProcessId, block: u16) -> bool {
        let channel = self.channels.get(&(from, block));
        channel.is_some_and(|channel| channel.ends_at.is_none() && now < channel.last)
    }

    /// Whether memory of the owner of a block is reached now, as far as `from` knows.
    pub(crate) fn reaches(&self, now: u64, from: ProcessId, block: u16) -> Option<ProcessId> {
        let channel = self.channels.get(&(from, block))?;
        let is_there = channel.exported_at <= now && channel.ends_at.is_none_or(|at| now < at);
        is_there.then_some(channel.to)
    }

    /// A table for one more adapter of a process.
    pub(crate) fn table(&mut self, process: ProcessId, regions: &Regions) -> Option<u8> {
        let tables = self.tables.entry(process).or_default();
        let number = tables.len();
        (number < TABLES).then(|| {
            tables.push(regions.clone());
            number as u8
        })
    }

    pub(crate) fn publish(&mut self, process: ProcessId, table: u8, slot: u16, region: Region) {
        let is_mapped = self.mapped > 0.0 && self.dice.chance(self.mapped);
        self.regions.insert((process, table, slot), Published { region, is_mapped });
    }

    pub(crate) fn withdraw(&mut self, process: ProcessId, table: u8, slot: u16) {
        self.regions.remove(&(process, table, slot));
    }

    pub(crate) fn open(&mut self, process: ProcessId, grant: &Grant<'_>) {
        let Grant { qpn, path, pd, table, access } = *grant;
        let (peer, here, there) = (path.dest_qpn, path.source, path.dest);
        self.grants.insert((process, qpn.get()), Granted { peer, here, there, pd, table, access });
    }

    pub(crate) fn close(&mut self, process: ProcessId, qpn: Qpn) {
        self.grants.remove(&(process, qpn.get()));
    }

    /// Whether what a key names to a queue pair's peer in `target` is memory that the others map.
    pub(crate) fn is_mapped(&self, target: ProcessId, qpn: Qpn, remote: Remote) -> bool {
        let grant = self.grants.get(&(target, qpn.get()));
        let published =
            grant.and_then(|grant| self.regions.get(&(target, grant.table, (remote.rkey.0 >> 16) as u16)));
        published.is_some_and(|published| published.is_mapped)
    }

    /// The regions in which bytes are that a queue pair names to its peer in `target`, if that lets
    /// it have them.
    pub(crate) fn find(&self, target: ProcessId, transfer: &Transfer<'_>) -> Option<Regions> {
        let &Transfer { path, from, remote, what, .. } = transfer;
        let grant = self.grants.get(&(target, path.dest_qpn.get()))?;
        let right = transfer.asks();
        let is_it = (grant.peer, grant.here, grant.there) == (from, path.dest, path.source);
        if !is_it || grant.access & right != right {
            return None;
        }
        let Published { region, .. } =
            self.regions.get(&(target, grant.table, (remote.rkey.0 >> 16) as u16))?;
        let right = what.rights_of_region();
        let allowed = (region.key, region.pd) == (remote.rkey.0, grant.pd) && region.access & right == right;
        let at = remote.addr.checked_sub(region.iova)?;
        let inside = at.checked_add(remote.length)? <= region.len;
        // The others are the owner's work.
        let is_done = !matches!(what, Copy::Flush(how) if how.whole || how.persistent && !region.persists);
        let regions = self.tables.get(&target)?.get(usize::from(grant.table))?;
        (allowed && inside && is_done).then(|| regions.clone())
    }

    /// A process is dead: nothing of it is reached from now on, and those that sent to it learn of
    /// it soon.
    pub(crate) fn bury(&mut self, now: u64, process: ProcessId) {
        self.fuses.remove(&process);
        self.tables.remove(&process);
        self.regions.retain(|(whose, ..), _| *whose != process);
        self.grants.retain(|(whose, _), _| *whose != process);
        let to_it = self.channels.values_mut().filter(|channel| channel.to == process);
        to_it.for_each(|channel| channel.ends_at = channel.ends_at.or(Some(now + nanos(NEWS))));
    }

    /// No process has its channels any more; returns when the last record of them is read.
    pub(crate) fn leave(&mut self, process: ProcessId) -> u64 {
        let its = |channel: &(&(ProcessId, u16), &Channel)| channel.0.0 == process;
        let last = self.channels.iter().filter(its).map(|(_, channel)| channel.last).max();
        self.channels.retain(|(from, _), _| *from != process);
        last.unwrap_or(0)
    }
}
