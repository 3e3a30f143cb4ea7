//! What waits until the queues are unlocked.

use std::task::Waker;

use crate::mem::RegBuf;
use crate::op::slot::Left;

/// What is to be done when the queues are unlocked: wakers and destructors may be the program's code.
#[derive(Default)]
pub(super) struct Afterwards {
    pub wakers: Vec<Waker>,
    pub left: Vec<Left>,
    pub buffers: Vec<RegBuf>,
    /// Something completed in error.
    pub failed: bool,
}

impl Afterwards {
    pub fn add(&mut self, mut left: Left) {
        self.wakers.extend(left.waker.take());
        self.left.push(left);
    }
    pub fn run(self) {
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

/// Leaves a waker with those who wait; what is not needed of it, for the caller to drop with no lock held. A task that looks again and
/// again is there once.
pub(super) fn leave(waiting: &mut Vec<Waker>, waker: Waker) -> Option<Waker> {
    if waiting.iter().any(|other| other.will_wake(&waker)) {
        return Some(waker);
    }
    waiting.push(waker);
    None
}
