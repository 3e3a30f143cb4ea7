//! A short message, and the ACK that comes with it, are taken in as the packets that they stand
//! for.

use std::time::Duration;

use crate::support::*;
use proptest::prelude::*;
use transport::op::{SendWr, Status};
use transport::rc::{AckDelay, Rest};
use transport::short::{Short, What};
use wire::{Mtu, Pkey, Psn, Qpn};

const OK: Status = Status::Success;

/// What happens to one end.
#[derive(Clone, Debug)]
enum Step {
    /// The end sends a message of so many bytes.
    Send { len: u32, signaled: bool },
    /// A message of so many bytes comes from the peer, and with it an ACK: of this one of the
    /// messages under way.
    Hear { what: What, len: usize, ack: Option<usize>, ack_delay: AckDelay },
    /// One comes whose number is not due, and an ACK of what is not under way.
    Wrong { ahead: i64, ack: Option<i64> },
    /// Nothing comes for a while.
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![8 => Just(What::Send), 1 => Just(What::SendImmediate([1, 2, 3, 4]))];
    let ack_delay =
        prop_oneof![8 => Just(AckDelay::ForProgram), 1 => Just(AckDelay::Briefly), 1 => Just(AckDelay::No)];
    let ack = prop_oneof![8 => Just(Some(0)), 2 => (0..9_usize).prop_map(Some), 2 => Just(None)];
    prop_oneof![
        20 => (0..300_u32, any::<bool>()).prop_map(|(len, signaled)| Step::Send { len, signaled }),
        20 => (what, 0..200_usize, ack, ack_delay).prop_map(|(what, len, ack, ack_delay)| Step::Hear { what, len, ack, ack_delay }),
        1 => (-3..3_i64, prop::option::of(-3..9_i64)).prop_map(|(ahead, ack)| Step::Wrong { ahead, ack }),
        9 => Just(Step::Pause),
    ]
}

/// One end, and the numbers of what came, of what it has sent and of what is acknowledged of that.
struct Peer {
    end: End,
    /// What comes does as packets.
    by_packets: bool,
    due: i64,
    next: i64,
    acknowledged: i64,
}

impl Peer {
    fn new(by_packets: bool) -> Self {
        let mut end = End::proven(Mtu::M256, 1 << 20, rts(), true);
        end.cx.delivers = true;
        // Another queue pair has a share of the window.
        end.cx.window.enter();
        (0..1_000).for_each(|n| end.post_receive(n, sge(1, 0, 256)));
        Self { end, by_packets, due: 0, next: 0, acknowledged: 0 }
    }

    /// Sends a request as a short message, where that may leave now.
    fn send(&mut self, wr: SendWr, len: usize) {
        let End { rc, cx, now, .. } = &mut self.end;
        if rc.next_short(len, false, What::Send, false, cx).is_some() {
            rc.sent_short(|| *now, || wr, len, cx);
            self.next += 1;
        } else {
            rc.post(wr, cx);
        }
    }

    fn hear(&mut self, number: i64, what: What, len: usize, ack: Option<i64>) {
        let psn = |number| Psn::new((i64::from(PSN) + number) as u32);
        let (dest_qp, pkey) = (Qpn::new(0x11), Pkey::default());
        let short =
            Short { dest_qp, pkey, psn: psn(number), solicited: false, what, acknowledged: ack.map(psn) };
        let (bytes, End { rc, cx, now, ack_delay, .. }) = (bytes(0, len), &mut self.end);
        if self.by_packets {
            rc.receive(*now, &short.packet(&bytes), *ack_delay, cx);
            if let Some(ack) = short.ack() {
                rc.receive(*now, &ack, *ack_delay, cx);
            }
            return;
        }
        match rc.receive_short(*now, &short, &bytes, *ack_delay, cx) {
            Rest::Step => {}
            // What waited before still may, but for an ACK.
            Rest::Held => assert!(ack.is_none() || rc.has_nothing_due()),
            Rest::Acknowledge => rc.acknowledge_oldest(*now, cx),
        }
    }

