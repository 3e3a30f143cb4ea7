//! What an observer sees of a queue pair's engine.

use crate::support::*;
use transport::op::Status;
use transport::rc::{Failure, Recoveries};
use wire::bth::NakCode;

#[test]
fn an_observer_sees_what_was_sent_again_and_why_it_ended() {
    let mut a = requester();
    (1..=2).for_each(|wr_id| a.post(send(wr_id, sge(0, 0, 8))));
    a.sent();
    assert_eq!((a.rc.in_flight(), a.rc.completed(), a.rc.failure()), (2, 0, None));
    a.hear(0, ack(1), &[]);
    assert_eq!((a.rc.in_flight(), a.rc.completed()), (1, 1));
    a.hear(1, rnr(12, 1), &[]);
    a.wait_for_deadline();
    a.sent();
    a.hear(1, nak(NakCode::PsnSequence, 1), &[]);
    a.sent();
    a.wait_for_deadline();
    let seen = Recoveries { retransmissions: 3, timeouts: 1, rnr_naks: 1, psn_naks: 1 };
    assert_eq!((a.rc.recoveries(), a.rc.in_flight()), (seen, 1));
    a.sent();
    a.hear(1, nak(NakCode::RemoteAccess, 1), &[]);
    assert_eq!(a.rc.failure(), Some(Failure::Request(Status::RemoteAccess)));
    assert_eq!(a.rc.completed(), 1);
}
