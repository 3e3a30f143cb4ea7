//! Base transport header and the extension headers (IBA 1.4 §9.2 to §9.3, annexes A17, A19).
//!
//! BTH, 12 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | opcode |
//! | 1 | solicited event, migration request, pad count (2 bits), version (4 bits) |
//! | 2..4 | partition key |
//! | 4 | FECN, BECN, reserved (masked in the ICRC: "resv8a") |
//! | 5..8 | destination QP |
//! | 8 | acknowledge request, reserved (7 bits) |
//! | 9..12 | PSN |

use crate::bytes::{Reader, Writer};
use crate::{Malformed, Pkey, Psn, Qkey, Qpn, Rkey};

/// What every packet carries, apart from its opcode (see [`crate::roce::Op`]) and pad count (from
/// the payload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bth {
    /// The receiver's completion asks for an event.
    pub solicited: bool,
    /// Path migration state "migrated"; rxe and adapters send 0 or 1, no receiver checks.
    pub migration: bool,
    /// Partition.
    pub pkey: Pkey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header, 16 bytes: virtual address, key, length (IBA 1.4 §9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address at the responder.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Length of the whole message in bytes, at most 2^31.
    pub length: u32,
}

/// Datagram extended transport header, 8 bytes (IBA 1.4 §9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: Qkey,
    /// The sender's queue pair.
    pub source_qp: Qpn,
}

/// ACK extended transport header, 4 bytes (IBA 1.4 §9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// The syndrome byte of an AETH (IBA 1.4 tables 43, 45, 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK with a credit count code, 0 to 31 (31: no end-to-end credits).
    Ack {
        /// The five credit bits.
        credits: u8,
    },
    /// RNR NAK with a timer code, 0 to 31.
    RnrNak {
        /// Index into the table of RNR NAK timers.
        timer: u8,
    },
    /// NAK with its code.
    Nak(NakCode),
}

/// NAK codes (IBA 1.4 table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// PSN sequence error.
    PsnSequence = 0,
    /// Invalid request.
    InvalidRequest = 1,
    /// Remote access error.
    RemoteAccess = 2,
    /// Remote operational error.
    RemoteOperational = 3,
    /// Invalid RD request.
    InvalidRdRequest = 4,
}

/// Atomic extended transport header, 28 bytes (IBA 1.4 §9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address at the responder.
    pub addr: u64,
    /// Remote key.
    pub rkey: Rkey,
    /// Value to swap in, or to add.
    pub swap_or_add: u64,
    /// Value to compare with; reserved for FETCH ADD.
    pub compare: u64,
}

/// Flush extended transport header, 4 bytes (IBA annex A19): placement type and selectivity level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type bits: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity: 0 a range, 1 the whole memory region.
    pub selectivity: u8,
}

/// XRC extended transport header, 4 bytes (annex A14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Number of the shared receive queue, 24 bits.
    pub srq: u32,
}

/// What the BTH says about the rest of the packet, not yet judged.
pub(crate) struct Raw {
    pub(crate) opcode: u8,
    pub(crate) version: u8,
    pub(crate) pad: u8,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// The destination queue pair of a packet of which only the first bytes are there, 8 at least,
    /// as in an ICMP error.
    pub fn peek_dest_qp(packet: &[u8]) -> Option<Qpn> {
        let &[_, q0, q1, q2] = packet.get(4..8)?.first_chunk::<4>()?;
        Some(Qpn::new(u32::from_be_bytes([0, q0, q1, q2])))
    }

