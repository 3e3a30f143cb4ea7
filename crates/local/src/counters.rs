//! What passes between processes of one host, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counts of rings and direct copies; any thread may read them at any time.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: AtomicU64,)+
        }

        impl Counters {
            /// All counters with their names, in the order of the declaration.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)+]
            }
        }
    };
}

counters! {
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
    /// Fragments of long messages sent through rings; each replaces several packets.
    ring_fragments_sent,
    /// Fragments of long messages received through rings.
    ring_fragments_received,
    /// System calls that woke the reader of a ring.
    ring_wakes,
    /// Packets dropped because a ring and its 16 MiB queue were full.
    ring_drops,
    /// Rings closed because they brought invalid data.
    ring_errors,
    /// WRITEs executed directly in the peer's memory.
    direct_writes,
    /// READs executed directly in the peer's memory.
    direct_reads,
    /// Atomic operations executed directly in the peer's memory.
    direct_atomics,
    /// FLUSH operations completed without the peer.
    direct_flushes,
    /// Fragments of messages that this process copied from the sender's memory.
    fragments_fetched,
    /// Fragments of SENDs that this process copied into the receiver's buffer.
    fragments_put,
    /// Processes of this host whose memory the system does not let this one copy.
    peer_memory_refused,
    /// Buffers of other processes mapped here; operations on them need no system call.
    buffers_mapped,
    /// Buffers of other processes that could not be mapped or exceeded a limit.
    buffers_refused,
    /// Peers that lost direct access because they held revoked memory for too long.
    peer_memory_banned,
}

/// Adds to a counter.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
