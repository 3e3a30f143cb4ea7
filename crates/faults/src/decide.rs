//! Which rules act. A rule counts what it is about: packets, those in and those out for themselves,
//! work requests, connection requests, objects. What it does to the n-th of them follows from the
//! seed, the rule and n alone.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nic::faults::{Named, Object, PortFault};
use wire::bth::Bth;
use wire::{Address, Qpn};

use crate::framing::Part;
use crate::requests::takes_receive;
use crate::spec::{Action, Delay, Operation, RAW, Rule, Spec, Subject, When};

/// A time that no process lives to see.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Rules at work.
#[derive(Debug)]
pub(crate) struct Decider {
    rules: Vec<Counted>,
    seed: u64,
}

#[derive(Debug)]
struct Counted {
    rule: Rule,
    /// What matched: in, out.
    matched: [AtomicU64; 2],
}

/// What rules decide about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    /// A packet, BTH to ICRC.
    Packet(&'a [u8]),
    /// A part of the stream of an iWARP queue pair.
    Part(Part),
    /// An Ethernet frame of a raw packet queue pair.
    Frame,
    /// An unreliable request, as it is posted.
    Posted(Posted),
}

/// An unreliable request. Its packets are other items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    /// The queue pair that it is for; `None` of a frame.
    pub qpn: Option<Qpn>,
    /// The transport service, by the upper three bits of its opcodes, or [`RAW`].
    pub service: u8,
    pub operation: Operation,
}

impl Item<'_> {
    fn opcode(self) -> Option<u8> {
        match self {
            Self::Packet(bytes) => bytes.first().copied(),
            Self::Part(_) | Self::Frame | Self::Posted(_) => None,
        }
    }

    fn is_for(self, qp: Qpn) -> bool {
        match self {
            Self::Packet(bytes) => Bth::peek_dest_qp(bytes) == Some(qp),
            Self::Posted(posted) => posted.qpn == Some(qp),
            Self::Part(_) | Self::Frame => false,
        }
    }

    /// Whether it is of this transport service. What iWARP has is a reliable connection.
    fn is_of(self, service: u8) -> bool {
        match self {
            Self::Packet(bytes) => bytes.first().copied().unwrap_or_default() >> 5 == service,
            Self::Part(_) => service == 0,
            Self::Posted(posted) => posted.service == service,
            Self::Frame => service == RAW,
        }
    }

    fn operation(self) -> Option<Operation> {
        match self {
            Self::Packet(bytes) => Operation::of(bytes.first().copied().unwrap_or_default()),
            Self::Part(Part::Fpdu(operation)) => operation,
            Self::Posted(posted) => Some(posted.operation),
            Self::Part(_) | Self::Frame => None,
        }
    }
}

/// A packet, or a part of a stream, as far as rules can name it.
pub(crate) struct Seen<'a> {
    pub is_out: bool,
    /// `None` of an Ethernet frame.
    pub peer: Option<Address>,
    /// What it comes or goes by.
    pub device: Option<&'a Named>,
    pub item: Item<'a>,
    /// Since the process began.
    pub time: Duration,
    /// Whether a send work request begins with it, which did not come before.
    pub begins_request: bool,
    /// Whether it is a connection request that did not come before.
    pub begins_connection: bool,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decision {
    pub action: Action,
    /// Random bits, for what the action leaves open.
    pub bits: u64,
}

/// What all rules together do to a packet: of those of one kind the first that acts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// Whether it arrives, and how.
    pub fate: Option<Decision>,
    /// What befalls the request that begins with it, or that it takes a receive for.
    pub request: Option<Action>,
    /// What befalls it as a connection request.
    pub connection: Option<Action>,
    /// How late it is, by the rule of this number.
    pub late: Option<(usize, Duration)>,
    /// The rule of this number has it wait for its turn, at so many bits each second.
    pub rate: Option<(usize, u64)>,
}

impl Decider {
    pub(crate) fn new(spec: &Spec, seed: u64) -> Self {
        let counted = |rule: &Rule| Counted { rule: rule.clone(), matched: Default::default() };
        Self { rules: spec.rules.iter().map(counted).collect(), seed }
    }

    /// How many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether a rule damages what arrives.
    pub(crate) fn damages(&self) -> bool {
        let damages = |rule: &Rule| rule.action == Action::Corrupt && !rule.spares_streams;
        self.rules.iter().any(|counted| damages(&counted.rule))
    }

