//! How rules are read, and what is wrong with them.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use nic::faults::Outcome;
use wire::mad::reason;
use wire::{Address, Qpn};

use super::words::{
    DIRECTIONS, OBJECTS, OPERATIONS, REASONS, SERVICES, STATUSES, duration, percent, rate, word, words,
};
use super::{Action, Delay, Operation, Rule, Spec, SpecError, Subject, When};

/// A sensible mixture, for tests that run for long.
const CHAOS: &str = "loss=1%; duplicate=0.5%; corrupt=0.2%; delay=2ms,jitter=2ms,probability=2%; \
                     delay=200us,jitter=200us,reorder=50%,probability=10%";

/// How late the packets of a rule are that reorders and says nothing of a delay.
const OWN_DELAY: Duration = Duration::from_millis(1);

/// Packets held at most, as of tc-netem(8).
const LIMIT: usize = 1_000;
const MAX_LIMIT: usize = 100_000;

/// All actions, for a message.
const ACTIONS: &str = "loss, duplicate, corrupt, partition, delay, reorder, rate, reset, error, rnr, reject, \
                       unanswered, enomem, port-down, device-removal or stop";
/// All conditions, likewise.
const CONDITIONS: &str =
    "dir, peer, device, interface, qp, type, op, object, nth, probability, from or until";

impl FromStr for Spec {
    type Err = SpecError;

    /// # Errors
    ///
    /// A term that is none, or has no meaning.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.trim() == "chaos" {
            let mut chaos: Self = CHAOS.parse()?;
            // Nothing mends a stream whose bytes were changed: the connection ends.
            let damages = |rule: &mut Rule| rule.spares_streams = rule.action == Action::Corrupt;
            chaos.rules.iter_mut().for_each(damages);
            return Ok(chaos);
        }
        let mut rules = Vec::new();
        for rule in parts(text, 0, text.len(), ';') {
            if !rule.is_empty() {
                rules.push(Reading::new(text, rule).rule()?);
            }
        }
        match rules.is_empty() {
            true => Err(error(text, 0..text.len(), "no rule: for instance loss=1%")),
            false => Ok(Self { rules, text: text.trim().to_owned() }),
        }
    }
}

fn error(text: &str, at: Range<usize>, why: impl Into<String>) -> SpecError {
    SpecError { text: text.to_owned(), at: at.start, len: at.len(), why: why.into() }
}

/// The parts of a range between separators, without the blanks around them.
fn parts(text: &str, from: usize, to: usize, separator: char) -> Vec<Range<usize>> {
    let mut begin = from;
    let mut all = Vec::new();
    for part in text[from..to].split(separator) {
        let skipped = part.len() - part.trim_start().len();
        let at = begin + skipped;
        all.push(at..at + part.trim().len());
        begin += part.len() + separator.len_utf8();
    }
    all
}

/// What is wrong with a term.
struct Wrong {
    why: String,
    /// In its value, not in the term.
    in_value: bool,
}

impl From<String> for Wrong {
    fn from(why: String) -> Self {
        Self { why, in_value: true }
    }
}

impl Wrong {
    fn term(why: String) -> Self {
        Self { why, in_value: false }
    }
}

/// A rule that is being read.
struct Reading<'a> {
    text: &'a str,
    whole: Range<usize>,
    action: Option<Action>,
    probability: Option<f64>,
    delay: Option<Duration>,
    jitter: Option<(Range<usize>, Duration)>,
    reorder: Option<f64>,
    limit: Option<(Range<usize>, usize)>,
    when: When,
    /// The conditions, each with its place.
    conditions: Vec<(&'a str, Range<usize>)>,
}

impl<'a> Reading<'a> {
    fn new(text: &'a str, whole: Range<usize>) -> Self {
        Self {
            text,
            whole,
            action: None,
            probability: None,
            delay: None,
            jitter: None,
            reorder: None,
            limit: None,
            when: When::default(),
            conditions: Vec::new(),
        }
    }

