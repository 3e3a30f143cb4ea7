//! Which descriptor is which set of epoll(7), in this process: sets that `repoll_create` has made,
//! and others that hold rsockets. A descriptor that dup(2) has made is the same set.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

use libc::epoll_event;
use locks::{Mutex, Rank};
use nic::Errno;
use sys::per_process::PerProcess;

use crate::rsocket::set::Set;

static SETS: PerProcess<Mutex<BTreeMap<c_int, Arc<Set>>>> =
    PerProcess::new(|| Mutex::new(Rank::Rsockets, BTreeMap::new()));

/// epoll_ctl(2).
pub(super) fn control(set: c_int, op: c_int, fd: c_int, event: *const epoll_event) -> Result<(), Errno> {
    // SAFETY: NULL or an event, by the man page's contract.
    match unsafe { libc::syscall(libc::SYS_epoll_ctl, set, op, fd, event) } {
        0.. => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// The set of a descriptor, where that is known.
pub(super) fn get(fd: c_int) -> Option<Arc<Set>> {
    SETS.get().lock().get(&fd).cloned()
}

/// Enters a set that was made just now. One of this number that close(2) has closed is not this
/// one.
pub(super) fn add(fd: c_int) {
    forget(fd);
    SETS.get().lock().insert(fd, Arc::default());
}

/// Likewise, of any descriptor: one that is the same file as a known set's is known from now on.
pub(super) fn find(fd: c_int) -> Option<Arc<Set>> {
    let mut sets = SETS.get().lock();
    if let Some(set) = sets.get(&fd) {
        return Some(set.clone());
    }
    let set = sets.iter().find(|(other, _)| is_same_file(**other, fd)).map(|(_, set)| set.clone())?;
    sets.insert(fd, set.clone());
    Some(set)
}

/// The set of a descriptor, which is one of epoll(7).
pub(super) fn find_or_add(fd: c_int) -> Arc<Set> {
    find(fd).unwrap_or_else(|| SETS.get().lock().entry(fd).or_default().clone())
}

/// Whether two descriptors are one open file; false also where the system does not say (kcmp(2)).
fn is_same_file(one: c_int, other: c_int) -> bool {
    const KCMP_FILE: c_int = 0;
    let own = std::process::id();
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one, other) == 0 }
}

/// Forgets a descriptor; false where it is no set. A set without descriptors has no rsockets any
/// more.
pub(super) fn forget(fd: c_int) -> bool {
    let set = {
        let mut sets = SETS.get().lock();
        let Some(set) = sets.remove(&fd) else { return false };
        if sets.values().any(|other| Arc::ptr_eq(other, &set)) {
            return true;
        }
        set
    };
    let members = std::mem::take(&mut set.state.lock().members);
    let rsockets = members.into_values().filter_map(|member| member.rsocket.upgrade());
    rsockets.for_each(|rsocket| rsocket.unwatch(&set));
    true
}

/// Closes a set; false where the descriptor is none.
pub(super) fn close(fd: c_int) -> bool {
    let is_set = forget(fd);
    if is_set {
        // SAFETY: no pointer; the descriptor of a set.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
    is_set
}

/// Another set or poll(2) looks at this descriptor: what it says counts from now on, where it is a
/// set's.
pub(super) fn is_looked_at(fd: c_int) {
    if let Some(set) = get(fd) {
        set.leave_to_kernel(fd);
    }
}
