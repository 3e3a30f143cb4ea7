//! READs and atomics that the peer does not serve: a responder has resources for so many at a time
//! (IBA 1.4 §9.7.4.1), and the requester is to send no more.

use crate::calls::{Program, Queue};
use crate::checker::{Call, Checker};
use crate::finding::{Finding, Rule, Site};
use crate::objects::{Handle, QueuePair};

/// READs and atomics of a connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// Requests of its own that may be under way at a time (`max_rd_atomic`).
    pub sent: u8,
    /// Requests of the peer that it serves at a time (`max_dest_rd_atomic`).
    pub served: u8,
    /// The peer's queue pair number.
    pub peer: u32,
}

/// What is known of the READs and atomics that the peer of a queue pair serves.
#[derive(Debug)]
pub(crate) struct PeerServes<S> {
    /// The number that its process has told.
    told: Option<u8>,
    /// Whether its process was asked.
    is_asked: bool,
    /// The depth that rdma_accept(3) was asked for, the one of the request, and the call.
    accepted: Option<(u8, u8, S)>,
}

impl<S> Default for PeerServes<S> {
    fn default() -> Self {
        Self { told: None, is_asked: false, accepted: None }
    }
}

/// Whether a request of this name takes a resource of the responder.
fn takes_resource(name: &str) -> bool {
    matches!(name, "RDMA READ" | "ATOMIC" | "ATOMIC WRITE")
}

fn outstanding<S>(pair: &QueuePair<S>) -> usize {
    pair.sends.iter().filter(|posted| takes_resource(posted.name)).count()
}

impl<S: Site> Checker<S> {
    /// The program accepts a connection: by rdma_accept(3) with this `initiator_depth`, where the
    /// request has that one.
    pub fn accepted(&mut self, pair: Handle, asked: u8, offered: u8, site: &S) {
        if let Some(pair) = self.pairs.get_mut(&pair) {
            pair.peer_serves.accepted = Some((asked, offered, site.clone()));
        }
    }

    /// The number of a queue pair whose peer is to be asked what it serves; once for each.
    pub fn peer_wanted(&mut self, queue: Queue, program: &dyn Program) -> Option<u32> {
        let Queue::Send(handle) = queue else { return None };
        let pair = self.pairs.get(&handle)?;
        let is_one_of_them = pair.sends.back().is_some_and(|posted| takes_resource(posted.name));
        if !is_one_of_them || pair.peer_serves.is_asked || outstanding(pair) < 2 {
            return None;
        }
        let reads = program.reads(handle).filter(|reads| reads.sent >= 2)?;
        let is_own = self.own_peer(handle, &reads, program).is_some();
        let pair = self.pairs.get_mut(&handle)?;
        pair.peer_serves.is_asked = true;
        (!is_own).then_some(pair.number)
    }

    /// The peer of a queue pair serves so many READs and atomics at a time.
    pub fn peer_serves(
        &mut self,
        queue: Queue,
        served: u8,
        program: &dyn Program,
        site: &S,
    ) -> Vec<Finding<S>> {
        let Queue::Send(handle) = queue else { return Vec::new() };
        if let Some(pair) = self.pairs.get_mut(&handle) {
            pair.peer_serves.told = Some(served);
        }
        self.check_reads(queue, program, site)
    }

    /// Whether more READs and atomics may be under way than the peer serves, once the last request
    /// is posted.
    pub(crate) fn check_reads(&mut self, queue: Queue, program: &dyn Program, site: &S) -> Vec<Finding<S>> {
        let Queue::Send(handle) = queue else { return Vec::new() };
        let Some(pair) = self.pairs.get(&handle) else { return Vec::new() };
        let Some(last) = pair.sends.back().filter(|posted| takes_resource(posted.name)) else {
            return Vec::new();
        };
        let Some(reads) = program.reads(handle) else { return Vec::new() };
        let (name, wr_id, number, count) = (last.name, last.wr_id, pair.number, outstanding(pair));
        let PeerServes { told, accepted, .. } = &pair.peer_serves;
        let served = self.own_peer(handle, &reads, program).or(*told);
        let mut calls: Vec<Call<S>> = vec![("posted", site.clone())];
        let beyond = |sent: u8, served: u8| count.min(sent.into()) > served.into();
        let why = if let Some((asked, offered, accept)) = accepted.clone().filter(|(a, o, _)| beyond(*a, *o))
        {
            calls.push(("accepted", accept));
            format!("rdma_accept has asked for an initiator_depth of {asked}; the request allows {offered}.")
        } else if reads.sent == 0 {
            "The queue pair's max_rd_atomic is 0: it sends no READ and no atomic.".to_owned()
        } else if let Some(served) = served.filter(|served| beyond(reads.sent, *served)) {
            let sent = reads.sent;
            format!(
                "{count} are outstanding, and max_rd_atomic is {sent}; the peer's max_dest_rd_atomic is {served}."
            )
        } else {
            return Vec::new();
        };
        let what = format!("{name} {wr_id} on queue pair {number} is more than the peer serves.\n{why}");
        self.report(Rule::MoreReadsThanServed, what, calls)
    }

    /// What the peer of a queue pair serves, where it is a queue pair of this process.
    fn own_peer(&self, handle: Handle, reads: &Reads, program: &dyn Program) -> Option<u8> {
        let number = self.pairs.get(&handle)?.number;
        let peer = program.reads(*self.numbers.get(&reads.peer)?)?;
        (peer.peer == number).then_some(peer.served)
    }
}
