//! The BTH opcode byte (IBA 1.4 table 38, annexes A14, A17, A19): which bytes are legal, and what
//! they mean.
//!
//! The upper three bits name the transport service (0 RC, 1 UC, 3 UD, 4 congestion notification, 5
//! XRC), the lower five the operation. RD (2) does not exist on RoCE.

use crate::roce::{Op, ReadAt, SendAt, SendTail, Service, WriteAt};

/// The transport service of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Rc = 0,
    Uc = 1,
    Ud = 3,
    Cnp = 4,
    Xrc = 5,
}

/// The operation of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
    CongestionNotification = 0x01 | 0x100, // 0x81; the flag keeps it apart from SendMiddle
}

impl Operation {
    /// Whether the responder sends it.
    #[inline]
    pub(crate) fn is_response(self) -> bool {
        use Operation::*;
        matches!(
            self,
            ReadResponseFirst
                | ReadResponseMiddle
                | ReadResponseLast
                | ReadResponseOnly
                | Acknowledge
                | AtomicAcknowledge
        )
    }

    const fn from_low_bits(bits: u8) -> Option<Self> {
        use Operation::*;
        Some(match bits {
            0x00 => SendFirst,
            0x01 => SendMiddle,
            0x02 => SendLast,
            0x03 => SendLastImmediate,
            0x04 => SendOnly,
            0x05 => SendOnlyImmediate,
            0x06 => WriteFirst,
            0x07 => WriteMiddle,
            0x08 => WriteLast,
            0x09 => WriteLastImmediate,
            0x0a => WriteOnly,
            0x0b => WriteOnlyImmediate,
            0x0c => ReadRequest,
            0x0d => ReadResponseFirst,
            0x0e => ReadResponseMiddle,
            0x0f => ReadResponseLast,
            0x10 => ReadResponseOnly,
            0x11 => Acknowledge,
            0x12 => AtomicAcknowledge,
            0x13 => CompareSwap,
            0x14 => FetchAdd,
            0x16 => SendLastInvalidate,
            0x17 => SendOnlyInvalidate,
            0x1c => Flush,
            0x1d => AtomicWrite,
            _ => return None,
        })
    }
}

/// What an opcode byte means; `None` where it means nothing.
#[inline]
pub(crate) fn decode(opcode: u8) -> Option<(Transport, Operation)> {
    static MEANING: [Option<(Transport, Operation)>; 256] = {
        let mut table = [None; 256];
        let mut opcode = 0;
        while opcode < table.len() {
            table[opcode] = meaning(opcode as u8);
            opcode += 1;
        }
        table
    };
    MEANING[usize::from(opcode)]
}

const fn meaning(opcode: u8) -> Option<(Transport, Operation)> {
    let low = opcode & 0x1f;
    // UC has no responses and no invalidation; FLUSH and ATOMIC WRITE are for the reliable services
    // (annex A19).
    let (transport, legal) = match opcode >> 5 {
        0 => (Transport::Rc, true),
        1 => (Transport::Uc, low <= 0x0b),
        3 => (Transport::Ud, low == 0x04 || low == 0x05),
        4 if low == 1 => return Some((Transport::Cnp, Operation::CongestionNotification)),
        5 => (Transport::Xrc, true),
        _ => return None,
    };
    match Operation::from_low_bits(low) {
        Some(operation) if legal => Some((transport, operation)),
        _ => None,
    }
}

/// The opcode byte of an operation. Pairs that table 38 does not have (a READ over UC, say) give a
/// byte that [`decode`] refuses.
#[inline]
pub(crate) fn encode(service: &Service, op: &Op) -> u8 {
    let transport = match (service, op) {
        (_, Op::CongestionNotification) => Transport::Cnp,
        (Service::Rc, _) => Transport::Rc,
        (Service::Uc, _) => Transport::Uc,
        (Service::Ud(_), _) => Transport::Ud,
        (Service::Xrc(_), _) => Transport::Xrc,
    };
    (transport as u8) << 5 | operation(op) as u8
}

/// The operation without its headers.
#[inline]
pub(crate) fn operation(op: &Op) -> Operation {
    match op {
        Op::Send(SendAt::First) => Operation::SendFirst,
        Op::Send(SendAt::Middle) => Operation::SendMiddle,
        Op::Send(SendAt::Last(SendTail::None)) => Operation::SendLast,
        Op::Send(SendAt::Last(SendTail::Immediate(_))) => Operation::SendLastImmediate,
        Op::Send(SendAt::Last(SendTail::Invalidate(_))) => Operation::SendLastInvalidate,
        Op::Send(SendAt::Only(SendTail::None)) => Operation::SendOnly,
        Op::Send(SendAt::Only(SendTail::Immediate(_))) => Operation::SendOnlyImmediate,
        Op::Send(SendAt::Only(SendTail::Invalidate(_))) => Operation::SendOnlyInvalidate,
        Op::Write(WriteAt::First(_)) => Operation::WriteFirst,
        Op::Write(WriteAt::Middle) => Operation::WriteMiddle,
        Op::Write(WriteAt::Last(None)) => Operation::WriteLast,
        Op::Write(WriteAt::Last(Some(_))) => Operation::WriteLastImmediate,
        Op::Write(WriteAt::Only(_, None)) => Operation::WriteOnly,
        Op::Write(WriteAt::Only(_, Some(_))) => Operation::WriteOnlyImmediate,
        Op::ReadRequest(_) => Operation::ReadRequest,
        Op::ReadResponse(ReadAt::First(_)) => Operation::ReadResponseFirst,
        Op::ReadResponse(ReadAt::Middle) => Operation::ReadResponseMiddle,
        Op::ReadResponse(ReadAt::Last(_)) => Operation::ReadResponseLast,
        Op::ReadResponse(ReadAt::Only(_)) => Operation::ReadResponseOnly,
        Op::Acknowledge(_) => Operation::Acknowledge,
        Op::AtomicAcknowledge(..) => Operation::AtomicAcknowledge,
        Op::CompareSwap(_) => Operation::CompareSwap,
        Op::FetchAdd(_) => Operation::FetchAdd,
        Op::Flush(..) => Operation::Flush,
        Op::AtomicWrite(_) => Operation::AtomicWrite,
        Op::CongestionNotification => Operation::CongestionNotification,
    }
}
