//! Work requests out of a fuzzer's bytes: mostly good ones, over the one region of
//! [`crate::ground`].

use transport::Sge;
use transport::op::{AtomicOp, Bind, Data, Flush, LocalOp, RecvWr, SendOp, SendWr, SgeList};
use wire::Rkey;
use wire::roce::SendTail;

use crate::Input;
use crate::ground::{BASE, KEY, LEN, WINDOWS};

/// An address, mostly within the region.
pub fn addr(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        0 => BASE - 1,
        1 => u64::MAX - 3,
        2 => BASE + LEN as u64 - 4,
        n => BASE + u64::from(n) * 8,
    }
}

/// A key, mostly the region's.
pub fn key(input: &mut Input<'_>) -> Rkey {
    match input.u8() {
        n if u32::from(n) < WINDOWS => Rkey(n.into()),
        8 => Rkey(input.u32()),
        _ => KEY,
    }
}

/// A length, mostly of a few packets.
pub fn len(input: &mut Input<'_>) -> u32 {
    match input.u8() {
        0 => u32::MAX,
        1 => 1 << 31,
        2 => (1 << 31) + 1,
        3 => LEN as u32,
        4 => 0,
        n if n < 128 => n.into(),
        _ => input.below(6000),
    }
}

/// Up to six pieces.
pub fn sges(input: &mut Input<'_>) -> SgeList {
    let count = input.choose(&[1, 1, 1, 0, 2, 3, 6]);
    (0..count).map(|_| Sge { addr: addr(input), length: len(input), lkey: key(input) }).collect()
}

/// What may end a SEND.
pub fn tail(input: &mut Input<'_>) -> SendTail {
    match input.below(4) {
        0 => SendTail::Immediate([1, 2, 3, 4]),
        1 => SendTail::Invalidate(Rkey(input.below(WINDOWS + 1))),
        _ => SendTail::None,
    }
}

/// Number of arms of [`send_op`].
pub const SEND_OPS: u32 = 9;

/// A send operation: the arm says which.
pub fn send_op(arm: u32, input: &mut Input<'_>) -> SendOp {
    let (addr, rkey) = (addr(input), key(input));
    let atomic = |op| SendOp::Atomic { addr: addr & !7, rkey, op };
    match arm {
        0 => SendOp::Send(tail(input)),
        1 => SendOp::Write { addr, rkey, immediate: input.one_in(3).then_some([9; 4]) },
        2 => SendOp::Read { addr, rkey },
        3 => atomic(AtomicOp::FetchAdd(input.u64())),
        4 => atomic(AtomicOp::CompareSwap { compare: input.below(2).into(), swap: input.u64() }),
        5 => atomic(AtomicOp::Write(3)),
        6 => {
            let [global, persistent, whole] = [input.any(), input.any(), input.any()];
            SendOp::Flush { addr, rkey, length: len(input), how: Flush { global, persistent, whole } }
        }
        7 => SendOp::Local(LocalOp::Invalidate(rkey)),
        _ => {
            let bind =
                Bind { window: input.below(3).into(), key: rkey, region: KEY, addr, length: 8, access: 2 };
            SendOp::Local(LocalOp::Bind(bind))
        }
    }
}

/// A send request of an operation.
pub fn send_wr(input: &mut Input<'_>, wr_id: u64, op: SendOp) -> SendWr {
    let data = match op {
        // The adapter's checks, which come before the engine, leave nothing else.
        SendOp::Atomic { op: AtomicOp::Write(_), .. } => Data::inline(&[1; 8]),
        SendOp::Atomic { .. } => {
            Data::Sges([Sge { addr: addr(input), length: 8, lkey: key(input) }].into_iter().collect())
        }
        SendOp::Flush { .. } | SendOp::Local(_) => Data::Sges([].into_iter().collect()),
        SendOp::Send(_) | SendOp::Write { .. } if input.one_in(8) => Data::inline(&[5; 40]),
        SendOp::Send(_) | SendOp::Write { .. } if input.one_in(16) => Data::inline(&[6; 700]),
        SendOp::Send(_) | SendOp::Write { .. } | SendOp::Read { .. } => Data::Sges(sges(input)),
    };
    let [signaled, solicited, fence] = [!input.one_in(4), input.any(), input.one_in(4)];
    SendWr { wr_id, op, data, signaled, solicited, fence }
}

/// A receive request.
pub fn recv_wr(input: &mut Input<'_>, wr_id: u64) -> RecvWr {
    RecvWr { wr_id, sges: sges(input) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each operation is called: does not compile where there is a new one.
    fn name(op: &SendOp) -> &'static str {
        match op {
            SendOp::Send(SendTail::None | SendTail::Immediate(_) | SendTail::Invalidate(_)) => "send",
            SendOp::Write { .. } => "write",
            SendOp::Read { .. } => "read",
            SendOp::Atomic { op: AtomicOp::FetchAdd(_), .. } => "fetch add",
            SendOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => "compare swap",
            SendOp::Atomic { op: AtomicOp::Write(_), .. } => "atomic write",
            SendOp::Flush { .. } => "flush",
            SendOp::Local(LocalOp::Invalidate(_)) => "invalidate",
            SendOp::Local(LocalOp::Bind(_)) => "bind",
        }
    }

    #[test]
    fn every_send_operation_has_an_arm_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            (0..SEND_OPS).map(|arm| name(&send_op(arm, &mut Input::new(&[])))).collect();
        assert_eq!(names.len(), SEND_OPS as usize, "{names:?}");
    }
}
