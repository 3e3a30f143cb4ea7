//! What the engines stand on here: one region of memory that checks what is done to it, receives,
//! and what the engine said.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::task::Poll;

use transport::op::{Access, AtomicOp, Bind, Completion, Context, Flush, QpEvent, RecvWr, Sge, Side, Tail};
use transport::{CongestionWindow, Fault, Memory, Remote};
use wire::Rkey;

/// Bytes of the region.
pub const LEN: usize = 1 << 16;
/// The region's first address.
pub const BASE: u64 = 0x1000;
/// The region's key, local and remote.
pub const KEY: Rkey = Rkey(77);
/// Below this, keys are those of windows that can be taken back.
pub const WINDOWS: u32 = 8;

/// The region.
#[derive(Debug)]
pub struct Region {
    /// What it holds.
    pub bytes: RefCell<Vec<u8>>,
    /// The region's mapping is gone for READs, at whatever moment.
    pub unmapped: Cell<bool>,
    /// Keys taken back, in order.
    pub invalidated: RefCell<Vec<Rkey>>,
}

impl Default for Region {
    fn default() -> Self {
        let bytes = RefCell::new(vec![0; LEN]);
        Self { bytes, unmapped: Cell::default(), invalidated: RefCell::default() }
    }
}

/// Where an address lies in the region.
pub fn offset(addr: u64) -> usize {
    (addr - BASE) as usize
}

impl Region {
    fn at(&self, key: Rkey, addr: u64, len: u64) -> Result<usize, Fault> {
        if key != KEY {
            return Err(Fault::Key);
        }
        let start = addr.checked_sub(BASE).ok_or(Fault::Range)?;
        match start.checked_add(len) {
            Some(end) if end <= LEN as u64 => Ok(start as usize),
            _ => Err(Fault::Range),
        }
    }
    /// Each piece of `len` bytes, `at` bytes into the list: where it lies and how long it is.
    fn walk(
        &self,
        sges: &[Sge],
        mut at: u64,
        mut len: usize,
        mut each: impl FnMut(usize, usize),
    ) -> Result<(), Fault> {
        for sge in sges {
            let n = u64::from(sge.length).saturating_sub(at).min(len as u64);
            if n > 0 {
                each(self.at(sge.lkey, sge.addr.checked_add(at).ok_or(Fault::Range)?, n)?, n as usize);
                len -= n as usize;
            }
            at = at.saturating_sub(sge.length.into());
        }
        if len == 0 { Ok(()) } else { Err(Fault::Range) }
    }
    fn remote(&self, range: Remote, at: u64, len: usize) -> Result<usize, Fault> {
        assert!(at + len as u64 <= range.length, "a peer's access leaves the range that was checked");
        self.at(range.rkey, range.addr.checked_add(at).ok_or(Fault::Range)?, len as u64)
    }
    /// Bytes of the region.
    pub fn copy(&self, at: usize, len: usize) -> Vec<u8> {
        self.bytes.borrow()[at..at + len].to_vec()
    }
    /// Eight of them as a number.
    pub fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes.borrow();
        u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
    }
    /// Writes bytes.
    pub fn set(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Memory for &Region {
    fn gather(&self, sges: &[Sge], at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        self.walk(sges, at, dst.len(), |start, n| {
            dst[done..done + n].copy_from_slice(&self.bytes.borrow()[start..start + n]);
            done += n;
        })
    }
    fn scatter(&self, sges: &[Sge], at: u64, src: &[u8], _: Tail) -> Result<(), Fault> {
        assert!(src.len() <= 4096 + 40, "more than a packet at once");
        let mut done = 0;
        self.walk(sges, at, src.len(), |start, n| {
            self.set(start, &src[done..done + n]);
            done += n;
        })
    }
    fn check(&self, range: Remote, _: Access) -> Result<(), Fault> {
        if range.length == 0 { Ok(()) } else { self.at(range.rkey, range.addr, range.length).map(drop) }
    }
    fn write(&self, to: Remote, at: u64, src: &[u8], _: Tail) -> Result<(), Fault> {
        let start = self.remote(to, at, src.len())?;
        self.set(start, src);
        Ok(())
    }
    fn read(&self, from: Remote, at: u64, dst: &mut [u8]) -> Result<(), Fault> {
        if self.unmapped.get() {
            return Err(Fault::Unmapped);
        }
        let start = self.remote(from, at, dst.len())?;
        dst.copy_from_slice(&self.bytes.borrow()[start..start + dst.len()]);
        Ok(())
    }
    fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault> {
        let start = self.at(at.rkey, at.addr, 8)?;
        let old = self.word(start);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd(add) => old.wrapping_add(add),
            AtomicOp::Write(value) => value,
        };
        self.set(start, &new.to_ne_bytes());
        Ok(old)
    }
    fn flush(&self, range: Remote, how: Flush) -> Poll<Result<(), Fault>> {
        match self.at(range.rkey, range.addr, if how.whole { 0 } else { range.length }) {
            Ok(_) if how.persistent => Poll::Pending,
            result => Poll::Ready(result.map(drop)),
        }
    }
    fn bind(&self, bind: &Bind) -> Result<(), Fault> {
        if bind.key.0 < WINDOWS { Ok(()) } else { Err(Fault::Key) }
    }
    fn invalidate(&self, key: Rkey) -> Result<(), Fault> {
        if key.0 >= WINDOWS {
            return Err(Fault::Key);
        }
        self.invalidated.borrow_mut().push(key);
        Ok(())
    }
}

/// One engine's surroundings.
#[derive(Debug, Default)]
pub struct Ground {
    /// Memory.
    pub memory: Region,
    /// Receives, by the number of their shared queue (0: the queue pair's own).
    pub receives: BTreeMap<u32, VecDeque<RecvWr>>,
    /// The queue that an XRC request chose.
    pub chosen: u32,
    /// Marks of the receives that the engine took and did not complete yet.
    pub taken: VecDeque<u64>,
    /// Completions not looked at yet.
    pub done: Vec<(Side, Completion)>,
    /// Events, all of them.
    pub events: Vec<QpEvent>,
    window: CongestionWindow,
}

impl Ground {
    /// Posts a receive to a queue.
    pub fn post_receive(&mut self, queue: u32, wr: RecvWr) {
        self.receives.entry(queue).or_default().push_back(wr);
    }

    /// No queue pair is under way: none has been forgotten in the window of the path, none left it
    /// twice.
    pub fn assert_window_is_left(&self) {
        let alone = self.window.share_of(u32::MAX);
        self.window.enter();
        assert_eq!(
            self.window.share_of(u32::MAX),
            alone,
            "a queue pair that is gone still has its share of the window"
        );
        self.window.leave();
    }
}

impl Context for Ground {
    fn memory(&self) -> impl Memory + Copy {
        &self.memory
    }
    fn take_receive(&mut self) -> Option<RecvWr> {
        let wr = self.receives.get_mut(&self.chosen)?.pop_front()?;
        self.taken.push_back(wr.wr_id);
        Some(wr)
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        if side == Side::Receive {
            assert_eq!(
                self.taken.pop_front(),
                Some(completion.wr_id),
                "a receive completes once and in order"
            );
        }
        self.done.push((side, completion));
    }
    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
    fn choose_srq(&mut self, number: u32) -> Result<(), Fault> {
        self.chosen = number;
        if self.receives.contains_key(&number) { Ok(()) } else { Err(Fault::Key) }
    }
    fn window(&self) -> &CongestionWindow {
        &self.window
    }
}
