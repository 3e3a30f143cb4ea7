//! A run of packets ends in the state in which its packets end that come one by one; and packets
//! that are written as one leave as they do one by one.

use crate::support::*;
use proptest::prelude::*;
use std::time::Duration;
use transport::op::SendWr;
use transport::rc::AckDelay;
use wire::Mtu;
use wire::icrc::ICRC_LEN;
use wire::roce::Packet;
use wire::run::Run;

/// Bytes of the regions: a message may not fit.
const REGION: usize = 16 << 10;

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    /// The peer, or the end, writes so many bytes, to here, with immediate data or without.
    Write { by_end: bool, at: u64, len: u32, immediate: bool },
    /// The peer, or the end, sends so many bytes.
    Send { by_end: bool, len: u32 },
    /// The peer, or the end, reads so many bytes.
    Read { by_end: bool, at: u64, len: u32 },
    /// The end has room for so many packets on its way.
    Room { packets: u32 },
    /// The end and the peer post a receive for so many bytes.
    Receive { len: u32 },
    /// Packets travel; of those to the end, some are lost, or come twice.
    Travel { lost: Vec<usize>, doubled: Vec<usize>, ack_delay: AckDelay },
    /// The memory of the end is there no more from this byte on.
    Shrink { region: usize, to: usize },
    /// Nothing comes for a while.
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1..300_u32, 1_000..8_000_u32];
    let few = || prop_oneof![4 => Just(vec![]), 1 => prop::collection::vec(0..40_usize, 1..3)];
    let ack_delay =
        prop_oneof![Just(AckDelay::ForProgram), Just(AckDelay::Briefly), Just(AckDelay::No)].boxed();
    prop_oneof![
        9 => (any::<bool>(), 0..9_000_u64, len(), any::<bool>())
            .prop_map(|(by_end, at, len, immediate)| Step::Write { by_end, at, len, immediate }),
        9 => (any::<bool>(), len()).prop_map(|(by_end, len)| Step::Send { by_end, len }),
        9 => (any::<bool>(), 0..8_000_u64, len()).prop_map(|(by_end, at, len)| Step::Read { by_end, at, len }),
        3 => prop_oneof![1..40_u32, Just(1 << 20)].prop_map(|packets| Step::Room { packets }),
        12 => prop_oneof![9 => Just(8_000), 1 => 0..8_000_u32].prop_map(|len| Step::Receive { len }),
        30 => (few(), few(), ack_delay).prop_map(|(lost, doubled, ack_delay)| Step::Travel { lost, doubled, ack_delay }),
        1 => (0..2_usize, 0..REGION).prop_map(|(region, to)| Step::Shrink { region, to }),
        5 => Just(Step::Pause),
    ]
}

/// Takes packets in as runs, as far as they make any.
fn hear_runs(end: &mut End, packets: &[Vec<u8>]) -> u32 {
    let mut runs = 0;
    for alike in packets.chunk_by(|a, b| a.len() == b.len()) {
        let stride = alike[0].len() + ICRC_LEN;
        let bytes: Vec<u8> = alike.iter().flat_map(|packet| [packet, &[0; ICRC_LEN][..]].concat()).collect();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let first = Packet::parse(&rest[..stride - ICRC_LEN]).expect("the engine sends legal packets");
            let run = Run::beginning(first, rest, stride, |_| true);
            rest = &rest[run.count() as usize * stride..];
            let End { rc, cx, now, ack_delay, .. } = end;
            if rc.receive_run(*now, &run, *ack_delay, cx) {
                runs += 1;
            } else {
                run.packets().for_each(|packet| rc.receive(*now, &packet, *ack_delay, cx));
            }
        }
    }
    runs
}

/// What may be seen of an end.
fn seen(end: &mut End) -> impl PartialEq + std::fmt::Debug + use<> {
    let memory = end.cx.memory.bytes(1);
    let completions = std::mem::take(&mut end.cx.completions);
    let (receives, rq_psn, deadline) = (end.cx.receives.len(), end.rc.rq_psn(), end.rc.deadline());
    (memory, completions, end.events(), receives, rq_psn, end.rc.held(), end.rc.outstanding(), deadline)
}

fn both(ends: &mut [End; 2], mut act: impl FnMut(&mut End)) {
    ends.iter_mut().for_each(&mut act);
}

