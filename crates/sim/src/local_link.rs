//! The way to other processes of a simulated host beside packets ([`nic::LocalLink`]): a channel,
//! and copies, which are real ones in the one address space that a simulation has.

use std::sync::atomic::AtomicU64;

use nic::link::Fill;
use nic::peer_memory::{Copy, Grant, LocalLink, Prepared, Region, Regions, Transfer};
use nic::{Path, PathCache};
use transport::Short;
use transport::op::{DirectOutcome, Fault, FragmentOutcome, Remote, SharedBytes};
use wire::Qpn;

use crate::env::{Action, Host, ProcessId, Record, SimEnv, ends};
use crate::same_host::{SameHost, block};

/// Fewest bytes of a message that both ends copy, where the faults of the host have that.
const SHARED_FROM: u32 = 2_048;

/// Bytes of the longest fragment that goes by a channel in place of packets.
const MAX_FRAGMENT: usize = 64 << 10;

impl LocalLink for SimEnv {
    fn send_short(&self, path: &Path, short: &Short, bytes: &[u8], _: &mut PathCache) -> bool {
        let block = block(path.dest_qpn);
        let goes = self.goes_by_channel(block, path) && !self.is_cut(path);
        if goes
            && let Some([source, dest]) = ends(path)
            && self.step(|_, _| ()).is_some()
        {
            let (short, bytes) = (Some(*short), bytes.to_vec());
            let record = Record { source, dest, size: bytes.len(), short, headers: None, bytes };
            self.act(Action::Put { block, record });
        }
        goes
    }

    fn max_fragment(&self) -> usize {
        MAX_FRAGMENT
    }

