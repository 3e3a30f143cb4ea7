//! What a host has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counts since the start of the host; any thread may read them at any time.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: AtomicU64,)+
        }

        impl Counters {
            /// All counters with their names, in the order of the declaration. Last come the
            /// process's panics of wakers and destructors of a Rust program that were caught
            /// ([`nic::program`]).
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                let mut all = vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)+];
                all.push(("program_panics", nic::program::caught()));
                all
            }
        }
    };
}

counters! {
    /// Packets handed to the network.
    packets_sent,
    /// System calls that sent packets to the network.
    sends,
    /// Packets that the system refused to send (full queue, no route, no descriptor).
    packets_dropped_sending,
    /// Sockets that send one packet at a time because segmentation offload failed.
    segmentation_given_up,
    /// Sockets of one peer closed because they were idle for 5 seconds.
    idle_sockets_closed,
    /// Sockets closed early because the process had no descriptor left.
    sockets_given_up,
    /// Packets received from the network.
    packets_received,
    /// System calls that received packets.
    receives,
    /// Packets that the system dropped because a receive buffer was full (SO_RXQ_OVFL).
    overflow_drops,
    /// Connection manager messages dropped because too many waited at one socket.
    management_drops,
    /// Receives that failed, were empty or had no sender address.
    receive_errors,
    /// Ethernet frames sent by raw packet queue pairs.
    frames_sent,
    /// Ethernet frames received for flow rules.
    frames_received,
    /// Packets passed to another process, which owns the queue pair.
    forwarded_out,
    /// Packets that other processes passed to this one.
    forwarded_in,
    /// Connection manager messages passed directly to another process of this host.
    messages_handed_over,
    /// Packets lost on the way to another process because its queue was full.
    forward_drops,
    /// Packets not passed on because the owner belongs to another user.
    forward_refused,
    /// Messages from other processes that could not be understood.
    forward_errors,
    /// Peers on this host whose build has another protocol number; they use the network.
    other_builds,
    /// Shared-memory rings opened for sending to another process.
    rings_offered,
    /// Rings that could not be created or offered; packets use the network instead.
    rings_refused,
    /// Shared-memory rings accepted for receiving from another process.
    rings_taken,
    /// Packets sent through rings.
    ring_packets_sent,
    /// Packets received through rings.
    ring_packets_received,
    /// Short messages sent through rings without packets.
    ring_messages_sent,
    /// Short messages received through rings.
    ring_messages_received,
    /// Pieces of long messages sent through rings; each replaces several packets.
    ring_pieces_sent,
    /// Pieces of long messages received through rings.
    ring_pieces_received,
    /// System calls that woke the reader of a ring.
    ring_wakes,
    /// Packets dropped because a ring and its 16 MiB queue were full.
    ring_drops,
    /// Rings closed because they brought invalid data.
    ring_errors,
    /// WRITEs executed directly in the peer's memory.
    writes_at_once,
    /// READs executed directly in the peer's memory.
    reads_at_once,
    /// Atomic operations executed directly in the peer's memory.
    atomics_at_once,
    /// FLUSH operations completed without the peer.
    flushes_at_once,
    /// Pieces of messages that this process copied from the sender's memory.
    pieces_pulled,
    /// Pieces of SENDs that this process copied into the receiver's buffer.
    pieces_put,
    /// Processes of this host whose memory the system does not let this one copy.
    reach_refused,
    /// Buffers of other processes mapped here; operations on them need no system call.
    buffers_mapped,
    /// Buffers of other processes that could not be mapped or exceeded a limit.
    buffers_refused,
    /// Peers that lost direct access because they held revoked memory for too long.
    reach_cut_off,
    /// ICMP errors received for packets of this process.
    icmp_errors,
    /// Flows that received a socket of their own.
    promotions,
    /// Addresses whose UDP port 4791 could not be opened.
    addresses_refused,
    /// Panics in the engine thread; each is a bug of Verbena.
    panics,
    /// 1 after the engine thread stopped because the system refuses to let it wait.
    engine_ended,
}

/// Adds to a counter.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
