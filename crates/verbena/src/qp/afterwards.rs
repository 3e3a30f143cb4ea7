//! What waits until the queues are unlocked.

use std::task::Waker;

use nic::program::{Kept, wake_all};

use super::message::Message;
use crate::cm::waiters::Waiters;
use crate::mem::RegBuf;
use crate::op::slot::Left;

/// What is to be done when the queues are unlocked: wakers and destructors may be the program's
/// code, and none keeps another from being called.
#[derive(Default)]
pub(super) struct Afterwards {
    pub wakers: Vec<Kept<Waker>>,
    left: Vec<Left>,
    pub buffers: Vec<RegBuf>,
    /// Receives of a shared queue that nothing came into: dropped, they are posted again.
    pub unused: Vec<Message>,
    /// Something completed in error.
    pub failed: bool,
}

impl Afterwards {
    #[inline]
    pub(super) fn add(&mut self, left: Option<Left>) {
        if let Some(left) = left {
            self.keep(left);
        }
    }
    fn keep(&mut self, left: Left) {
        match left {
            Left::Woken(waker) => self.wakers.push(waker),
            left => self.left.push(left),
        }
    }
    /// Has all wakers that wait there woken.
    #[inline]
    pub(super) fn wake(&mut self, waiters: &mut Waiters) {
        if !waiters.is_empty() {
            self.wakers.append(&mut waiters.take());
        }
    }
    #[inline]
    pub(super) fn run(self) {
        wake_all(self.wakers);
    }
}
