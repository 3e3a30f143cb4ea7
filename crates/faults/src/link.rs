//! A link on which faults happen. What it holds leaves or arrives when the node is woken for it
//! ([`nic::Faults`]), so the clock may be a real one or a simulated one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nic::faults::{
    Due, Named, Object, Outcome, PortFault, RejectedRequest, RequestFault, Told, UnreliableRequest,
    UnreliableService,
};
use nic::{Arrival, Errno, Fate, Faults, FrameArrival, Frames, Link, NewStream, Path, Stream, Tap};
use transport::TxBatch;
use transport::op::Status;
use wire::{Address, grh};

use crate::connections::transaction_of;
use crate::decide::{Decider, Decision, Item, Posted, Seen, Verdict};
use crate::frames::FaultFrames;
use crate::held::{Size, Ticket, What};
use crate::judged::Judged;
use crate::requests::{Met, RequestPacket, Way};
use crate::shared::{Rules, Shared, State};
use crate::spec::{Action, Operation, RAW, Spec, UC, UD};
use crate::stream::FaultStream;

/// What faults need of the environment.
pub trait Surroundings: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Instant;
    /// The node is to be woken at `at` or earlier ([`nic::Platform::wake_at`]).
    fn wake_at(&self, at: Instant);
}

/// A peer's answer comes no earlier.
const ANSWER: Duration = Duration::from_micros(1);
/// What could not be done yet is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// A link over another one, on which faults happen.
pub struct FaultLink {
    link: Arc<dyn Link>,
    shared: Arc<Shared>,
}

/// A packet on its way.
#[derive(Clone, Copy)]
struct Passing<'a> {
    is_out: bool,
    ours: Address,
    theirs: Address,
    interface: u32,
    /// BTH to ICRC.
    bytes: &'a [u8],
}

impl Passing<'_> {
    /// The peer, whatever a packet says of the path.
    fn peer(&self) -> Address {
        self.theirs.bare()
    }

    /// What follows where it is a connection request that is lost.
    fn rejected(self, action: Action) -> Option<What> {
        let Action::Reject(reason) = action else { return None };
        let Passing { is_out, ours, theirs: peer, interface, bytes } = self;
        Some(What::Reject { is_out, ours, peer, interface, packet: bytes.to_vec(), reason })
    }
}

impl State {
    /// What befalls a packet of a requester, and what follows. `action` is what the rules say of
    /// this packet; what befell others before it stands.
    fn request(
        &mut self,
        way: Way,
        packet: RequestPacket,
        action: Option<Action>,
        passing: Passing<'_>,
    ) -> (Option<Action>, Option<What>) {
        let met = self.requests.meet(way, packet.psn);
        let is_new = match (met, action) {
            (_, None) => false,
            (Met::Nothing, _) => true,
            // What comes after a packet that finds no receive may fail for good.
            (Met::Lost(Action::Rnr), Some(action)) => action != Action::Rnr,
            _ => false,
        };
        let (action, follows) = match (met, action) {
            (_, Some(action)) if is_new => {
                self.requests.lose(way, packet.psn, action);
                (action, true)
            }
            (Met::Nothing, _) => return (None, None),
            (Met::Lost(action), _) => (action, false),
            // A request of ours is dealt with already.
            (Met::Again(action), _) => (action, !passing.is_out),
        };
        let outcome = match action {
            Action::Error(outcome) => Some(outcome),
            Action::Rnr => Some(Outcome::RnrNak),
            _ => None,
        };
        let Passing { is_out, ours, theirs: peer, interface, .. } = passing;
        let (qpn, psn) = (packet.dest_qp, packet.psn);
        let fault = |outcome| RequestFault { is_out, ours, peer, interface, qpn, psn, outcome };
        let what = outcome.filter(|_| follows).map(|outcome| What::Request { way, fault: fault(outcome) });
        (Some(action), what)
    }
}

/// A packet is lost.
fn lost_by(action: Action) -> Option<Decision> {
    Some(Decision { action, bits: 0 })
}

impl FaultLink {
    /// A link over `link`, without rules.
    pub fn new(link: Arc<dyn Link>, around: Arc<dyn Surroundings>) -> Self {
        Self { link, shared: Shared::new(around) }
    }

