//! What a queue pair's stream has carried, for operators and counters.

/// What has gone by a stream so far, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// What the stream took.
    pub sent: Way,
    /// What came by the stream.
    pub received: Way,
}

/// What has gone one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Bytes of the stream, from the first FPDU on.
    pub bytes: u64,
    /// FPDUs: those given to the stream, or those that have come whole.
    pub fpdus: u64,
    /// SENDs, by their last FPDUs.
    pub sends: u64,
}

impl Carried {
    /// Adds what another stream has carried.
    pub fn add(&mut self, other: &Self) {
        self.sent.add(&other.sent);
        self.received.add(&other.received);
    }
}

impl Way {
    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.fpdus += other.fpdus;
        self.sends += other.sends;
    }
}
