//! A short message between processes of one host, without the form that it has on a wire: what of
//! its packet, and of an ACK that leaves with it, the receiver can not know. Either side may take
//! it for those two packets ([`Short::packet`], [`Short::ack`]).

use wire::bth::{Bth, Reth};
use wire::roce::{Header, Op, Packet, SendAt, SendTail, Service, WriteAt};
use wire::{Pkey, Psn, Qpn, Rkey};

use crate::op::SendOp;
use crate::rc;

/// Most bytes of such a message: those of the longest packet. Of 2 and 4 KiB a piece
/// ([`crate::op::FragmentOutcome`]) took half as long again.
pub const MAX_SHORT: usize = 4096;

/// A short message's headers. The message is whole, of RC, of at most [`MAX_SHORT`] bytes, and
/// wants an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The receiver's queue pair.
    pub dest_qp: Qpn,
    /// Partition.
    pub pkey: Pkey,
    /// The message's number.
    pub psn: Psn,
    /// The receiver's completion asks for an event.
    pub solicited: bool,
    /// What the message is.
    pub what: What,
    /// The number that the sender acknowledges.
    pub acknowledged: Option<Psn>,
}

/// What a short message is. Immediate data are as the application gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A SEND.
    Send,
    /// A SEND with immediate data.
    SendImmediate([u8; 4]),
    /// An RDMA WRITE with immediate data, to memory that the receiver knows so.
    WriteImmediate([u8; 4], Rkey, u64),
}

impl What {
    /// What an operation is as a message; `None` where it is no such one.
    #[inline]
    pub fn of(op: &SendOp) -> Option<Self> {
        match *op {
            SendOp::Send(SendTail::None) => Some(Self::Send),
            SendOp::Send(SendTail::Immediate(data)) => Some(Self::SendImmediate(data)),
            SendOp::Write { addr, rkey, immediate: Some(data) } => {
                Some(Self::WriteImmediate(data, rkey, addr))
            }
            _ => None,
        }
    }
}

impl Short {
    /// Bytes of [`Short::to_bytes`].
    pub const LEN: usize = 12;

    /// The headers but for `what`, as they lie before the message in three words of 32 bits,
    /// little-endian: receiver, number, number acknowledged. Above the 24 bits of each: flags (1:
    /// solicited, 2: an ACK leaves with it), the lower and the upper half of the partition.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let acknowledged = self.acknowledged.unwrap_or_default();
        let flags = u32::from(self.solicited) | u32::from(self.acknowledged.is_some()) << 1;
        let [low, high] = self.pkey.0.to_le_bytes().map(u32::from);
        let words =
            [self.dest_qp.get() | flags << 24, self.psn.get() | low << 24, acknowledged.get() | high << 24];
        let mut bytes = [0; Self::LEN];
        let (places, _) = bytes.as_chunks_mut::<4>();
        places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    /// The opposite, for a SEND; bits that mean nothing may be anything.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (to, psn, acknowledged) = (word(0), word(4), word(8));
        Self {
            dest_qp: Qpn::new(to),
            pkey: Pkey(u16::from_le_bytes([(psn >> 24) as u8, (acknowledged >> 24) as u8])),
            psn: Psn::new(psn),
            solicited: to >> 24 & 1 != 0,
            what: What::Send,
            acknowledged: (to >> 25 & 1 != 0).then(|| Psn::new(acknowledged)),
        }
    }

    /// The packet of the message.
    pub fn packet<'a>(&self, bytes: &'a [u8]) -> Packet<'a> {
        let bth = Bth { solicited: self.solicited, ack_request: true, psn: self.psn, ..self.bth() };
        let op = match self.what {
            What::Send => Op::SEND_ONLY,
            What::SendImmediate(data) => Op::Send(SendAt::Only(SendTail::Immediate(data))),
            What::WriteImmediate(data, rkey, addr) => {
                Op::Write(WriteAt::Only(Reth { addr, rkey, length: bytes.len() as u32 }, Some(data)))
            }
        };
        Packet { header: Header { bth, service: Service::Rc, op }, payload: bytes }
    }

    /// The packet of the ACK, but for the number of messages taken in, which no reader asks for.
    pub fn ack(&self) -> Option<Packet<'static>> {
        let bth = Bth { psn: self.acknowledged?, ..self.bth() };
        let op = Op::Acknowledge(rc::ack(0));
        Some(Packet { header: Header { bth, service: Service::Rc, op }, payload: &[] })
    }

    fn bth(&self) -> Bth {
        Bth { dest_qp: self.dest_qp, pkey: self.pkey, ..Bth::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_is_read_as_it_was_written() {
        for (solicited, acknowledged) in
            [(false, None), (true, None), (false, Some(0xff_ffff)), (true, Some(0))]
        {
            let short = Short {
                dest_qp: Qpn::new(0xab_cdef),
                pkey: Pkey(0x8001),
                psn: Psn::new(0x12_3456),
                solicited,
                what: What::Send,
                acknowledged: acknowledged.map(Psn::new),
            };
            assert_eq!(Short::from_bytes(&short.to_bytes()), short);
            let packet = short.packet(b"abc");
            let bth = packet.header.bth;
            assert_eq!((bth.psn, bth.ack_request, packet.payload), (short.psn, true, &b"abc"[..]));
            assert_eq!(packet.header.op, Op::SEND_ONLY);
            assert_eq!(short.ack().map(|ack| ack.header.bth.psn), short.acknowledged);
            let data = [1, 2, 3, 4];
            let to = Reth { addr: 5, rkey: Rkey(6), length: 3 };
            for (what, op) in [
                (What::SendImmediate(data), Op::Send(SendAt::Only(SendTail::Immediate(data)))),
                (What::WriteImmediate(data, to.rkey, to.addr), Op::Write(WriteAt::Only(to, Some(data)))),
            ] {
                let other = Short { what, ..short };
                assert_eq!(other.to_bytes(), short.to_bytes());
                assert_eq!(other.packet(b"abc").header.op, op);
            }
        }
    }
}
