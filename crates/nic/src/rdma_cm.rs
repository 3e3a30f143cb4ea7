//! The words of rdma_cm that every provider shares: what is told of an identifier, connection
//! parameters, limits. The state behind them is that of the crate `node`, or of a kernel.

use wire::{Qkey, Qpn};

use crate::error::{Error, in_range};
use crate::limits;
use crate::qp::attr::AddressVector;

/// Q_Key of every queue pair and group of RDMA_PS_UDP, and of datagrams in RDMA_PS_IB
/// (RDMA_UDP_QKEY of <rdma/rdma_cma.h>).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);
/// Requests that may wait at a listener, whatever backlog it asks for.
pub const MAX_BACKLOG: usize = 1024;

/// `enum rdma_cm_event_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the header's")]
pub enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
    AddrinfoResolved = 16,
    AddrinfoError = 17,
    User = 18,
}

/// Connection parameters (`struct rdma_conn_param` without its private data).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    /// READs and atomics this side accepts at once.
    pub responder_resources: u8,
    /// READs and atomics this side starts at once.
    pub initiator_depth: u8,
    /// End-to-end flow control, told to the peer only.
    pub flow_control: bool,
    /// Retries on timeout, 0 to 7.
    pub retry_count: u8,
    /// Retries on RNR NAK, 0 to 7.
    pub rnr_retry_count: u8,
    /// The queue pair uses a shared receive queue.
    pub srq: bool,
    /// Number of the queue pair.
    pub qp_num: u32,
}

impl ConnParam {
    /// Ranges of rdma_connect(3) and rdma_accept(3).
    pub fn check(&self) -> Result<(), Error> {
        let most = limits::MAX_RD_ATOMIC;
        in_range("responder_resources", self.responder_resources, 0_u8, most)?;
        in_range("initiator_depth", self.initiator_depth, 0_u8, most)
    }

    /// What a request offers, cut to what the device has.
    pub fn cut(&self) -> Self {
        let most = limits::MAX_RD_ATOMIC;
        Self {
            responder_resources: self.responder_resources.min(most),
            initiator_depth: self.initiator_depth.min(most),
            ..*self
        }
    }
}

/// Where datagrams of a service or a group go (`struct rdma_ud_param` without its private data).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdParam {
    /// The address.
    pub av: AddressVector,
    /// Queue pair there: [`Qpn::MULTICAST`] for a group, 0 in a request.
    pub qpn: Qpn,
    /// Q_Key of the queue pair.
    pub qkey: Qkey,
    /// What the program gave with its join of a group.
    pub context: u64,
}
