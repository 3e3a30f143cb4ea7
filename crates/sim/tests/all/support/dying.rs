//! An end of a connection that does random work, and checks that each completion comes in order,
//! once, and is true; also of a peer that is dead.

use std::sync::Arc;

use nic::{Buffer, PostError, QpState};
use sim::Dice;
use stack::Id;
use transport::op::{AtomicOp, Completed, Completion, Data, RecvWr, SendOp, SendWr, Status};
use wire::roce::SendTail;

use super::connections::Party;
use super::{Endpoint, RIGHTS};

/// Requests of a side.
pub(crate) const JOBS: usize = 14;
/// Most bytes of a WRITE or READ, and of a SEND, which goes in pieces then.
pub(crate) const PIECE: usize = 3_000;
pub(crate) const LONG: usize = 40_000;
/// Receives of a side.
pub(crate) const RECEIVES: usize = 6;
/// What the memory of the dead process is filled with. No process sends it.
pub(crate) const POISON: u8 = 0xdd;

/// Where in a side's memory things are.
pub(crate) const COUNTER: usize = 0;
pub(crate) const SOURCE: usize = 64;
pub(crate) const AREAS: usize = SOURCE + LONG;
pub(crate) const LANDINGS: usize = AREAS + JOBS * PIECE;
pub(crate) const INBOX: usize = LANDINGS + JOBS * PIECE;
pub(crate) const ALL: usize = INBOX + RECEIVES * LONG;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    WriteImmediate,
    Read,
    Add(u64),
    /// A WRITE to a region that its owner may take back.
    WriteExtra,
    ReadExtra,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub kind: Kind,
    pub len: usize,
    /// Where in the sender's source.
    pub from: usize,
}

impl Job {
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::WriteImmediate)
    }
}

pub(crate) fn jobs(dice: &mut Dice) -> Vec<Job> {
    let mut messages = 0;
    // Where there are few messages, nearly all is done at once.
    let few = dice.chance(0.5);
    (0..JOBS)
        .map(|_| {
            let mut kind = match dice.below(12) {
                0..=2 => Kind::Send,
                3..=5 => Kind::Write,
                6 => Kind::WriteImmediate,
                7..=8 => Kind::Read,
                // The sum of all has one byte, which is not the poison.
                9 => Kind::Add(dice.below(9)),
                10 => Kind::WriteExtra,
                _ => Kind::ReadExtra,
            };
            if matches!(kind, Kind::Send | Kind::WriteImmediate) {
                messages += 1;
                if messages > RECEIVES || few && messages > 2 {
                    kind = Kind::Write;
                }
            }
            let most = if kind == Kind::Send && dice.chance(0.6) { LONG } else { PIECE };
            let len = match kind {
                Kind::Add(_) => 8,
                _ => dice.between(1, most as u64) as usize,
            };
            Job { kind, len, from: dice.below((LONG - len) as u64 + 1) as usize }
        })
        .collect()
}

/// One end of the connection.
pub(crate) struct Side {
    pub party: Party,
    pub id: Option<Arc<Id>>,
    pub endpoint: Endpoint,
    pub memory: Buffer,
    pub extra: Option<Buffer>,
    /// What the end sends; never changed.
    pub source: Vec<u8>,
    /// The extra region as the peer knows it, also when it is gone.
    pub extra_named: (u64, wire::Rkey),
    pub jobs: Vec<Job>,
    pub posted: usize,
    /// Requests that were posted when the peer had taken its extra region back.
    pub posted_before: usize,
    pub completed: usize,
    pub failed: Option<Status>,
    pub receives_posted: usize,
    pub received: usize,
    pub flushed: usize,
    /// What the end's memory held when its process died.
    pub left: Option<Vec<u8>>,
}

impl Side {
    pub(crate) fn new(party: Party, dice: &mut Dice, salt: u8) -> Self {
        let endpoint = Endpoint::new(&party.node);
        let memory = Buffer::new(&endpoint.pd, ALL, 0x10_0000, RIGHTS).unwrap();
        let source: Vec<u8> = (0..LONG).map(|n| ((n * 7 + (n >> 8)) as u8 ^ salt) & 0x7f).collect();
        memory.write(SOURCE, &source);
        let extra = Buffer::new(&endpoint.pd, PIECE, 0x100_0000, RIGHTS).unwrap();
        extra.write(0, &[salt & 0x7f; PIECE]);
        Self {
            party,
            id: None,
            endpoint,
            memory,
            extra_named: (extra.addr(), extra.key()),
            extra: Some(extra),
            source,
            jobs: jobs(dice),
            posted: 0,
            posted_before: usize::MAX,
            completed: 0,
            failed: None,
            receives_posted: 0,
            received: 0,
            flushed: 0,
            left: None,
        }
    }

    pub(crate) fn now(&self) -> std::time::Instant {
        stack::Env::now(&**self.party.node.env())
    }