    /// From now on these rules hold, in place of others, and the seed decides. What was held
    /// leaves.
    pub fn set(&self, spec: &Spec, seed: u64) {
        let began = self.shared.around.now();
        let decider = Decider::new(spec, seed);
        {
            let mut state = self.shared.state.lock();
            state.held.restart(began, decider.len());
            state.boundaries = decider.boundaries().iter().rev().map(|time| began + *time).collect();
            state.ports_due = true;
            self.shared.rules.store(Some(Arc::new(Rules { decider, began })));
        }
        self.shared.around.wake_at(began);
        self.shared.try_streams().iter().for_each(|stream| stream.watch());
    }

    /// Whether packets of a path go by memory of this host, which no fault concerns.
    fn is_local(&self, path: &Path) -> bool {
        self.link.local().is_some_and(|local| local.is_local(path))
    }

    /// What the rules say about a packet, and what follows for those that are held.
    fn judge(&self, rules: &Rules, passing: Passing<'_>) -> Judged {
        let now = self.shared.around.now();
        let time = now.saturating_duration_since(rules.began);
        let mut state = self.shared.state.lock();
        let (verdict, ticket) = self.verdict(rules, &mut state, now, time, passing);
        if let Some((ticket, what)) = ticket {
            state.held.push(ticket, what);
        }
        let dest = if passing.is_out { passing.theirs } else { passing.ours };
        let size = Size::of_packet(passing.is_out, dest, passing.bytes.len());
        Judged::of(&verdict, size, rules, now, &mut state)
    }

    /// What the rules say about a packet, with what befell others before it, and what follows
    /// from it.
    fn verdict(
        &self,
        rules: &Rules,
        state: &mut State,
        now: Instant,
        time: Duration,
        passing: Passing<'_>,
    ) -> (Verdict, Option<(Ticket, What)>) {
        let Passing { is_out, bytes, .. } = passing;
        let peer = passing.peer();
        let request = RequestPacket::of(bytes).map(|packet| ((is_out, peer, packet.dest_qp), packet));
        let asked = transaction_of(bytes).map(|transaction| (is_out, peer, transaction));
        let before = asked.and_then(|asked| state.connections.before(asked));
        let device = self.shared.device(passing.interface, false);
        let begins_request = request.is_some_and(|(way, packet)| state.requests.begins(way, packet));
        let begins_connection = asked.is_some() && before.is_none();
        let (peer, item) = (Some(peer), Item::Packet(bytes));
        let seen = Seen { is_out, peer, device, item, time, begins_request, begins_connection };
        let mut verdict = rules.decider.decide(&seen);
        if rules.decider.port(device, time).is_some() {
            verdict.fate = lost_by(Action::PortDown);
            return (verdict, None);
        }
        if let (Some(asked), true) = (asked, begins_connection) {
            state.connections.remember(asked, verdict.connection);
        }
        let (action, what) = match (request, before.unwrap_or(verdict.connection)) {
            (Some((way, packet)), _) => state.request(way, packet, verdict.request, passing),
            (None, Some(action)) => (Some(action), passing.rejected(action)),
            (None, None) => (None, None),
        };
        verdict.fate = action.map_or(verdict.fate, lost_by);
        (verdict, what.map(|what| (Ticket::at(now + ANSWER), what)))
    }

    /// What followed from a packet that was lost is due soon.
    fn wake(&self) {
        let deadline = self.shared.state.lock().held.deadline();
        deadline.into_iter().for_each(|at| self.shared.around.wake_at(at));
    }

    /// Sends what a batch holds, and empties it.
    fn send_all(&self, path: &Path, batch: &mut TxBatch) {
        if !batch.is_empty() {
            self.link.send(path, batch);
            batch.clear();
        }
    }

    /// Takes a packet that has arrived on to the node, or not.
    fn arrive(
        &self,
        rules: &Rules,
        packet: &Arrival<'_>,
        bytes: &[u8],
        deliver: &mut dyn FnMut(&[u8]) -> Fate,
    ) -> Fate {
        let (ours, theirs) = (packet.dest.address(), packet.source.address());
        let Arrival { source, dest, interface, forwarded, .. } = *packet;
        let from_bth = grh::skip(ours, bytes);
        let judged = self.judge(rules, Passing { is_out: false, ours, theirs, interface, bytes: from_bth });
        let bytes = judged.damage(bytes);
        let mut fate = Fate::Taken;
        for copy in &judged.copies {
            match copy {
                None => fate = deliver(&bytes),
                Some(ticket) => {
                    let bytes = bytes.to_vec();
                    self.shared.hold(*ticket, What::In { source, dest, interface, forwarded, bytes });
                }
            }
        }
        if judged.copies.is_empty() {
            self.wake();
        }
        judged.fault.map_or(fate, |(name, _)| Fate::Fault(name))
    }

