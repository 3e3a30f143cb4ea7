//! Packets to multicast LIDs: the tree of their ways through the multicast forwarding tables (IBA
//! 1.4 §18.2.4.3.3), and the programs at the ports of its leaves.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use wire::Mtu;

use super::rows::RowId;
use super::rules::{PacketInfo, Rule};
use super::way::End;
use super::{MULTICAST_WORDS, Plane, USED_MEMBERS};
use crate::dice::Dice;
use crate::route::MAX_ROUTE;
use crate::subnet::MULTICAST_CAP;

/// The first multicast LID (IBA 1.4 §4.1.3).
const FIRST_MULTICAST: u16 = 0xc000;
/// Links of a tree at most: more are lost.
const MAX_LINKS: usize = 8192;
/// Programs at ports, each with each of its blocks of queue pair numbers.
pub(super) const MAX_MEMBERS: u32 = 16_384;
/// A member's word: the port, the block, the program.
const BLOCK_SHIFT: u32 = 24;
const PROGRAM_SHIFT: u32 = 36;

/// A path from a port to a group, which senders share.
#[derive(Debug)]
pub struct GroupPassage {
    owner: u32,
    from: u32,
    lid: u16,
    generation: Option<u64>,
    branches: Vec<Branch>,
    dice: Dice,
}

/// What comes to a port at the end of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The port, by its number in the plane.
    pub port: u32,
    /// Which packets, in the order in which they were sent; `None` where all arrive.
    pub packets: Option<Vec<bool>>,
}

/// The part of a tree that packets reach together. What lies behind a link with rules is another
/// one.
#[derive(Debug, Default)]
struct Branch {
    /// The branch before it; none of the first one.
    parent: Option<usize>,
    /// The rules of its first link, each with the row of what it takes.
    rules: Vec<(Rule, Option<RowId>)>,
    links: Vec<u32>,
    ends: Vec<u32>,
    /// Where packets are lost.
    lost: Vec<End>,
    rows: Vec<RowId>,
}

/// A tree while it grows.
struct Tree {
    branches: Vec<Branch>,
    links: usize,
    /// The MTU of the first link.
    largest: Option<Mtu>,
    /// Ports that are reached, each with its branch.
    next: VecDeque<(u32, usize)>,
}

/// A program at a port, for as long as it is there.
#[derive(Debug)]
pub struct Member {
    slot: u32,
    says: u64,
}

impl GroupPassage {
    /// The path from a port to a group.
    pub const fn new(owner: u32, from: u32, lid: u16) -> Self {
        let dice = Dice::new((from as u64) << 16 ^ lid as u64);
        Self { owner, from, lid, generation: None, branches: Vec::new(), dice }
    }

    /// Counts packets that are sent now, and gives the ports that they come to.
    pub fn pass(&mut self, plane: Plane<'_>, packets: &[PacketInfo]) -> Vec<Arrival> {
        let generation = plane.generation();
        if self.generation != Some(generation) {
            self.give_back(plane);
            self.branches = plane.grow(self.from, self.lid);
            self.take_rows(plane);
            self.generation = Some(generation);
        }
        let mut passed: Vec<Option<Vec<bool>>> = Vec::with_capacity(self.branches.len());
        for branch in &self.branches {
            let before = branch.parent.and_then(|parent| passed.get(parent).cloned().flatten());
            passed.push(branch.pass(plane, &mut self.dice, before, packets));
        }
        let arrivals = self.branches.iter().zip(passed).flat_map(|(branch, packets)| {
            branch.ends.iter().map(move |port| Arrival { port: *port, packets: packets.clone() })
        });
        arrivals.collect()
    }

    /// Takes rows for all of the tree. What cannot be counted does not pass.
    fn take_rows(&mut self, plane: Plane<'_>) {
        let take = |links: &[u32], end| plane.take_row(self.owner, links, end);
        let all = self.branches.iter_mut().all(|branch| branch.take_rows(take));
        if !all {
            self.give_rows_back(plane);
        }
    }

