//! rsockets: byte streams over queue pairs that are connected by rdma_cm, and datagrams. rsocket(7)
//! describes them, and librdmacm speaks them. Sans-IO: an owner says the time, gives memory, is
//! signalled when there is something to do, and calls [`Socket::step`] then.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | file | what lives there |
//! |---|---|
//! | [`socket`] | a socket: connecting, listening, its end |
//! | [`stream`] | the protocol of a connection, over what [`verbs`] asks for |
//! | [`verbs`] | what a stream asks of a queue pair and its memory |
//! | [`queue_pair`] | a queue pair of an adapter of this host, which gives that |
//! | [`message`] | messages of 32 bits |
//! | [`conn_data`] | what the two ends tell each other when they connect |
//! | [`datagram`] | datagrams: a socket of them, and the way to each peer |
//! | [`settings`] | sizes |
#![forbid(unsafe_code)]

pub mod conn_data;
pub mod datagram;
pub mod message;
pub mod queue_pair;
pub mod settings;
pub mod socket;
pub mod stream;
pub mod verbs;

pub use datagram::{Datagrams, Udp};
pub use queue_pair::{Memory, Owner, QueuePair};
pub use settings::Settings;
pub use socket::{Phase, Request, Socket};
pub use stream::{How, Mapping, Readiness, Stream};
