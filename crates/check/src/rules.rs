//! The rules about requests: what is wrong with one that is posted or completed.

use crate::calls::{Direction, Element, Program, Queue, Refusal, Request};
use crate::checker::{Call, Checker};
use crate::finding::{Finding, Rule, Site};
use crate::name::Name;
use crate::objects::{Handle, Piece, Posted, Region};

/// Bytes of the global route header (GRH), which precede a datagram in its receive.
const GRH_BYTES: u64 = 40;

impl<S: Site> Checker<S> {
    /// Whether what was sent is what was posted.
    pub(crate) fn check_bytes(
        &mut self,
        posted: &Posted<S>,
        number: u32,
        program: &dyn Program,
        site: &S,
    ) -> Vec<Finding<S>> {
        let differs = |piece: &&Piece| {
            piece.digest.is_some_and(|before| program.digest(piece.addr, piece.len) != Some(before))
        };
        let Some(piece) = posted.pieces.iter().find(differs) else { return Vec::new() };
        let (name, Piece { len, addr, .. }) = (Name::on_pair(posted, number), *piece);
        let is_readable = program.digest(addr, len).is_some();
        let happened = if is_readable { "changed" } else { "were unmapped" };
        let what =
            format!("The {len} bytes at {addr:#x} of {name} {happened} before its completion was taken.");
        let calls = vec![("completion taken", site.clone()), ("posted", posted.site.clone())];
        self.report(Rule::SendBufferChanged, what, calls)
    }

    pub(crate) fn check_inline(&mut self, queue: Queue, request: &Request<'_>, site: &S) -> Vec<Finding<S>> {
        let Queue::Send(handle) = queue else { return Vec::new() };
        let Some(pair) = self.pairs.get(&handle) else { return Vec::new() };
        let len: u64 = request.elements.iter().map(|element| u64::from(element.len)).sum();
        if len <= u64::from(pair.max_inline) {
            return Vec::new();
        }
        let (name, asked) = (self.name(request, queue), pair.max_inline);
        let what = format!("{name} has {len} inline bytes; the queue pair was asked for {asked}.");
        let calls = vec![("posted", site.clone()), ("the queue pair was made", pair.made.clone())];
        self.report(Rule::MoreInlineThanAsked, what, calls)
    }

    /// Whether more requests are outstanding than their queue was asked to hold. Here a request
    /// leaves it when it is done; at other adapters when its completion, or a later one, is taken.
    /// Of a queue that refuses requests the program learns by the call, unless no completion can
    /// come.
    pub(crate) fn check_depth(&mut self, queue: Queue, is_posted: bool, site: &S) -> Vec<Finding<S>> {
        let (Queue::Send(handle) | Queue::Receive(handle)) = queue else { return Vec::new() };
        let Some(pair) = self.pairs.get(&handle) else { return Vec::new() };
        let (list, asked, what) = match queue {
            Queue::Send(_) => (&pair.sends, pair.max_sends, "sends"),
            _ => (&pair.receives, pair.max_receives, "receives"),
        };
        let (number, count) = (pair.number, list.len());
        if count <= asked as usize {
            return Vec::new();
        }
        let mut what =
            format!("{count} {what} are outstanding on queue pair {number}, which was asked for {asked}");
        let is_signaled = list.iter().any(|posted| posted.signaled);
        if is_signaled != is_posted {
            return Vec::new();
        }
        let rule = if is_signaled { Rule::MoreRequestsThanAsked } else { Rule::NeverSignaled };
        what.push_str(if is_signaled { "." } else { ", and none is signaled." });
        let calls = vec![("posted", site.clone()), ("the queue pair was made", pair.made.clone())];
        self.report(rule, what, calls)
    }

    /// Where an element of a request lies in the process; `None` where that is no memory of the
    /// program's.
    pub(crate) fn locate(
        &self,
        element: &Element,
        domain: Handle,
        name: Name,
        direction: Direction,
        site: &S,
    ) -> Result<Option<Piece>, Box<Finding<S>>> {
        let (Element { addr, key, .. }, len) = (*element, u64::from(element.len));
        let is_allowed = |region: &&Region<S>| {
            region.has(addr, len)
                && region.domain == domain
                && (direction == Direction::Reads || region.is_writable)
        };
        let Some(region) = self.regions.get(&key).filter(is_allowed) else {
            return Err(Box::new(self.unusable(element, domain, name, site)));
        };
        let at = addr.wrapping_sub(region.named);
        Ok(region.addr.map(|first| Piece { key, addr: first.wrapping_add(at), len, digest: None }))
    }

