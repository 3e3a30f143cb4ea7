//! The options of an rsocket that a program reads back, and the values of options as bytes.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::time::Duration;

use nic::Errno;
use rsocket::Settings;

/// Level of the options of RDMA (<rdma/rsocket.h>), and these.
pub(super) const SOL_RDMA: c_int = 0x1_0000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// Options that a program reads back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) domain: c_int,
    pub(super) reuse: bool,
    pub(super) reuse_port: bool,
    pub(super) keep_alive: bool,
    pub(super) oob_inline: bool,
    pub(super) no_delay: bool,
    pub(super) cork: bool,
    pub(super) v6_only: bool,
    pub(super) linger: Option<c_int>,
    pub(super) tos: c_int,
    pub(super) keep_idle: c_int,
    pub(super) keep_interval: c_int,
    pub(super) keep_count: c_int,
    pub(super) user_timeout: c_int,
    pub(super) receive_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
}

impl Options {
    pub(super) fn new(domain: c_int) -> Self {
        Self {
            domain,
            reuse: false,
            reuse_port: false,
            keep_alive: false,
            oob_inline: false,
            no_delay: false,
            cork: false,
            v6_only: false,
            linger: None,
            tos: 0,
            keep_idle: 7200,
            keep_interval: 75,
            keep_count: 9,
            user_timeout: 0,
            receive_timeout: None,
            send_timeout: None,
        }
    }

    /// After what time of silence a peer is to hear of this end.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        self.keep_alive.then(|| Duration::from_secs(u64::try_from(self.keep_idle).unwrap_or(1).max(1)))
    }

    /// The options that a connection has of its listener.
    pub(super) fn inherited(self) -> Self {
        Self { receive_timeout: None, send_timeout: None, ..self }
    }
}

/// An address as a socket of this family says it (ipv6(7)).
pub(super) fn in_family(domain: c_int, addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if domain == libc::AF_INET6 => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        _ => addr,
    }
}

/// The int that an option is.
pub(super) fn int_of(bytes: &[u8]) -> Result<c_int, Errno> {
    bytes.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// Two ints.
pub(super) fn ints_of(bytes: &[u8]) -> Result<[c_int; 2], Errno> {
    Ok([int_of(bytes)?, int_of(bytes.get(4..).unwrap_or_default())?])
}

/// A `struct timeval`; 0 means none.
pub(super) fn time_of(bytes: &[u8]) -> Result<Option<Duration>, Errno> {
    let word = |at: usize| {
        bytes.get(at..).and_then(|b| b.first_chunk()).map(|b| i64::from_ne_bytes(*b)).ok_or(Errno::EINVAL)
    };
    let (seconds, micros) = (word(0)?, word(8)?);
    let seconds = u64::try_from(seconds).map_err(|_| Errno::EDOM)?;
    let micros = u32::try_from(micros).ok().filter(|&us| us < 1_000_000).ok_or(Errno::EDOM)?;
    let time = Duration::new(seconds, micros * 1000);
    Ok((!time.is_zero()).then_some(time))
}

/// A `struct timeval`; of no time 0.
pub(super) fn time_bytes(time: Option<Duration>) -> Vec<u8> {
    let time = time.unwrap_or_default();
    let words = [time.as_secs() as i64, i64::from(time.subsec_micros())];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Twice what a program asks for, as of sockets (socket(7)).
pub(super) fn doubled(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0).saturating_mul(2)
}

/// A size of SOL_RDMA.
pub(super) fn size_of_queue(settings: &Settings, name: c_int) -> Result<c_int, Errno> {
    let size = match name {
        RDMA_SQSIZE => settings.send_queue,
        RDMA_RQSIZE => settings.receive_queue,
        RDMA_INLINE => settings.inline,
        RDMA_IOMAPSIZE => settings.mappings.into(),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(c_int::try_from(size).unwrap_or(c_int::MAX))
}

/// Sets it.
pub(super) fn set_size(settings: &mut Settings, name: c_int, value: c_int) -> Result<(), Errno> {
    let value = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
    match name {
        RDMA_SQSIZE => settings.send_queue = value,
        RDMA_RQSIZE => settings.receive_queue = value,
        RDMA_INLINE => settings.inline = value,
        RDMA_IOMAPSIZE => settings.mappings = u16::try_from(value).unwrap_or(u16::MAX),
        _ => return Err(Errno::ENOPROTOOPT),
    }
    Ok(())
}
