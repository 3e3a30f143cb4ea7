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
            /// All of them with their names, in the order of the declaration; last the process's panics of wakers and destructors
            /// of a Rust program that were caught ([`nic::program`]).
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
    /// System calls that sent them.
    sends,
    /// Packets the system would not take: a full queue, no route, no descriptor left.
    packets_dropped_sending,
    /// Sockets that gave up segmented sends because the path takes single packets only.
    segmentation_given_up,
    /// Sockets that were closed because they sent nothing for seconds, or brought nothing: their
    /// peers may be gone.
    idle_sockets_closed,
    /// Sockets that were closed because the system had no descriptor left.
    sockets_given_up,
    /// Packets that came out of our sockets.
    packets_received,
    /// System calls that brought them.
    receives,
    /// Datagrams the system dropped because a receive buffer was full (SO_RXQ_OVFL).
    overflow_drops,
    /// Messages of connection managers that were dropped because too many waited for data to be served first.
    management_drops,
    /// Receives that failed, or brought an empty datagram or one without a sender.
    receive_errors,
    /// Whole Ethernet frames sent for raw packet queue pairs.
    frames_sent,
    /// Whole Ethernet frames that came while a rule asked for some.
    frames_received,
    /// Packets handed to other processes of this host.
    forwarded_out,
    /// Packets other processes handed to us.
    forwarded_in,
    /// Messages of connection managers handed to another process of this host past the network, not by a ring.
    messages_handed_over,
    /// Packets lost on the way to another process, because its queue was full.
    forward_drops,
    /// Packets not handed on, because a name's bearer belongs to another user; whoever wanted to counts them as well.
    forward_refused,
    /// Messages from other processes that were none of ours.
    forward_errors,
    /// Processes of this host, and offers of theirs, that are of builds with another protocol number:
    /// they get whole packets by the network.
    other_builds,
    /// Rings by which packets go to other processes of this host.
    rings_offered,
    /// Rings that could not be made, or offered: the system refuses memory that processes share, or
    /// files so long. Packets go by the network.
    rings_refused,
    /// Rings by which packets come from them.
    rings_taken,
    /// Packets sent by rings.
    ring_packets_sent,
    /// Packets that came by rings.
    ring_packets_received,
    /// Short messages sent by rings in place of packets, each perhaps with an ACK.
    ring_messages_sent,
    /// Those that came.
    ring_messages_received,
    /// Pieces of messages sent by rings, each in place of several packets.
    ring_pieces_sent,
    /// Those that came.
    ring_pieces_received,
    /// System calls that told a reader of a ring that there is something.
    ring_wakes,
    /// Packets dropped because a ring was full for long.
    ring_drops,
    /// Rings given up because of what came by them.
    ring_errors,
    /// WRITEs that were executed without the target.
    writes_at_once,
    /// READs likewise.
    reads_at_once,
    /// Atomics likewise.
    atomics_at_once,
    /// FLUSHes likewise.
    flushes_at_once,
    /// Pieces of messages that were copied from the sender's memory.
    pieces_pulled,
    /// Pieces of SENDs that were copied to where the receiver has shown.
    pieces_put,
    /// Processes of this host whose memory the system does not let us reach.
    reach_refused,
    /// Buffers of processes of this host that are mapped here, so that they are reached without a system call.
    buffers_mapped,
    /// Those that could not be mapped, or were too much.
    buffers_refused,
    /// Processes of this host that reach our memory no more: they claimed for too long to be using what was taken back.
    reach_cut_off,
    /// ICMP errors for packets of ours.
    icmp_errors,
    /// Flows that got a socket of their own.
    promotions,
    /// Addresses whose UDP port could not be opened.
    addresses_refused,
    /// Panics caught in the engine thread: each is a bug.
    panics,
    /// 1 where the engine thread ended because the system lets it wait no more.
    engine_ended,
}

/// Adds to a counter.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
