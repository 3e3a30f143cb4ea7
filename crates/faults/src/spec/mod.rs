//! Rules, as a user writes them: `loss=1%,dir=out; delay=10ms,jitter=2ms,peer=10.0.0.2`.
//!
//! A rule is what happens, and to what, with commas between its terms. Rules are separated by
//! semicolons.
//!
//! | file | what |
//! |---|---|
//! | this one | what a rule may say |
//! | `parse` | how it is read, and what is wrong with it |
//! | `notes` | which rules do nothing on a kind of device |
//! | `words` | the words for operations, statuses, reasons and the like; numbers with units |

mod notes;
mod parse;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;
use std::time::Duration;

use nic::faults::{Object, Outcome};
use transport::op::Status;
use wire::{Address, Qpn};

pub(crate) use parse::{RAW, UC, UD};
pub(crate) use words::Operation;

/// All rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub(crate) rules: Vec<Rule>,
    text: String,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub action: Action,
    /// Of all that matches, how much: 0.0 to 1.0.
    pub probability: f64,
    /// Packets that are held at most, in each direction.
    pub limit: usize,
    /// The rule is about packets alone, and not about streams, which never recover from it.
    pub spares_streams: bool,
    pub when: When,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// The packet does not arrive.
    Loss,
    /// Like `Loss`, of all packets.
    Partition,
    /// The packet arrives with a bit changed, and is dropped, as its ICRC does not match.
    Corrupt,
    /// The packet arrives twice.
    Duplicate,
    /// The packet arrives late.
    Delay(Delay),
    /// Packets leave, or arrive, one behind the other: so many bits each second.
    Rate(u64),
    /// A work request fails.
    Error(Outcome),
    /// The stream of a connection is cut.
    Reset,
    /// No receive is there.
    Rnr,
    /// A connection request is rejected for this reason.
    Reject(u16),
    /// A connection request is not answered.
    Unanswered,
    /// An object cannot be made.
    OutOfMemory,
    /// The port is down.
    PortDown,
    /// The device is gone.
    DeviceRemoval,
    /// The engine stands still.
    Stop,
}

/// The statuses of [`Action::is_of_adapter`].
const OF_ADAPTER: [Status; 6] = [
    Status::LocalLength,
    Status::LocalQpOperation,
    Status::LocalProtection,
    Status::LocalAccess,
    Status::Fatal,
    Status::General,
];

/// How late packets are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Delay {
    pub delay: Duration,
    /// Most that is added, or taken off.
    pub jitter: Duration,
    /// The share of packets that are not late, and so overtake others: 0.0 to 1.0.
    pub reorder: f64,
}

/// What a rule is about, and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Packets, and parts of streams.
    Packet,
    /// Parts of streams alone.
    Stream,
    /// Send work requests, by their first packets.
    Request,
    /// Packets that take a receive.
    Receive,
    /// Connection requests.
    Connection,
    /// Objects that are made.
    Object,
    /// Ports, for a time.
    Port,
    /// The engine, for a time.
    Engine,
}

impl Action {
    /// The action's name, as in a rule.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Partition => "partition",
            Self::Corrupt => "corrupt",
            Self::Duplicate => "duplicate",
            Self::Delay(_) => "delay",
            Self::Rate(_) => "rate",
            Self::Reset => "reset",
            Self::Error(_) => "error",
            Self::Rnr => "rnr",
            Self::Reject(_) => "reject",
            Self::Unanswered => "unanswered",
            Self::OutOfMemory => "enomem",
            Self::PortDown => "port-down",
            Self::DeviceRemoval => "device-removal",
            Self::Stop => "stop",
        }
    }

    /// Whether an adapter alone brings it about: no peer has a part in it.
    pub(crate) fn is_of_adapter(self) -> bool {
        matches!(self, Self::Error(Outcome::Status(status)) if OF_ADAPTER.contains(&status))
    }

    pub(crate) fn subject(self) -> Subject {
        match self {
            Self::Loss
            | Self::Partition
            | Self::Corrupt
            | Self::Duplicate
            | Self::Delay(_)
            | Self::Rate(_) => Subject::Packet,
            Self::Reset => Subject::Stream,
            Self::Error(_) => Subject::Request,
            Self::Rnr => Subject::Receive,
            Self::Reject(_) | Self::Unanswered => Subject::Connection,
            Self::OutOfMemory => Subject::Object,
            Self::PortDown | Self::DeviceRemoval => Subject::Port,
            Self::Stop => Subject::Engine,
        }
    }
}

impl Subject {
    /// The conditions that a rule about it may have.
    pub(crate) fn conditions(self) -> &'static [&'static str] {
        match self {
            Self::Packet | Self::Stream | Self::Request | Self::Receive => &[
                "dir",
                "peer",
                "device",
                "interface",
                "qp",
                "type",
                "op",
                "nth",
                "probability",
                "from",
                "until",
            ],
            Self::Connection => {
                &["dir", "peer", "device", "interface", "nth", "probability", "from", "until"]
            }
            Self::Object => &["object", "device", "nth", "probability", "from", "until"],
            Self::Port => &["device", "interface", "from", "until"],
            Self::Engine => &["from", "until"],
        }
    }
}

/// To what a rule applies. What is not named does not matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct When {
    pub is_out: Option<bool>,
    /// An IP address, or a LID.
    pub peer: Option<Address>,
    pub interface: Option<String>,
    pub device: Option<String>,
    pub qp: Option<Qpn>,
    pub service: Option<u8>,
    pub operation: Option<Operation>,
    pub object: Option<Object>,
    /// The one of this number alone, from 1, of those that match all else.
    pub nth: Option<u64>,
    pub from: Duration,
    pub until: Option<Duration>,
}

impl When {
    /// Whether a rule applies at this time.
    pub(crate) fn is_at(&self, time: Duration) -> bool {
        time >= self.from && self.until.is_none_or(|until| time < until)
    }
}

/// What is wrong with a rule, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    text: String,
    /// In bytes.
    at: usize,
    len: usize,
    why: String,
}

/// Three lines: what is wrong, the rules, and a mark below the place.
impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.text[..self.at].chars().count();
        let marked = self.text[self.at..self.at + self.len].chars().count().max(1);
        write!(f, "{}\n  {}\n  {}{}", self.why, self.text, " ".repeat(before), "^".repeat(marked))
    }
}

impl std::error::Error for SpecError {}

/// The rules, as they were written.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