    /// Does what is due, where it is a thing that the node sees.
    fn tell(&self, now: Instant, what: What, to: &mut dyn FnMut(Due<'_>) -> Told) {
        match what {
            What::Out { path, bytes } => {
                let mut batch = TxBatch::new();
                batch.push_packet(&bytes);
                self.link.send(&path, &mut batch);
            }
            What::In { source, dest, interface, forwarded, bytes } => {
                to(Due::Arrival(Arrival { source, dest, interface, forwarded, bytes: &bytes }));
            }
            What::FrameOut { interface, bytes } => self.shared.send_held(interface, &bytes),
            What::FrameIn { interface, outgoing, bytes } => {
                to(Due::Frame(FrameArrival { interface, outgoing, bytes: &bytes }));
            }
            What::Request { way, fault } => {
                let told = to(Due::Request(&fault));
                let mut state = self.shared.state.lock();
                match told {
                    Told::NotYet => state.held.push(Ticket::at(now + AGAIN), What::Request { way, fault }),
                    Told::Executed => state.requests.forget(way),
                    Told::Done if fault.is_out => state.requests.ended(way, fault.outcome),
                    Told::Done => {}
                }
            }
            What::Stream(token) => {
                let looked = self.shared.stream(token).and_then(|stream| stream.look(now));
                looked.inspect(|has_room| _ = to(Due::Stream(token, *has_room)));
            }
            What::Reject { is_out, ours, peer, interface, packet, reason } => {
                to(Due::Reject(RejectedRequest { is_out, ours, peer, interface, packet: &packet, reason }));
            }
        }
    }
}

impl Link for FaultLink {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        let rules = self.shared.rules.load();
        let Some(rules) = rules.as_ref().filter(|_| !self.is_local(path)) else {
            return self.link.send(path, batch);
        };
        let judge = |bytes: &[u8]| {
            let (ours, theirs, interface) = (path.source, path.dest, path.interface);
            let bytes = grh::skip(theirs, bytes);
            self.judge(rules, Passing { is_out: true, ours, theirs, interface, bytes })
        };
        let all: Vec<Judged> = batch.iter().map(judge).collect();
        if all.iter().all(|judged| judged.fault.is_none()) {
            return self.link.send(path, batch);
        }
        // What comes before a lost packet leaves before it: a capture shows them in this order.
        let mut kept = TxBatch::new();
        for (bytes, judged) in batch.iter().zip(all) {
            if judged.copies.is_empty() || !kept.has_room(2 * bytes.len()) {
                self.send_all(path, &mut kept);
            }
            for copy in &judged.copies {
                match copy {
                    None => kept.push_packet(bytes),
                    Some(ticket) => {
                        self.shared.hold(*ticket, What::Out { path: *path, bytes: bytes.to_vec() })
                    }
                }
            }
            if let Some(what) = judged.lost() {
                self.link.fault(path, bytes, what);
                self.wake();
            }
        }
        self.send_all(path, &mut kept);
    }
    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        self.link.can_reach(dest)
    }
    fn local(&self) -> Option<&dyn nic::LocalLink> {
        self.link.local()
    }
    fn has_unread(&self, path: &Path) -> bool {
        self.link.has_unread(path)
    }
    fn source_port(&self, path: &Path) -> Option<u16> {
        self.link.source_port(path)
    }
    fn fault(&self, path: &Path, packet: &[u8], what: &'static str) {
        self.link.fault(path, packet, what);
    }
    fn tap(&self) -> Option<&dyn Tap> {
        if self.shared.rules.load().is_some() { Some(self) } else { self.link.tap() }
    }
    fn faults(&self) -> Option<&dyn Faults> {
        Some(self)
    }
    fn stream(&self, new: &NewStream, stream: Arc<dyn Stream>) -> Arc<dyn Stream> {
        FaultStream::new(self.link.stream(new, stream), self.shared.clone(), new)
    }
    fn frames(&self, frames: Arc<dyn Frames>) -> Arc<dyn Frames> {
        FaultFrames::new(self.link.frames(frames), self.shared.clone())
    }
    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno> {
        self.link.join(interface, group)
    }
    fn leave(&self, interface: u32, group: IpAddr) {
        self.link.leave(interface, group);
    }
}