    /// Changes the PSN of a packet, which begins with its BTH.
    ///
    /// # Panics
    ///
    /// If the packet is shorter than a BTH.
    #[inline]
    pub fn set_psn(packet: &mut [u8], psn: Psn) {
        packet[Self::LEN - 3..Self::LEN].copy_from_slice(&psn.get().to_be_bytes()[1..]);
    }

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<(Self, Raw), Malformed> {
        let [opcode, flags, p0, p1, congestion, q0, q1, q2, ack, s0, s1, s2] =
            from.array::<{ Self::LEN }>()?;
        let bth = Self {
            solicited: flags & 0x80 != 0,
            migration: flags & 0x40 != 0,
            pkey: Pkey(u16::from_be_bytes([p0, p1])),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            ack_request: ack & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, s0, s1, s2])),
        };
        Ok((bth, Raw { opcode, version: flags & 0x0f, pad: flags >> 4 & 3 }))
    }

    #[inline]
    pub(crate) fn write(&self, opcode: u8, pad: usize, out: &mut Writer<'_>) {
        out.array(self.bytes(opcode, pad));
    }

    /// `pad` is at most 3.
    #[inline]
    pub(crate) fn bytes(&self, opcode: u8, pad: usize) -> [u8; Self::LEN] {
        let flags = u8::from(self.solicited) << 7 | u8::from(self.migration) << 6 | (pad as u8) << 4;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        let [_, q0, q1, q2] = self.dest_qp.get().to_be_bytes();
        let [_, s0, s1, s2] = self.psn.get().to_be_bytes();
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let ack = u8::from(self.ack_request) << 7;
        [opcode, flags, p0, p1, congestion, q0, q1, q2, ack, s0, s1, s2]
    }
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { addr: from.u64()?, rkey: Rkey(from.u32()?), length: from.u32()? })
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.u64(self.addr);
        out.u32(self.rkey.0);
        out.u32(self.length);
    }
}

impl Deth {
    /// Bytes on the wire: Q_Key (4), reserved (1), source QP (3).
    pub const LEN: usize = 8;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let qkey = Qkey(from.u32()?);
        let (_, source_qp) = from.u8_u24()?;
        Ok(Self { qkey, source_qp: Qpn::new(source_qp) })
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.qkey.0);
        out.u8_u24(0, self.source_qp.get());
    }
}

impl Aeth {
    /// Bytes on the wire: syndrome (1), MSN (3).
    pub const LEN: usize = 4;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (syndrome, msn) = from.u8_u24()?;
        Ok(Self { syndrome: Syndrome::from_byte(syndrome)?, msn })
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.u8_u24(self.syndrome.to_byte(), self.msn);
    }
}

impl Syndrome {
    /// Bit 7 is reserved, bits 6 and 5 say what it is, the rest is its value (IBA 1.4 table 43).
    fn from_byte(byte: u8) -> Result<Self, Malformed> {
        let value = byte & 0x1f;
        match byte >> 5 & 3 {
            0 => Ok(Self::Ack { credits: value }),
            1 => Ok(Self::RnrNak { timer: value }),
            3 => NakCode::from_code(value).map(Syndrome::Nak).ok_or(Malformed::Field("AETH NAK code")),
            _ => Err(Malformed::Field("AETH syndrome")),
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
        }
    }
}

impl NakCode {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            addr: from.u64()?,
            rkey: Rkey(from.u32()?),
            swap_or_add: from.u64()?,
            compare: from.u64()?,
        })
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.u64(self.addr);
        out.u32(self.rkey.0);
        out.u64(self.swap_or_add);
        out.u64(self.compare);
    }
}

impl Feth {
    /// Bytes on the wire: reserved (26 bits), selectivity (2 bits), placement type (4 bits).
    pub const LEN: usize = 4;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [_, _, _, bits] = from.array()?;
        Ok(Self { placement: bits & 0x0f, selectivity: bits >> 4 & 3 })
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.array([0, 0, 0, (self.selectivity & 3) << 4 | self.placement & 0x0f]);
    }
}

impl XrcEth {
    /// Bytes on the wire: reserved (1), XRC SRQ (3).
    pub const LEN: usize = 4;

    #[inline]
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.u8_u24().map(|(_, srq)| Self { srq })
    }

    #[inline]
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.u8_u24(0, self.srq);
    }
}
