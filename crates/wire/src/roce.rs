//! A whole RoCEv2 packet between the UDP header and the ICRC: BTH, extension headers, payload, padding.

use crate::bth::{Aeth, AtomicEth, Bth, Deth, Feth, Reth, XrcEth};
use crate::{Malformed, Rkey};

/// Which transport service a packet belongs to (the upper three bits of the opcode), with the header it adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: SEND and WRITE only.
    Uc,
    /// Unreliable datagram: SEND ONLY only.
    Ud(Deth),
    /// Extended reliable connection; its requests carry the XRCETH, its responses travel as `Rc`-shaped ones.
    Xrc(Option<XrcEth>),
}

/// What ends a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing more.
    None,
    /// Immediate data, in network byte order as the application gave it.
    Immediate([u8; 4]),
    /// A key to invalidate at the receiver (RC and XRC only).
    Invalidate(Rkey),
}

/// Which packet of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAt {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last(SendTail),
    /// The only one.
    Only(SendTail),
}

/// Which packet of an RDMA WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// The first of several.
    First(Reth),
    /// Neither first nor last.
    Middle,
    /// The last of several, perhaps with immediate data.
    Last(Option<[u8; 4]>),
    /// The only one, perhaps with immediate data.
    Only(Reth, Option<[u8; 4]>),
}

/// Which packet of an RDMA READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// The first of several.
    First(Aeth),
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last(Aeth),
    /// The only one.
    Only(Aeth),
}

/// The operation a packet carries (the lower five bits of the opcode), with its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send(SendAt),
    /// RDMA WRITE.
    Write(WriteAt),
    /// RDMA READ request.
    ReadRequest(Reth),
    /// RDMA READ response.
    ReadResponse(ReadAt),
    /// ACKNOWLEDGE.
    Acknowledge(Aeth),
    /// ATOMIC ACKNOWLEDGE with the original value.
    AtomicAcknowledge(Aeth, u64),
    /// COMPARE SWAP.
    CompareSwap(AtomicEth),
    /// FETCH ADD.
    FetchAdd(AtomicEth),
    /// FLUSH.
    Flush(Feth, Reth),
    /// ATOMIC WRITE; its payload is the eight bytes.
    AtomicWrite(Reth),
    /// Congestion notification packet (annex A17 §A17.9.3); its payload is 16 reserved bytes.
    CongestionNotification,
}

/// The headers of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Base transport header.
    pub bth: Bth,
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub op: Op,
}

/// One packet: headers and payload, without padding and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Headers.
    pub header: Header,
    /// Payload without its padding.
    pub payload: &'a [u8],
}

impl Header {
    /// Bytes the headers take on the wire, 12 to 44.
    pub fn len(&self) -> usize {
        todo!("{self:?}")
    }

    /// Writes the headers of a packet whose payload will be `payload_len` bytes (which gives the pad count) to the
    /// front of `out` and returns their length. `out` must hold at least [`Header::len`] bytes.
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> usize {
        todo!("{payload_len} {out:?}")
    }
}

impl<'a> Packet<'a> {
    /// Parses what lies between the UDP header and the ICRC (that is, the ICRC's four bytes are cut off already).
    /// The opcode is known to be legal before any length is computed from it.
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        todo!("{bytes:?}")
    }
}