impl Tap for FaultLink {
    fn arrived(&self, packet: &Arrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        let rules = self.shared.rules.load();
        let mut arrive = |bytes: &[u8]| match &*rules {
            Some(rules) => self.arrive(rules, packet, bytes, deliver),
            None => deliver(bytes),
        };
        // What captures below shows the packet as it arrived, and what became of it.
        match self.link.tap() {
            Some(tap) => tap.arrived(packet, &mut arrive),
            None => _ = arrive(packet.bytes),
        }
    }
    fn frame_arrived(&self, frame: &FrameArrival<'_>, deliver: &mut dyn FnMut(&[u8]) -> Fate) {
        let rules = self.shared.rules.load();
        let mut arrive = |bytes: &[u8]| match &*rules {
            Some(rules) => self.shared.frame_arrives(rules, frame, bytes, deliver),
            None => deliver(bytes),
        };
        match self.link.tap() {
            Some(tap) => tap.frame_arrived(frame, &mut arrive),
            None => _ = arrive(frame.bytes),
        }
    }
}

impl Faults for FaultLink {
    fn know(&self, devices: Vec<Named>) {
        // A node says it once.
        let _ = self.shared.devices.set(devices);
    }
    fn deadline(&self) -> Option<Instant> {
        let state = self.shared.state.lock();
        [state.held.deadline(), state.boundaries.last().copied()].into_iter().flatten().min()
    }
    fn stopped_until(&self) -> Option<Instant> {
        self.shared.stopped_until()
    }
    fn expire(&self, now: Instant, to: &mut dyn FnMut(Due<'_>) -> Told) {
        let ports_due = {
            let mut state = self.shared.state.lock();
            let passed = |at: &Instant| *at <= now;
            while state.boundaries.pop_if(|at| passed(at)).is_some() {
                state.ports_due = true;
            }
            std::mem::take(&mut state.ports_due)
        };
        if ports_due {
            to(Due::Ports);
        }
        loop {
            let Some(what) = self.shared.state.lock().held.pop(now) else { break };
            self.tell(now, what, to);
        }
    }
    fn port(&self, interface: u32) -> Option<PortFault> {
        let (rules, time) = self.shared.rules_now()?;
        let devices = [false, true].map(|has_streams| self.shared.device(interface, has_streams));
        devices.into_iter().flatten().find_map(|device| rules.decider.port(Some(device), time))
    }
    fn refuses(&self, interface: Option<u32>, object: Object) -> bool {
        let device = interface.and_then(|interface| {
            let roce = self.shared.device(interface, false);
            roce.or_else(|| self.shared.device(interface, true))
        });
        self.shared.rules_now().is_some_and(|(rules, time)| rules.decider.refuses(device, object, time))
    }
    fn fails(&self, request: &UnreliableRequest) -> Option<Status> {
        let &UnreliableRequest { peer, interface, service, is_write } = request;
        let (rules, time) = self.shared.rules_now()?;
        let service = match service {
            UnreliableService::Connection => UC,
            UnreliableService::Datagram => UD,
            UnreliableService::Frame => RAW,
        };
        let operation = if is_write { Operation::Write } else { Operation::Send };
        let qpn = peer.map(|(_, qpn)| qpn);
        let (is_out, peer) = (true, peer.map(|(address, _)| address.bare()));
        let item = Item::Posted(Posted { qpn, service, operation });
        let device = self.shared.device(interface, false);
        let (begins_request, begins_connection) = (true, false);
        let seen = Seen { is_out, peer, device, item, time, begins_request, begins_connection };
        match rules.decider.decide(&seen).request {
            Some(Action::Error(Outcome::Status(status))) => Some(status),
            _ => None,
        }
    }
    fn damages_streams(&self) -> bool {
        self.shared.rules.load().as_ref().is_some_and(|rules| rules.decider.damages())
    }
    fn on_exit(&self) {
        let now = self.shared.around.now();
        self.shared.try_streams().iter().for_each(|stream| stream.leave_now(now));
        let Some(mut state) = self.shared.state.try_lock() else { return };
        let held = state.held.take_all();
        drop(state);
        for what in held {
            match what {
                What::Out { path, bytes } => {
                    let mut batch = TxBatch::new();
                    batch.push_packet(&bytes);
                    self.link.send(&path, &mut batch);
                }
                What::FrameOut { interface, bytes } => self.shared.send_held(interface, &bytes),
                _ => {}
            }
        }
    }
}
