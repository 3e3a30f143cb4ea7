//! Flow steering (ibv_create_flow(3)): rules that say which frames of a device's interface go to
//! which raw packet queue pair. A queue pair without rules gets none.
//!
//! Rules are tried in the order of their priority, ordinary ones before the defaults; of those
//! equally good the older wins. The first that matches takes the frame, together with its equals:
//! rules of the same kind, priority and specifications on other queue pairs, each of which gets a
//! copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use locks::{Rank, RwLock, WriteGuard};

use crate::error::Error;
use crate::limits;
use crate::steering::frame::Frame;
pub use crate::steering::spec::{Masked, Spec};

/// What kind of rule: `enum ibv_flow_attr_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum FlowKind {
    /// Frames that match its specifications.
    Normal = 0,
    /// Every frame that no ordinary rule takes.
    AllDefault = 1,
    /// Every multicast frame that no other rule takes.
    MulticastDefault = 2,
    /// A copy of every frame, sent ones included.
    Sniffer = 3,
}

impl FlowKind {
    /// From `enum ibv_flow_attr_type`.
    pub fn from_code(code: u32) -> Option<Self> {
        use FlowKind::*;
        [Normal, AllDefault, MulticastDefault, Sniffer].into_iter().find(|k| *k as u32 == code)
    }
}

/// What makes a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// What kind.
    pub kind: FlowKind,
    /// 0 is tried first.
    pub priority: u16,
    /// All must fit; none fits everything.
    pub specs: Vec<Spec>,
    /// What it takes goes nowhere.
    pub drop: bool,
    /// The taker gets a copy, and rules after this one are tried as if it were not there.
    pub dont_trap: bool,
}

impl Flow {
    fn fits(&self, frame: &Frame) -> bool {
        (self.kind != FlowKind::MulticastDefault || frame.is_multicast())
            && self.specs.iter().all(|spec| spec.fits(frame))
    }
    fn order(&self) -> (FlowKind, u16) {
        (self.kind, self.priority)
    }
}

/// What the rules that count into it have matched, whether they passed it on, copied or dropped it.
#[derive(Debug, Default)]
pub struct FlowCounter {
    /// Frames.
    pub packets: AtomicU64,
    /// Bytes of them, without preamble and checksum.
    pub bytes: AtomicU64,
}

/// A rule in force, by which it is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u64);

#[derive(Debug)]
struct Rule<T> {
    id: u64,
    flow: Flow,
    taker: Arc<T>,
    counter: Option<Arc<FlowCounter>>,
}

/// The rules of a device, in the order in which they are tried. It keeps the takers of the frames.
#[derive(Debug)]
pub(crate) struct Flows<T> {
    rules: RwLock<Vec<Rule<T>>>,
    next: AtomicU64,
}

impl<T> Default for Flows<T> {
    fn default() -> Self {
        Self { rules: RwLock::new(Rank::FlowRules, Vec::new()), next: AtomicU64::new(0) }
    }
}

impl<T> Flows<T> {
    /// The takers of a frame; `returns` where it is one of ours that comes back, or came from
    /// elsewhere.
    pub(crate) fn takers(&self, bytes: &[u8], returns: bool) -> Vec<Arc<T>> {
        let frame = Frame::parse(bytes);
        let mut takers: Vec<Arc<T>> = Vec::new();
        let mut taken: Option<&Flow> = None;
        let rules = self.rules.read();
        for Rule { flow, taker, counter, .. } in rules.iter() {
            let is_copy = flow.kind == FlowKind::Sniffer || flow.dont_trap;
            let wanted = match taken {
                _ if !returns && flow.kind != FlowKind::Sniffer => false,
                Some(first) if flow.kind != FlowKind::Sniffer => first == flow,
                _ => flow.fits(&frame),
            };
            if !wanted {
                continue;
            }
            if let Some(counter) = counter {
                counter.packets.fetch_add(1, Ordering::Relaxed);
                counter.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            if !is_copy && taken.is_none() {
                taken = Some(flow);
            }
            if !flow.drop && !takers.iter().any(|t| Arc::ptr_eq(t, taker)) {
                takers.push(taker.clone());
            }
        }
        takers
    }

    /// Whether any rule matches a frame, `returns` as for [`Flows::takers`].
    pub(crate) fn match_any(&self, bytes: &[u8], returns: bool) -> bool {
        let frame = Frame::parse(bytes);
        let rules = self.rules.read();
        let mut seeing = rules.iter().filter(|rule| returns || rule.flow.kind == FlowKind::Sniffer);
        seeing.any(|rule| rule.flow.fits(&frame))
    }

    /// A rule in force from now on. `watch` begins to take frames in, where it is the first.
    ///
    /// # Errors
    ///
    /// `Limit`: more rules than a device has. That of `watch`.
    pub(crate) fn add(
        &self,
        flow: Flow,
        taker: &Arc<T>,
        counter: Option<Arc<FlowCounter>>,
        watch: impl FnOnce() -> Result<(), Error>,
    ) -> Result<FlowId, Error> {
        let mut rules = self.write();
        if rules.len() >= limits::MAX_FLOWS {
            return Err(Error::Limit("flow rules"));
        }
        if rules.is_empty() {
            watch()?;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let at = rules.partition_point(|r| r.flow.order() <= flow.order());
        rules.insert(at, Rule { id, flow, taker: taker.clone(), counter });
        Ok(FlowId(id))
    }

    /// Takes a rule back; nothing where it is taken back already. `unwatch` ends to take frames in,
    /// where it was the last.
    pub(crate) fn remove(&self, id: FlowId, unwatch: impl FnOnce()) {
        self.retain(|rule| rule.id != id.0, unwatch);
    }

    /// Takes back all rules whose frames go to this taker; `unwatch` as for [`Flows::remove`].
    pub(crate) fn forget(&self, taker: &Arc<T>, unwatch: impl FnOnce()) {
        self.retain(|rule| !Arc::ptr_eq(&rule.taker, taker), unwatch);
    }

    /// Whether any rule's frames go to it.
    pub(crate) fn has(&self, taker: &Arc<T>) -> bool {
        let rules = self.rules.read();
        rules.iter().any(|r| Arc::ptr_eq(&r.taker, taker))
    }

    fn retain(&self, stays: impl Fn(&Rule<T>) -> bool, unwatch: impl FnOnce()) {
        let mut rules = self.write();
        if rules.is_empty() {
            return;
        }
        rules.retain(stays);
        if rules.is_empty() {
            unwatch();
        }
    }

    fn write(&self) -> WriteGuard<'_, Vec<Rule<T>>> {
        self.rules.write()
    }
}
