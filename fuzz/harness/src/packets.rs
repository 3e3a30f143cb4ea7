//! Packets out of a fuzzer's bytes: legal headers of any operation, as
//! [`wire::roce::Packet::parse`] would give them.

use wire::bth::{Aeth, AtomicEth, Feth, NakCode, Reth, Syndrome};
use wire::roce::{Op, ReadAt, SendAt, SendTail, WriteAt};

use crate::Input;
use crate::requests::{addr, key, len, tail};

fn reth(input: &mut Input<'_>) -> Reth {
    Reth { addr: addr(input), rkey: key(input), length: len(input) }
}

fn aeth(input: &mut Input<'_>) -> Aeth {
    use NakCode::*;
    let syndrome = match input.below(8) {
        0 => Syndrome::RnrNak { timer: input.u8() & 31 },
        1 => Syndrome::Nak(input.choose(&[
            PsnSequence,
            InvalidRequest,
            RemoteAccess,
            RemoteOperational,
            InvalidRdRequest,
        ])),
        _ => Syndrome::Ack { credits: 31 },
    };
    Aeth { syndrome, msn: u32::from(input.u8()) }
}

fn atomic(input: &mut Input<'_>) -> AtomicEth {
    let (addr, rkey) = (addr(input), key(input));
    AtomicEth { addr, rkey, swap_or_add: input.u8().into(), compare: input.below(2).into() }
}

/// Number of arms of [`op`].
pub const OPS: u32 = 25;

/// The operation of a packet: the arm says which.
pub fn op(arm: u32, input: &mut Input<'_>) -> Op {
    match arm {
        0 => Op::Send(SendAt::First),
        1 => Op::Send(SendAt::Middle),
        2 => Op::Send(SendAt::Last(SendTail::None)),
        3 => Op::Send(SendAt::Last(tail(input))),
        4 => Op::Send(SendAt::Only(SendTail::None)),
        5 => Op::Send(SendAt::Only(tail(input))),
        6 => Op::Write(WriteAt::First(reth(input))),
        7 => Op::Write(WriteAt::Middle),
        8 => Op::Write(WriteAt::Last(None)),
        9 => Op::Write(WriteAt::Last(Some([7; 4]))),
        10 => Op::Write(WriteAt::Only(reth(input), None)),
        11 => Op::Write(WriteAt::Only(reth(input), Some([7; 4]))),
        12 => Op::ReadRequest(reth(input)),
        13 => Op::ReadResponse(ReadAt::First(aeth(input))),
        14 => Op::ReadResponse(ReadAt::Middle),
        15 => Op::ReadResponse(ReadAt::Last(aeth(input))),
        16 => Op::ReadResponse(ReadAt::Only(aeth(input))),
        17 | 18 => Op::Acknowledge(aeth(input)),
        19 => Op::AtomicAcknowledge(aeth(input), 5),
        20 => Op::CompareSwap(atomic(input)),
        21 => Op::FetchAdd(atomic(input)),
        22 => {
            let feth = Feth { placement: input.u8() & 15, selectivity: input.u8() & 3 };
            Op::Flush(feth, reth(input))
        }
        23 => Op::AtomicWrite(reth(input)),
        _ => Op::CongestionNotification,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use wire::Malformed;
    use wire::bth::{Bth, Deth, XrcEth};
    use wire::roce::{Header, Packet, Service};

    /// All operations that the arms make, whatever ends a SEND.
    fn all() -> Vec<Op> {
        let endings = [[0_u8; 64], [1; 64], [2; 64]];
        endings.iter().flat_map(|bytes| (0..OPS).map(|arm| op(arm, &mut Input::new(bytes)))).collect()
    }

    #[test]
    fn every_opcode_that_a_packet_may_bear_has_an_arm() {
        let legal: BTreeSet<u8> = (0..=255)
            .filter(|&opcode| {
                let mut packet = [0; 64];
                packet[0] = opcode;
                !matches!(Packet::parse(&packet), Err(Malformed::Opcode(_)))
            })
            .collect();
        let services = [
            Service::Rc,
            Service::Uc,
            Service::Ud(Deth { qkey: Default::default(), source_qp: Default::default() }),
            Service::Xrc(None),
            Service::Xrc(Some(XrcEth { srq: 0 })),
        ];
        let made: BTreeSet<u8> = services
            .iter()
            .flat_map(|&service| {
                let header = move |op| Header { bth: Bth::default(), service, op };
                all().into_iter().map(move |op| header(op).opcode())
            })
            .collect();
        let missing: Vec<_> = legal.difference(&made).map(|opcode| format!("{opcode:#04x}")).collect();
        assert!(missing.is_empty(), "opcodes without an arm: {missing:?}");
    }
}
