//! Requests of programs that wait for their answers: retries, and what a program reads when none
//! comes (`struct ib_user_mad`: the request's header with ETIMEDOUT, and the first 24 bytes).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use crate::fabric::ClientId;

/// What names a request under way: the number of its agent, and the lower half of its transaction
/// id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Transaction {
    pub(crate) agent: u32,
    pub(crate) low: u32,
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) client: ClientId,
    pub(crate) class: u8,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
    /// The message that the program wrote.
    pub(crate) message: Vec<u8>,
    serial: u64,
}

/// What is due.
pub(crate) enum Due {
    /// Send it again.
    Retry(ClientId, Vec<u8>),
    /// No answer has come.
    TimedOut(ClientId, Vec<u8>),
}

/// All requests under way.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    pending: BTreeMap<Transaction, Pending>,
    /// By time. An entry of another serial is of a request that is answered.
    timers: BinaryHeap<Reverse<(Duration, u64, Transaction)>>,
    serial: u64,
}

impl Transactions {
    /// Begins one; false where the agent has one of this transaction id under way.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        key: Transaction,
        (client, class): (ClientId, u8),
        (timeout, retries): (Duration, u32),
        message: Vec<u8>,
    ) -> bool {
        if self.pending.contains_key(&key) {
            return false;
        }
        self.serial += 1;
        let serial = self.serial;
        self.timers.push(Reverse((now.saturating_add(timeout), serial, key)));
        self.pending.insert(key, Pending { client, class, timeout, retries, message, serial });
        true
    }

    /// Ends the one that an answer of this class belongs to.
    pub(crate) fn answered(&mut self, key: Transaction, class: u8) -> Option<Pending> {
        self.pending.get(&key).filter(|pending| pending.class == class)?;
        self.pending.remove(&key)
    }

    /// Forgets those of an agent.
    pub(crate) fn forget(&mut self, agent: u32) {
        let all = Transaction { agent, low: 0 }..=Transaction { agent, low: u32::MAX };
        let keys: Vec<_> = self.pending.range(all).map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| _ = self.pending.remove(key));
    }

    /// When the next one is due.
    pub(crate) fn deadline(&mut self) -> Option<Duration> {
        loop {
            let Reverse((at, serial, key)) = self.timers.peek()?;
            if self.pending.get(key).is_some_and(|pending| pending.serial == *serial) {
                return Some(*at);
            }
            self.timers.pop();
        }
    }

    /// The next one that is due now.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Due> {
        self.deadline().filter(|at| *at <= now)?;
        let Reverse((_, serial, key)) = self.timers.pop()?;
        let pending = self.pending.get_mut(&key)?;
        if pending.retries > 0 {
            pending.retries -= 1;
            self.timers.push(Reverse((now.saturating_add(pending.timeout), serial, key)));
            return Some(Due::Retry(pending.client, pending.message.clone()));
        }
        let pending = self.pending.remove(&key)?;
        Some(Due::TimedOut(pending.client, pending.message))
    }
}