    fn send_fragment(
        &self,
        path: &Path,
        headers: &[u8],
        len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<FragmentOutcome, Fault> {
        let block = block(path.dest_qpn);
        if !self.goes_by_channel(block, path) || self.is_cut(path) {
            return Ok(FragmentOutcome::Unavailable);
        }
        // A channel is never full of what was put into it; so it says so now and then.
        if self.with_host(|host| host.same_host.dice.chance(host.same_host.unreached)) {
            return Ok(FragmentOutcome::Full);
        }
        let words: Vec<AtomicU64> = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let bytes = SharedBytes::new(&words, len);
        fill(bytes)?;
        if let Some([source, dest]) = ends(path)
            && self.step(|_, _| ()).is_some()
        {
            let (headers, bytes) = (Some(headers.to_vec()), bytes.to_vec());
            let record = Record { source, dest, size: len, short: None, headers, bytes };
            self.act(Action::Put { block, record });
        }
        Ok(FragmentOutcome::Sent)
    }

    fn table(&self, regions: &Regions) -> Option<u8> {
        self.step(|host, me| host.same_host.table(me, regions)).flatten()
    }

    fn publish(&self, table: u8, slot: u16, region: &Region) {
        self.step(|host, me| host.same_host.publish(me, table, slot, *region));
    }

    fn withdraw(&self, table: u8, slot: u16) {
        self.step(|host, me| host.same_host.withdraw(me, table, slot));
    }

    fn open(&self, grant: &Grant<'_>) -> bool {
        let now = self.shared.clock.nanos();
        let block = block(grant.path.dest_qpn);
        self.step(|host, me| {
            // What the peer lends comes by the channel to it: so it is there soon.
            let owner = host.owner(block);
            host.same_host.channel(now, me, block, owner);
            host.same_host.open(me, grant);
        });
        true
    }

    fn close(&self, qpn: Qpn, _wait: bool) {
        self.step(|host, me| host.same_host.close(me, qpn));
    }

    fn is_local(&self, path: &Path) -> bool {
        self.with_host(|host| host.bears(path.dest))
    }

    fn reaches(&self, path: &Path) -> bool {
        let now = self.shared.clock.nanos();
        self.with_host(|host| host.same_host.reaches(now, self.process, block(path.dest_qpn)).is_some())
    }

    fn is_mapped(&self, path: &Path, remote: Remote, _: &PathCache) -> bool {
        let now = self.shared.clock.nanos();
        self.with_host(|host| {
            let target = host.same_host.reaches(now, self.process, block(path.dest_qpn));
            target.is_some_and(|target| host.same_host.is_mapped(target, path.dest_qpn, remote))
        })
    }

    fn shares_from(&self) -> Option<u32> {
        self.with_host(|host| host.same_host.shares()).then_some(SHARED_FROM)
    }

    fn copy(&self, prepared: &Prepared<'_>, _: &mut PathCache) -> DirectOutcome {
        let transfer = prepared.transfer();
        let Transfer { path, from, remote, what, .. } = *transfer;
        if !self.reaches(path) || self.is_cut(path) || self.is_cut_back(path, from) {
            return DirectOutcome::Unavailable;
        }
        let now = self.shared.clock.nanos();
        let copied = self.step(|host, me| {
            let target = host.same_host.reaches(now, me, block(path.dest_qpn))?;
            if !host.bears(path.dest) || !host.goes_on(now, target) {
                return None;
            }
            let regions = host.same_host.find(target, transfer)?;
            let most = host.copies(now, [me, target], remote.length);
            let whole = match (what, most) {
                (Copy::Flush(_), _) => most.is_none(),
                // It is done or not.
                (Copy::Atomic(_), Some(_)) => false,
                _ => {
                    regions.carry_out(prepared, most.unwrap_or(remote.length)) == remote.length
                        && most.is_none()
                }
            };
            Some((target, whole))
        });
        let Some(Some((to, whole))) = copied else { return DirectOutcome::Refused };
        self.act(Action::Copied { to, what, len: remote.length, whole });
        if whole { DirectOutcome::Done } else { DirectOutcome::Refused }
    }
}

impl SimEnv {
    /// Whether what leaves by a path goes by a channel: to the process of this host that bears a
    /// block, where there is one.
    pub(crate) fn goes_by_channel(&self, block: u16, path: &Path) -> bool {
        let now = self.shared.clock.nanos();
        let way = |host: &mut Host| {
            let is_local = host.bears(path.dest);
            let owner = host.owner(block);
            is_local && host.same_host.channel(now, self.process, block, owner).is_some()
        };
        self.same_host && !path.dest.is_multicast() && self.with_host(way)
    }
    /// Whether what leaves now by the channel of a path is lost.
    pub(crate) fn is_cut(&self, path: &Path) -> bool {
        let now = self.shared.clock.nanos();
        self.with_host(|host| host.same_host.is_cut(now, self.process, block(path.dest_qpn)))
    }
    /// Whether what the process at the end of a path sends now to a queue pair of ours is lost.
    pub(crate) fn is_cut_back(&self, path: &Path, ours: Qpn) -> bool {
        let now = self.shared.clock.nanos();
        self.with_host(|host| {
            let peer = host.owner(block(path.dest_qpn));
            peer.is_some_and(|peer| host.same_host.is_cut(now, peer, block(ours)))
        })
    }
    /// Whether the process at the end of a path has not read all that went to it by a channel.
    pub(crate) fn is_unread(&self, path: &Path) -> bool {
        let now = self.shared.clock.nanos();
        self.with_host(|host| {
            host.bears(path.dest) && host.same_host.has_unread(now, self.process, block(path.dest_qpn))
        })
    }
}

impl Host {
    /// How many bytes of a copy between two processes come about; `None`: all. It ends where one of
    /// the two dies, and where memory can not be had, as the faults of the host say.
    fn copies(&mut self, now: u64, both: [ProcessId; 2], len: u64) -> Option<u64> {
        let lives = both.map(|process| self.goes_on(now, process));
        let SameHost { unreached, dice, .. } = &mut self.same_host;
        let breaks = lives != [true; 2] || dice.chance(*unreached);
        breaks.then(|| dice.below(len + 1))
    }
}
