//! What an initiator does between saying what it uses of another process's tables and saying that it does not any more: it looks up where the
//! bytes are, and copies.
//!
//! | initiator | who takes an entry back |
//! |---|---|
//! | says that it uses the entry | clears the entry |
//! | fence | fence |
//! | looks at the entry; copies where it is there | looks who says that he uses it, and waits for those |
//! | says that it does not any more | uses the memory for something else |
//!
//! That holds for the entry of a queue pair, and then for that of a region.

use nic::reach::Copy;
use ring::Word;
use transport::op::Remote;
use wire::Qpn;

use super::hazards;
use super::tables::{self, Entry};

/// What is wanted of a queue pair at the other end.
#[derive(Clone, Copy)]
pub(super) struct Request {
    /// That queue pair.
    pub(super) qpn: Qpn,
    /// Ours, its peer.
    pub(super) from: Qpn,
    /// Of the path, as the other one sees it.
    pub(super) ends: u32,
    pub(super) remote: Remote,
    pub(super) what: Copy,
}

/// Calls `copy` with the address that the bytes have in the other process, if they may be reached. Whether they were, and it says so. `hazards`: where
/// we say what we use of `lent`.
pub(super) fn reach(
    hazards: &[Word],
    lent: &[Word],
    thread: u32,
    request: &Request,
    copy: impl FnOnce(u64) -> bool,
) -> bool {
    let Request { qpn, from, ends, remote, what } = *request;
    let Entry::QueuePair(entry) = tables::queue_pair(qpn) else { return false };
    if matches!(what, Copy::Flush(how) if how.whole) {
        return false;
    }
    let right = what.rights();
    let Some(access) = hazards::begin(hazards, thread, entry) else { return false };
    let Some(found) = tables::look_up(lent, qpn, from, ends, right) else { return false };
    access.uses(found.region(remote.rkey.0));
    let persists = matches!(what, Copy::Flush(how) if how.persistent);
    let right = right | if persists { tables::PERSISTS } else { 0 };
    tables::find(lent, found, remote, right).is_some_and(copy)
}
