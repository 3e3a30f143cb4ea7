//! Listeners and the requests that wait at them.
//!
//! **Turns.** A program is handed one request of a listener at a time: the next comes once the
//! program has begun to serve the one before (gave it a queue pair, accepted, rejected or destroyed
//! it), or did not for a while. Adapters take tens of microseconds between two requests, and
//! programs count on it without knowing: one that passes requests from the thread that reads events
//! to the thread that serves them through a single variable (`rping -P` does) loses one when two
//! come at once. The while starts at [`COLLECT_TIMEOUT`] and halves each time it passes in vain, so
//! a program that collects requests before it serves them is not held up; it doubles back when a
//! request was begun in time.
//!
//! A listener [out of turn](crate::Node::serve_out_of_turn) hands out the next as soon as the one
//! before was fetched.
//!
//! **Backlog.** A request takes a place from its arrival until the program fetches its event. One
//! that finds no place waits for one, because bursts pass; after [`FULL_FOR`] it is refused (REJ,
//! no resources). Those that wait at one listener, places or none, are at most [`MAX_BACKLOG`] and
//! at most its share of half of [`MAX_PENDING`].

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cm::Service;
use nic::rdma_cm::MAX_BACKLOG;

use crate::address::family_fits;
use crate::cm_agent::{Core, ListenKey};
use crate::event::Event;
use crate::id::Id;

/// Longest wait for the program to begin with a request.
pub const COLLECT_TIMEOUT: Duration = Duration::from_millis(64);
/// What the timeout shrinks to with a program that collects requests.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// How long a request may find the backlog full; less than the time after which any peer repeats or
/// gives up.
pub const FULL_FOR: Duration = Duration::from_secs(2);
/// Requests that a device knows and no program has answered, at all listeners together.
pub const MAX_PENDING: usize = 4096;
/// What a listener may have waiting however many listeners there are.
const LEAST_SHARE: usize = 8;

/// A request that the program cannot see yet.
#[derive(Debug)]
struct Waiting {
    event: Event,
    /// When it is refused if the backlog is still full.
    until: Instant,
}

/// Whose turn it is.
#[derive(Debug)]
enum Turn {
    /// The next one's.
    Free,
    /// The turn of this identifier's request, which lies in the channel.
    Offered(Arc<Id>),
    /// The turn of this identifier's request, which the program has; until then.
    Fetched(Arc<Id>, Instant),
}

/// A listener and the requests that wait at it.
#[derive(Debug)]
pub(crate) struct Listener {
    pub id: Arc<Id>,
    backlog: usize,
    waiting: VecDeque<Waiting>,
    turn: Turn,
    /// Whether requests come in turns.
    in_turns: bool,
    timeout: Duration,
}

impl Listener {
    /// A backlog of 0 or above [`MAX_BACKLOG`] means that many.
    pub(crate) fn new(id: Arc<Id>, backlog: u32) -> Self {
        let backlog = match backlog as usize {
            n @ 1..=MAX_BACKLOG => n,
            _ => MAX_BACKLOG,
        };
        Self {
            id,
            backlog,
            waiting: VecDeque::new(),
            turn: Turn::Free,
            in_turns: true,
            timeout: COLLECT_TIMEOUT,
        }
    }

    /// Whether not even a wait for a place can be had, as one of so many listeners: none takes the
    /// places of its neighbours.
    pub(crate) fn is_full(&self, listeners: usize) -> bool {
        let share = (MAX_PENDING / 2 / listeners.max(1)).max(LEAST_SHARE);
        self.waiting.len() >= share.min(MAX_BACKLOG)
    }

    pub(crate) fn push(&mut self, now: Instant, event: Event) {
        self.waiting.push_back(Waiting { event, until: now + FULL_FOR });
    }

    /// The request to offer now, if one has its turn.
    pub(crate) fn offer(&mut self, now: Instant) -> Option<Event> {
        if matches!(self.turn, Turn::Fetched(_, until) if until <= now) {
            self.timeout = (self.timeout / 2).max(MIN_TIMEOUT);
            self.turn = Turn::Free;
        }
        if !matches!(self.turn, Turn::Free) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.turn = Turn::Offered(next.event.id.clone());
        Some(next.event)
    }

