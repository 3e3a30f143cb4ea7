//! A whole RoCEv2 packet between the UDP header and the ICRC: BTH, extension headers, payload,
//! padding.

use crate::bth::{Aeth, AtomicEth, Bth, Deth, Feth, Reth, XrcEth};
use crate::bytes::{Reader, Writer};
use crate::opcode::{self, Operation, Transport};
use crate::{Malformed, Rkey};

/// Which transport service a packet belongs to (the upper three bits of the opcode), with the
/// header it adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: SEND and WRITE only.
    Uc,
    /// Unreliable datagram: SEND ONLY only.
    Ud(Deth),
    /// Extended reliable connection; its requests carry the XRCETH (`Some`), its responses do not
    /// (`None`).
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
    /// Congestion notification packet (annex A17 §A17.9.3); its payload is 16 reserved bytes. It
    /// belongs to no service and is parsed as one of [`Service::Rc`].
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
    /// The BTH opcode byte. A service and an operation that IBA 1.4 table 38 does not pair (a READ
    /// over UC, say) give a byte that [`Packet::parse`] refuses.
    #[inline]
    pub fn opcode(&self) -> u8 {
        opcode::encode(&self.service, &self.op)
    }

    /// Bytes the headers take on the wire, 12 to 44.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a packet without headers does not exist")]
    pub fn len(&self) -> usize {
        let service = match self.service {
            Service::Rc | Service::Uc | Service::Xrc(None) => 0,
            Service::Ud(_) => Deth::LEN,
            Service::Xrc(Some(_)) => XrcEth::LEN,
        };
        Bth::LEN + service + self.op.len()
    }

    /// Writes the headers of a packet whose payload will be `payload_len` bytes (which gives the
    /// pad count) to the front of `out` and returns their length.
    ///
    /// # Panics
    ///
    /// If `out` holds fewer than [`Header::len`] bytes.
    #[inline]
    pub fn emit(&self, payload_len: usize, out: &mut [u8]) -> usize {
        let mut out = Writer::new(out);
        self.bth.write(self.opcode(), pad(payload_len), &mut out);
        match &self.service {
            Service::Rc | Service::Uc | Service::Xrc(None) => {}
            Service::Ud(deth) => deth.write(&mut out),
            Service::Xrc(Some(xrc)) => xrc.write(&mut out),
        }
        self.op.write(&mut out);
        self.len()
    }
}

/// All headers of a SEND ONLY over RC without immediate data, whose payload will be so many bytes.
#[inline]
pub fn send_only(bth: &Bth, payload_len: usize) -> [u8; Bth::LEN] {
    bth.bytes(opcode::encode(&Service::Rc, &Op::SEND_ONLY), pad(payload_len))
}

