//! What may happen to packets and streams between two hosts. Inside a host packets only take their
//! time; copies may fail, and ways be cut.

use std::time::Duration;

/// Probabilities (0.0 to 1.0, each for each packet) and durations of what goes wrong on every link.
/// One direction of a link knows nothing of the other: what clogs or cuts one leaves the other as
/// it was.
///
/// A packet that no fault hits arrives in order, `delay` plus up to `jitter` after it was sent.
///
/// ```
/// # use std::time::Duration;
/// let faults = sim::Faults::none().loss(0.01).delay(Duration::from_micros(200));
/// assert_eq!((faults.loss, faults.reorder), (0.01, 0.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// Time on the way.
    pub delay: Duration,
    /// Most added to `delay`; order is kept.
    pub jitter: Duration,
    /// Never arrives.
    pub loss: f64,
    /// Arrives twice, the copy at once after it.
    pub duplicate: f64,
    /// Arrives again, up to `replay_delay` later.
    pub replay: f64,
    /// Longest time after which a packet comes again.
    pub replay_delay: Duration,
    /// Arrives up to `reorder_delay` late, overtaken by those after it.
    pub reorder: f64,
    /// Longest time a packet is late.
    pub reorder_delay: Duration,
    /// One byte arrives changed. Over IPv6 the ICRC tells always; over IPv4 it is checked without
    /// knowing the packet's identification, which lets one in 2^15 pass (see
    /// [`wire::icrc::open`]). On a real network the UDP checksum, which this one does not have,
    /// finds that one.
    pub corrupt: f64,
    /// The link stops for up to `clog_time`; what is on it arrives then, in order.
    pub clog: f64,
    /// Longest stop.
    pub clog_time: Duration,
    /// The direction loses everything for up to `partition_time`, beginning with this packet.
    pub partition: f64,
    /// Longest partition.
    pub partition_time: Duration,
    /// The power of the host that it is sent to fails, where that has files
    /// ([`Sim::open_file`](crate::Sim::open_file)) and runs.
    pub power_fail: f64,
    /// Longest time that the power is off.
    pub power_time: Duration,
    /// Time that a flush to persistence takes.
    pub flush: Duration,
    /// Most added to `flush`.
    pub flush_jitter: Duration,
    /// Received together with the packets of its flow that arrive at the same moment (UDP_GRO). No
    /// fault, but a program then finds that more has happened than its next completion tells
    /// of.
    pub together: f64,
    /// A copy to or from the memory of another process of the host does not come about, or only a
    /// part: memory that is not there for a moment. What was to be copied goes as packets then.
    pub unreached: f64,
    /// Registered memory is such as the processes of the host map: it is always reached at once, by
    /// atomics too. No fault, but another way.
    pub mapped: f64,
    /// The way from one process of a host to another loses everything for up to `cut_time`, as a
    /// cut cable on the way between two hosts of a fabric does. Nothing but packets leaves
    /// meanwhile.
    pub cut: f64,
    /// Longest time that such a way is cut.
    pub cut_time: Duration,
    /// A stream's connection is reset at both ends when a piece of it arrives (for each piece). Of
    /// the other faults a stream has only what they cost: time.
    pub stream_reset: f64,
    /// A piece of a message of some thousand bytes is one that both processes of the host copy,
    /// from memory to memory, whatever is faster. No fault, but another way.
    pub shared: f64,
}

impl Faults {
    /// A perfect network: 20 us a packet.
    pub const fn none() -> Self {
        Self {
            delay: Duration::from_micros(20),
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            replay: 0.0,
            replay_delay: Duration::from_millis(5),
            reorder: 0.0,
            reorder_delay: Duration::from_micros(200),
            corrupt: 0.0,
            clog: 0.0,
            clog_time: Duration::from_millis(5),
            partition: 0.0,
            partition_time: Duration::from_millis(5),
            power_fail: 0.0,
            power_time: Duration::from_millis(5),
            flush: Duration::from_micros(10),
            flush_jitter: Duration::ZERO,
            together: 0.7,
            unreached: 0.0,
            mapped: 0.0,
            shared: 0.0,
            cut: 0.0,
            cut_time: Duration::from_millis(5),
            stream_reset: 0.0,
        }
    }

    /// A bad network: one packet in fifty lost, as many repeated or late, and now and then a stream
    /// is reset.
    pub fn lossy() -> Self {
        Self {
            jitter: Duration::from_micros(10),
            loss: 0.02,
            duplicate: 0.01,
            replay: 0.01,
            reorder: 0.02,
            stream_reset: 0.001,
            ..Self::none()
        }
    }
}

/// A method for each field, by its name, that sets it.
macro_rules! setters {
    ($($field:ident: $of:ty),* $(,)?) => {
        impl Faults {$(
            #[doc = concat!("Sets the field `", stringify!($field), "`.")]
            #[must_use]
            pub const fn $field(mut self, $field: $of) -> Faults {
                self.$field = $field;
                self
            }
        )*}
    };
}
setters! {
    delay: Duration,
    jitter: Duration,
    loss: f64,
    duplicate: f64,
    replay: f64,
    replay_delay: Duration,
    reorder: f64,
    reorder_delay: Duration,
    corrupt: f64,
    clog: f64,
    clog_time: Duration,
    partition: f64,
    partition_time: Duration,
    power_fail: f64,
    power_time: Duration,
    flush: Duration,
    flush_jitter: Duration,
    together: f64,
    unreached: f64,
    mapped: f64,
    shared: f64,
    cut: f64,
    cut_time: Duration,
    stream_reset: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self::none()
    }
}
