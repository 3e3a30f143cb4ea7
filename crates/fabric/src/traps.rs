//! Traps under way: each is repeated until the subnet manager represses it (IBA 1.4 §13.4.9,
//! §14.3.9).

use std::collections::BTreeMap;
use std::time::Duration;

use wire::mad::Trap;

use crate::subnet::PortId;

/// Between two repetitions.
const PERIOD: Duration = Duration::from_secs(1);

/// A trap that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raised {
    pub(crate) trap: Trap,
    pub(crate) transaction_id: u64,
    next: Duration,
}

/// At most one of each number and port.
#[derive(Debug, Default)]
pub(crate) struct Traps {
    raised: BTreeMap<(PortId, u16), Raised>,
    last_id: u32,
}

impl Traps {
    /// A trap to be sent now, and again until it is repressed.
    pub(crate) fn raise(&mut self, now: Duration, at: PortId, trap: Trap) -> Raised {
        self.last_id = self.last_id.wrapping_add(1);
        // Transaction ids of programs have the number of an agent in the upper half, never 0.
        let raised = Raised { trap, transaction_id: self.last_id.into(), next: now + PERIOD };
        self.raised.insert((at, trap.number()), raised);
        raised
    }

    /// Whether a trap of this number is repeated at the port.
    pub(crate) fn is_raised(&self, at: PortId, trap: Trap) -> bool {
        self.raised.contains_key(&(at, trap.number()))
    }

    /// Ends the repetition of a trap.
    pub(crate) fn repress(&mut self, at: PortId, transaction_id: u64) -> bool {
        let before = self.raised.len();
        self.raised.retain(|(port, _), raised| *port != at || raised.transaction_id != transaction_id);
        self.raised.len() < before
    }

    /// Forgets a trap that has no receiver any more.
    pub(crate) fn forget(&mut self, at: PortId, trap: Trap) {
        self.raised.remove(&(at, trap.number()));
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.raised.values().map(|raised| raised.next).min()
    }

    /// Traps to be sent again now.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(PortId, Raised)> {
        let due = self.raised.iter_mut().filter(|(_, raised)| raised.next <= now);
        due.map(|((at, _), raised)| {
            raised.next = now + PERIOD;
            (*at, *raised)
        })
        .collect()
    }
}
