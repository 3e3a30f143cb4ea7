//! What a process on Verbena says of its RDMA objects when it is asked: plain values, in the words
//! of `rdma resource show` (rdma-resource(8)) where it has them.
//!
//! Internal to Verbena: it promises no stability.
//!
//! A process listens at an abstract name ([`name`]) in its network namespace, and answers its own
//! user and root. An answer is the format's version and one [`Process`], both as postcard writes
//! them, then the end of the stream. Keys and contents of memory are not in it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the format. Processes of other builds may have another one.
const VERSION: u32 = 3;
/// Begins the names at which processes answer.
const PREFIX: &str = "verbena-state/";

/// The abstract name of a process, without the leading zero. No other process can foresee `random`
/// and take the name first.
pub fn name(pid: u32, random: u64) -> String {
    format!("{PREFIX}{pid}/{random:016x}")
}

/// The process that an abstract name is of, as the name says; `None` for other names.
pub fn pid_of(name: &str) -> Option<u32> {
    let (pid, random) = name.strip_prefix(PREFIX)?.split_once('/')?;
    u64::from_str_radix(random, 16).ok()?;
    pid.parse().ok()
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Process {
    /// Number of the process.
    pub pid: u32,
    /// The program's name, as in /proc/PID/comm.
    pub comm: String,
    /// Milliseconds since it began to use Verbena.
    pub uptime_ms: u64,
    /// A number of the view of the file system that it has from `verbena run`: processes with the
    /// same one count in the same files.
    pub view: Option<u64>,
    /// Devices, in the order in which programs list them.
    pub devices: Vec<Device>,
    /// Identifiers of rdma_cm.
    pub cm_ids: Vec<CmId>,
    /// Counters, by name.
    pub counters: BTreeMap<String, u64>,
}

/// A device of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// The device's name.
    pub ifname: String,
    /// The name of its interface.
    pub netdev: String,
    /// ACTIVE or DOWN.
    pub state: String,
    /// Bytes of the largest payload of a packet.
    pub mtu: u32,
    /// How many protection domains it has.
    pub pds: u64,
    /// Queue pairs, by number.
    pub qps: Vec<Qp>,
    /// Completion queues.
    pub cqs: Vec<Cq>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Memory regions.
    pub mrs: Vec<Mr>,
}

impl Device {
    /// Whether the process has objects on it.
    pub fn is_used(&self) -> bool {
        !(self.qps.is_empty() && self.mrs.is_empty() && self.cqs.is_empty() && self.srqs.is_empty())
    }
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Qp {
    /// Local queue pair number.
    pub lqpn: u32,
    /// The peer's queue pair number.
    pub rqpn: Option<u32>,
    /// RC, UC, UD, XRC_INI, XRC_TGT or RAW_PACKET.
    #[serde(rename = "type")]
    pub kind: String,
    /// RESET, INIT, RTR, RTS, SQD, SQE or ERR.
    pub state: String,
    /// PSN expected next.
    pub rq_psn: Option<u32>,
    /// PSN of the next new request.
    pub sq_psn: Option<u32>,
    /// The protection domain's number.
    pub pdn: u32,
    /// Own address, of a connection.
    pub src_addr: Option<String>,
    /// The peer's address, of a connection.
    pub dst_addr: Option<String>,
    /// `memory` where packets of a connection go by memory of the host, else `wire`.
    pub via: Option<String>,
    /// Bytes of the path MTU.
    pub path_mtu: u32,
    /// Send requests that take a place in the send queue.
    pub sends: u32,
    /// Send requests that the queue holds.
    pub max_send_wr: u32,
    /// Receives in the queue pair's own receive queue.
    pub recvs: u32,
    /// Receives that the queue holds.
    pub max_recv_wr: u32,
    /// Packets and short messages that came.
    pub received: u64,
    /// What the stream of an iWARP queue pair has carried.
    pub stream: Option<Stream>,
    /// What else a reliable connection knows.
    pub reliable: Option<Reliable>,
    /// The completion queue of sends.
    pub send_cqn: u32,
    /// The completion queue of receives.
    pub recv_cqn: u32,
    /// The shared receive queue that it takes receives from.
    pub srqn: Option<u32>,
}

/// What the stream of an iWARP queue pair has carried, from its first FPDU on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Stream {
    /// Bytes that the stream took.
    pub sent_bytes: u64,
    /// FPDUs given to the stream.
    pub sent_fpdus: u64,
    /// Bytes that came.
    pub received_bytes: u64,
    /// FPDUs that have come whole.
    pub received_fpdus: u64,
}

