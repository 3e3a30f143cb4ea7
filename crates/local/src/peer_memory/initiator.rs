//! What an initiator does between saying what it uses of another process's tables and saying that
//! it does not any more: it looks up where the bytes are, and copies.
//!
//! | initiator | the thread that takes an entry back |
//! |---|---|
//! | says that it uses the entries | clears the entry |
//! | fence | fence |
//! | looks at the entries; copies where they are there | looks which threads say that they use it, and waits for those |
//! | says that it does not any more | uses the memory for something else |
//!
//! No thread waits where a queue pair fails by itself. So what a peer pulls meanwhile, of a message
//! that has failed by then, counts only where the queue pair's entry is there afterwards, too.
//!
//! Which region's entry it is depends on the queue pair's. What that one says beforehand is not
//! relied on: it has to say the same afterwards.

use nic::peer_memory::Copy;
use transport::op::Remote;
use wire::Qpn;

use super::fences::{At, fence};
use super::hazards;
use super::tables;
use crate::ring::Word;

/// What is wanted of a queue pair at the other end.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// The queue pair at the other end.
    pub(super) qpn: Qpn,
    /// Our queue pair, its peer.
    pub(super) from: Qpn,
    /// The ends of the path, as the other process sees it.
    pub(super) ends: u32,
    pub(super) remote: Remote,
    /// What the queue pair must grant for that ([`nic::peer_memory::Transfer::asks`]).
    pub(super) asks: u32,
    pub(super) what: &'a Copy,
}

/// Calls `copy` with the address that the bytes have in the other process, if they may be reached.
/// Whether they were, and it says so. `hazards`: where we say what we use of `exports`.
pub(super) fn reach(
    hazards: &[Word],
    exports: &[Word],
    thread: u32,
    request: &Request<'_>,
    copy: impl FnOnce(u64) -> bool,
) -> bool {
    let Request { qpn, from, ends, remote, asks, what } = *request;
    if matches!(what, Copy::Flush(how) if how.whole) {
        return false;
    }
    let Some(region) = tables::region(exports, qpn, remote.rkey) else { return false };
    let Some(_access) = hazards::begin(hazards, thread, tables::queue_pair(qpn), region) else {
        return false;
    };
    let found = tables::look_up(exports, qpn, from, ends, asks);
    let Some(found) = found.filter(|found| found.region(remote.rkey.0) == region) else { return false };
    let more = match what {
        Copy::Flush(how) if how.persistent => tables::PERSISTS,
        Copy::Pull | Copy::Put => tables::TOLD,
        _ => 0,
    };
    let of_region = what.rights_of_region() | more;
    // What was pulled is what the peer sent only if that was not over before: then it takes its
    // queue pair's entry back first.
    let counts = || {
        fence(At::Pulled);
        tables::look_up(exports, qpn, from, ends, asks).is_some()
    };
    tables::find(exports, found, remote, of_region).is_some_and(copy)
        && (!matches!(what, Copy::Pull) || counts())
}
