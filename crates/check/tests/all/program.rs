//! A program over a checker, with a queue pair and three regions.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use check::objects::{CompletionQueue, Domain, QueuePair, Region, SharedQueue};
use check::reads::Reads;
use check::{Checker, Completion, Direction, Element, Finding, Queue, Request, Rule, Site};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line(pub(crate) u32);

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "main (program.c:{})", self.0)
    }
}

impl Site for Line {
    fn innermost(&self) -> String {
        self.to_string()
    }
}

/// Memory of which each address has a digest, or which is unmapped, and queue pairs that may be
/// dead.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: RefCell<BTreeMap<u64, u64>>,
    pub(crate) is_dead: Cell<bool>,
    pub(crate) is_unconnected: Cell<bool>,
    pub(crate) is_unmapped: Cell<bool>,
    /// Completions that a queue holds and gives no event for.
    pub(crate) unannounced: Cell<u32>,
    pub(crate) reads: RefCell<BTreeMap<u64, Reads>>,
}

impl check::Program for Memory {
    fn digest(&self, addr: u64, _len: u64) -> Option<u64> {
        (!self.is_unmapped.get()).then(|| self.bytes.borrow().get(&addr).copied().unwrap_or_default())
    }
    fn executes(&self, _pair: u64) -> bool {
        !self.is_dead.get()
    }
    fn completes(&self, _pair: u64) -> bool {
        !self.is_unconnected.get()
    }
    fn unannounced(&self, _queue: u64) -> u32 {
        self.unannounced.get()
    }
    fn reads(&self, pair: u64) -> Option<Reads> {
        self.reads.borrow().get(&pair).copied()
    }
}

pub(crate) const DOMAIN: u64 = 1;
pub(crate) const QUEUE: u64 = 2;
pub(crate) const PAIR: u64 = 3;
pub(crate) const SHARED: u64 = 4;
pub(crate) const NUMBER: u32 = 17;
/// The region: 4096 bytes from 0x1000.
pub(crate) const KEY: u32 = 0x100;
/// A region without IBV_ACCESS_LOCAL_WRITE, and one of another domain.
pub(crate) const READ_ONLY: u32 = 0x200;
pub(crate) const FOREIGN: u32 = 0x300;

pub(crate) struct Program {
    pub(crate) checker: Checker<Line>,
    pub(crate) memory: Memory,
    pub(crate) line: u32,
}

impl Program {
    /// With a queue pair over a completion queue of 16 entries, and 3 regions.
    pub(crate) fn new() -> Self {
        let mut checker = Checker::default();
        checker.domain_made(DOMAIN, Domain { kind: "protection domain", made: Line(1) });
        checker.queue_made(QUEUE, CompletionQueue::new(16, Line(2)));
        let mut pair = QueuePair::new(NUMBER, Line(3));
        (pair.domain, pair.send_queue, pair.receive_queue, pair.max_inline) = (DOMAIN, QUEUE, QUEUE, 16);
        checker.pair_made(PAIR, pair);
        checker.shared_made(SHARED, SharedQueue::new(DOMAIN, Line(4)));
        for (key, domain, named, is_writable) in
            [(KEY, DOMAIN, 0x1000, true), (READ_ONLY, DOMAIN, 0x10_000, false), (FOREIGN, 99, 0x20_000, true)]
        {
            let made = Line(key);
            checker
                .region_made(key, Region { domain, addr: Some(named), named, len: 4096, is_writable, made });
        }
        Self { checker, memory: Memory::default(), line: 10 }
    }

    pub(crate) fn here(&mut self) -> Line {
        self.line += 1;
        Line(self.line)
    }

    pub(crate) fn post(
        &mut self,
        queue: Queue,
        name: &'static str,
        element: Element,
        is_signaled: bool,
    ) -> Vec<Rule> {
        let site = self.here();
        let direction = if matches!(name, "SEND" | "WRITE") { Direction::Reads } else { Direction::Writes };
        let request = Request {
            wr_id: u64::from(self.line),
            name,
            direction,
            is_inline: false,
            is_signaled,
            elements: &[element],
            remote: None,
        };
        rules(self.checker.posting(queue, &request, &self.memory, &site))
    }

    pub(crate) fn send(&mut self, addr: u64, len: u32) -> Vec<Rule> {
        self.post(Queue::Send(PAIR), "SEND", Element { addr, len, key: KEY }, true)
    }

    /// What is found about a SEND of 8 bytes.
    pub(crate) fn send_finds(&mut self, addr: u64, key: u32) -> Vec<Finding<Line>> {
        let site = self.here();
        let request = Request {
            wr_id: 1,
            name: "SEND",
            direction: Direction::Reads,
            is_inline: false,
            is_signaled: true,
            elements: &[Element { addr, len: 8, key }],
            remote: None,
        };
        self.checker.posting(Queue::Send(PAIR), &request, &self.memory, &site)
    }

    pub(crate) fn receive(&mut self, addr: u64, len: u32) -> Vec<Rule> {
        self.post(Queue::Receive(PAIR), "RECV", Element { addr, len, key: KEY }, true)
    }

    pub(crate) fn complete(&mut self, wr_id: u32, is_receive: bool) -> Vec<Finding<Line>> {
        self.end(wr_id, is_receive, None)
    }

    pub(crate) fn end(
        &mut self,
        wr_id: u32,
        is_receive: bool,
        failure: Option<(&'static str, u32)>,
    ) -> Vec<Finding<Line>> {
        let site = self.here();
        let completion =
            Completion { queue: QUEUE, number: NUMBER, wr_id: wr_id.into(), is_receive, failure, peer: None };
        self.checker.completed(&completion, &self.memory, &site)
    }
}

pub(crate) fn rules(findings: Vec<Finding<Line>>) -> Vec<Rule> {
    findings.into_iter().map(|finding| finding.rule).collect()
}
