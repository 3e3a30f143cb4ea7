//! What a sender keeps of a path: the way that its packets take now, the rows that count them, and
//! the dice of drop rules. Each packet of a program passes here, however it is carried.

use wire::Pkey;

use super::rules::{PacketInfo, Rule};
use super::way::{End, Way};
use super::{Plane, SEED};
use crate::dice::Dice;
use crate::plane::rows::RowId;

/// What becomes of packets on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All arrive.
    Arrive,
    /// None does.
    Lost,
    /// Rules on the way decide of each packet: [`Passage::throw`].
    Dice,
}

/// A path from a port to a LID, for a sender that no other thread shares it with.
#[derive(Debug)]
pub struct Passage {
    /// The program's number with the fabric.
    owner: u32,
    from: u32,
    lid: u16,
    /// Of the plane when the way was found; `None` before that.
    generation: Option<u64>,
    way: Way,
    /// What becomes of packets of the default partition.
    verdict: Verdict,
    /// Whether packets of other partitions are looked at.
    looks_at_partitions: bool,
    /// The row of packets that go all of the way; `None` where none was free.
    row: Option<RowId>,
    /// For each rule of the way the row of packets that it takes.
    lost: Vec<Option<RowId>>,
    dice: Dice,
}

impl Passage {
    /// The path from a port to a LID of the program that has this number with the fabric.
    pub fn new(plane: Plane<'_>, owner: u32, from: u32, lid: u16) -> Self {
        let seed = plane.load(SEED) ^ u64::from(from) << 16 ^ u64::from(lid);
        let way = Way { hops: Vec::new(), end: End::Astray, rules: Vec::new() };
        let (verdict, dice) = (Verdict::Lost, Dice::new(seed));
        let (row, lost, looks_at_partitions) = (None, Vec::new(), false);
        Self { owner, from, lid, generation: None, way, verdict, looks_at_partitions, row, lost, dice }
    }

    /// What becomes of packets of the default partition that are sent now. One that has no row is
    /// lost: the fabric could not count it.
    #[inline]
    pub fn verdict(&mut self, plane: Plane<'_>) -> Verdict {
        let generation = plane.generation();
        if self.generation != Some(generation) {
            self.find(plane, generation);
        }
        self.verdict
    }

    /// Whether a verdict is not of packets of other partitions: [`Passage::throw`] decides of each.
    #[inline]
    pub fn looks_at_partitions(&self) -> bool {
        self.looks_at_partitions
    }

    /// Has one packet take its way, and counts it: whether it arrives.
    pub fn pass(&mut self, plane: Plane<'_>, packet: &PacketInfo) -> bool {
        let verdict = self.verdict(plane);
        let is_looked_at = self.looks_at_partitions && packet.pkey != Pkey::default();
        if verdict == Verdict::Dice || (verdict == Verdict::Arrive && is_looked_at) {
            return self.throw(plane, packet);
        }
        self.count(plane, 1, packet.words);
        verdict == Verdict::Arrive
    }

    /// The port at the end of the way, as the last [`Passage::verdict`] has found it.
    pub fn end(&self) -> Option<u32> {
        if let End::Arrived(port) = self.way.end { Some(port) } else { None }
    }

    /// Counts packets that the last verdict was of, also those that are lost.
    #[inline]
    pub fn count(&mut self, plane: Plane<'_>, packets: u64, words: u64) {
        if let Some(row) = self.row {
            plane.add_to_row(row, packets, words);
        }
    }

    /// Decides of one packet by the rules of the way, and counts it: whether it arrives.
    pub fn throw(&mut self, plane: Plane<'_>, packet: &PacketInfo) -> bool {
        let Self { way, dice, .. } = self;
        let taken = way.rules.iter().position(|rule| rule.takes(plane, dice, packet));
        let row = taken.map_or(self.row, |rule| self.lost.get(rule).copied().flatten());
        if let Some(row) = row {
            plane.add_to_row(row, 1, packet.words);
        }
        taken.is_none()
    }

    #[cold]
    fn find(&mut self, plane: Plane<'_>, generation: u64) {
        let way = plane.walk(self.from, self.lid);
        if self.generation.is_none() || way != self.way {
            self.give_back(plane);
            self.row = plane.take_row(self.owner, &way.hops, way.end);
            let arrives = matches!(way.end, End::Arrived(_));
            let rules = way.rules.iter().filter(|_| arrives).map(|rule| way.taken_by(rule));
            self.lost = rules.map(|(hops, end)| plane.take_row(self.owner, hops, end)).collect();
            self.way = way;
        }
        let rules = &self.way.rules;
        self.looks_at_partitions = rules.iter().any(Rule::looks_at_partitions);
        self.verdict = match self.way.end {
            End::Arrived(_) if self.row.is_none() => Verdict::Lost,
            End::Arrived(_) if rules.iter().all(|rule| rule.is_open(plane)) => Verdict::Arrive,
            End::Arrived(_) => Verdict::Dice,
            _ => Verdict::Lost,
        };
        self.generation = Some(generation);
    }

    /// Gives its rows back. The next packet finds its way anew.
    pub fn give_back(&mut self, plane: Plane<'_>) {
        for row in self.lost.drain(..).chain([self.row.take()]).flatten() {
            plane.give_row_back(row, self.owner);
        }
        self.generation = None;
    }
}
