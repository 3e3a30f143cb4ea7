//! Who keeps count of send requests: each that wants a completion gets one, in the order of
//! posting; others get one only where they fail.

use std::collections::VecDeque;

use transport::op::{Completion, Status};

/// Send requests posted and not completed, as a program knows them.
#[derive(Debug, Default)]
pub struct Ledger {
    open: VecDeque<(u64, bool)>,
    posted: u64,
    failed: bool,
}

impl Ledger {
    /// The next request's mark; the caller posts it.
    pub fn post(&mut self, signaled: bool) -> u64 {
        let wr_id = self.posted;
        self.posted += 1;
        self.open.push_back((wr_id, signaled));
        wr_id
    }
    /// The mark that [`Ledger::post`] will give.
    pub fn next(&self) -> u64 {
        self.posted
    }
    /// A completion of the send queue.
    ///
    /// # Panics
    ///
    /// Where it comes twice, out of order, for a request that did not ask, or as a success after a
    /// failure.
    pub fn complete(&mut self, completion: &Completion) {
        let good = completion.status == Status::Success;
        assert!(!(good && self.failed), "a success behind a failure: {completion:?}");
        self.failed |= !good;
        loop {
            let Some((wr_id, signaled)) = self.open.pop_front() else {
                panic!("nothing was posted that could complete: {completion:?}");
            };
            if wr_id == completion.wr_id {
                assert!(signaled || !good, "nobody asked for this completion: {completion:?}");
                return;
            }
            assert!(!signaled, "request {wr_id} was passed over: {completion:?}");
        }
    }
    /// What the engine says is outstanding can be what is open: unsignaled requests end in silence.
    pub fn assert_outstanding(&self, outstanding: usize) {
        assert!(outstanding <= self.open.len(), "{outstanding} outstanding, {} open", self.open.len());
        let silent = self.open.len() - outstanding;
        let gone = self.open.iter().take(silent);
        assert!(gone.into_iter().all(|(_, signaled)| !signaled), "a request is gone without a completion");
    }
    /// Everything has ended. After a failure every request completes, signaled or not.
    pub fn assert_empty(&self) {
        self.assert_outstanding(0);
    }
    /// A queue pair that goes back to work after an error forgets that there was one.
    pub fn forgive(&mut self) {
        self.failed = false;
    }
}
