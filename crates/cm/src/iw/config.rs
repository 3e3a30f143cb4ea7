//! How much a [`Cm`](super::Cm) holds, what it asks its peers for, and how long it waits.

use std::time::Duration;

/// How much a [`Cm`](super::Cm) holds, what it asks its peers for, and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections at most, whatever their state.
    pub max_connections: usize,
    /// Incoming requests at most that the consumer has not answered yet.
    pub max_pending_requests: usize,
    /// Accepted streams at most whose request is not whole; beyond, the oldest is closed.
    pub max_unfinished: usize,
    /// Bytes at most that may come behind a reply before the consumer is ready; beyond, the stream
    /// is closed. RFC 5044 §7.1.2 lets a responder send none.
    pub max_behind: usize,
    /// READ requests at most that an end accepts at once, 0 to 255.
    pub max_ird: u8,
    /// READ requests at most that an end starts at once, 0 to 255.
    pub max_ord: u8,
    /// Requests are enhanced ones, of revision 2 (RFC 6581). Without it they are of revision 1, for
    /// peers that know no other. As with siw, no request falls back by itself.
    pub enhanced: bool,
    /// Ask for CRCs. They are in use where either end asks.
    pub crc: bool,
    /// Ask for an RTR, so that the peer may send first. Enhanced requests only.
    pub peer_to_peer: bool,
    /// Offer a WRITE of zero bytes as RTR.
    pub write_rtr: bool,
    /// Offer a READ of zero bytes as RTR.
    pub read_rtr: bool,
    /// Durations.
    pub timing: Timing,
}

/// How long a [`Cm`](super::Cm) waits for peers.
///
/// | | here | Linux's siw |
/// |---|---|---|
/// | a stream to open | 130 s | TCP's own: 127 s |
/// | a reply, from the request on | 10 s | 10 s |
/// | a whole request, from accept(2) on | 10 s | 5 s |
/// | an RTR, from the reply on | 10 s | for ever |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For a stream to open.
    pub open: Duration,
    /// For a whole reply, from the request on.
    pub reply: Duration,
    /// For a whole request, from the accepted stream on.
    pub request: Duration,
    /// For an RTR, from the reply on.
    pub rtr: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { open: seconds(130), reply: seconds(10), request: seconds(10), rtr: seconds(10) }
    }
}

impl Default for Config {
    /// What siw asks for: enhanced, no CRC, no RTR, depths of 128. For 65,536 connections, 1,024
    /// pending requests and 128 unfinished ones.
    fn default() -> Self {
        Self {
            max_connections: 65_536,
            max_pending_requests: 1_024,
            max_unfinished: 128,
            max_behind: 1 << 20,
            max_ird: 128,
            max_ord: 128,
            enhanced: true,
            crc: false,
            peer_to_peer: false,
            write_rtr: true,
            read_rtr: true,
            timing: Timing::default(),
        }
    }
}
