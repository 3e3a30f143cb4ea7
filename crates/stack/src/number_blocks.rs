//! Queue pair numbers and communication ids of this process. Both carry the number of a block in
//! their upper bits; a block is a name that one process of the host claims, so a packet that
//! reached the wrong process is handed to the right one by name.
//!
//! | number | bits | block |
//! |---|---|---|
//! | QPN | 24 | upper 12; lower 12 random |
//! | communication id | 32 | upper 12; lower 20 random |

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use locks::{Mutex, MutexGuard, Rank};
use nic::{Error, Numbers};
use wire::{CommId, Qpn};

use crate::env::{Claim, ClaimError, Env, Name};

/// Bits of a QPN below its block.
const QPN_BITS: u32 = 12;
/// Bits of a communication id below its block.
const COMM_BITS: u32 = 20;
/// NumberBlocks a process holds at most: [`nic::limits::MAX_QP`] queue pairs.
const MAX_BLOCKS: usize = (nic::limits::MAX_QP >> QPN_BITS) as usize;
/// Words with a bit for each block.
const OWNED: usize = (1 << (24 - QPN_BITS)) / 64;
/// Tries to find a free block; at half of all blocks taken each fails with probability 1/2.
const TRIES: usize = 64;

/// The name of the process that hands out a queue pair number.
pub fn qpn_owner(qpn: Qpn) -> Name {
    Name::Block((qpn.get() >> QPN_BITS) as u16)
}

/// The name of the process that hands out a communication id.
pub fn comm_owner(id: CommId) -> Name {
    process_name(process_of(id))
}

/// The process of a host that hands out a communication id: the number of its block.
pub(crate) fn process_of(id: CommId) -> u32 {
    id.0 >> COMM_BITS
}

/// The name of a process of this host, by the number of its block.
pub(crate) fn process_name(process: u32) -> Name {
    Name::Block(process as u16)
}

/// The number of a block.
pub(crate) fn block_of(name: Name) -> Option<u32> {
    if let Name::Block(block) = name { Some(block.into()) } else { None }
}

/// Whether a process can bear a name: block 0 holds QP0, QP1 and the identifier that stands for
/// none, 0xfff the multicast number.
pub(crate) fn may_be_borne(name: Name) -> bool {
    !matches!(name, Name::Block(0 | 0xfff..))
}

struct Block {
    prefix: u16,
    /// Numbers that nothing has had, in no order.
    fresh: Vec<u16>,
    /// Numbers that were given back, oldest first.
    used: VecDeque<u16>,
    _claim: Box<dyn Claim>,
}

impl Block {
    /// A number that no peer can guess. One that was given back is used again as late as possible,
    /// so old packets find no queue pair or connection.
    fn take(&mut self, random: impl FnOnce() -> u32) -> Option<u16> {
        match self.fresh.len() {
            0 => self.used.pop_front(),
            len => Some(self.fresh.swap_remove(random() as usize % len)),
        }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.used.is_empty()
    }
}

#[derive(Default)]
struct Inner {
    blocks: Vec<Block>,
}

/// The blocks of this process.
pub struct NumberBlocks<W> {
    env: Arc<W>,
    /// A bit for each block of the host: it is one of ours. Readable without the lock: each packet
    /// asks.
    owned: [AtomicU64; OWNED],
    inner: Mutex<Inner>,
}

impl<W: Env> NumberBlocks<W> {
    /// No block yet: the first number claims one.
    pub fn new(env: Arc<W>) -> Self {
        let owned = [const { AtomicU64::new(0) }; OWNED];
        Self { env, owned, inner: Mutex::new(Rank::NumberBlocks, Inner::default()) }
    }

    /// Whether a name is a block of this process.
    #[inline]
    pub fn owns(&self, name: Name) -> bool {
        let Name::Block(prefix) = name else { return false };
        let word = self.owned.get(usize::from(prefix) / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (prefix % 64) & 1 == 1)
    }

    /// A random communication id in a block of this process; the caller keeps the table of those in
    /// use and asks again where it is.
    pub fn comm_id(&self) -> Result<CommId, Error> {
        let mut inner = self.lock();
        if inner.blocks.is_empty() {
            self.claim(&mut inner)?;
        }
        let prefix = u32::from(inner.blocks[0].prefix);
        Ok(CommId(prefix << COMM_BITS | self.random() & ((1 << COMM_BITS) - 1)))
    }

    fn claim(&self, inner: &mut Inner) -> Result<(), Error> {
        if inner.blocks.len() >= MAX_BLOCKS {
            return Err(Error::Limit("queue pairs"));
        }
        for _ in 0..TRIES {
            // 0 holds QP0 and QP1, 0xfff the multicast number.
            let prefix = (1 + self.random() % 0xffe) as u16;
            match self.env.claim(Name::Block(prefix)) {
                Ok(claim) => {
                    self.owned[usize::from(prefix) / 64].fetch_or(1 << (prefix % 64), Ordering::Release);
                    let fresh = (0..1 << QPN_BITS).collect();
                    inner.blocks.push(Block { prefix, fresh, used: VecDeque::new(), _claim: claim });
                    return Ok(());
                }
                Err(ClaimError::InUse) => {}
                Err(ClaimError::System(errno)) => return Err(Error::System(errno)),
            }
        }
        Err(Error::Limit("blocks of queue pair numbers on this host"))
    }

    fn random(&self) -> u32 {
        let mut bytes = [0; 4];
        self.env.fill_random(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl<W: Env> Numbers for NumberBlocks<W> {
    fn take(&self) -> Result<Qpn, Error> {
        let mut inner = self.lock();
        if inner.blocks.iter().all(Block::is_empty) {
            self.claim(&mut inner)?;
        }
        let number = |block: &mut Block| {
            let low = block.take(|| self.random())?;
            Some(Qpn::new(u32::from(block.prefix) << QPN_BITS | u32::from(low)))
        };
        inner.blocks.iter_mut().find_map(number).ok_or(Error::Limit("queue pairs"))
    }

    fn give(&self, qpn: Qpn) {
        let (prefix, low) = ((qpn.get() >> QPN_BITS) as u16, (qpn.get() & ((1 << QPN_BITS) - 1)) as u16);
        let mut inner = self.lock();
        if let Some(block) = inner.blocks.iter_mut().find(|b| b.prefix == prefix) {
            block.used.push_back(low);
        }
    }
}
