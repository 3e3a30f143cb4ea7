//! Memory that outlives its process: opening it by name, and making persistent what this process
//! wrote there itself.
//!
//! | | over sockets and adapters | on a simulated host |
//! |---|---|---|
//! | [`Memory::open`] | a file, mapped and shared; MAP_SYNC where its file system has that | a file of the host's own |
//! | a peer's FLUSH, [`Memory::persist`] | msync(2), or cache lines written back | virtual time, then it is so |
//! | the process is killed | nothing is lost | nothing is lost |
//! | the power fails | what was flushed is there | what was flushed is there, of the rest any aligned eight bytes |

use std::fs::File;
use std::io::ErrorKind::NotFound;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Poll, Waker};

use locks::{Mutex, Rank};
use nic::program::{Kept, wake_all};

use super::access::RemoteWrite;
use super::chunk::Chunk;
use super::memory::Memory;
use crate::Value;
use crate::error::{Error, ErrorKind, Result};

const OPEN: &str = "Memory::open";
const PERSIST: &str = "Memory::persist";

impl Memory<RemoteWrite> {
    /// Persistent memory by its name: a file of `len` bytes, made of zeros where there is none. In
    /// a task of a simulated host it is that host's own, and
    /// outlives [`power_fail`](crate::sim::Host::power_fail). What peers FLUSH to persistence, and
    /// what [`Memory::persist`] is told, survives.
    ///
    /// A new file is there as a whole or not at all, with room for all of its bytes. One process at
    /// a time should have it, which is not checked.
    ///
    /// # Errors
    ///
    /// `OutOfRange` for a `len` of 0 and for a file of another length; `PermissionDenied`,
    /// `Exhausted` or what else the system says.
    pub fn open(path: impl AsRef<Path>, len: usize) -> Result<Self> {
        let path = path.as_ref();
        let number = |is: u64| Error::number(OPEN, "length of the file", is, len.max(1) as u64..=len as u64);
        if len == 0 {
            return Err(number(0));
        }
        #[cfg(feature = "sim")]
        if let Some(mapped) = crate::sim::open_file(&path.to_string_lossy(), len) {
            let mapped = mapped?;
            return if mapped.len() == len {
                Ok(Self::over(Chunk::simulated(mapped)))
            } else {
                Err(number(mapped.len() as u64))
            };
        }
        let io = |e: std::io::Error| Error::of_io(OPEN, &e);
        let existing = || File::options().read(true).write(true).open(path);
        let file = match existing() {
            Err(e) if e.kind() == NotFound => make(path, len).and_then(|()| existing()),
            opened => opened,
        };
        let file = file.map_err(io)?;
        let is = file.metadata().map_err(io)?.len();
        if is != len as u64 {
            return Err(number(is));
        }
        Self::map_file(&file)
    }

    /// What this process wrote to these bytes is persistent when it returns, and what peers wrote
    /// and were told of. Cancelling does not stop it.
    ///
    /// # Errors
    ///
    /// `OutOfRange` where they are not inside; `WrongState` where they are no file's; what the
    /// storage says, after which nothing that was not persistent before may be believed to be
    /// there.
    pub async fn persist(&self, range: Range<usize>) -> Result<()> {
        let (chunk, range) = (self.persistent(&range)?, range);
        #[cfg(feature = "sim")]
        if let Some(mapped) = chunk.mapped() {
            return crate::sim::persist(mapped, range).await.map_err(|e| Error::of_io(PERSIST, &e));
        }
        let job = Arc::new(Mutex::new(Rank::Storage, Job::default()));
        let theirs = job.clone();
        let work = move || {
            let done = chunk.sync(range);
            let waker = {
                let mut job = theirs.lock();
                job.done = Some(done);
                job.waker.take()
            };
            wake_all(waker);
        };
        let thread = std::thread::Builder::new().name("verbena-persist".to_owned()).spawn(work);
        thread.map_err(|e| Error::of_io(PERSIST, &e))?;
        let done = std::future::poll_fn(|cx| {
            let waker = Kept::of(cx);
            let (done, before) = {
                let mut job = job.lock();
                let done = job.done.take();
                (done, job.waker.replace(waker))
            };
            drop(before);
            done.map_or(Poll::Pending, Poll::Ready)
        });
        done.await.map_err(|e| Error::of_io(PERSIST, &e))
    }

    /// Like [`Memory::persist`], blocking.
    ///
    /// # Errors
    ///
    /// Likewise; `BlockingInSimulation` on a simulated host.
    pub fn blocking_persist(&self, range: Range<usize>) -> Result<()> {
        let chunk = self.persistent(&range)?;
        #[cfg(feature = "sim")]
        if chunk.mapped().is_some() {
            return Err(Error::new(ErrorKind::BlockingInSimulation, PERSIST));
        }
        chunk.sync(range).map_err(|e| Error::of_io(PERSIST, &e))
    }

    fn persistent(&self, range: &Range<usize>) -> Result<Arc<Chunk>> {
        _ = self.part(range.clone())?;
        let chunk = self.chunk();
        if chunk.is_file() {
            return Ok(chunk.clone());
        }
        let text = "memory with no file behind it".to_owned();
        Err(Error::new(ErrorKind::WrongState, PERSIST).with(Value::Text(text)))
    }
}

/// What a thread does for a future.
#[derive(Default)]
struct Job {
    done: Option<std::io::Result<()>>,
    waker: Option<Kept<Waker>>,
}

/// A new file of zeros, persistent with its name. Where another process was first, its file stays.
fn make(path: &Path, len: usize) -> std::io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let file = File::options().read(true).write(true).create_new(true).open(&unfinished)?;
    let made = fill(&file, len).and_then(|()| match std::fs::hard_link(&unfinished, path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    std::fs::remove_file(&unfinished)?;
    made?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn fill(file: &File, len: usize) -> std::io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| std::io::Error::from_raw_os_error(libc::EFBIG))?;
    // Blocks that are missing when a page is written to would end the process (SIGBUS).
    // SAFETY: a descriptor that is open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => file.sync_all(),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}
