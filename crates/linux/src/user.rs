//! Whether the process at the other end of a Unix socket belongs to our user.
//!
//! The kernel translates the peer's user into our user namespace, and there every user without a
//! number is the overflow uid (user_namespaces(7)). So where that is our own number too, equal
//! numbers prove nothing, unless every user has a number here: outside of all namespaces. In one,
//! and `verbena run` makes one, a peer then has to be a process that the kernel would let us signal
//! (kill(2)). The kernel compares the users themselves. That takes Linux 6.5; before, such a user
//! is alone.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::fork::Fd;

/// The overflow uid where the administrator has chosen no other.
const DEFAULT_OVERFLOW: u32 = 65_534;
/// Users that there can be: -1 is none.
const ALL: u64 = u32::MAX as u64;

/// Succeeds for a peer of our own user.
///
/// # Errors
///
/// PermissionDenied for any other, and for one of which nothing is certain.
pub(crate) fn check(peer: &Fd) -> io::Result<()> {
    let uid = sys::peer_uid(peer)?;
    let ours = uid == sys::own_uid()
        && (uid != overflow() || everybody_has_a_number() || sys::may_signal_peer(peer));
    if ours { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Whether this is the number of all users that have none here.
pub(crate) fn is_unknown(uid: u32) -> bool {
    uid == overflow() && !everybody_has_a_number()
}

/// Read once, as each channel asks twice: the user that may change it is root.
fn overflow() -> u32 {
    static READ: AtomicU64 = AtomicU64::new(u64::MAX);
    if let Ok(known) = u32::try_from(READ.load(Ordering::Relaxed)) {
        return known;
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    let uid = text.trim().parse().unwrap_or(DEFAULT_OVERFLOW);
    READ.store(uid.into(), Ordering::Relaxed);
    uid
}

fn everybody_has_a_number() -> bool {
    std::fs::read_to_string("/proc/thread-self/uid_map").is_ok_and(|map| mapped(&map) >= ALL)
}

/// How many users a namespace's map gives a number: the third of each line is a length.
fn mapped(map: &str) -> u64 {
    map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_map_of_the_whole_system_has_a_number_for_everybody() {
        assert!(mapped("         0          0 4294967295\n") >= ALL);
        assert!(mapped("     65534      65534          1\n") < ALL);
        assert!(mapped("0 1000 1\n1 100000 65536\n") < ALL);
        assert!(mapped("") < ALL && mapped("no map at all") < ALL);
    }
}