    /// Packets that a rule holds at most, in each direction.
    pub(crate) fn limit(&self, number: usize) -> usize {
        self.rules.get(number).map_or(0, |counted| counted.rule.limit)
    }

    /// What is to be done to a packet; each call counts one.
    pub(crate) fn decide(&self, seen: &Seen<'_>) -> Verdict {
        // Each rule counts each packet, whichever rule acts: a rule more changes no other one's
        // decisions.
        let mut verdict = Verdict::default();
        for (number, counted) in self.rules.iter().enumerate() {
            if !matches_packet(&counted.rule, seen) {
                continue;
            }
            let Some(bits) = counted.count(self.seed, number, seen.is_out) else { continue };
            match counted.rule.action {
                Action::Delay(delay) => verdict.late = verdict.late.or(Some((number, delay.time(bits)))),
                Action::Rate(rate) => verdict.rate = verdict.rate.or(Some((number, rate))),
                action @ (Action::Error(_) | Action::Rnr) => {
                    verdict.request = verdict.request.or(Some(action));
                }
                action @ (Action::Reject(_) | Action::Unanswered) => {
                    verdict.connection = verdict.connection.or(Some(action));
                }
                action => verdict.fate = verdict.fate.or(Some(Decision { action, bits })),
            }
        }
        verdict
    }

    /// Whether an object cannot be made; each call counts one.
    pub(crate) fn refuses(&self, device: Option<&Named>, object: Object, time: Duration) -> bool {
        let mut refuses = false;
        for (number, counted) in self.rules.iter().enumerate() {
            let rule = &counted.rule;
            let is_it = rule.action.subject() == Subject::Object
                && rule.when.object.is_none_or(|named| named == object)
                && rule.when.names(device)
                && rule.when.is_at(time);
            refuses |= is_it && counted.count(self.seed, number, true).is_some();
        }
        refuses
    }

    /// What is wrong with a port now.
    pub(crate) fn port(&self, device: Option<&Named>, time: Duration) -> Option<PortFault> {
        let mut fault = None;
        for Counted { rule, .. } in &self.rules {
            if rule.when.names(device) && rule.when.is_at(time) {
                match rule.action {
                    Action::DeviceRemoval => return Some(PortFault::Gone),
                    Action::PortDown => fault = Some(PortFault::Down),
                    _ => {}
                }
            }
        }
        fault
    }

    /// When nothing gets from or to a peer, by rules that cut all off: from when, and until when.
    pub(crate) fn cuts(
        &self,
        device: Option<&Named>,
        peer: IpAddr,
    ) -> impl Iterator<Item = (Duration, Option<Duration>)> {
        let cuts = move |counted: &&Counted| {
            let Rule { action, probability, ref when, .. } = counted.rule;
            let is_of_all = probability >= 1.0 && (when.nth, when.operation, when.qp) == (None, None, None);
            matches!(action, Action::Loss | Action::Partition | Action::PortDown)
                && is_of_all
                && when.service.is_none_or(|service| service == 0)
                && when.peer.is_none_or(|named| named == peer)
                && when.names(device)
        };
        self.rules.iter().filter(cuts).map(|counted| (counted.rule.when.from, counted.rule.when.until))
    }

    /// Until when the engine stands still.
    pub(crate) fn stopped_until(&self, time: Duration) -> Option<Duration> {
        let stops = |counted: &&Counted| {
            counted.rule.action.subject() == Subject::Engine && counted.rule.when.is_at(time)
        };
        self.rules.iter().filter(stops).map(|counted| counted.rule.when.until.unwrap_or(FOR_EVER)).max()
    }

    /// The times at which ports come, go or are removed, and those at which the engine stops or
    /// goes on; in their order.
    pub(crate) fn boundaries(&self) -> Vec<Duration> {
        let lasts =
            |counted: &&Counted| matches!(counted.rule.action.subject(), Subject::Port | Subject::Engine);
        let ends = |counted: &Counted| {
            let When { from, until, .. } = counted.rule.when;
            [Some(from), until].into_iter().flatten()
        };
        let mut all: Vec<_> = self.rules.iter().filter(lasts).flat_map(ends).collect();
        all.sort_unstable();
        all
    }
}

impl Counted {
    /// Counts one more; random bits where the rule acts on it.
    fn count(&self, seed: u64, number: usize, is_out: bool) -> Option<u64> {
        let n = self.matched[usize::from(is_out)].fetch_add(1, Ordering::Relaxed);
        let rule = (number as u64) << 1 | u64::from(is_out);
        let bits = mixed(seed ^ mixed(rule) ^ mixed(n.wrapping_add(1)));
        let acts = self.rule.when.nth.is_none_or(|nth| nth == n + 1) && chance(bits, self.rule.probability);
        acts.then(|| mixed(bits))
    }
}

