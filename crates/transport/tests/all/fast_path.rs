//! SENDs of one element and one packet leave in fewer steps than others, and say the same.

use std::time::Duration;

use crate::support::*;
use proptest::prelude::*;
use transport::op::{Data, SendOp, SendWr, Status};
use wire::bth::NakCode;
use wire::roce::{Op, SendTail};

/// What happens to a requester.
#[derive(Clone, Debug)]
enum Step {
    /// A SEND of so many bytes is posted.
    Send {
        len: u32,
        fence: bool,
        solicited: bool,
        signaled: bool,
        tail: SendTail,
    },
    /// A READ is.
    Read,
    /// A SEND whose memory is not there.
    Astray,
    /// What may leave does.
    Fill,
    /// What the peer says of this one of the packets under way; all before it are acknowledged.
    Answer(usize, Op),
    /// There is room for so many packets from now on.
    Room(u32),
    /// Nothing comes for a while.
    Pause,
    /// The queue pair is drained, or goes on.
    Drain,
    Resume,
}

fn step() -> impl Strategy<Value = Step> {
    let tail = prop_oneof![4 => Just(SendTail::None), 1 => Just(SendTail::Immediate([1, 2, 3, 4]))];
    let answer =
        prop_oneof![10 => Just(ack(0)), 1 => Just(rnr(1, 0)), 1 => Just(nak(NakCode::PsnSequence, 0))];
    let flags = (prop::bool::weighted(0.1), any::<bool>(), any::<bool>());
    let send = (0..600_u32, flags, tail).prop_map(|(len, (fence, solicited, signaled), tail)| Step::Send {
        len,
        fence,
        solicited,
        signaled,
        tail,
    });
    prop_oneof![
        40 => send,
        2 => Just(Step::Read),
        1 => Just(Step::Astray),
        10 => Just(Step::Fill),
        12 => (0..40_usize, answer).prop_map(|(turn, answer)| Step::Answer(turn, answer)),
        2 => (1..80_u32).prop_map(Step::Room),
        2 => Just(Step::Pause),
        1 => Just(Step::Drain),
        1 => Just(Step::Resume),
    ]
}

/// One end, and the numbers of what it has sent and of what is acknowledged.
struct Sender {
    end: End,
    /// Each request has an element more, without a byte: none leaves in fewer steps.
    split: bool,
    next: i64,
    acknowledged: i64,
}

impl Sender {
    fn new(split: bool) -> Self {
        Self { end: requester(), split, next: 0, acknowledged: 0 }
    }

    fn post(&mut self, mut wr: SendWr) {
        if let (true, Data::Sges(list)) = (self.split, &wr.data) {
            wr.data = Data::Sges([sge(0, 0, 0)].iter().chain(list.as_slice()).copied().collect());
        }
        self.end.post(wr);
    }

    /// The packet of this turn among those under way, where there is one.
    fn under_way(&self, turn: usize) -> Option<i64> {
        let count = self.next - self.acknowledged;
        (count > 0).then(|| self.acknowledged + turn as i64 % count)
    }

    /// Takes a step; what leaves, what completes.
    fn step(&mut self, step: &Step) -> (Vec<Vec<u8>>, Vec<(u64, Status)>) {
        let mut left = Vec::new();
        match *step {
            Step::Send { len, fence, solicited, signaled, tail } => {
                let wr = send(u64::from(len), sge(0, u64::from(len), len));
                self.post(SendWr { fence, solicited, signaled, op: SendOp::Send(tail), ..wr });
            }
            Step::Read => self.end.post(read(7, sge(0, 0, 300), sge(1, 0, 300))),
            Step::Astray => self.post(send(8, sge(7, 0, 8))),
            Step::Fill => {
                left = self.end.fill();
                for packet in &left {
                    let psn = i64::from(u32::from_be_bytes([0, packet[9], packet[10], packet[11]]));
                    let number = (psn - i64::from(PSN)).rem_euclid(1 << 24);
                    self.next = self.next.max(number + 1);
                }
            }
            Step::Answer(turn, answer) => {
                if let Some(at) = self.under_way(turn) {
                    self.end.hear(at, answer, &[]);
                    self.acknowledged = at + i64::from(answer == ack(0));
                }
            }
            Step::Room(packets) => self.end.cx.room = Some(packets),
            Step::Pause => self.end.wait(Duration::from_millis(40)),
            Step::Drain => self.end.rc.drain(),
            Step::Resume => self.end.rc.resume(),
        }
        (left, self.end.completed())
    }
}

proptest! {
    #[test]
    fn short_sends_of_one_element_leave_and_complete_as_those_of_several_do(steps in prop::collection::vec(step(), 1..200)) {
        let (mut plain, mut split) = (Sender::new(false), Sender::new(true));
        for step in &steps {
            prop_assert_eq!(plain.step(step), split.step(step), "{:?}", step);
            prop_assert_eq!(plain.end.rc.deadline().map(|at| at - plain.end.now), split.end.rc.deadline().map(|at| at - split.end.now));
        }
    }
}

#[test]
fn what_is_not_there_fails_in_its_turn() {
    let mut a = requester();
    (0..3).for_each(|n| a.post(send(n, sge(0, 0, 8))));
    a.post(send(3, sge(7, 0, 8)));
    a.post(send(4, sge(0, 0, 8)));
    assert_eq!(psns(&a.sent()), [0, 1, 2]);
    a.hear(2, ack(3), &[]);
    assert_eq!(a.sent(), []);
    let status =
        [Status::Success, Status::Success, Status::Success, Status::LocalProtection, Status::WrFlush];
    assert_eq!(a.completed(), (0..5).zip(status).collect::<Vec<_>>());
}
