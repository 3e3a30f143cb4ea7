//! Two ends with memory of which each reaches the other one's, and long messages of which both
//! copy.

use transport::op::{SendWr, Status};
use transport::rc::RtsAttr;
use wire::Mtu;

use super::*;

/// Bytes of a page, and of a packet.
pub(crate) const PAGE: u32 = 4096;
/// Bytes of most messages here: four fragments.
pub(crate) const LONG: u32 = 512 * PAGE;
/// Bytes of each.
pub(crate) const PIECE: u32 = 128 * PAGE;
/// Bytes of memory.
pub(crate) const ALL: usize = 8 << 20;

/// Two ends with memory that reach each other's.
pub(crate) fn ends() -> (End, End) {
    ends_of(Mtu::M4096)
}

/// Like [`ends`], with packets of other lengths.
pub(crate) fn ends_of(mtu: Mtu) -> (End, End) {
    let ends = || {
        let mut end = End::proven(mtu, ALL, RtsAttr { retry_cnt: 0, ..rts() }, false);
        (end.cx.reaches, end.cx.advertises, end.cx.stream) = (true, true, true);
        end.cx.max_fragment = 16 * PAGE as usize;
        end
    };
    (ends(), ends())
}

/// What a message is.
pub(crate) type Message = fn(u64) -> SendWr;

/// A SEND of four fragments.
pub(crate) fn long_send(wr_id: u64) -> SendWr {
    send(wr_id, sge(0, 0, LONG))
}

pub(crate) fn long_write(wr_id: u64) -> SendWr {
    write(wr_id, sge(0, 0, LONG), sge(1, 0, LONG), None)
}

pub(crate) fn long_read(wr_id: u64) -> SendWr {
    read(wr_id, sge(0, 0, LONG), sge(1, 0, LONG))
}

/// Whether each was exported.
pub(crate) fn exported(fragments: &[Away]) -> Vec<bool> {
    fragments.iter().map(Away::is_exported).collect()
}

/// All that leaves for the peer comes there, and what that answers comes back; the fragments whose
/// bytes were elsewhere.
pub(crate) fn exchange(a: &mut End, b: &mut End) -> Vec<Away> {
    let mut seen = Vec::new();
    loop {
        let there = a.fill();
        there.iter().for_each(|bytes| b.hear_any(bytes));
        seen.extend(there.iter().filter_map(|bytes| Away::parse(bytes)));
        let back = b.fill();
        if there.is_empty() && back.is_empty() {
            return seen;
        }
        seen.extend(back.iter().filter_map(|bytes| Away::parse(bytes)));
        back.iter().for_each(|bytes| a.hear_any(bytes));
    }
}

/// Sends a hundred messages and one, which both ends copy.
pub(crate) fn until_both_copy(a: &mut End, b: &mut End, message: Message) {
    for n in 0..=100 {
        b.post_receive(n, sge(1, 0, LONG));
        a.post(message(n));
        assert_eq!(exchange(a, b).len(), 4, "both copy");
        assert!(
            [&mut *a, &mut *b]
                .iter_mut()
                .flat_map(|end| end.completed())
                .all(|(_, status)| status == Status::Success)
        );
    }
    forget(a, b);
}

/// Forgets the completions of both ends so far.
pub(crate) fn forget(a: &mut End, b: &mut End) {
    a.completed();
    b.completed();
}

/// Whether each was exported, and its bytes.
pub(crate) fn lens(fragments: &[Away]) -> Vec<(bool, usize)> {
    fragments.iter().map(|fragment| (fragment.is_exported(), fragment.place.len())).collect()
}

/// What leaves whose bytes are elsewhere.
pub(crate) fn sent(end: &mut End) -> Vec<Away> {
    end.fill().iter().filter_map(|bytes| Away::parse(bytes)).collect()
}