    /// Whether its memory holds these bytes, or held them when it died.
    pub(crate) fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        match &self.left {
            Some(left) => left[at..].starts_with(bytes),
            None => self.memory.holds(at, bytes),
        }
    }

    pub(crate) fn post_receive(&mut self) {
        let n = self.receives_posted;
        if n == RECEIVES {
            return;
        }
        let sges = [self.memory.sge(INBOX + n * LONG, LONG)].into_iter().collect();
        self.endpoint.qp.post_receive(RecvWr { wr_id: n as u64, sges }).unwrap();
        self.receives_posted += 1;
    }

    pub(crate) fn post_send(&mut self, peer: (u64, wire::Rkey), extra: (u64, wire::Rkey)) {
        let n = self.posted;
        let Some(Job { kind, len, from }) = self.jobs.get(n).cloned() else { return };
        let (addr, rkey) = peer;
        let at = |place: usize| addr + place as u64;
        let ours = self.memory.sge(SOURCE + from, len);
        let landing = self.memory.sge(LANDINGS + n * PIECE, len);
        let (op, sge) = match kind {
            Kind::Send => (SendOp::Send(SendTail::None), ours),
            Kind::Write => (SendOp::Write { addr: at(AREAS + n * PIECE), rkey, immediate: None }, ours),
            Kind::WriteImmediate => {
                let immediate = Some([n as u8; 4]);
                (SendOp::Write { addr: at(AREAS + n * PIECE), rkey, immediate }, ours)
            }
            Kind::Read => (SendOp::Read { addr: at(SOURCE + from), rkey }, landing),
            Kind::Add(add) => {
                (SendOp::Atomic { addr: at(COUNTER), rkey, op: AtomicOp::FetchAdd(add) }, landing)
            }
            Kind::WriteExtra => (SendOp::Write { addr: extra.0, rkey: extra.1, immediate: None }, ours),
            Kind::ReadExtra => (SendOp::Read { addr: extra.0, rkey: extra.1 }, landing),
        };
        let data = Data::Sges([sge].into_iter().collect());
        let wr = SendWr { wr_id: n as u64, op, data, signaled: true, solicited: false, fence: false };
        match self.endpoint.qp.post_send(self.now(), wr) {
            Ok(()) => self.posted += 1,
            Err(PostError::Full) => {}
            Err(e) => panic!("{e}"),
        }
    }

    /// A completion of the send queue: in order, once, true, and no success after an error.
    pub(crate) fn sent(&mut self, peer: &Self, c: &Completion) {
        let n = self.completed;
        assert_eq!(c.wr_id, n as u64, "out of order, or not once: {c:?}");
        assert!(n < self.posted);
        self.completed += 1;
        let Job { kind, len, from } = &self.jobs[n];
        let (len, from) = (*len, *from);
        if c.status != Status::Success {
            let flushed = c.status == Status::WrFlush;
            let may_be_first = flushed || matches!(c.status, Status::RetryExceeded | Status::RemoteAccess);
            assert!(
                if self.failed.is_some() { flushed } else { may_be_first },
                "{c:?} after {:?}",
                self.failed
            );
            let of_extra = matches!(kind, Kind::WriteExtra | Kind::ReadExtra);
            assert!(c.status != Status::RemoteAccess || of_extra && peer.extra.is_none(), "{c:?}");
            self.failed = self.failed.or(Some(c.status));
            return;
        }
        assert_eq!(self.failed, None, "{c:?}");
        let landing = |bytes: &[u8]| self.memory.holds(LANDINGS + n * PIECE, bytes);
        let (ours, theirs) = (&self.source, &peer.source);
        match *kind {
            Kind::Send => {}
            Kind::Write | Kind::WriteImmediate => {
                assert!(peer.holds(AREAS + n * PIECE, &ours[from..from + len]), "{c:?} is not true")
            }
            Kind::Read => assert!(landing(&theirs[from..from + len]), "{c:?} is not true"),
            Kind::Add(_) => {
                let sum = self.jobs[..n].iter().fold(0_u64, |sum, job| match job.kind {
                    Kind::Add(add) => sum.wrapping_add(add),
                    _ => sum,
                });
                assert!(landing(&sum.to_ne_bytes()), "{c:?} is not true");
            }
            Kind::WriteExtra | Kind::ReadExtra => {
                assert!(n < self.posted_before, "{c:?}: the region was taken back before");
            }
        }
    }

    /// A completion of the receive queue.
    pub(crate) fn got(&mut self, peer: &Self, c: &Completion) {
        assert_eq!(c.wr_id as usize, self.received + self.flushed, "out of order, or not once: {c:?}");
        if c.status == Status::WrFlush {
            self.flushed += 1;
            return;
        }
        assert_eq!((c.status, self.flushed), (Status::Success, 0), "{c:?}");
        let mut messages = peer.jobs[..peer.posted].iter().enumerate().filter(|(_, job)| job.takes_receive());
        let Some((n, job)) = messages.nth(self.received) else { panic!("nobody sent {c:?}") };
        let theirs = &peer.source[job.from..job.from + job.len];
        let (opcode, at) = match job.kind {
            Kind::Send => (Completed::Receive, INBOX + self.received * LONG),
            _ => (Completed::ReceiveWriteImmediate, AREAS + n * PIECE),
        };
        assert_eq!((c.opcode, c.byte_len as usize), (opcode, job.len));
        assert!(self.memory.holds(at, theirs), "{c:?} is not true");
        self.received += 1;
    }

    pub(crate) fn is_over(&self) -> bool {
        let receives = self.received + self.flushed == self.receives_posted;
        self.endpoint.qp.state() == QpState::Error && self.completed == self.posted && receives
    }
}
