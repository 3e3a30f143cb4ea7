//! connect(2): by RDMA, and by TCP where no rsocket answers there.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::{sockaddr, socklen_t, timeval};
use sys::per_process::PerProcess;

use crate::rdma::Calls;
use crate::sockets::found;
use crate::table::{self, Entry, Way};
use crate::{connector, errno, failed, real};

/// How long a peer has to answer by RDMA. Most hosts that have no RDMA say so at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// For how long an address is not tried again that did not answer in time.
const SILENT: Duration = Duration::from_secs(60);
/// Addresses that are remembered.
const MOST: usize = 256;

/// Addresses that did not answer, and until when they are not tried.
static UNANSWERED: PerProcess<Mutex<BTreeMap<Vec<u8>, Instant>>> = PerProcess::new(Mutex::default);

fn is_silent(addr: &[u8]) -> bool {
    let known = UNANSWERED.get().lock().unwrap_or_else(PoisonError::into_inner);
    known.get(addr).is_some_and(|until| Instant::now() < *until)
}

fn remember(addr: &[u8]) {
    let mut known = UNANSWERED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(addr.to_owned(), Instant::now() + SILENT);
}

/// The IP address of a socket address, without the port.
unsafe fn ip_of(addr: *const sockaddr, len: socklen_t) -> Option<Vec<u8>> {
    let (at, size) = match (len as usize, addr.is_null()) {
        (_, true) | (0..2, _) => return None,
        // SAFETY: the caller has so many bytes.
        _ => match unsafe { addr.cast::<libc::sa_family_t>().read_unaligned() }.into() {
            libc::AF_INET => (4, 4),
            libc::AF_INET6 => (8, 16),
            _ => return None,
        },
    };
    if (len as usize) < at + size {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { std::slice::from_raw_parts(addr.cast::<u8>().add(at), size) }.to_owned())
}

/// An address that a socket is connected to, kept by the process.
pub(crate) struct Address {
    bytes: Box<[u64; 16]>,
    len: socklen_t,
    ip: Vec<u8>,
}

impl Address {
    /// Of a caller; `None` where it is not one of IP.
    unsafe fn of(addr: *const sockaddr, len: socklen_t) -> Option<Self> {
        // SAFETY: the caller has so many bytes.
        let ip = unsafe { ip_of(addr, len)? };
        let (mut bytes, size) = (Box::new([0_u64; 16]), (len as usize).min(size_of::<[u64; 16]>()));
        // SAFETY: as above, and there is room for so many.
        unsafe { addr.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr().cast(), size) };
        Some(Self { bytes, len: size as socklen_t, ip })
    }

    /// As calls take it.
    pub(crate) fn get(&self) -> (*const sockaddr, socklen_t) {
        (self.bytes.as_ptr().cast(), self.len)
    }

    /// No peer has answered there in time.
    pub(crate) fn remember(&self) {
        remember(&self.ip);
    }
}

/// connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the man page's contract.
    unsafe {
        let Some((entry, calls)) = found(fd) else { return real::connect(fd, addr, len) };
        match entry.way() {
            Way::Rdma => return failed(libc::EISCONN),
            Way::Connecting => return failed(libc::EALREADY),
            _ => {}
        }
        let Some(to) = Address::of(addr, len).filter(|to| entry.way() == Way::Open && !is_silent(&to.ip))
        else {
            return real::connect(fd, addr, len);
        };
        if real::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 {
            return connector::begin(calls, fd, &entry, to);
        }
        match by_rdma(calls, &entry, addr, len) {
            Ok(()) => {
                let flags = real::fcntl(fd, libc::F_GETFL, 0);
                (calls.rfcntl)(entry.rsocket, libc::F_SETFL, flags);
                table::is_stream(&entry);
                entry.is_connected(calls, Way::Rdma);
                0
            }
            Err(libc::EINTR) => failed(libc::EINTR),
            Err(error) => {
                if matches!(error, libc::EAGAIN | libc::EINPROGRESS | libc::ETIMEDOUT) {
                    to.remember();
                }
                table::is_tcp(fd, &entry);
                real::connect(fd, addr, len)
            }
        }
    }
}

/// Connects the rsocket, for as long as a peer has to answer.
unsafe fn by_rdma(calls: &Calls, entry: &Entry, addr: *const sockaddr, len: socklen_t) -> Result<(), c_int> {
    let set = |time: timeval| {
        let (time, size) = (&raw const time, size_of::<timeval>() as socklen_t);
        // SAFETY: a time that lives across the call.
        unsafe { (calls.rsetsockopt)(entry.rsocket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, time.cast(), size) }
    };
    let mut before = timeval { tv_sec: 0, tv_usec: 0 };
    let mut size = size_of::<timeval>() as socklen_t;
    let old = (&raw mut before).cast();
    // SAFETY: a time that lives across the call, and the man page's contract.
    let connected = unsafe {
        (calls.rgetsockopt)(entry.rsocket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, old, &raw mut size);
        set(timeval { tv_sec: PATIENCE.as_secs().cast_signed(), tv_usec: 0 });
        (calls.rfcntl)(entry.rsocket, libc::F_SETFL, libc::O_RDWR);
        (calls.rconnect)(entry.rsocket, addr, len)
    };
    let error = errno();
    set(before);
    if connected == 0 { Ok(()) } else { Err(error) }
}
