//! What the tests on simulated hosts share.

use std::sync::Arc;
use std::time::Instant;

use nic::{Buffer, Pd, Signal};
use rsocket::{Memory, Owner};
use sim::{Mark, SimEnv};
use stack::{Env, Node};

/// Where memory begins, as work requests name it.
const FIRST: u64 = 1 << 16;

/// The host of sockets that are looked at after every step.
pub(crate) struct Host(pub(crate) Arc<Node<SimEnv>>);

impl Owner for Host {
    fn signal(&self) -> Box<dyn Signal> {
        Box::new(Mark::default())
    }
    fn memory(&self, pd: &Arc<Pd>, len: usize, access: u32) -> Result<Box<dyn Memory>, nic::Error> {
        Ok(Box::new(Buffer::new(pd, len, FIRST, access)?))
    }
    fn now(&self) -> Instant {
        self.0.env().now()
    }
}
