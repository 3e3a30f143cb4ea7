//! Two hosts in one process, of which one lets the other reach 64 words.

use std::time::{Duration, Instant};

use linux::{Config, LinuxEnv};
use local::arena::Buffer;
use nic::peer_memory::{Copy, Grant, Piece, Prepared, Region, Regions, Transfer, terms};
use nic::{Access, Link, LocalLink, Path};
use stack::env::Claim;
use stack::{Env, Name};
use transport::op::{DirectOutcome, Remote};
use wire::{Mtu, Qpn, Rkey};

use super::{Recording, TIMEOUT, V4, batch, counter, is_peer_memory_reachable, path, start_with};

/// The queue pair at the target, to which `support::path` leads, and its peer.
pub(crate) const TARGET: Qpn = Qpn::new(0x123_456);
pub(crate) const INITIATOR: Qpn = Qpn::new(0x321_001);
pub(crate) const PD: u32 = 7;
pub(crate) const KEY: u32 = 0x0042_1111;
pub(crate) const BOTH: u32 = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
/// What both agree on.
pub(crate) const TERMS: u32 = terms::RESOURCES | terms::of_mtu(Mtu::M1024);
pub(crate) const IOVA: u64 = 0x1_0000;

pub(crate) fn local_link(env: &LinuxEnv) -> &dyn LocalLink {
    env.local().unwrap()
}

/// Copies, or changes, as the initiator of a [`Pair`].
///
/// # Safety
///
/// That of [`Prepared::new`].
pub(crate) unsafe fn copy(env: &LinuxEnv, remote: Remote, what: Copy, pieces: &[Piece]) -> DirectOutcome {
    let transfer = Transfer { path: &path(V4), from: INITIATOR, mtu: Mtu::default(), remote, what };
    // SAFETY: as the caller says.
    local_link(env).copy(&unsafe { Prepared::new(&transfer, pieces) }, &mut nic::PathCache::default())
}

/// The target's path to the initiator.
pub(crate) fn back() -> Path {
    Path { dest_qpn: INITIATOR, ..path(V4) }
}

pub(crate) struct Pair {
    pub initiator: Recording,
    pub target: Recording,
    pub memory: Words,
    pub table: u8,
    _claim: Box<dyn Claim>,
}

/// The target's 64 words.
pub(crate) enum Words {
    Ours(Box<[u64]>),
    /// In memory that the initiator maps, too.
    BothMap(Buffer),
}

impl Words {
    pub(crate) fn as_ptr(&self) -> *mut u64 {
        match self {
            Self::Ours(words) => words.as_ptr().cast_mut(),
            Self::BothMap(buffer) => buffer.as_ptr().cast(),
        }
    }
}

impl Pair {
    /// A target that lets its peer reach 512 bytes from [`IOVA`] on; `None` where the system lets
    /// no process.
    pub(crate) fn new() -> Option<Self> {
        is_peer_memory_reachable().then(|| Self::over(Words::Ours(vec![0; 64].into_boxed_slice())))
    }

    /// Like [`Pair::new`], with the bytes in memory that both map; `None` where that is not
    /// reached.
    pub(crate) fn mapped() -> Option<Self> {
        let buffer = local::arena::take(512).filter(|_| nic::memory::can_copy_granted());
        if buffer.is_none() {
            println!("left out: no memory that processes map is reached");
        }
        let pair = Self::over(Words::BothMap(buffer?));
        // What says where it is comes before what lets it be reached, or soon.
        let begin = Instant::now();
        while counter(&pair.initiator, "buffers_mapped") == 0 {
            assert!(begin.elapsed() < TIMEOUT);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(local_link(pair.initiator.env()).is_mapped(
            &path(V4),
            pair.remote(0, 512),
            &nic::PathCache::default()
        ));
        Some(pair)
    }

    fn over(memory: Words) -> Self {
        let (initiator, target) = (start_with(Config::default()), start_with(Config::default()));
        let claim = target.env().claim(Name::Block(0x123)).unwrap();
        let table = local_link(target.env()).table(&Regions::default()).unwrap();
        target.handler().names.lock().unwrap().push((TARGET, Rkey(KEY)));
        let pair = Self { initiator, target, memory, table, _claim: claim };
        // The first packet makes the ring; what the target exports comes some time after one that
        // names it.
        pair.publish(BOTH);
        pair.open(BOTH);
        let begin = Instant::now();
        while !pair.copies(Copy::Read, pair.remote(0, 8), &mut [0]) {
            assert!(begin.elapsed() < TIMEOUT, "{:?}", pair.initiator.env().counters().snapshot());
            std::thread::sleep(Duration::from_millis(1));
        }
        pair
    }

    pub(crate) fn publish(&self, access: u32) {
        let region = Region {
            key: KEY,
            pd: PD,
            access,
            addr: self.memory.as_ptr() as u64,
            len: 512,
            iova: IOVA,
            persists: false,
        };
        local_link(self.target.env()).publish(self.table, (KEY >> 16) as u16, &region);
        self.names();
    }

    /// The initiator names the region in a request that the target executes.
    pub(crate) fn names(&self) {
        self.initiator.env().send(&path(V4), &mut batch(0, &[64]));
        assert!(self.target.handler().packet().is_some());
    }

    /// The target exports the region to the initiator for a message.
    pub(crate) fn tells(&self) -> bool {
        local_link(self.target.env()).told(TARGET, Rkey(KEY))
    }

    pub(crate) fn open(&self, rights: u32) {
        let access = rights | TERMS;
        let grant = Grant { qpn: TARGET, path: &back(), pd: PD, table: self.table, access };
        if !local_link(self.target.env()).open(&grant) {
            local_link(self.target.env()).close(TARGET, true);
            assert!(local_link(self.target.env()).open(&grant));
        }
        self.names();
    }

    pub(crate) fn remote(&self, at: u64, length: u64) -> Remote {
        Remote { addr: IOVA + at, length, rkey: Rkey(KEY) }
    }

    pub(crate) fn copies_as(
        &self,
        path: &Path,
        from: Qpn,
        what: Copy,
        remote: Remote,
        ours: &mut [u64],
    ) -> bool {
        let pieces = [Piece { addr: ours.as_mut_ptr() as u64, len: remote.length }];
        assert!(remote.length <= size_of_val(ours) as u64);
        let transfer = Transfer { path, from, mtu: Mtu::default(), remote, what };
        // SAFETY: the piece is `ours`, which is borrowed across the call.
        let prepared = unsafe { Prepared::new(&transfer, &pieces) };
        local_link(self.initiator.env()).copy(&prepared, &mut nic::PathCache::default())
            == DirectOutcome::Done
    }

    pub(crate) fn copies(&self, what: Copy, remote: Remote, ours: &mut [u64]) -> bool {
        self.copies_as(&path(V4), INITIATOR, what, remote, ours)
    }

    /// What lies in the target's memory.
    pub(crate) fn word(&self, at: usize) -> u64 {
        assert!(at < 64);
        // SAFETY: a word of ours, which others may change.
        unsafe { self.memory.as_ptr().add(at).read_volatile() }
    }
}