/// Zero bytes that follow a payload of `payload_len` bytes to fill its last word, 0 to 3 (IBA 1.4
/// §9.2.3).
#[inline]
pub const fn pad(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

impl Op {
    /// A whole SEND without immediate data: what most packets are.
    pub const SEND_ONLY: Self = Self::Send(SendAt::Only(SendTail::None));

    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Send(SendAt::First | SendAt::Middle) => 0,
            Self::Send(SendAt::Last(tail) | SendAt::Only(tail)) => match tail {
                SendTail::None => 0,
                SendTail::Immediate(_) | SendTail::Invalidate(_) => 4,
            },
            Self::Write(WriteAt::First(_) | WriteAt::Only(_, None)) => Reth::LEN,
            Self::Write(WriteAt::Middle | WriteAt::Last(None)) => 0,
            Self::Write(WriteAt::Last(Some(_))) => 4,
            Self::Write(WriteAt::Only(_, Some(_))) => Reth::LEN + 4,
            Self::ReadRequest(_) | Self::AtomicWrite(_) => Reth::LEN,
            Self::ReadResponse(ReadAt::Middle) => 0,
            Self::ReadResponse(ReadAt::First(_) | ReadAt::Last(_) | ReadAt::Only(_)) => Aeth::LEN,
            Self::Acknowledge(_) => Aeth::LEN,
            Self::AtomicAcknowledge(..) => Aeth::LEN + 8,
            Self::CompareSwap(_) | Self::FetchAdd(_) => AtomicEth::LEN,
            Self::Flush(..) => Feth::LEN + Reth::LEN,
            Self::CongestionNotification => 0,
        }
    }

    #[inline]
    fn write(&self, out: &mut Writer<'_>) {
        match self {
            Self::Send(SendAt::First | SendAt::Middle) => {}
            Self::Send(SendAt::Last(tail) | SendAt::Only(tail)) => match tail {
                SendTail::None => {}
                SendTail::Immediate(data) => out.array(*data),
                SendTail::Invalidate(rkey) => out.u32(rkey.0),
            },
            Self::Write(WriteAt::Middle | WriteAt::Last(None)) => {}
            Self::Write(WriteAt::First(reth) | WriteAt::Only(reth, None)) => reth.write(out),
            Self::Write(WriteAt::Last(Some(data))) => out.array(*data),
            Self::Write(WriteAt::Only(reth, Some(data))) => {
                reth.write(out);
                out.array(*data);
            }
            Self::ReadRequest(reth) | Self::AtomicWrite(reth) => reth.write(out),
            Self::ReadResponse(ReadAt::Middle) => {}
            Self::ReadResponse(ReadAt::First(aeth) | ReadAt::Last(aeth) | ReadAt::Only(aeth)) => {
                aeth.write(out)
            }
            Self::Acknowledge(aeth) => aeth.write(out),
            Self::AtomicAcknowledge(aeth, original) => {
                aeth.write(out);
                out.u64(*original);
            }
            Self::CompareSwap(atomic) | Self::FetchAdd(atomic) => atomic.write(out),
            Self::Flush(feth, reth) => {
                feth.write(out);
                reth.write(out);
            }
            Self::CongestionNotification => {}
        }
    }

    #[inline]
    fn read(operation: Operation, from: &mut Reader<'_>) -> Result<Self, Malformed> {
        use Operation as O;
        Ok(match operation {
            O::SendFirst => Self::Send(SendAt::First),
            O::SendMiddle => Self::Send(SendAt::Middle),
            O::SendLast => Self::Send(SendAt::Last(SendTail::None)),
            O::SendLastImmediate => Self::Send(SendAt::Last(SendTail::Immediate(from.array()?))),
            O::SendLastInvalidate => Self::Send(SendAt::Last(SendTail::Invalidate(Rkey(from.u32()?)))),
            O::SendOnly => Self::Send(SendAt::Only(SendTail::None)),
            O::SendOnlyImmediate => Self::Send(SendAt::Only(SendTail::Immediate(from.array()?))),
            O::SendOnlyInvalidate => Self::Send(SendAt::Only(SendTail::Invalidate(Rkey(from.u32()?)))),
            O::WriteFirst => Self::Write(WriteAt::First(Reth::read(from)?)),
            O::WriteMiddle => Self::Write(WriteAt::Middle),
            O::WriteLast => Self::Write(WriteAt::Last(None)),
            O::WriteLastImmediate => Self::Write(WriteAt::Last(Some(from.array()?))),
            O::WriteOnly => Self::Write(WriteAt::Only(Reth::read(from)?, None)),
            O::WriteOnlyImmediate => Self::Write(WriteAt::Only(Reth::read(from)?, Some(from.array()?))),
            O::ReadRequest => Self::ReadRequest(Reth::read(from)?),
            O::ReadResponseFirst => Self::ReadResponse(ReadAt::First(Aeth::read(from)?)),
            O::ReadResponseMiddle => Self::ReadResponse(ReadAt::Middle),
            O::ReadResponseLast => Self::ReadResponse(ReadAt::Last(Aeth::read(from)?)),
            O::ReadResponseOnly => Self::ReadResponse(ReadAt::Only(Aeth::read(from)?)),
            O::Acknowledge => Self::Acknowledge(Aeth::read(from)?),
            O::AtomicAcknowledge => Self::AtomicAcknowledge(Aeth::read(from)?, from.u64()?),
            O::CompareSwap => Self::CompareSwap(AtomicEth::read(from)?),
            O::FetchAdd => Self::FetchAdd(AtomicEth::read(from)?),
            O::Flush => Self::Flush(Feth::read(from)?, Reth::read(from)?),
            O::AtomicWrite => Self::AtomicWrite(Reth::read(from)?),
            O::CongestionNotification => Self::CongestionNotification,
        })
    }

    /// The payload length that table 38 (annex A17 §A17.9.3 for the CNP) fixes for the operation,
    /// if it does. That of ATOMIC WRITE is left to the responder, which owes the peer a NAK.
    fn fixed_payload_len(&self) -> Option<usize> {
        match self {
            Self::ReadRequest(_)
            | Self::Acknowledge(_)
            | Self::AtomicAcknowledge(..)
            | Self::CompareSwap(_)
            | Self::FetchAdd(_)
            | Self::Flush(..) => Some(0),
            Self::CongestionNotification => Some(16),
            Self::Send(_) | Self::Write(_) | Self::ReadResponse(_) | Self::AtomicWrite(_) => None,
        }
    }
}

