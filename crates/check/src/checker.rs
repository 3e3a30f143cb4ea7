//! Objects and outstanding work requests, and what is wrong with them.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::calls::{Completion, Direction, Program, Queue, Refusal, Request};
use crate::finding::{Finding, Rule, Site};
use crate::gone::Gone;
use crate::name::{Name, QueueName};
use crate::objects::{CompletionQueue, Domain, Handle, Identifier, Posted, QueuePair, Region, SharedQueue};
use crate::ranges::Ranges;
use crate::reads::PeerServes;
use crate::rules::cause;

/// The status of requests that a queue pair gave up because of another one (IBV_WC_WR_FLUSH_ERR).
const FLUSHED: u32 = 5;
/// The status of a request whose own memory the adapter cannot use (IBV_WC_LOC_PROT_ERR).
const PROTECTION: u32 = 4;
/// The status of a request that the peer's memory does not allow (IBV_WC_REM_ACCESS_ERR).
const REMOTE_ACCESS: u32 = 10;

/// A call that has part in a finding: what it did, and where it is.
pub(crate) type Call<S> = (&'static str, S);

/// What is known of a program's objects and outstanding requests.
#[derive(Debug)]
pub struct Checker<S> {
    pub(crate) domains: BTreeMap<Handle, Domain<S>>,
    pub(crate) regions: BTreeMap<u32, Region<S>>,
    pub(crate) queues: BTreeMap<Handle, CompletionQueue<S>>,
    pub(crate) pairs: BTreeMap<Handle, QueuePair<S>>,
    pub(crate) shared: BTreeMap<Handle, SharedQueue<S>>,
    pub(crate) identifiers: BTreeMap<Handle, Identifier<S>>,
    /// Event channels: the calls that made them.
    pub(crate) channels: BTreeMap<Handle, S>,
    /// Queue pairs by number.
    pub(crate) numbers: BTreeMap<u32, Handle>,
    pub(crate) read: Ranges,
    pub(crate) written: Ranges,
    pub(crate) gone: Gone<S>,
    /// The completion queue that each thread polled last.
    pub(crate) polls: BTreeMap<u64, Handle>,
    /// Whether the program has asked what fork(2) needs.
    may_fork: bool,
    posted: u64,
    /// Findings that were reported, by what tells them apart.
    reported: HashSet<(Rule, Vec<S>)>,
}

impl<S> Default for Checker<S> {
    fn default() -> Self {
        Self {
            domains: BTreeMap::new(),
            regions: BTreeMap::new(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            shared: BTreeMap::new(),
            identifiers: BTreeMap::new(),
            channels: BTreeMap::new(),
            numbers: BTreeMap::new(),
            read: Ranges::default(),
            written: Ranges::default(),
            gone: Gone::default(),
            polls: BTreeMap::new(),
            may_fork: false,
            posted: 0,
            reported: HashSet::new(),
        }
    }
}

/// Objects made and destroyed.
impl<S: Site> Checker<S> {
    /// A protection domain was allocated.
    pub fn domain_made(&mut self, handle: Handle, domain: Domain<S>) {
        self.domains.insert(handle, domain);
    }
    /// A protection domain was deallocated.
    pub fn domain_gone(&mut self, handle: Handle) {
        self.domains.remove(&handle);
    }
    /// A region was registered, or registered anew.
    pub fn region_made(&mut self, key: u32, region: Region<S>) {
        self.regions.insert(key, region);
    }
    /// A region that is there.
    pub fn region_mut(&mut self, key: u32) -> Option<&mut Region<S>> {
        self.regions.get_mut(&key)
    }
    /// A region was deregistered.
    pub fn region_gone(&mut self, key: u32, site: &S) {
        self.regions.remove(&key);
        self.gone.region_gone(key, site);
    }
    /// The program has called ibv_fork_init(3), or asked whether that is needed.
    pub fn fork_prepared(&mut self) {
        self.may_fork = true;
    }
    /// The program forks.
    pub fn forking(&mut self, site: &S) -> Vec<Finding<S>> {
        let Some(region) = self.regions.values().find(|region| region.addr.is_some()) else {
            return Vec::new();
        };
        if self.may_fork {
            return Vec::new();
        }
        let what = format!("The process forked while {} memory regions were registered.", self.regions.len());
        let calls = vec![("forked", site.clone()), ("a region was registered", region.made.clone())];
        self.report(Rule::ForkUnprepared, what, calls)
    }
    /// A completion queue was made.
    pub fn queue_made(&mut self, handle: Handle, queue: CompletionQueue<S>) {
        self.queues.insert(handle, queue);
    }
    /// A completion queue has another depth.
    pub fn queue_resized(&mut self, handle: Handle, depth: u32) {
        if let Some(queue) = self.queues.get_mut(&handle) {
            queue.depth = depth;
        }
    }
    /// A completion queue was destroyed.
    pub fn queue_gone(&mut self, handle: Handle) {
        self.queues.remove(&handle);
    }
    /// A queue pair was made.
    pub fn pair_made(&mut self, handle: Handle, pair: QueuePair<S>) {
        self.numbers.insert(pair.number, handle);
        self.pairs.insert(handle, pair);
    }
    /// A queue pair was destroyed.
    pub fn pair_gone(&mut self, handle: Handle) {
        self.pair_reset(handle);
        if let Some(pair) = self.pairs.remove(&handle) {
            self.numbers.remove(&pair.number);
        }
    }
    /// A queue pair went to RESET: what it had posted is no more.
    pub fn pair_reset(&mut self, handle: Handle) {
        let Some(pair) = self.pairs.get_mut(&handle) else { return };
        let (sends, receives) = (std::mem::take(&mut pair.sends), std::mem::take(&mut pair.receives));
        let (send_queue, receive_queue) = (pair.send_queue, pair.receive_queue);
        pair.peer_serves = PeerServes::default();
        for (queue, all) in [(send_queue, sends), (receive_queue, receives)] {
            for posted in all {
                self.release(&posted);
                self.no_longer_expected(queue, posted.signaled);
            }
        }
    }
    /// A shared receive queue was made.
    pub fn shared_made(&mut self, handle: Handle, queue: SharedQueue<S>) {
        self.shared.insert(handle, queue);
    }
    /// A shared receive queue, or a work queue, was destroyed.
    pub fn shared_gone(&mut self, handle: Handle) {
        self.shared_reset(handle);
        self.shared.remove(&handle);
    }
    /// A work queue went to RESET: what it had posted is no more.
    pub fn shared_reset(&mut self, handle: Handle) {
        let Some(queue) = self.shared.get_mut(&handle) else { return };
        let (receives, into) = (std::mem::take(&mut queue.receives), queue.receive_queue);
        for posted in &receives {
            self.release(posted);
            if let Some(into) = into {
                self.no_longer_expected(into, true);
            }
        }
    }
    /// Whether a work queue executes receives from now on.
    pub fn work_queue_executes(&mut self, handle: Handle, executes: bool) {
        if let Some(queue) = self.shared.get_mut(&handle) {
            queue.executes = executes;
        }
    }

    /// A region is about to be deregistered.
    pub fn region_going(&mut self, key: u32, program: &dyn Program, site: &S) -> Vec<Finding<S>> {
        let uses = |posted: &&Posted<S>| posted.pieces.iter().any(|piece| piece.key == key);
        let of_pairs = self.pairs.iter().find_map(|(handle, pair)| {
            let mut all = pair.sends.iter().chain(&pair.receives);
            let posted = all.find(uses).filter(|_| program.executes(*handle))?;
            Some((Name::on_pair(posted, pair.number), posted.site.clone()))
        });
        let of_shared = || {
            let mut served = self.shared.iter().filter(|(handle, _)| self.is_served(**handle, program));
            served.find_map(|(_, queue)| {
                let posted = queue.receives.iter().find(uses)?;
                Some((Name::on_shared(posted, queue), posted.site.clone()))
            })
        };
        let Some((name, posted)) = of_pairs.or_else(of_shared) else { return Vec::new() };
        let what = format!("The memory region {key:#x} was deregistered under {name}, which is outstanding.");
        self.report(Rule::RegionInUse, what, vec![("deregistered", site.clone()), ("posted", posted)])
    }

    /// Whether a queue pair that executes requests takes receives from a shared queue, or it does
    /// by itself.
    fn is_served(&self, shared: Handle, program: &dyn Program) -> bool {
        let queue = self.shared.get(&shared);
        if queue.is_some_and(|queue| queue.executes) {
            return true;
        }
        let is_for_xrc = queue.is_some_and(|queue| queue.receive_queue.is_some());
        let takes = |pair: &QueuePair<S>| pair.shared == Some(shared) || is_for_xrc && pair.is_target;
        let mut pairs = self.pairs.iter().filter(|(_, pair)| takes(pair));
        pairs.any(|(handle, _)| program.executes(*handle))
    }
}

/// Requests posted and completed.
impl<S: Site> Checker<S> {
    /// A request is about to be posted.
    pub fn posting(
        &mut self,
        queue: Queue,
        request: &Request<'_>,
        program: &dyn Program,
        site: &S,
    ) -> Vec<Finding<S>> {
        let Some(domain) = self.domain_of(queue) else { return Vec::new() };
        let (mut findings, mut pieces) = (self.check_header(queue, request, site), Vec::new());
        if request.is_inline {
            findings.extend(self.check_inline(queue, request, site));
        } else {
            for element in request.elements.iter().filter(|element| element.len > 0) {
                match self.locate(element, domain, self.name(request, queue), request.direction, site) {
                    Ok(piece) => pieces.extend(piece),
                    Err(finding) => {
                        let Finding { rule, what, calls } = *finding;
                        findings.extend(self.report(rule, what, calls));
                    }
                }
            }
            for piece in &pieces {
                findings.extend(self.check_overlap(queue, request, piece, program, site));
            }
        }
        self.posted += 1;
        for piece in &mut pieces {
            match request.direction {
                Direction::Reads => {
                    piece.digest = program.digest(piece.addr, piece.len);
                    self.read.insert(piece.addr, piece.len, self.posted);
                }
                Direction::Writes => self.written.insert(piece.addr, piece.len, self.posted),
            }
        }
        let signaled = request.is_signaled || self.signals_all(queue);
        let posted = Posted {
            id: self.posted,
            name: request.name,
            wr_id: request.wr_id,
            signaled,
            remote: request.remote,
            direction: request.direction,
            elements: request.elements.len() as u32,
            len: request.elements.iter().map(|element| u64::from(element.len)).sum(),
            pieces,
            site: site.clone(),
        };
        if let Some(list) = self.list(queue) {
            list.push_back(posted);
        }
        findings.extend(self.check_depth(queue, false, site));
        findings.extend(self.expect(queue, signaled, site));
        findings.extend(self.check_reads(queue, program, site));
        findings
    }

    /// The requests of a call were posted.
    pub fn posted(&mut self, queue: Queue, site: &S) -> Vec<Finding<S>> {
        self.check_depth(queue, true, site)
    }

    /// The last `count` requests were refused; and why, where that is a mistake.
    pub fn refused(
        &mut self,
        queue: Queue,
        count: usize,
        why: Option<&Refusal>,
        site: &S,
    ) -> Vec<Finding<S>> {
        let mut first = None;
        for _ in 0..count {
            let Some(posted) = self.list(queue).and_then(VecDeque::pop_back) else { break };
            self.release(&posted);
            if let Some(into) = self.completes_into(queue) {
                self.no_longer_expected(into, posted.signaled);
            }
            first = Some(posted);
        }
        let (Some(posted), Some(why)) = (first, why) else { return Vec::new() };
        self.check_refused(queue, &posted, why, site)
    }

    /// A completion was taken.
    pub fn completed(
        &mut self,
        completion: &Completion<'_>,
        program: &dyn Program,
        site: &S,
    ) -> Vec<Finding<S>> {
        if let Some(queue) = self.queues.get_mut(&completion.queue) {
            queue.polls = 0;
        }
        let handle = self.numbers.get(&completion.number).copied();
        let done = match handle {
            _ if completion.is_receive => self.take_receive(handle, completion).into_iter().collect(),
            Some(handle) => self.take_sends(handle, completion),
            None => Vec::new(),
        };
        let mut findings = Vec::new();
        for posted in &done {
            self.release(posted);
            if completion.failure.is_none() {
                findings.extend(self.check_bytes(posted, completion.number, program, site));
            }
        }
        if let (Some((status, code)), Some(posted)) = (completion.failure, done.last())
            && code != FLUSHED
        {
            let (name, bytes) = (Name::on_pair(posted, completion.number), posted.len);
            let cause = cause(code, posted);
            let mut what = format!("{name}, of {bytes} bytes, ended with: {status}.\n{cause}");
            if let Some(peer) = completion.peer {
                peer.misfits.iter().for_each(|misfit| what.extend(["\n", misfit]));
                if let (REMOTE_ACCESS, Some((addr, right))) = (code, posted.remote) {
                    what += &format!("\n{}", peer.refusal(addr, posted.len, right));
                }
            }
            if code == PROTECTION
                && let Some(piece) = posted.pieces.iter().find(|piece| piece.is_unmapped(program))
            {
                what += &format!("\nThe {} bytes at {:#x} are not mapped any more.", piece.len, piece.addr);
            }
            let calls = vec![("completion taken", site.clone()), ("posted", posted.site.clone())];
            findings.extend(self.report(Rule::FailedRequest, what, calls));
        }
        findings
    }

    /// The sends that a completion ends: those before it gave none.
    fn take_sends(&mut self, handle: Handle, completion: &Completion<'_>) -> Vec<Posted<S>> {
        let Some(pair) = self.pairs.get_mut(&handle) else { return Vec::new() };
        let is_it = |posted: &Posted<S>| {
            posted.wr_id == completion.wr_id && (posted.signaled || completion.failure.is_some())
        };
        let Some(place) = pair.sends.iter().position(is_it) else { return Vec::new() };
        let (done, queue): (Vec<_>, _) = (pair.sends.drain(..=place).collect(), pair.send_queue);
        done.iter().for_each(|posted| self.no_longer_expected(queue, posted.signaled));
        done
    }

    /// The receive that a completion ends: of the queue pair, of its shared queue, or of a queue
    /// for XRC that completes into the same queue. The target may have several handles, or none
    /// here.
    fn take_receive(&mut self, handle: Option<Handle>, completion: &Completion<'_>) -> Option<Posted<S>> {
        let (wr_id, into) = (completion.wr_id, completion.queue);
        if let Some(posted) = handle.and_then(|handle| self.take_receive_of(handle, wr_id)) {
            return Some(posted);
        }
        let for_xrc = self.shared.values_mut().filter(|queue| queue.receive_queue == Some(into));
        let posted = for_xrc.into_iter().find_map(|queue| {
            let place = queue.receives.iter().position(|posted| posted.wr_id == wr_id)?;
            queue.receives.remove(place)
        })?;
        self.no_longer_expected(into, true);
        Some(posted)
    }

    fn take_receive_of(&mut self, handle: Handle, wr_id: u64) -> Option<Posted<S>> {
        let pair = self.pairs.get_mut(&handle)?;
        if let Some(place) = pair.receives.iter().position(|posted| posted.wr_id == wr_id) {
            let (posted, queue) = (pair.receives.remove(place), pair.receive_queue);
            self.no_longer_expected(queue, true);
            return posted;
        }
        let queue = self.shared.get_mut(&pair.shared?)?;
        let place = queue.receives.iter().position(|posted| posted.wr_id == wr_id)?;
        queue.receives.remove(place)
    }

    /// The request with an id, by name, and where it was posted; `None` where its queue pair does
    /// not execute it any more.
    pub(crate) fn find(&self, id: u64, program: &dyn Program) -> Option<(Name, S)> {
        let of_pairs = self.pairs.iter().find_map(|(handle, pair)| {
            let mut all = pair.sends.iter().chain(&pair.receives);
            let posted = all.find(|posted| posted.id == id).filter(|_| program.executes(*handle))?;
            Some((Name::on_pair(posted, pair.number), posted.site.clone()))
        });
        let of_shared = || {
            self.shared.values().find_map(|queue| {
                let posted = queue.receives.iter().find(|posted| posted.id == id)?;
                Some((Name::on_shared(posted, queue), posted.site.clone()))
            })
        };
        of_pairs.or_else(of_shared)
    }

    fn no_longer_expected(&mut self, queue: Handle, signaled: bool) {
        if let Some(queue) = self.queues.get_mut(&queue).filter(|_| signaled) {
            queue.expected = queue.expected.saturating_sub(1);
        }
    }

    /// The memory of a request is the program's again.
    fn release(&mut self, posted: &Posted<S>) {
        let ranges = match posted.direction {
            Direction::Reads => &mut self.read,
            Direction::Writes => &mut self.written,
        };
        posted.pieces.iter().for_each(|piece| ranges.remove(piece.addr, posted.id));
    }

    fn domain_of(&self, queue: Queue) -> Option<Handle> {
        match queue {
            Queue::Send(pair) | Queue::Receive(pair) => self.pairs.get(&pair).map(|pair| pair.domain),
            Queue::Shared(shared) => self.shared.get(&shared).map(|queue| queue.domain),
        }
    }

    fn list(&mut self, queue: Queue) -> Option<&mut VecDeque<Posted<S>>> {
        match queue {
            Queue::Send(pair) => self.pairs.get_mut(&pair).map(|pair| &mut pair.sends),
            Queue::Receive(pair) => self.pairs.get_mut(&pair).map(|pair| &mut pair.receives),
            Queue::Shared(shared) => self.shared.get_mut(&shared).map(|queue| &mut queue.receives),
        }
    }

    fn signals_all(&self, queue: Queue) -> bool {
        match queue {
            Queue::Send(pair) => self.pairs.get(&pair).is_some_and(|pair| pair.all_signaled),
            Queue::Receive(_) | Queue::Shared(_) => true,
        }
    }

    /// The completion queue of a queue's requests; those of a shared one complete in several,
    /// unless it is for XRC.
    pub(crate) fn completes_into(&self, queue: Queue) -> Option<Handle> {
        match queue {
            Queue::Send(pair) => self.pairs.get(&pair).map(|pair| pair.send_queue),
            Queue::Receive(pair) => self.pairs.get(&pair).map(|pair| pair.receive_queue),
            Queue::Shared(shared) => self.shared.get(&shared)?.receive_queue,
        }
    }

    pub(crate) fn name(&self, request: &Request<'_>, queue: Queue) -> Name {
        let queue = match queue {
            Queue::Send(pair) | Queue::Receive(pair) => {
                QueueName::Pair(self.pairs.get(&pair).map_or(0, |pair| pair.number))
            }
            Queue::Shared(shared) => {
                let kind = self.shared.get(&shared).map_or("shared receive queue", |queue| queue.kind);
                QueueName::Shared(kind)
            }
        };
        Name::new(request.name, request.wr_id, queue)
    }

    /// A finding, unless the same calls have brought about the same one before.
    pub(crate) fn report(&mut self, rule: Rule, what: String, calls: Vec<Call<S>>) -> Vec<Finding<S>> {
        let sites = calls.iter().map(|(_, site)| site.clone()).collect();
        if self.reported.insert((rule, sites)) { vec![Finding { rule, what, calls }] } else { Vec::new() }
    }

    /// Whether the same calls have brought about the same finding before. A program may do so with
    /// each message.
    pub(crate) fn is_reported(&self, rule: Rule, calls: &[Call<S>]) -> bool {
        let sites = calls.iter().map(|(_, site)| site.clone()).collect();
        self.reported.contains(&(rule, sites))
    }
}