/// A request of the peer's, or of the end's.
fn post(peer: &mut End, ends: &mut [End; 2], by_end: bool, request: &dyn Fn() -> SendWr) {
    match by_end {
        true => both(ends, |end| end.post(request())),
        false => peer.post(request()),
    }
}

/// The packets that arrive of those that were sent.
fn arriving(sent: Vec<Vec<u8>>, lost: &[usize], doubled: &[usize]) -> Vec<Vec<u8>> {
    let copies = |n: usize| usize::from(!lost.contains(&n)) + usize::from(doubled.contains(&n));
    sent.into_iter().enumerate().flat_map(|(n, packet)| vec![packet; copies(n)]).collect()
}

/// One end in two copies, of which the first has and writes runs, and its peer; how many runs were
/// taken in, and written.
fn compare(steps: &[Step]) -> Result<[u32; 2], TestCaseError> {
    let mut peer = End::new(Mtu::M256, REGION, rts());
    let now = peer.now;
    let mut ends = [(); 2].map(|()| End { now, ..End::new(Mtu::M256, REGION, rts()) });
    ends[1].cx.memory.refuses_runs = true;
    let mut runs = 0;
    for (n, step) in steps.iter().enumerate() {
        let wr_id = n as u64;
        match *step {
            Step::Write { by_end, at, len, immediate } => post(&mut peer, &mut ends, by_end, &|| {
                write(wr_id, sge(0, 3, len), sge(1, at, len), immediate.then_some([7; 4]))
            }),
            Step::Send { by_end, len } => {
                post(&mut peer, &mut ends, by_end, &|| send(wr_id, sge(0, 5, len)));
            }
            Step::Read { by_end, at, len } => {
                post(&mut peer, &mut ends, by_end, &|| read(wr_id, sge(0, at, len), sge(1, at / 2, len)));
            }
            Step::Room { packets } => both(&mut ends, |end| end.cx.room = Some(packets)),
            Step::Receive { len } => {
                both(&mut ends, |end| end.post_receive(wr_id, sge(1, 64, len)));
                peer.post_receive(wr_id, sge(1, 64, len));
            }
            Step::Travel { ref lost, ref doubled, ack_delay } => {
                let packets = arriving(peer.fill(), lost, doubled);
                both(&mut ends, |end| end.ack_delay = ack_delay);
                runs += hear_runs(&mut ends[0], &packets);
                packets.iter().for_each(|packet| ends[1].hear_bytes(packet));
                let [by_runs, singly] = ends.each_mut().map(End::fill);
                prop_assert_eq!(&by_runs, &singly);
                by_runs.iter().for_each(|packet| peer.hear_bytes(packet));
            }
            Step::Shrink { region, to } => both(&mut ends, |end| {
                end.cx.memory.regions[region].bytes.borrow_mut().truncate(to);
            }),
            Step::Pause => {
                both(&mut ends, |end| end.rc.release());
                both(&mut ends, |end| end.wait(Duration::from_millis(80)));
                peer.wait(Duration::from_millis(80));
            }
        }
        let [by_runs, singly] = ends.each_mut().map(seen);
        prop_assert_eq!(by_runs, singly);
    }
    Ok([runs, ends[0].cx.memory.runs_copied.get()])
}

proptest! {
    #[test]
    fn a_run_and_its_packets_one_by_one_end_in_one_state(steps in prop::collection::vec(step(), 1..40)) {
        compare(&steps)?;
    }
}

#[test]
fn writes_sends_and_read_responses_come_and_leave_as_runs() {
    let travel = Step::Travel { lost: vec![], doubled: vec![], ack_delay: AckDelay::No };
    let begin = [Step::Receive { len: 8_000 }, Step::Send { by_end: false, len: 100 }, travel.clone()];
    for by_end in [false, true] {
        for (step, end_takes) in [
            (Step::Write { by_end, at: 0, len: 4_096, immediate: false }, !by_end),
            (Step::Send { by_end, len: 4_096 }, !by_end),
            (Step::Read { by_end, at: 0, len: 4_096 }, by_end),
        ] {
            let mut steps = begin.to_vec();
            steps.extend([Step::Receive { len: 8_000 }, step, travel.clone(), travel.clone()]);
            let [taken, written] = compare(&steps).unwrap();
            assert_eq!((taken > 0, written > 0), (end_takes, !end_takes), "{steps:?}");
        }
    }
}