    /// Why the adapter cannot use an element of a request.
    fn unusable(&self, element: &Element, domain: Handle, name: Name, site: &S) -> Finding<S> {
        let Element { addr, key, len } = *element;
        let bytes = format!("The {len} bytes at {addr:#x} of {name}");
        let mut calls = vec![("posted", site.clone())];
        let Some(region) = self.regions.get(&key) else {
            if let Some(gone) = self.gone.region(key) {
                let what = format!("{bytes} bear lkey {key:#x}, whose memory region was deregistered.");
                calls.push(("the region was deregistered", gone.clone()));
                return Finding { rule: Rule::UnknownKey, what, calls };
            }
            let near = self.nearest(addr, &mut calls);
            let what = format!("{bytes} bear lkey {key:#x}, which is of no memory region.{near}");
            return Finding { rule: Rule::UnknownKey, what, calls };
        };
        if !region.has(addr, len.into()) {
            let near = self.nearest(addr, &mut calls);
            let what = format!("{bytes} are not all in the memory region of lkey {key:#x}.{near}");
            return Finding { rule: Rule::OutsideRegion, what, calls };
        }
        calls.push(("the region was registered", region.made.clone()));
        if region.domain != domain {
            let what = format!("{bytes} are in a region of another protection domain.");
            return Finding { rule: Rule::WrongDomain, what, calls };
        }
        let what = format!("{bytes} are in a region without IBV_ACCESS_LOCAL_WRITE.");
        Finding { rule: Rule::NoLocalWrite, what, calls }
    }

    /// The region that is nearest to an address, as a sentence, and the call that made it.
    pub(crate) fn nearest(&self, addr: u64, calls: &mut Vec<Call<S>>) -> String {
        let own = self.regions.iter().filter(|(_, region)| region.addr.is_some());
        let Some((key, region)) = own.min_by_key(|(_, region)| region.distance(addr)) else {
            return " No memory is registered.".to_owned();
        };
        calls.push(("the nearest region was registered", region.made.clone()));
        let (len, named) = (region.len, region.named);
        let away = match region.distance(addr) {
            0 => "the address is in it".to_owned(),
            n => format!("it is {n} bytes away"),
        };
        format!(" The nearest region, lkey {key:#x}, has {len} bytes from {named:#x}; {away}.")
    }

    pub(crate) fn check_overlap(
        &mut self,
        queue: Queue,
        request: &Request<'_>,
        piece: &Piece,
        program: &dyn Program,
        site: &S,
    ) -> Vec<Finding<S>> {
        let Piece { addr, len, .. } = *piece;
        let writes = request.direction == Direction::Writes;
        let over_written = self.written.overlapping(addr, len).find_map(|id| self.find(id, program));
        let over_read = || {
            let mut read = self.read.overlapping(addr, len).filter(|_| writes);
            read.find_map(|id| self.find(id, program))
        };
        let (rule, does) = match (writes, &over_written) {
            (true, Some(_)) => (Rule::OverlappingReceives, "writes to bytes that are written by"),
            (true, None) => (Rule::ReceiveOverSend, "writes to bytes that are sent by"),
            (false, _) => (Rule::ReceiveOverSend, "sends bytes that are written by"),
        };
        let Some((other, before)) = over_written.or_else(over_read) else { return Vec::new() };
        let calls = vec![("posted", site.clone()), ("the other was posted", before)];
        if self.is_reported(rule, &calls) {
            return Vec::new();
        }
        let name = self.name(request, queue);
        let what = format!("{name}, of {len} bytes at {addr:#x}, {does} {other}, which is outstanding.");
        self.report(rule, what, calls)
    }

