//! What a host has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+ local; $($(#[$after_doc:meta])+ $after:ident,)+) => {
        /// Counts since the start of the host; any thread may read them at any time.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: AtomicU64,)+
            /// What passed between processes of this host.
            pub local: local::Counters,
            $($(#[$after_doc])+ pub $after: AtomicU64,)+
        }

        impl Counters {
            /// All counters with their names, in the order of the declaration. Last come the
            /// process's panics of wakers and destructors of a Rust program that were caught
            /// ([`nic::program`]).
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                let mut all = vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)+];
                all.extend(self.local.snapshot());
                all.extend([$((stringify!($after), self.$after.load(Ordering::Relaxed)),)+]);
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
    /// Messages to datagram rsockets that were no datagrams of a peer, or found no room.
    rsocket_refused,
    local;
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