impl<'a> Packet<'a> {
    /// Parses what lies between the UDP header and the ICRC (that is, the ICRC's four bytes are cut
    /// off already). The opcode is known to be legal before any length is computed from it.
    /// Reserved bits are ignored. Lengths that only the connection's state can judge (the path
    /// MTU, a RETH's length) are not.
    ///
    /// # Errors
    ///
    /// `Truncated`: shorter than its headers. `Opcode`: not in table 38. `Version`: not 0. `Pad`:
    /// more padding than payload. `Length`: not whole words, or a payload where the operation
    /// has none. `Field`: a reserved AETH syndrome.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(bytes);
        let (bth, raw) = Bth::read(&mut from)?;
        let (transport, operation) = opcode::decode(raw.opcode).ok_or(Malformed::Opcode(raw.opcode))?;
        if raw.version != 0 {
            return Err(Malformed::Version(raw.version));
        }
        if (transport, operation) == (Transport::Rc, Operation::SendOnly) {
            // Most packets: no more headers, and any payload.
            let op = Op::SEND_ONLY;
            let payload = unpadded(from.rest(), raw.pad)?;
            return Ok(Packet { header: Header { bth, service: Service::Rc, op }, payload });
        }
        let service = match transport {
            // A CNP belongs to no service.
            Transport::Rc | Transport::Cnp => Service::Rc,
            Transport::Uc => Service::Uc,
            Transport::Ud => Service::Ud(Deth::read(&mut from)?),
            Transport::Xrc if operation.is_response() => Service::Xrc(None),
            Transport::Xrc => Service::Xrc(Some(XrcEth::read(&mut from)?)),
        };
        let op = Op::read(operation, &mut from)?;
        let payload = unpadded(from.rest(), raw.pad)?;
        if op.fixed_payload_len().is_some_and(|fixed| fixed != payload.len()) {
            return Err(Malformed::Length);
        }
        Ok(Packet { header: Header { bth, service, op }, payload })
    }
}

/// A payload without its padding.
#[inline]
fn unpadded(padded: &[u8], pad: u8) -> Result<&[u8], Malformed> {
    if !padded.len().is_multiple_of(4) {
        return Err(Malformed::Length);
    }
    let len = padded.len().checked_sub(pad.into()).ok_or(Malformed::Pad(pad))?;
    Ok(&padded[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pkey, Psn, Qpn};

    #[test]
    fn the_headers_of_a_send_only_are_those_of_any_packet() {
        let bth = Bth {
            solicited: true,
            pkey: Pkey(0x8123),
            dest_qp: Qpn::new(0x1_2345),
            ack_request: true,
            psn: Psn::new(0xab_cdef),
            ..Bth::default()
        };
        let header = Header { bth, service: Service::Rc, op: Op::SEND_ONLY };
        for len in 0..6 {
            let mut emitted = [0; Bth::LEN];
            header.emit(len, &mut emitted);
            assert_eq!(send_only(&bth, len), emitted);
        }
    }
}
