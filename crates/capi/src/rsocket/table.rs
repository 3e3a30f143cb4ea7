//! Which descriptor is which rsocket, in this process; and those whose last bytes are under way.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use nic::Errno;
use sys::per_process::{Kept, PerProcess};

use crate::rsocket::object::Rsocket;

type Table = BTreeMap<c_int, Arc<Rsocket>>;

static TABLE: PerProcess<Mutex<Table>> = PerProcess::new(|| Mutex::new(Rank::Rsockets, Table::new()));

/// An rsocket that is closed, whose last bytes are under way, and when they are given up.
struct Lingering {
    rsocket: Arc<Rsocket>,
    until: Instant,
}

static LINGERING: PerProcess<Mutex<VecDeque<Lingering>>> =
    PerProcess::new(|| Mutex::new(Rank::Rsockets, VecDeque::new()));

/// So many may linger, and for so long: a peer that does not read keeps no more of our memory. What
/// is beyond is reset at the next close.
const MAX_LINGERING: usize = 1024;
const LINGERS: Duration = Duration::from_secs(120);
/// For how long the end of the process waits for the last bytes of all rsockets: no other process
/// sends them.
const EXIT: Duration = Duration::from_secs(10);

/// The rsocket of a descriptor.
///
/// # Errors
///
/// EBADF where it is none.
pub(super) fn find(fd: c_int) -> Result<Arc<Rsocket>, Errno> {
    get(fd).ok_or(Errno::EBADF)
}

/// Likewise, where it may be none.
pub(super) fn get(fd: c_int) -> Option<Arc<Rsocket>> {
    TABLE.get().lock().get(&fd).cloned()
}

/// Enters an rsocket, which has a descriptor.
pub(super) fn add(fd: c_int, rsocket: Arc<Rsocket>) {
    static REGISTERED: Kept<()> = Kept::new();
    REGISTERED.get_or_make(|| {
        // SAFETY: a function that lives as long as the process.
        unsafe { libc::atexit(at_exit) };
    });
    TABLE.get().lock().insert(fd, rsocket);
}

/// Closes an rsocket. A close waits for the last bytes only where SO_LINGER says so and the
/// descriptor may wait.
///
/// # Errors
///
/// EBADF.
pub(super) fn close(fd: c_int) -> Result<(), Errno> {
    let rsocket = TABLE.get().lock().remove(&fd).ok_or(Errno::EBADF)?;
    let given_up = give_up(Instant::now());
    given_up.iter().for_each(|lingering| lingering.rsocket.end());
    rsocket.leave_sets();
    let seconds = rsocket.lock().options.linger.map(|seconds| u64::try_from(seconds).unwrap_or(0));
    let most = match seconds {
        // What has not arrived is lost, and the peer is reset (socket(7)).
        Some(0) => {
            rsocket.end();
            return Ok(());
        }
        Some(seconds) if !rsocket.is_nonblocking() => Duration::from_secs(seconds),
        _ => Duration::ZERO,
    };
    if !rsocket.close(most) {
        let until = Instant::now() + LINGERS;
        LINGERING.get().lock().push_back(Lingering { rsocket: rsocket.clone(), until });
        if rsocket.linger(has_arrived) {
            has_arrived(&rsocket);
        }
    }
    Ok(())
}

/// Takes out what lingers for too long, or is too many, the oldest first.
fn give_up(now: Instant) -> Vec<Lingering> {
    let mut lingering = LINGERING.get().lock();
    let over = (lingering.len() + 1).saturating_sub(MAX_LINGERING);
    let late = lingering.iter().take_while(|lingering| lingering.until <= now).count();
    lingering.drain(..over.max(late)).collect()
}

/// What was written to a closed rsocket has arrived, or can not any more: it ends, once.
fn has_arrived(rsocket: &Arc<Rsocket>) {
    let lingered = {
        let mut lingering = LINGERING.get().lock();
        let at = lingering.iter().position(|lingering| Arc::ptr_eq(&lingering.rsocket, rsocket));
        at.and_then(|at| lingering.remove(at))
    };
    if lingered.is_some() {
        rsocket.end();
    }
}

/// Peers of a process that ends hear the end of their streams.
extern "C" fn at_exit() {
    let end = || {
        let mut open: Vec<_> = match TABLE.get().try_lock() {
            Some(mut table) => std::mem::take(&mut *table).into_values().collect(),
            None => Vec::new(),
        };
        if let Some(mut lingering) = LINGERING.get().try_lock() {
            open.extend(lingering.drain(..).map(|lingering| lingering.rsocket));
        }
        let until = Instant::now() + EXIT;
        open.iter().for_each(|rsocket| rsocket.say_goodbye());
        for rsocket in open {
            rsocket.close(until.saturating_duration_since(Instant::now()));
        }
    };
    crate::ffi_guard::nothing(end);
}
