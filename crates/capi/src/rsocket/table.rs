//! Which descriptor is which rsocket, in this process; and those whose last bytes are under way.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use nic::Errno;
use sys::per_process::{Kept, PerProcess};

use crate::rsocket::object::Rsocket;

type Table = BTreeMap<c_int, Arc<Rsocket>>;

static TABLE: PerProcess<Mutex<Table>> = PerProcess::new(|| Mutex::new(Rank::Rsockets, Table::new()));

/// Closed, but not at their end.
static LINGERING: PerProcess<Mutex<Vec<Arc<Rsocket>>>> =
    PerProcess::new(|| Mutex::new(Rank::Rsockets, Vec::new()));

/// For how long close(2) waits for the last bytes to arrive where SO_LINGER says nothing, and the
/// end of the process for those of all rsockets: no other process sends them.
const CLOSE: Duration = Duration::from_secs(1);
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

/// Closes an rsocket.
///
/// # Errors
///
/// EBADF.
pub(super) fn close(fd: c_int) -> Result<(), Errno> {
    let rsocket = TABLE.get().lock().remove(&fd).ok_or(Errno::EBADF)?;
    let ended: Vec<_> = {
        let mut lingering = LINGERING.get().lock();
        let (done, left): (Vec<_>, _) = lingering.drain(..).partition(|rsocket| rsocket.is_flushed());
        *lingering = left;
        done
    };
    ended.iter().for_each(|rsocket| rsocket.end());
    rsocket.leave_sets();
    let linger = rsocket.lock().options.linger;
    let most = match linger.map(|seconds| u64::try_from(seconds).unwrap_or(0)) {
        // What has not arrived is lost, and the peer is reset (socket(7)).
        Some(0) => {
            rsocket.end();
            return Ok(());
        }
        Some(seconds) => Duration::from_secs(seconds),
        None => CLOSE,
    };
    if !rsocket.close(most) {
        rsocket.drop_descriptor();
        LINGERING.get().lock().push(rsocket);
    }
    Ok(())
}

/// Peers of a process that ends hear the end of their streams.
extern "C" fn at_exit() {
    let end = || {
        let mut open: Vec<_> = match TABLE.get().try_lock() {
            Some(mut table) => std::mem::take(&mut *table).into_values().collect(),
            None => Vec::new(),
        };
        if let Some(mut lingering) = LINGERING.get().try_lock() {
            open.append(&mut lingering);
        }
        let until = Instant::now() + EXIT;
        open.iter().for_each(|rsocket| rsocket.say_goodbye());
        for rsocket in open {
            rsocket.close(until.saturating_duration_since(Instant::now()));
        }
    };
    crate::ffi_guard::nothing(end);
}
