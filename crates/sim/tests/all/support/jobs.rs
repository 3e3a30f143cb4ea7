//! Random work for a reliable connection, and what it must leave.

use nic::Buffer;
use sim::Dice;
use transport::Sge;

/// Areas that WRITEs go to and READs come from.
pub(crate) const AREAS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write(usize),
    /// A READ of an area that WRITEs change.
    Read(usize),
    FetchAdd(u64),
}

/// A work request and what it must do.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub kind: Kind,
    pub len: usize,
    /// Where in the sender's source its bytes are; for a READ, where in the area.
    pub from: usize,
    pub immediate: Option<[u8; 4]>,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub inline: bool,
    /// What a READ or atomic must return.
    pub returns: Vec<u8>,
}

impl Job {
    pub(crate) fn takes_receive(&self) -> bool {
        self.kind == Kind::Send || matches!(self.kind, Kind::Write(_)) && self.immediate.is_some()
    }
}

/// Random jobs with messages of `max` bytes at most, whose bytes come from `source`.
pub(crate) fn jobs(dice: &mut Dice, max: usize, source: &[u8]) -> Vec<Job> {
    let mut model = vec![vec![0; max]; AREAS];
    let mut being_read = [false; AREAS];
    let mut counter = 0u64;
    let count = dice.between(3, if max > 16_384 { 16 } else { 32 });
    (1..=count)
        .map(|n| {
            let len = match dice.below(5) {
                0 => dice.below(9) as usize,
                1 => max - dice.below(4) as usize,
                _ => dice.below(max as u64 + 1) as usize,
            };
            let from = dice.below((source.len() - len) as u64 + 1) as usize;
            let mut job = Job {
                kind: Kind::Send,
                len,
                from,
                immediate: dice.chance(0.4).then(|| (dice.bits() as u32).to_be_bytes()),
                // The last one tells that all are done.
                signaled: n == count || dice.chance(0.7),
                solicited: dice.chance(0.3),
                fence: dice.chance(0.1),
                inline: len <= 256 && dice.chance(0.5),
                returns: Vec::new(),
            };
            let area = dice.below(AREAS as u64) as usize;
            match dice.below(8) {
                0..=2 => {}
                3 | 4 => {
                    job.kind = Kind::Write(area);
                    // A WRITE may overtake a READ posted before it (IBA 1.4 table 79): not where it
                    // changes what is read.
                    job.fence |= being_read[area];
                    model[area][..len].copy_from_slice(&source[from..from + len]);
                }
                5 | 6 => {
                    job.kind = Kind::Read(area);
                    job.from = dice.below((max - len) as u64 + 1) as usize;
                    job.returns = model[area][job.from..job.from + len].to_vec();
                }
                _ => {
                    let add = dice.bits();
                    job.kind = Kind::FetchAdd(add);
                    job.len = 8;
                    job.returns = counter.to_ne_bytes().to_vec();
                    counter = counter.wrapping_add(add);
                }
            }
            if job.fence {
                being_read = [false; AREAS];
            }
            if matches!(job.kind, Kind::Read(_) | Kind::FetchAdd(_)) {
                // Looked at when it completes.
                (job.signaled, job.inline, job.immediate) = (true, false, None);
            }
            if let Kind::Read(area) = job.kind {
                being_read[area] = true;
            }
            job
        })
        .collect()
}

/// Work without what iWARP has not: immediate data and atomics.
pub(crate) fn of_iwarp(mut jobs: Vec<Job>) -> Vec<Job> {
    for job in &mut jobs {
        job.immediate = None;
        if matches!(job.kind, Kind::FetchAdd(_)) {
            (job.kind, job.from, job.returns) = (Kind::Send, 0, Vec::new());
        }
    }
    jobs
}

/// What a job leaves in its target's areas.
pub(crate) fn apply(model: &mut [Vec<u8>], job: &Job, source: &[u8]) {
    if let Kind::Write(area) = job.kind {
        model[area][..job.len].copy_from_slice(&source[job.from..job.from + job.len]);
    }
}

/// Cuts a range into one to three elements.
pub(crate) fn pieces(dice: &mut Dice, buffer: &Buffer, at: usize, len: usize) -> Vec<Sge> {
    let (a, b) = (dice.below(len as u64 + 1) as usize, dice.below(len as u64 + 1) as usize);
    let (a, b) = (a.min(b), a.max(b));
    match dice.below(3) {
        0 => vec![buffer.sge(at, len)],
        1 => vec![buffer.sge(at, a), buffer.sge(at + a, len - a)],
        _ => vec![buffer.sge(at, a), buffer.sge(at + a, b - a), buffer.sge(at + b, len - b)],
    }
}
