//! Places that the peer knows, and may copy to: that of a receive while the message comes whose
//! receive it is, and those of READs. Where that fails, nothing completes before the peer copies
//! nothing any more: the program has its memory back then. To wait for that is nothing to do under
//! a lock, nor in a thread that receives.

use transport::op::{Completion, Side, Status};

/// Which places the peer knows, and may copy to: see the module.
#[derive(Debug, Default)]
pub(crate) struct Advertised {
    is_advertised: bool,
    /// Places of READs were told, which are under way or were.
    has_read: bool,
    /// A thread waits for the peer.
    pub(super) is_awaited: bool,
    /// Which one it is that is waited for.
    pub(super) serial: u32,
    /// Completions that wait for that, in order.
    pub(super) kept: Vec<(Side, Completion)>,
}

impl Advertised {
    /// The peer is told. Whether it was before.
    pub(super) fn begin(&mut self) -> bool {
        std::mem::replace(&mut self.is_advertised, true)
    }

    /// Notes that the peer was not told after all.
    pub(super) fn end(&mut self) {
        self.is_advertised = false;
    }

    /// The peer is told of the place of a READ.
    pub(super) fn begin_read(&mut self) {
        self.has_read = true;
    }

    /// Whether the peer may copy to a place of which it was told, as far as is known.
    pub(super) fn is_any(&self) -> bool {
        self.is_advertised || self.has_read
    }

    /// Whether a completion waits until the peer copies nothing any more. One without an error
    /// shows that it does not copy to that place.
    #[inline]
    pub(super) fn keeps(&mut self, side: Side, completion: &Completion) -> bool {
        let may_copy = match side {
            Side::Send => self.has_read,
            Side::Receive => self.is_advertised,
        };
        if !may_copy {
            return false;
        }
        if completion.status == Status::Success {
            self.is_advertised &= side == Side::Send;
            return false;
        }
        self.kept.push((side, *completion));
        true
    }

    /// What was advertised is of no interest any more, nor is what waits.
    pub(super) fn forget(&mut self) {
        *self = Self { serial: self.serial.wrapping_add(1), ..Self::default() };
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
        let mut advertised = Advertised::default();
        let keeps = |advertised: &mut Advertised, wr_id, status| {
            advertised.keeps(Side::Receive, &ended(wr_id, status))
        };
        assert!(!keeps(&mut advertised, 0, Status::WrFlush), "the peer was told nothing");
        assert!(!advertised.begin() && advertised.begin());
        assert!(!keeps(&mut advertised, 1, Status::Success) && !keeps(&mut advertised, 2, Status::WrFlush));
        advertised.begin();
        assert!(keeps(&mut advertised, 3, Status::LocalLength) && keeps(&mut advertised, 4, Status::WrFlush));
        assert!(!advertised.keeps(Side::Send, &ended(5, Status::WrFlush)), "it was told of no READ");
        advertised.begin_read();
        assert!(!advertised.keeps(Side::Send, &ended(6, Status::Success)), "others may be under way");
        assert!(advertised.keeps(Side::Send, &ended(7, Status::RetryExceeded)) && advertised.is_any());
        let kept: Vec<_> = advertised.kept.iter().map(|(side, c)| (*side, c.wr_id)).collect();
        assert_eq!(kept, [(Side::Receive, 3), (Side::Receive, 4), (Side::Send, 7)]);
        let serial = advertised.serial;
        advertised.forget();
        assert!(advertised.kept.is_empty() && advertised.serial != serial && !advertised.is_any());
        assert!(!keeps(&mut advertised, 8, Status::WrFlush));
    }
}
