//! Packets as pcapng: a link that shows what passes it, and the file that tshark and Wireshark
//! read. Streams of iWARP devices are shown as segments of TCP.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what |
//! |---|---|
//! | `link` | [`CaptureLink`]: decorates a [`nic::Link`], and shows each packet to a [`Recorder`] |
//! | `stream` | a stream that shows what is sent and read by it |
//! | `frames` | whole Ethernet frames, as they are sent |
//! | [`filter`] | which packets are shown: those of a queue pair, or to and from a peer |
//! | [`message`] | what a process says to the collector of its packets |
//! | [`merge`] | packets of several processes in the order of their times |
//! | `file` | the file (feature `file`) |
//! | `frame` | the IP and UDP headers of a packet, which no socket shows |
//! | `erf` | what comes before the LRH of InfiniBand, so that Wireshark finds it |
//! | `segment` | the IP and TCP headers of a segment, likewise |
//!
//! A recorder is called with the lock of a queue pair held, so it waits for nothing. In a process
//! of its own `linux::capture` is the recorder, and `verbena run --capture` collects what those of
//! all processes say.
#![forbid(unsafe_code)]

#[cfg(feature = "file")]
mod erf;
#[cfg(feature = "file")]
pub mod file;
pub mod filter;
#[cfg(feature = "file")]
mod frame;
mod frames;
mod link;
pub mod merge;
pub mod message;
#[cfg(feature = "file")]
mod segment;
mod stream;

pub use link::CaptureLink;
pub use message::{DeviceLink, Direction, Outcome, Packet, Protocol};

/// Takes packets from a [`CaptureLink`].
pub trait Recorder: Send + Sync + 'static {
    /// The time, in nanoseconds since 1970.
    fn time(&self) -> u64;
    /// Takes a packet, or counts it as not recorded.
    fn record(&self, packet: &Packet<'_>);
}