/// What a reliable connection knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reliable {
    /// PSNs sent and not acknowledged.
    pub in_flight: u32,
    /// Send requests that have completed without an error.
    pub completed: u64,
    /// How often all was sent again from the oldest PSN that was not acknowledged.
    pub retransmissions: u32,
    /// Local ACK timeouts.
    pub timeouts: u32,
    /// RNR NAKs that came.
    pub rcvd_rnr_naks: u32,
    /// RNR NAKs sent.
    pub sent_rnr_naks: u32,
    /// READs and atomics that it may have under way.
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that it serves at a time.
    pub max_dest_rd_atomic: u8,
    /// Why the queue pair went to the error state by itself.
    pub last_error: Option<LastError>,
}

/// Why and when a queue pair went to the error state by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LastError {
    /// The status of its oldest request, without IBV_WC_; or the NAK that the peer was sent.
    pub status: String,
    /// Milliseconds that have passed since.
    pub ms_ago: u64,
}

/// A completion queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cq {
    /// Place in the list of the device.
    pub cqn: u32,
    /// Completions that the queue holds at most.
    pub cqe: u32,
    /// Completions in the queue.
    pub fill: u32,
    /// Completions that were ever added.
    pub added: u64,
    /// Whether one was lost because the queue was full.
    pub overrun: bool,
    /// Whether the queue has a completion channel.
    pub channel: bool,
    /// Send and receive queues that complete into it.
    pub users: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Srq {
    /// The queue's number.
    pub srqn: u32,
    /// BASIC, XRC or TM.
    #[serde(rename = "type")]
    pub kind: String,
    /// The protection domain's number.
    pub pdn: u32,
    /// The completion queue of its receives, where that is not the queue pairs'.
    pub cqn: Option<u32>,
    /// Receives that are posted.
    pub recvs: u32,
    /// Receives that the queue holds.
    pub max_recv_wr: u32,
    /// Receives below which it raises an event; 0 where none is asked for.
    pub limit: u32,
}

/// A memory region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Mr {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub mrlen: u64,
    /// The protection domain's number.
    pub pdn: u32,
    /// Rights, as `enum ibv_access_flags` names them, without IBV_ACCESS_.
    pub access: Vec<String>,
}

/// An identifier of rdma_cm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CmId {
    /// The device's name.
    pub ifname: Option<String>,
    /// The number of its queue pair.
    pub lqpn: Option<u32>,
    /// The type of its queue pair.
    pub qp_type: String,
    /// The state, in the words of rdma-resource(8).
    pub state: String,
    /// The state, in the words of Verbena's error messages.
    pub progress: String,
    /// IPoIB, IB, TCP or UDP.
    pub ps: String,
    /// Own address and port.
    pub src_addr: Option<String>,
    /// The peer's address and port.
    pub dst_addr: Option<String>,
    /// The event channel: identifiers with one channel have one number.
    pub channel: u32,
    /// Events that wait in the channel, of all its identifiers.
    pub events: u32,
}

/// Why bytes are no [`Process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The build that wrote them has another version of the format.
    Version(u32),
    /// The bytes are damaged, or cut off.
    Malformed,
}

impl Process {
    /// The bytes that are sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A vector takes all, and the lengths of sequences are known: it cannot fail.
        postcard::to_allocvec(&(VERSION, self)).unwrap_or_default()
    }

    /// The process that these bytes say.
    ///
    /// # Errors
    ///
    /// [`Unreadable`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        match postcard::take_from_bytes(bytes) {
            Ok((VERSION, rest)) => postcard::from_bytes(rest).map_err(|_| Unreadable::Malformed),
            Ok((version, _)) => Err(Unreadable::Version(version)),
            Err(_) => Err(Unreadable::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process {
        let reliable = Reliable { last_error: Some(LastError::default()), ..Reliable::default() };
        let qp = Qp { lqpn: 17, rqpn: Some(18), reliable: Some(reliable), ..Qp::default() };
        let device = Device { ifname: "rxe_eth0".into(), qps: vec![qp], ..Device::default() };
        let counters = BTreeMap::from([("host.packets_sent".into(), u64::MAX)]);
        Process { pid: 4711, devices: vec![device], counters, ..Process::default() }
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        assert_eq!(Process::from_bytes(&process().to_bytes()), Ok(process()));
    }

    #[test]
    fn what_is_cut_off_damaged_or_of_another_version_is_no_answer() {
        let bytes = process().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Process::from_bytes(&bytes[..len]), Err(Unreadable::Malformed), "{len} bytes");
        }
        let newer = [&[VERSION as u8 + 1], &bytes[1..]].concat();
        assert_eq!(Process::from_bytes(&newer), Err(Unreadable::Version(VERSION + 1)));
        assert!(Process::from_bytes(&[&bytes[..1], &[0xff; 64]].concat()).is_err());
    }

    #[test]
    fn names_say_which_process_they_are_of_and_other_names_do_not() {
        assert_eq!(pid_of(&name(4711, u64::MAX)), Some(4711));
        for other in ["verbena/2/0/block/001", "verbena-state/1", "verbena-state/x/00", "verbena-state/1/x"] {
            assert_eq!(pid_of(other), None, "{other}");
        }
    }
}