impl Delay {
    /// How late a packet is: zero for one that overtakes others.
    fn time(self, bits: u64) -> Duration {
        let Self { delay, jitter, reorder } = self;
        if chance(mixed(bits), reorder) {
            return Duration::ZERO;
        }
        // 53 bits are exact in a float.
        let part = (bits >> 11) as f64 / (1_u64 << 53) as f64;
        (delay + jitter.mul_f64(2.0 * part)).saturating_sub(jitter)
    }
}

impl When {
    /// Whether the rule is for this device.
    fn names(&self, device: Option<&Named>) -> bool {
        let is = |wanted: &Option<String>, name: fn(&Named) -> &String| {
            wanted.as_ref().is_none_or(|wanted| device.is_some_and(|device| name(device) == wanted))
        };
        is(&self.interface, |device| &device.interface_name) && is(&self.device, |device| &device.device)
    }
}

fn matches_packet(rule: &Rule, seen: &Seen<'_>) -> bool {
    let when = &rule.when;
    let is_posted = matches!(seen.item, Item::Posted(_));
    let is_subject = match rule.action.subject() {
        Subject::Packet => !is_posted,
        Subject::Stream => matches!(seen.item, Item::Part(_)),
        Subject::Request => seen.begins_request && (!is_posted || rule.action.is_of_adapter()),
        Subject::Receive => seen.item.opcode().is_some_and(takes_receive),
        Subject::Connection => seen.begins_connection,
        Subject::Object | Subject::Port | Subject::Engine => false,
    };
    let is_spared = rule.spares_streams && matches!(seen.item, Item::Part(_));
    is_subject
        && !is_spared
        && when.is_out.is_none_or(|is_out| is_out == seen.is_out)
        && when.peer.is_none_or(|peer| seen.peer.is_some_and(|seen| peer == canonical(seen)))
        && when.names(seen.device)
        && when.qp.is_none_or(|qp| seen.item.is_for(qp))
        && when.service.is_none_or(|service| seen.item.is_of(service))
        && when.operation.is_none_or(|op| seen.item.operation() == Some(op))
        && when.is_at(seen.time)
}

/// A peer, as a rule names it.
fn canonical(peer: Address) -> Address {
    peer.ip().map_or(peer.bare(), |ip| ip.to_canonical().into())
}

/// Whether an event of this probability happens.
fn chance(bits: u64, probability: f64) -> bool {
    // 53 bits are exact in a float.
    ((bits >> 11) as f64) < probability * (1_u64 << 53) as f64
}

