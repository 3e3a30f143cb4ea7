//! The words of rules and what they stand for, and numbers with units.

use std::time::Duration;

use nic::faults::{Object, Outcome};
use transport::op::Status;
use wire::bth::NakCode;
use wire::mad::reason;

use super::parse::RAW;

/// Operations of packets, by the lower five bits of their opcodes (IBA 1.4 table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Ack,
    Atomic,
    Flush,
    AtomicWrite,
}

impl Operation {
    pub(crate) fn of(opcode: u8) -> Option<Self> {
        Some(match opcode & 0x1f {
            0x00..=0x05 | 0x16 | 0x17 => Self::Send,
            0x06..=0x0b => Self::Write,
            0x0c => Self::ReadRequest,
            0x0d..=0x10 => Self::ReadResponse,
            0x11 | 0x12 => Self::Ack,
            0x13 | 0x14 => Self::Atomic,
            0x1c => Self::Flush,
            0x1d => Self::AtomicWrite,
            _ => return None,
        })
    }
}

/// Words for directions: whether it is out.
pub(super) const DIRECTIONS: [(&str, bool); 2] = [("in", false), ("out", true)];

/// Words for operations.
pub(super) const OPERATIONS: [(&str, Operation); 8] = [
    ("send", Operation::Send),
    ("write", Operation::Write),
    ("read", Operation::ReadRequest),
    ("read-response", Operation::ReadResponse),
    ("ack", Operation::Ack),
    ("atomic", Operation::Atomic),
    ("flush", Operation::Flush),
    ("atomic-write", Operation::AtomicWrite),
];

/// Words for transport services, by the upper three bits of their opcodes.
pub(super) const SERVICES: [(&str, u8); 5] = [("rc", 0), ("uc", 1), ("ud", 3), ("xrc", 5), ("raw", RAW)];

/// Words for objects.
pub(super) const OBJECTS: [(&str, Object); 8] = [
    ("pd", Object::Pd),
    ("cq", Object::Cq),
    ("qp", Object::Qp),
    ("srq", Object::Srq),
    ("mr", Object::Mr),
    ("mw", Object::Mw),
    ("ah", Object::Ah),
    ("cm-id", Object::CmId),
];

/// Words for completion statuses: IBV_WC_X_ERR without what all have in common.
pub(super) const STATUSES: [(&str, Outcome); 14] = [
    ("retry-exc", Outcome::Unanswered),
    ("rnr-retry-exc", Outcome::Status(Status::RnrRetryExceeded)),
    ("rem-access", Outcome::Nak(NakCode::RemoteAccess)),
    ("rem-inv-req", Outcome::Nak(NakCode::InvalidRequest)),
    ("rem-op", Outcome::Nak(NakCode::RemoteOperational)),
    ("rem-abort", Outcome::Status(Status::RemoteAbort)),
    ("loc-len", Outcome::Status(Status::LocalLength)),
    ("loc-qp-op", Outcome::Status(Status::LocalQpOperation)),
    ("loc-prot", Outcome::Status(Status::LocalProtection)),
    ("loc-access", Outcome::Status(Status::LocalAccess)),
    ("bad-resp", Outcome::Status(Status::BadResponse)),
    ("fatal", Outcome::Status(Status::Fatal)),
    ("resp-timeout", Outcome::Status(Status::ResponseTimeout)),
    ("general", Outcome::Status(Status::General)),
];

/// Words for reasons of a rejection (IBA 1.4 table 109).
pub(super) const REASONS: [(&str, u16); 8] = [
    ("consumer-defined", reason::CONSUMER_DEFINED),
    ("no-qp", reason::NO_QP),
    ("no-resources", reason::NO_RESOURCES),
    ("timeout", reason::TIMEOUT),
    ("unsupported", reason::UNSUPPORTED_REQUEST),
    ("invalid-service-id", reason::INVALID_SERVICE_ID),
    ("stale-conn", reason::STALE_CONNECTION),
    ("invalid-gid", reason::INVALID_GID),
];

/// What a word stands for; an error lists all words.
pub(super) fn word<T: Copy>(text: &str, all: &[(&str, T)], begin: &str) -> Result<T, String> {
    let found = all.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| words(begin, all))
}

/// A list of all words.
pub(super) fn words<T>(begin: &str, all: &[(&str, T)]) -> String {
    let all: Vec<_> = all.iter().map(|(word, _)| *word).collect();
    format!("{begin} {}", all.join(", "))
}

/// `1%`, `0.01`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let probability = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let probability = probability.ok().filter(|probability| (0.0..=1.0).contains(probability));
    probability.ok_or("a probability is 0% to 100%".into())
}

/// `5s`, `20ms`, `100us`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = with_unit(text, &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6)]);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // A year is for ever, and can be added to any time.
    let duration = duration.filter(|duration| *duration < Duration::from_secs(365 * 24 * 3600));
    duration.ok_or("a time is 5s, 20ms or 100us".into())
}

/// `1gbit`, `100mbit`: bits each second, with the units of tc(8).
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let bits = with_unit(text, &[("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)]);
    let bits = bits.filter(|bits| (1.0..=1e15).contains(bits));
    bits.map(|bits| bits as u64).ok_or("a rate is 1gbit, 100mbit, 64kbit or 300bit".into())
}

/// A number with one of these units.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let (_, worth) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number.trim().parse::<f64>().ok()? * worth)
}