    /// A request was refused as invalid, and why as far as the queue pair says.
    pub(crate) fn check_refused(
        &mut self,
        queue: Queue,
        posted: &Posted<S>,
        why: &Refusal,
        site: &S,
    ) -> Vec<Finding<S>> {
        let (Queue::Send(handle) | Queue::Receive(handle)) = queue else { return Vec::new() };
        let Some(pair) = self.pairs.get(&handle) else { return Vec::new() };
        let name = Name::on_pair(posted, pair.number);
        let (call, most, allowed) = match queue {
            Queue::Send(_) => ("ibv_post_send", pair.max_elements.0, ["RTS", "SQD", "SQE", "ERR"].as_slice()),
            _ => {
                ("ibv_post_recv", pair.max_elements.1, ["INIT", "RTR", "RTS", "SQD", "SQE", "ERR"].as_slice())
            }
        };
        let mut what = format!("{call} refused {name} with {}.", why.error);
        if !allowed.contains(&why.state) {
            what += &format!(" The queue pair is in {}.", why.state);
        }
        if posted.elements > most {
            what += &format!(" It has {} elements; the queue pair was asked for {most}.", posted.elements);
        }
        if posted.name.starts_with("ATOMIC") && posted.remote.is_some_and(|(at, _)| !at.is_multiple_of(8)) {
            what += " The peer's address of an atomic is a multiple of 8.";
        }
        if let Some(why) = why.why {
            what += &format!(" {why}");
        }
        let calls = vec![("posted", site.clone()), ("the queue pair was made", pair.made.clone())];
        self.report(Rule::RefusedRequest, what, calls)
    }

    /// Whether a receive of datagrams is shorter than the global route header, which comes before
    /// each.
    pub(crate) fn check_header(&mut self, queue: Queue, request: &Request<'_>, site: &S) -> Vec<Finding<S>> {
        let Queue::Receive(handle) = queue else { return Vec::new() };
        let Some(pair) = self.pairs.get(&handle).filter(|pair| pair.is_datagram) else { return Vec::new() };
        let len: u64 = request.elements.iter().map(|element| u64::from(element.len)).sum();
        if len >= GRH_BYTES {
            return Vec::new();
        }
        let (name, made) = (self.name(request, queue), pair.made.clone());
        let what = format!(
            "{name} has {len} bytes. The header takes {GRH_BYTES}, so each datagram is dropped in silence."
        );
        let calls = vec![("posted", site.clone()), ("the queue pair was made", made)];
        self.report(Rule::NoRoomForHeader, what, calls)
    }

    /// Counts a request of a queue, and says where the completion queue may be too short for all.
    pub(crate) fn expect(&mut self, queue: Queue, signaled: bool, site: &S) -> Vec<Finding<S>> {
        if let Queue::Send(handle) = queue
            && let Some(pair) = self.pairs.get_mut(&handle)
        {
            pair.has_signaled |= signaled;
        }
        let into = self.completes_into(queue);
        let Some(queue) = into.and_then(|into| self.queues.get_mut(&into)) else { return Vec::new() };
        queue.polls = 0;
        if !signaled {
            return Vec::new();
        }
        queue.expected += 1;
        if queue.expected <= queue.depth {
            return Vec::new();
        }
        let (expected, depth, made) = (queue.expected, queue.depth, queue.made.clone());
        let what = format!("{expected} completions may come before one is taken; the queue holds {depth}.");
        let calls = vec![("posted", site.clone()), ("the completion queue was made", made)];
        self.report(Rule::QueueMayOverrun, what, calls)
    }
}

/// What brings a status about (`enum ibv_wc_status`), in a sentence.
pub(crate) fn cause<S>(status: u32, posted: &Posted<S>) -> &'static str {
    match status {
        1 if posted.name == "RECV" => "The message was longer than the receive.",
        1 if posted.name == "ATOMIC" && posted.len != 8 => "The elements of an atomic have 8 bytes.",
        1 => "The request is longer than the path or the device allows.",
        2 => "The queue pair's type, state or attributes do not allow it.",
        4 => "An element is not in a region of its lkey that allows the access.",
        6 => "The memory window was not bound: the region or the rights did not allow it.",
        9 => "The peer refused it: its receive is too short, or its queue pair does not serve the operation.",
        10 => "At the peer no region or window of the rkey covers the bytes and allows the operation.",
        11 => "The peer could not execute it: the elements of its receive are not covered by their lkeys.",
        12 => "The peer did not answer: it has ended, or its queue pair was not ready to receive.",
        13 => "The peer had no receive posted for as long as rnr_retry and min_rnr_timer allow.",
        _ => "See ibv_poll_cq(3).",
    }
}
