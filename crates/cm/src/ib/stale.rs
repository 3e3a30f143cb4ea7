//! Connections in doubt. A message claims the peer's queue pair, or its communication id, for
//! another connection (IBA 1.4 §12.9.8.3.1, stale connections). Or it disconnects without knowing
//! the transaction. A peer that restarted sends such messages, and so may any host that can send a
//! packet. So the old peer is asked before anything ends.
//!
//! The question is a DREQ for a queue pair that no connection has. A peer that knows the connection
//! takes no notice of it, because the number is not its queue pair's (Linux's ib_cm likewise). A
//! peer that does not says that it is disconnected (DREP, §12.9.8.3). The random transaction id of
//! the question proves that it answers this. Silence ends nothing.

use std::time::Instant;

use super::connection::CmState;
use super::table::Cm;
use super::timing::Retry;
use crate::event::ConnId;

/// A question under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct StaleCheck {
    pub transaction_id: u64,
    pub retry: Retry,
}

impl Cm {
    /// Asks the peer of a connection whether it still knows it; one question at a time.
    pub(super) fn check_stale(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if !matches!(conn.state, CmState::RepReceived | CmState::Established) || conn.stale_check.is_some() {
            return;
        }
        let transaction_id = (self.transaction_ids)();
        conn.stale_check =
            Some(StaleCheck { transaction_id, retry: Retry::new(now, self.config.timing.stale_check) });
        self.ask(id);
        self.rearm(id);
    }

    /// The question is due again, or has had no answer.
    pub(super) fn expire_stale_check(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.connections.get_mut(&id) else { return };
        if conn.stale_check.as_mut().is_some_and(|stale_check| stale_check.retry.step(now)) {
            self.ask(id);
        } else {
            conn.stale_check = None;
        }
        self.rearm(id);
    }

    fn ask(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get(&id) else { return };
        let Some(stale_check) = conn.stale_check else { return };
        let mad = conn.question(stale_check.transaction_id);
        self.transmit(id, mad, stale_check.retry.attempt);
    }
}