    fn rule(mut self) -> Result<Rule, SpecError> {
        for term in parts(self.text, self.whole.start, self.whole.end, ',') {
            let whole = &self.text[term.clone()];
            let (name, value) = match whole.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value)),
                None => (whole, None),
            };
            self.term(name, value.map(str::trim), &term).map_err(|Wrong { why, in_value }| {
                let len = value.filter(|_| in_value).map_or(term.len(), str::len);
                error(self.text, term.end - len..term.end, why)
            })?;
        }
        self.end()
    }

    /// Takes a term in.
    ///
    /// # Errors
    ///
    /// What is wrong with its value, or with the term where it has none.
    fn term(&mut self, name: &'a str, value: Option<&str>, place: &Range<usize>) -> Result<(), Wrong> {
        if let Some(done) = self.action(name, value) {
            return done;
        }
        let given = value.unwrap_or_default();
        match name {
            "delay" => self.delay = Some(duration(given)?),
            "jitter" => self.jitter = Some((place.clone(), duration(given)?)),
            "reorder" => self.reorder = Some(percent(given)?),
            "limit" => {
                let limit = given.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                let limit = limit.ok_or(format!("a limit is 1 to {MAX_LIMIT} packets"))?;
                self.limit = Some((place.clone(), limit));
            }
            "probability" => {
                self.set_probability(percent(given)?)?;
                self.conditions.push((name, place.clone()));
            }
            _ => {
                let set = self.when.set(name, given);
                set.ok_or_else(|| Wrong::term(format!("a term is {ACTIONS}, or {CONDITIONS}")))??;
                self.conditions.push((name, place.clone()));
            }
        }
        Ok(())
    }

    /// Takes a term in that says what happens; `None` where it says something else.
    fn action(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), Wrong>> {
        type Read = Result<(Action, Option<f64>), String>;
        let with_probability = |action| -> Read { Ok((action, value.map(percent).transpose()?)) };
        let alone = |action: Action| -> Read {
            match value {
                None => Ok((action, None)),
                Some(_) => Err(format!("{} has no value", action.name())),
            }
        };
        let read = match name {
            "loss" => with_probability(Action::Loss),
            "corrupt" => with_probability(Action::Corrupt),
            "duplicate" => with_probability(Action::Duplicate),
            "reset" => with_probability(Action::Reset),
            "rnr" => with_probability(Action::Rnr),
            "enomem" => with_probability(Action::OutOfMemory),
            "rate" => rate(value.unwrap_or_default()).map(|rate| (Action::Rate(rate), None)),
            "error" => {
                let status = word(value.unwrap_or_default(), &STATUSES, "a status is");
                status.map(|status| (Action::Error(status), None))
            }
            "reject" => {
                value.map_or(Ok(reason::CONSUMER_DEFINED), reject_reason).map(|r| (Action::Reject(r), None))
            }
            "partition" => alone(Action::Partition),
            "unanswered" => alone(Action::Unanswered),
            "port-down" => alone(Action::PortDown),
            "device-removal" => alone(Action::DeviceRemoval),
            "stop" => alone(Action::Stop),
            _ => return None,
        };
        Some(read.map_err(Wrong::from).and_then(|(action, probability)| {
            self.set_action(action).map_err(Wrong::term)?;
            probability.map_or(Ok(()), |probability| self.set_probability(probability).map_err(Wrong::term))
        }))
    }

    fn set_action(&mut self, action: Action) -> Result<(), String> {
        let before = self.action.replace(action);
        before.map_or(Ok(()), |_| Err("a rule does one thing; another one begins after a semicolon".into()))
    }

    fn set_probability(&mut self, probability: f64) -> Result<(), String> {
        let before = self.probability.replace(probability);
        before.map_or(Ok(()), |_| Err("a rule has one probability".into()))
    }

    /// The rule, when all terms are read.
    fn end(mut self) -> Result<Rule, SpecError> {
        let text = self.text;
        if self.delay.is_some() || self.reorder.is_some() {
            let delay = Delay {
                delay: self.delay.unwrap_or(OWN_DELAY),
                jitter: self.jitter.take().map(|(_, jitter)| jitter).unwrap_or_default(),
                reorder: self.reorder.unwrap_or_default(),
            };
            self.set_action(Action::Delay(delay)).map_err(|why| error(text, self.whole.clone(), why))?;
        }
        if let Some((place, _)) = self.jitter {
            return Err(error(text, place, "jitter is of a delay: delay=10ms,jitter=2ms"));
        }
        let Some(action) = self.action else {
            let why = format!("the rule says to what, and not what happens: {ACTIONS}");
            return Err(error(text, self.whole, why));
        };
        let limit = match self.limit {
            Some((place, _)) if !matches!(action, Action::Delay(_) | Action::Rate(_)) => {
                return Err(error(text, place, "a limit is of packets that are held: delay, reorder, rate"));
            }
            limit => limit.map_or(LIMIT, |(_, limit)| limit),
        };
        let subject = action.subject();
        let allowed = subject.conditions();
        if let Some((_, place)) = self.conditions.iter().find(|(name, _)| !allowed.contains(name)) {
            let why = format!("{} has the conditions {}", action.name(), allowed.join(", "));
            return Err(error(text, place.clone(), why));
        }
        self.when.check(action).map_err(|why| error(text, self.whole, why))?;
        let default_direction = match subject {
            Subject::Request => Some(true),
            Subject::Receive => Some(false),
            _ => None,
        };
        self.when.is_out = self.when.is_out.or(default_direction);
        self.when.complete_error(action);
        let probability = self.probability.unwrap_or(1.0);
        Ok(Rule { action, probability, limit, spares_streams: false, when: self.when })
    }
}