    /// Gives its rows back. The next packet finds its way anew.
    pub fn give_back(&mut self, plane: Plane<'_>) {
        self.give_rows_back(plane);
        self.generation = None;
    }

    fn give_rows_back(&mut self, plane: Plane<'_>) {
        let rows = self.branches.iter().flat_map(|branch| {
            let taken = branch.rules.iter().filter_map(|(_, row)| *row);
            branch.rows.iter().copied().chain(taken)
        });
        rows.for_each(|row| plane.give_row_back(row, self.owner));
        self.branches.clear();
    }
}

impl Branch {
    /// Takes a row for its links, for each place where packets are lost, and for each rule; false
    /// where there are too few.
    fn take_rows(&mut self, take: impl Fn(&[u32], End) -> Option<RowId>) -> bool {
        let whole = self.links.chunks(MAX_ROUTE).map(|links| take(links, End::Astray));
        for row in whole.chain(self.lost.iter().map(|end| take(&[], *end))) {
            let Some(row) = row else { return false };
            self.rows.push(row);
        }
        for (rule, row) in &mut self.rules {
            let (has_passed, end) = rule.end();
            *row = take(if has_passed { std::slice::from_ref(&rule.out) } else { &[] }, end);
        }
        self.rules.iter().all(|(_, row)| row.is_some())
    }

    /// Counts those of packets that come here, of which rules take some; which go on.
    fn pass(
        &self,
        plane: Plane<'_>,
        dice: &mut Dice,
        before: Option<Vec<bool>>,
        packets: &[PacketInfo],
    ) -> Option<Vec<bool>> {
        let comes = |n: usize| before.as_ref().is_none_or(|before| before.get(n) == Some(&true));
        let mut goes_on = |n: usize, packet: &PacketInfo| {
            let taken = comes(n).then(|| self.rules.iter().find(|(rule, _)| rule.takes(plane, dice, packet)));
            let row = taken.flatten().and_then(|(_, row)| *row);
            row.into_iter().for_each(|row| plane.add_to_row(row, 1, packet.words));
            taken == Some(None)
        };
        let goes_on: Vec<bool> = packets.iter().enumerate().map(|(n, packet)| goes_on(n, packet)).collect();
        let (mut many, mut words) = (0, 0);
        for (packet, _) in packets.iter().zip(&goes_on).filter(|(_, goes_on)| **goes_on) {
            (many, words) = (many + 1, words + packet.words);
        }
        self.rows.iter().for_each(|row| plane.add_to_row(*row, many, words));
        (before.is_some() || !self.rules.is_empty()).then_some(goes_on)
    }
}

