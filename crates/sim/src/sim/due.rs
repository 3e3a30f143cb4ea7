//! What will happen, and when.

use nic::{Errno, Persist};
use stack::env::{Interface, Name, Watch};
use wire::icrc::Flow;
use wire::mad::MAD_LEN;

use crate::by_lid::ByLid;
use crate::env::{HostId, ProcessId, Record};
use crate::streams::StreamDue;

/// Something that will happen.
#[derive(Debug)]
pub(super) struct Due {
    pub at: u64,
    /// Order of what happens at the same time: the older comes first.
    pub number: u64,
    pub what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Arrival { from: ProcessId, at: HostId, flow: Flow, bytes: Vec<u8> },
    ByLid { to: HostId, packet: ByLid },
    Fabric,
    Mad { to: ProcessId, mad: Box<[u8; MAD_LEN]> },
    Forwarded { to: ProcessId, flow: Flow, bytes: Vec<u8> },
    ByChannel { from: ProcessId, to: ProcessId, record: Record },
    Resolved { to: ProcessId, ticket: u64, result: Result<(), Errno> },
    Refused { to: ProcessId, flow: Flow, bytes: Vec<u8> },
    Gone { to: ProcessId, name: Name, watch: Watch },
    Interfaces { to: ProcessId, interfaces: Vec<Interface> },
    Flushed { process: ProcessId, work: Persist },
    PowerFails(HostId),
    PowerIsBack(HostId),
    Stream(StreamDue),
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Due {}