    /// Takes a step; what leaves, and all that one can see of it.
    fn step(&mut self, step: &Step) -> impl PartialEq + std::fmt::Debug + use<> {
        match *step {
            Step::Send { len, signaled } => {
                self.send(SendWr { signaled, ..send(u64::from(len), sge(0, 0, len)) }, len as usize);
            }
            Step::Hear { what, len, ack, ack_delay } => {
                self.end.ack_delay = ack_delay;
                let under_way = self.next - self.acknowledged;
                let ack =
                    ack.filter(|_| under_way > 0).map(|turn| self.acknowledged + turn as i64 % under_way);
                self.hear(self.due, what, len, ack);
                self.due += 1;
                self.acknowledged = ack.map_or(self.acknowledged, |at| at + 1);
            }
            Step::Wrong { ahead, ack } => {
                self.hear(self.due + ahead, What::Send, 8, ack.map(|at| self.acknowledged + at));
                // What was acknowledged is not looked at any more.
                self.acknowledged = self.next;
            }
            Step::Pause => self.end.wait(Duration::from_millis(70)),
        }
        let deadline = self.end.rc.deadline().map(|at| at - self.end.now);
        let share = self.end.cx.window.share_of(u32::MAX);
        let before = (self.end.rc.held(), deadline, self.end.rc.outstanding(), share);
        self.end.rc.take_path_suspect();
        let sent = self.end.sent();
        self.next += sent.iter().filter(|packet| packet.op == ONLY).count() as i64;
        let completed = std::mem::take(&mut self.end.cx.completions);
        let deadline = self.end.rc.deadline().map(|at| at - self.end.now);
        (before, sent, completed, self.end.events(), deadline, self.end.rc.state())
    }
}

proptest! {
    #[test]
    fn a_short_message_with_an_ack_is_taken_in_as_the_packets_that_it_stands_for(steps in prop::collection::vec(step(), 1..200)) {
        let (mut short, mut packets) = (Peer::new(false), Peer::new(true));
        for step in &steps {
            prop_assert_eq!(short.step(step), packets.step(step), "{:?}", step);
        }
    }
}

/// An end that sent one message, and heard one with the ACK of that.
fn answered(signaled: bool) -> (End, Rest) {
    let mut a = End::proven(Mtu::M256, 1 << 20, rts(), true);
    a.cx.delivers = true;
    a.post_receive(0, sge(1, 0, 256));
    assert!(a.rc.next_short(8, false, What::Send, false, &mut a.cx).is_some());
    a.rc.sent_short(|| a.now, || SendWr { signaled, ..send(7, sge(0, 0, 8)) }, 8, &mut a.cx);
    let (dest_qp, pkey, psn) = (Qpn::new(0x11), Pkey::default(), Psn::new(PSN));
    let short = Short { dest_qp, pkey, psn, solicited: false, what: What::Send, acknowledged: Some(psn) };
    let rest = a.rc.receive_short(a.now, &short, &[1; 8], AckDelay::ForProgram, &mut a.cx);
    (a, rest)
}

#[test]
fn an_ack_of_all_that_is_under_way_leaves_nothing_to_do_but_what_nobody_waits_for() {
    let (mut a, rest) = answered(true);
    assert_eq!((rest, a.completed()), (Rest::Held, vec![(0, OK), (7, OK)]));
    assert_eq!((a.rc.deadline(), a.rc.outstanding(), a.rc.has_nothing_due()), (None, 0, true));
    let (mut a, rest) = answered(false);
    assert_eq!((rest, a.completed(), a.rc.outstanding()), (Rest::Acknowledge, vec![(0, OK)], 1));
    a.rc.acknowledge_oldest(a.now, &mut a.cx);
    assert_eq!((a.completed(), a.rc.outstanding(), a.rc.has_nothing_due()), (vec![], 0, true));
}