/// Well mixed bits (SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number
/// Generators).
fn mixed(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Named {
        let (device, interface_name) = ("rxe0".to_owned(), "eth0".to_owned());
        Named { device, interface_name, interface: 2, has_streams: false }
    }

    fn verdicts(spec: &str, seed: u64, packets: &[([u8; 12], bool)]) -> Vec<Verdict> {
        let (decider, device) = (Decider::new(&spec.parse().unwrap(), seed), device());
        let decide = |(bytes, is_out): &([u8; 12], bool)| {
            decider.decide(&Seen {
                is_out: *is_out,
                peer: Some([10, 0, 0, 2].into()),
                device: Some(&device),
                item: Item::Packet(bytes),
                time: Duration::from_secs(2),
                begins_request: bytes[0] == 4,
                begins_connection: false,
            })
        };
        packets.iter().map(decide).collect()
    }

    fn decisions(spec: &str, seed: u64, packets: &[([u8; 12], bool)]) -> Vec<Option<Action>> {
        let all = verdicts(spec, seed, packets);
        let fate = |verdict: Verdict| verdict.fate.map(|decision| decision.action);
        all.into_iter().map(|verdict| verdict.request.or(verdict.connection).or(fate(verdict))).collect()
    }

    const SEND: [u8; 12] = [4, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0];
    const ACK: [u8; 12] = [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0, 0];

    #[test]
    fn a_seed_decides_and_packets_of_the_other_direction_change_nothing() {
        let out = vec![(SEND, true); 10_000];
        let both: Vec<_> = out.iter().flat_map(|packet| [*packet, (ACK, false)]).collect();
        let first = decisions("loss=5%", 1, &out);
        let lost = first.iter().flatten().count();
        assert!((400..600).contains(&lost), "{lost}");
        assert_eq!(first, decisions("loss=5%", 1, &out));
        assert_ne!(first, decisions("loss=5%", 2, &out));
        let of_both: Vec<_> = decisions("loss=5%", 1, &both).into_iter().step_by(2).collect();
        assert_eq!(first, of_both);
    }

    #[test]
    fn a_rule_acts_on_the_packets_that_it_names() {
        let packets = [(SEND, true), (ACK, true), (SEND, false), (SEND, true)];
        for (spec, expected) in [
            ("loss=100%,op=ack", [false, true, false, false]),
            ("loss=100%,dir=in", [false, false, true, false]),
            ("loss=100%,qp=0x11,nth=2", [false, false, false, true]),
            ("loss=100%,type=uc", [false; 4]),
            ("loss=100%,peer=10.0.0.3", [false; 4]),
            ("loss=100%,interface=eth0,from=1s,until=3s", [true; 4]),
            ("loss=100%,until=2s", [false; 4]),
            ("partition,device=rxe0", [true; 4]),
            ("partition,device=rxe1", [false; 4]),
            ("error=general,nth=2", [false, false, false, true]),
            ("rnr", [false, false, true, false]),
            ("reject", [false; 4]),
        ] {
            let acted = decisions(spec, 7, &packets).iter().map(Option::is_some).collect::<Vec<_>>();
            assert_eq!(acted, expected, "{spec}");
        }
    }

    #[test]
    fn of_rules_of_one_kind_the_first_that_acts_decides() {
        let spec = "delay=10ms,dir=out; rate=8bit; loss=100%,op=ack; duplicate=100%; delay=1ms; rate=1gbit";
        let [send, ack] = verdicts(spec, 3, &[(SEND, true), (ACK, false)])[..] else { panic!() };
        assert_eq!((send.late, send.rate), (Some((0, Duration::from_millis(10))), Some((1, 8))));
        assert_eq!(send.fate.map(|decision| decision.action), Some(Action::Duplicate));
        assert_eq!((ack.late, ack.rate), (Some((4, Duration::from_millis(1))), Some((1, 8))));
        assert_eq!(ack.fate.map(|decision| decision.action), Some(Action::Loss));
    }

    #[test]
    fn a_delay_has_its_jitter_and_a_share_of_packets_has_none() {
        let packets = vec![(SEND, true); 10_000];
        let late = |spec: &str| -> Vec<f64> {
            let all = verdicts(spec, 5, &packets);
            all.iter().filter_map(|verdict| Some(verdict.late?.1.as_secs_f64() * 1e3)).collect()
        };
        let times = late("delay=10ms,jitter=2ms,reorder=25%");
        let (early, late): (Vec<f64>, Vec<f64>) = times.into_iter().partition(|time| *time == 0.0);
        assert!((2_300..2_700).contains(&early.len()), "{}", early.len());
        assert!(late.iter().all(|time| (8.0..=12.0).contains(time)));
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!((9.9..10.1).contains(&mean), "{mean}");
        assert!(late.iter().any(|time| *time < 8.1) && late.iter().any(|time| *time > 11.9));
    }

    #[test]
    fn objects_ports_and_the_engine_have_their_rules() {
        let spec = "enomem,object=qp,nth=2; port-down,from=1s,until=3s; device-removal,device=rxe1,from=2s; \
                    stop,from=4s,until=5s; stop,from=4.5s,until=6s";
        let (decider, device, at) = (Decider::new(&spec.parse().unwrap(), 1), device(), Duration::from_secs);
        let refused = [Object::Qp, Object::Cq, Object::Qp, Object::Qp]
            .map(|object| decider.refuses(Some(&device), object, at(0)));
        assert_eq!(refused, [false, false, true, false]);
        let other = Named { device: "rxe1".to_owned(), ..device.clone() };
        let of = |device, time| decider.port(Some(device), at(time));
        assert_eq!([0, 1, 3].map(|time| of(&device, time)), [None, Some(PortFault::Down), None]);
        assert_eq!([1, 2].map(|time| of(&other, time)), [Some(PortFault::Down), Some(PortFault::Gone)]);
        assert_eq!([3, 4, 5].map(|time| decider.stopped_until(at(time))), [None, Some(at(5)), Some(at(6))]);
        let halves: Vec<_> = decider.boundaries().iter().map(|time| time.as_millis() / 500).collect();
        assert_eq!(halves, [2, 4, 6, 8, 9, 10, 12]);
    }
}
