//! When connections have something to do. Nearly every timer is taken back before it is due, as
//! answers come: what stands here of those lies where it is until it comes first, or until there is
//! more of them than of the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::connection::Connection;
use super::numbered::Numbered;
use crate::event::ConnId;

type Connections = Numbered<ConnId, Box<Connection>>;

/// How many timers that were taken back may lie here in any case.
const FEW: usize = 64;

/// When connections have something to do. The first is never one that was taken back.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// In force are those of which `armed` of the connection says the same.
    queue: BinaryHeap<Reverse<(Instant, ConnId)>>,
    armed: usize,
}

impl Timers {
    /// When the first is due.
    pub(super) fn first(&self) -> Option<Instant> {
        self.queue.peek().map(|&Reverse((at, _))| at)
    }

    /// Brings the timer of a connection in line with it.
    pub(super) fn rearm(&mut self, id: ConnId, connections: &mut Connections) {
        let Some(conn) = connections.get_mut(&id) else { return };
        let due = conn.deadline();
        let before = std::mem::replace(&mut conn.armed, due);
        if before == due {
            return;
        }
        if let Some(at) = due {
            self.queue.push(Reverse((at, id)));
            self.armed += 1;
        }
        if before.is_some() {
            self.armed -= 1;
            self.forget(connections);
        }
    }

    /// Takes out the first that is due: its connection.
    pub(super) fn take_due(&mut self, now: Instant, connections: &mut Connections) -> Option<ConnId> {
        let &Reverse((at, id)) = self.queue.peek()?;
        if at > now {
            return None;
        }
        self.queue.pop();
        self.armed -= 1;
        if let Some(conn) = connections.get_mut(&id) {
            conn.armed = None;
        }
        self.forget(connections);
        Some(id)
    }

    /// Forgets what was taken back.
    fn forget(&mut self, connections: &Connections) {
        let is_in_force =
            |&(at, id): &(Instant, ConnId)| connections.get(&id).is_some_and(|conn| conn.armed == Some(at));
        while self.queue.peek().is_some_and(|Reverse(first)| !is_in_force(first)) {
            self.queue.pop();
        }
        if self.queue.len() > 2 * self.armed + FEW {
            self.queue.retain(|Reverse(timer)| is_in_force(timer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wire::{CommId, Gid, Mtu};

    use super::super::connection::CmState;
    use super::*;
    use crate::parameters::PathRecord;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "where time starts does not matter")]
    fn what_is_taken_back_is_never_first_nor_due_and_does_not_pile_up() {
        let (start, mut timers, mut connections) =
            (Instant::now(), Timers::default(), Connections::default());
        let after = |ms| start + Duration::from_millis(ms);
        let path = PathRecord::new(Gid::default(), Gid::default(), 0, Mtu::default());
        let set = |timers: &mut Timers, connections: &mut Connections, id, until| {
            let new = || Box::new(Connection::new(ConnId(id), CmState::TimeWait, path, CommId(0), 0));
            connections.entry(ConnId(id)).or_insert_with(new).until = until;
            timers.rearm(ConnId(id), connections);
        };
        for (id, ms) in [(1, 10), (2, 20), (3, 30)] {
            set(&mut timers, &mut connections, id, Some(after(ms)));
        }
        set(&mut timers, &mut connections, 1, None);
        assert_eq!(timers.first(), Some(after(20)));
        // Taken back and set again to the same time, it is due once.
        set(&mut timers, &mut connections, 2, None);
        set(&mut timers, &mut connections, 2, Some(after(20)));
        set(&mut timers, &mut connections, 3, Some(after(25)));
        assert_eq!(timers.take_due(after(19), &mut connections), None);
        assert_eq!(timers.take_due(after(26), &mut connections), Some(ConnId(2)));
        assert_eq!(timers.take_due(after(26), &mut connections), Some(ConnId(3)));
        assert_eq!((timers.take_due(after(99), &mut connections), timers.first()), (None, None));
        // One that waits for long, and thousands after it that are taken back.
        set(&mut timers, &mut connections, 1, Some(after(1)));
        for ms in 2..5_000 {
            set(&mut timers, &mut connections, 2, Some(after(ms)));
        }
        assert!(timers.queue.len() <= 2 * timers.armed + FEW && timers.armed == 2);
    }
}