impl Plane<'_> {
    /// The tree of packets from a port to a group. Each port takes them in once.
    fn grow(&self, from: u32, lid: u16) -> Vec<Branch> {
        let branches = vec![Branch::default()];
        let mut tree = Tree { branches, links: 0, largest: None, next: VecDeque::new() };
        let mut taken = BTreeSet::new();
        self.leave(from, 0, &mut tree);
        while let Some((at, branch)) = tree.next.pop_front() {
            let node = self.port(at).and_then(|port| self.node(port.node));
            let Some(node) = node.filter(|_| taken.insert(at)) else { continue };
            let Some(switch) = node.switch else {
                tree.branches[branch].ends.push(at);
                continue;
            };
            let ports = self.multicast(switch, lid);
            if ports == [0; MULTICAST_WORDS] {
                tree.branches[branch].lost.push(End::NoRelay(at));
            }
            for number in 1..=node.ports {
                let is_out = ports[usize::from(number) / 64] >> (number % 64) & 1 != 0;
                let out = node.first.saturating_add(number.into());
                if is_out && out != at && tree.links < MAX_LINKS {
                    self.leave(out, branch, &mut tree);
                }
            }
        }
        tree.branches
    }

    fn leave(&self, out: u32, from: usize, tree: &mut Tree) {
        let port = self.port(out).filter(|port| port.is_linked && port.is_active);
        let Some((port, peer)) = port.and_then(|port| Some((port, port.peer?))) else {
            return tree.branches[from].lost.push(End::Discarded(out));
        };
        let largest = *tree.largest.get_or_insert(port.mtu);
        let rules: Vec<_> =
            Rule::of_link(*self, 0, (out, &port), peer, largest).map(|rule| (rule, None)).collect();
        let mut branch = from;
        if !rules.is_empty() {
            branch = tree.branches.len();
            tree.branches.push(Branch { parent: Some(from), rules, ..Branch::default() });
        }
        tree.branches[branch].links.push(out);
        tree.links += 1;
        tree.next.push_back((peer, branch));
    }

    /// The ports out of a switch to a group, a bit each.
    fn multicast(&self, switch: u32, lid: u16) -> [u64; MULTICAST_WORDS] {
        match lid.checked_sub(FIRST_MULTICAST).filter(|index| *index < MULTICAST_CAP) {
            Some(index) => {
                let at = self.layout.multicast(switch, index);
                std::array::from_fn(|n| self.load(at + n))
            }
            None => [0; MULTICAST_WORDS],
        }
    }

    /// Writes sixteen ports of a group: those from `position` * 16 on.
    pub(super) fn set_multicast(&self, switch: u32, index: u16, position: u32, ports: u16) {
        if index >= MULTICAST_CAP || position >= 16 {
            return;
        }
        let at = self.layout.multicast(switch, index) + position as usize / 4;
        let shift = position % 4 * 16;
        self.store(at, self.load(at) & !(0xffff << shift) | u64::from(ports) << shift);
    }

    /// A program takes what comes to a group at a port, by the block of its queue pairs. `None`
    /// where there are too many.
    pub fn add_member(&self, program: u32, port: u32, block: u16) -> Option<Member> {
        let says =
            u64::from(port + 1) | u64::from(block) << BLOCK_SHIFT | u64::from(program) << PROGRAM_SHIFT;
        let used = self.words.get(USED_MEMBERS)?;
        let slot = (0..MAX_MEMBERS).find(|slot| {
            used.fetch_max(u64::from(*slot) + 1, AcqRel);
            let word = self.words.get(self.layout.member(*slot));
            word.is_some_and(|word| word.compare_exchange(0, says, AcqRel, Relaxed).is_ok())
        })?;
        Some(Member { slot, says })
    }

    /// A program takes nothing there any more.
    pub fn remove_member(&self, member: &Member) {
        if let Some(word) = self.words.get(self.layout.member(member.slot)) {
            let _ = word.compare_exchange(member.says, 0, AcqRel, Relaxed);
        }
    }

    /// The blocks of the programs at a port.
    pub fn members(&self, port: u32) -> impl Iterator<Item = u16> {
        self.member_words().filter_map(move |(_, says)| {
            let is_there = says as u32 & ((1 << BLOCK_SHIFT) - 1) == port + 1;
            is_there.then_some((says >> BLOCK_SHIFT) as u16 & 0xfff)
        })
    }

    fn member_words(&self) -> impl Iterator<Item = (u32, u64)> {
        let many = self.words.get(USED_MEMBERS).map_or(0, |used| used.load(Acquire));
        let many = u32::try_from(many).unwrap_or(u32::MAX).min(MAX_MEMBERS);
        (0..many).map(|slot| (slot, self.load(self.layout.member(slot))))
    }

    /// A program has ended.
    pub(super) fn remove_members_of(&self, program: u32) {
        let is_its = |says: &u64| *says != 0 && says >> PROGRAM_SHIFT == u64::from(program) & 0xfff_ffff;
        for (slot, says) in self.member_words().filter(|(_, says)| is_its(says)) {
            self.remove_member(&Member { slot, says });
        }
    }
}