impl When {
    /// Sets a condition; `None` where there is none of this name, an error says what it may be.
    fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let set = match name {
            "dir" => word(value, &DIRECTIONS, "a direction is").map(|is_out| self.is_out = Some(is_out)),
            "peer" => {
                let peer = Address::parse_peer(value).ok_or("a peer is an IP address, or a LID: 1 to 65534");
                peer.map(|peer| self.peer = Some(peer)).map_err(Into::into)
            }
            "interface" => name_of(value).map(|name| self.interface = Some(name)),
            "device" => name_of(value).map(|name| self.device = Some(name)),
            "qp" => Qpn::parse(value).map(|qp| self.qp = Some(qp)).ok_or("a queue pair has a number".into()),
            "type" => word(value, &SERVICES, "a type is").map(|service| self.service = Some(service)),
            "op" => word(value, &OPERATIONS, "an operation is").map(|op| self.operation = Some(op)),
            "object" => word(value, &OBJECTS, "an object is").map(|object| self.object = Some(object)),
            "nth" => {
                let number = value.parse().ok().filter(|number| *number > 0);
                number.map(|number| self.nth = Some(number)).ok_or("one counts from 1".into())
            }
            "from" => duration(value).map(|from| self.from = from),
            "until" => duration(value).map(|until| self.until = Some(until)),
            _ => return None,
        };
        Some(set)
    }

    /// Whether an action can happen under these conditions.
    fn check(&self, action: Action) -> Result<(), String> {
        match action {
            _ if self.until.is_some_and(|until| until <= self.from) => {
                Err("the time ends before it begins: until is later than from".into())
            }
            Action::Corrupt if self.is_out == Some(true) => {
                Err("packets are damaged where they arrive: corrupt has dir=in".into())
            }
            Action::Error(outcome) => self.check_error(outcome),
            _ => Ok(()),
        }
    }
}

/// Transport services, by the upper three bits of their opcodes (IBA 1.4 table 38).
pub(crate) const RC: u8 = 0;
pub(crate) const UC: u8 = 1;
pub(crate) const UD: u8 = 3;
const XRC: u8 = 5;
/// Frames of raw packet queue pairs, which have no opcode.
pub(crate) const RAW: u8 = 8;

/// How receives, and sends that nothing acknowledges, end.
const ENDS: &str = "ends with loc-len, loc-qp-op, loc-prot, loc-access, fatal or general";

impl When {
    /// Whether a request can fail so under these conditions.
    fn check_error(&self, outcome: Outcome) -> Result<(), String> {
        let is_out = self.is_out != Some(false);
        let is_of_adapter = Action::Error(outcome).is_of_adapter();
        let is_unreliable = matches!(self.service, Some(UC | UD | RAW));
        match outcome {
            _ if is_out && is_unreliable && !is_of_adapter => {
                Err(format!("a send of UC, UD or raw packets {ENDS}"))
            }
            _ if is_out => Ok(()),
            Outcome::Status(_) if !is_of_adapter => Err(format!("a receive {ENDS}")),
            Outcome::Status(_) if matches!(self.service, Some(XRC | RAW)) => {
                Err("receives of rc, uc and ud fail".into())
            }
            Outcome::Status(_) if self.operation.is_some_and(|operation| operation != Operation::Send) => {
                Err("receives take SENDs: op=send".into())
            }
            Outcome::Status(_) => Ok(()),
            _ if is_unreliable => Err("no peer of UC or UD is told of an error".into()),
            _ => Ok(()),
        }
    }

    /// Completes a rule about requests of the peer: one that does not name its transport is for RC,
    /// and receives take SENDs.
    fn complete_error(&mut self, action: Action) {
        let Action::Error(outcome) = action else { return };
        if self.is_out != Some(false) {
            return;
        }
        self.service = self.service.or(Some(RC));
        if let Outcome::Status(_) = outcome {
            self.operation = self.operation.or(Some(Operation::Send));
        }
    }
}

fn name_of(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("a name is missing".into()) } else { Ok(text.to_owned()) }
}

/// A reason of a rejection, by its word or number.
fn reject_reason(text: &str) -> Result<u16, String> {
    let found = text.parse().ok().filter(|number| *number > 0);
    match found {
        Some(number) => Ok(number),
        None => word(text, &REASONS, "").map_err(|_| words("a reason is a number, or", &REASONS)),
    }
}
