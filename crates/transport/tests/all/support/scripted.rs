//! One end against a peer that a test plays.

use super::*;

// ---- a requester against a scripted peer ----

/// Path MTU of the ends below.
pub(crate) const MTU: usize = 256;

pub(crate) fn requester() -> End {
    requester_with(|_| {})
}
pub(crate) fn requester_with(change: impl FnOnce(&mut RtsAttr)) -> End {
    let mut attr = rts();
    change(&mut attr);
    End::new(Mtu::M256, 1 << 20, attr)
}
/// What region 0 holds.
pub(crate) fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(pattern).collect()
}

// ---- a responder against a scripted peer ----

pub(crate) const ONLY: Op = Op::Send(SendAt::Only(SendTail::None));

pub(crate) fn responder() -> End {
    End::new(Mtu::M256, 1 << 16, rts())
}
/// With `n` receives of 600 bytes.
pub(crate) fn responder_with(n: u64) -> End {
    let mut b = responder();
    for i in 0..n {
        b.post_receive(i, sge(1, i * 600, 600));
    }
    b
}
pub(crate) fn reth(region: usize, offset: u64, length: u32) -> Reth {
    let s = sge(region, offset, length);
    Reth { addr: s.addr, rkey: s.lkey, length }
}
pub(crate) fn eth(offset: u64, swap_or_add: u64, compare: u64) -> AtomicEth {
    let s = sge(1, offset, 8);
    AtomicEth { addr: s.addr, rkey: s.lkey, swap_or_add, compare }
}
pub(crate) fn answers(b: &mut End) -> Vec<(i32, Op)> {
    b.sent().into_iter().map(|s| (s.psn, s.op)).collect()
}
