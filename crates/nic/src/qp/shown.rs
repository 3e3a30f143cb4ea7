//! The place of a receive that the peer knows, and may copy to while the message comes whose receive it is. Where that fails, nothing completes before the peer copies nothing
//! any more: the program has its memory back then. To wait for that is nothing to do under a lock, nor in a thread that receives.

use transport::op::{Completion, Status};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    is_shown: bool,
    /// Somebody waits for the peer.
    pub(super) is_awaited: bool,
    /// Which one it is that is waited for.
    pub(super) serial: u32,
    /// Completions of receives that wait for that, in order.
    pub(super) kept: Vec<Completion>,
}

impl Shown {
    /// The peer is told. Whether it was before.
    pub(super) fn begin(&mut self) -> bool {
        std::mem::replace(&mut self.is_shown, true)
    }

    /// It was not told.
    pub(super) fn end(&mut self) {
        self.is_shown = false;
    }

    /// Whether a completion of a receive waits until the peer copies nothing any more. One without an error shows that it does not.
    #[inline]
    pub(super) fn keeps(&mut self, completion: &Completion) -> bool {
        if !self.is_shown {
            return false;
        }
        if completion.status == Status::Success {
            self.is_shown = false;
            return false;
        }
        self.kept.push(*completion);
        true
    }

    /// What was shown is of no interest any more, nor is what waits.
    pub(super) fn forget(&mut self) {
        *self = Shown { serial: self.serial.wrapping_add(1), ..Shown::default() };
    }
}

#[cfg(test)]
mod tests {
    use transport::op::RecvWr;
    use wire::Qpn;

    use super::*;

    fn ended(wr_id: u64, status: Status) -> Completion {
        RecvWr { wr_id, sges: transport::op::SgeList::one(transport::op::Sge::default()) }
            .completion(status, Qpn::new(1))
    }

    #[test]
    fn what_fails_while_the_peer_may_copy_waits_in_order_and_what_comes_whole_does_not() {
        let mut shown = Shown::default();
        assert!(!shown.keeps(&ended(0, Status::WrFlush)), "the peer was told nothing");
        assert!(!shown.begin() && shown.begin());
        assert!(!shown.keeps(&ended(1, Status::Success)) && !shown.keeps(&ended(2, Status::WrFlush)));
        shown.begin();
        assert!(shown.keeps(&ended(3, Status::LocalLength)) && shown.keeps(&ended(4, Status::WrFlush)));
        assert_eq!(shown.kept.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [3, 4]);
        let serial = shown.serial;
        shown.forget();
        assert!(shown.kept.is_empty() && shown.serial != serial && !shown.keeps(&ended(5, Status::WrFlush)));
    }
}