    /// The program fetched the event of a request.
    pub(crate) fn fetched(&mut self, now: Instant, id: &Arc<Id>) {
        if matches!(&self.turn, Turn::Offered(o) if Arc::ptr_eq(o, id)) {
            self.turn = match self.in_turns {
                true => Turn::Fetched(id.clone(), now + self.timeout),
                false => Turn::Free,
            };
        }
    }

    /// Requests come as fast as the program fetches them.
    pub(crate) fn out_of_turn(&mut self) {
        self.in_turns = false;
    }

    /// The program has begun with a request.
    pub(crate) fn begun(&mut self, id: &Arc<Id>) {
        if matches!(&self.turn, Turn::Offered(o) | Turn::Fetched(o, _) if Arc::ptr_eq(o, id)) {
            self.timeout = (self.timeout * 2).min(COLLECT_TIMEOUT);
            self.turn = Turn::Free;
        }
    }

    /// Takes a request back that the program has not seen. False for all others.
    pub(crate) fn withdraw(&mut self, id: &Arc<Id>) -> bool {
        let at = self.waiting.iter().position(|w| Arc::ptr_eq(&w.event.id, id));
        at.is_some_and(|at| self.waiting.remove(at).is_some())
    }

    /// The next request to refuse because it has found the backlog full for too long.
    pub(crate) fn overdue(&mut self, now: Instant) -> Option<Arc<Id>> {
        let over = self.first_without_place();
        self.waiting.get(over).filter(|w| w.until <= now)?;
        Some(self.waiting.remove(over)?.event.id)
    }

    /// All requests that the program has not seen.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = Arc<Id>> {
        self.waiting.into_iter().map(|w| w.event.id)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let turn = match self.turn {
            Turn::Fetched(_, until) if !self.waiting.is_empty() => Some(until),
            _ => None,
        };
        let full = self.waiting.get(self.first_without_place()).map(|w| w.until);
        turn.into_iter().chain(full).min()
    }

    fn first_without_place(&self) -> usize {
        self.backlog - usize::from(matches!(self.turn, Turn::Offered(_)))
    }
}

impl Core {
    /// The listener for a request: the one on its address before those on all.
    pub(crate) fn listener(&self, service: Service, ip: IpAddr) -> Option<(ListenKey, &Listener)> {
        let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let takes = |at: IpAddr, l: &Listener| at == ip || family_fits(at, l.id.lock().v6_only, ip);
        std::iter::once(ip).chain(any).find_map(|at| {
            let key = (service.space, at, service.port);
            Some((key, self.listeners.get(&key).filter(|l| takes(at, l))?))
        })
    }

    /// Offers the listener's next request to the program if it is its turn.
    pub(crate) fn offer(&mut self, now: Instant, key: &ListenKey) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        let Some(event) = listener.offer(now) else { return };
        let channel = listener.id.lock().channel.clone();
        event.id.lock().channel = channel;
        self.push(event);
    }

    /// The program has begun to serve a request.
    pub(crate) fn begun(&mut self, now: Instant, id: &Arc<Id>) {
        let Some(key) = id.lock().listener.take() else { return };
        if let Some(listener) = self.listeners.get_mut(&key) {
            listener.begun(id);
            self.offer(now, &key);
        }
    }

    /// Takes back a request that the program has not seen. False for all others.
    pub(crate) fn withdraw(&mut self, now: Instant, id: &Arc<Id>) -> bool {
        let Some(key) = id.lock().listener else { return false };
        let unseen = self.listeners.get_mut(&key).is_some_and(|l| l.withdraw(id));
        if let Some(key) = unseen.then(|| self.forget(id)).flatten()
            && let Some((cm, conn)) = self.cm(key)
        {
            cm.destroy(now, conn);
        }
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm_agent::plain;
    use crate::event::EventChannel;
    use cm::PortSpace;
    use nic::Signal;
    use nic::rdma_cm::EventKind;

    struct Nobody;
    impl Signal for Nobody {
        fn signal(&self) {}
        fn take_back(&self) {}
    }

    struct Case {
        listener: Listener,
        now: Instant,
        ids: Vec<Arc<Id>>,
    }

    impl Case {
        #[allow(clippy::disallowed_methods, reason = "any instant will do to count from")]
        fn new(backlog: u32, requests: u32) -> Self {
            let channel = EventChannel::new(Box::new(Nobody));
            let new = || Id::new(PortSpace::Tcp, channel.clone());
            let mut case = Self { listener: Listener::new(new(), backlog), now: Instant::now(), ids: vec![] };
            for _ in 0..requests {
                let id = new();
                case.listener.push(case.now, plain(&id, EventKind::ConnectRequest, 0));
                case.ids.push(id);
            }
            case
        }
        /// Which request is offered.
        fn offered(&mut self) -> Option<usize> {
            let event = self.listener.offer(self.now)?;
            self.number(&event.id)
        }
        fn number(&self, id: &Arc<Id>) -> Option<usize> {
            self.ids.iter().position(|i| Arc::ptr_eq(i, id))
        }
        fn fetch(&mut self, n: usize) {
            self.listener.fetched(self.now, &self.ids[n]);
        }
    }

    #[test]
    fn the_next_request_comes_when_the_one_before_is_begun() {
        let mut case = Case::new(8, 3);
        assert_eq!(case.offered(), Some(0));
        assert_eq!(case.offered(), None, "not fetched yet");
        case.fetch(0);
        assert_eq!(case.offered(), None, "not begun yet");
        let first = case.ids[0].clone();
        case.listener.begun(&first);
        assert_eq!(case.offered(), Some(1));
    }

    #[test]
    fn out_of_turn_the_next_request_comes_when_the_one_before_was_fetched() {
        let mut case = Case::new(8, 2);
        case.listener.out_of_turn();
        assert_eq!(case.offered(), Some(0));
        assert_eq!(case.offered(), None, "not fetched yet");
        case.fetch(0);
        assert_eq!(case.offered(), Some(1), "though the first is not begun");
    }

    #[test]
    fn a_program_that_collects_requests_gets_them_ever_faster() {
        let mut case = Case::new(0, 20);
        let begin = case.now;
        for n in 0..20 {
            assert_eq!(case.offered(), Some(n));
            case.fetch(n);
            case.now = case.listener.deadline().unwrap_or(case.now);
        }
        assert!(case.now - begin < COLLECT_TIMEOUT * 3, "{:?}", case.now - begin);
    }

    #[test]
    fn a_request_that_found_no_place_in_time_is_refused() {
        let mut case = Case::new(2, 4);
        assert_eq!(case.offered(), Some(0), "takes a place until it is fetched");
        assert_eq!(case.listener.deadline(), Some(case.now + FULL_FOR));
        assert!(case.listener.overdue(case.now).is_none());
        case.now += FULL_FOR;
        let mut refused = vec![];
        while let Some(id) = case.listener.overdue(case.now) {
            refused.extend(case.number(&id));
        }
        assert_eq!(refused, [2, 3]);
        assert_eq!(case.listener.deadline(), None, "the others have places");
    }

    #[test]
    fn a_listener_with_neighbours_takes_its_share_of_all_places_and_no_more() {
        let case = |requests| Case::new(0, requests).listener;
        for (listeners, share) in [(1, 1024), (2, 1024), (8, 256), (10_000, LEAST_SHARE as u32)] {
            assert!(!case(share - 1).is_full(listeners), "{listeners}");
            assert!(case(share).is_full(listeners), "{listeners}");
        }
    }

    #[test]
    fn a_request_withdrawn_is_never_offered() {
        let mut case = Case::new(0, 2);
        let first = case.ids[0].clone();
        assert!(case.listener.withdraw(&first));
        assert!(!case.listener.withdraw(&first));
        assert_eq!(case.offered(), Some(1));
    }
}
