//! Shared receive queues for XRC: what they receive completes into a queue of their own, and comes
//! by any target of their domain.

use check::objects::{CompletionQueue, QueuePair, SharedQueue};
use check::{Completion, Element, Queue, Rule};

use crate::program::{DOMAIN, KEY, Line, Program, rules};

const FOR_XRC: u64 = 6;
const ITS_QUEUE: u64 = 7;
const TARGET: u64 = 8;

fn queue_for_xrc() -> SharedQueue<Line> {
    let mut queue = SharedQueue::new(DOMAIN, Line(6));
    queue.receive_queue = Some(ITS_QUEUE);
    queue
}

/// A program with a queue for XRC, which completes into a queue of 2 entries, and one target.
fn with_queue_for_xrc() -> Program {
    let mut program = Program::new();
    program.checker.queue_made(ITS_QUEUE, CompletionQueue::new(2, Line(5)));
    program.checker.shared_made(FOR_XRC, queue_for_xrc());
    let mut target = QueuePair::new(19, Line(8));
    target.is_target = true;
    program.checker.pair_made(TARGET, target);
    program
}

fn receive(program: &mut Program, addr: u64) -> Vec<Rule> {
    let element = Element { addr, len: 64, key: KEY };
    program.post(Queue::Shared(FOR_XRC), "RECV", element, true)
}

#[test]
fn a_receive_of_a_queue_for_xrc_ends_with_a_completion_of_any_queue_pair() {
    let mut program = with_queue_for_xrc();
    assert_eq!(receive(&mut program, 0x1000), []);
    let wr_id = program.line.into();
    assert_eq!(receive(&mut program, 0x1020), [Rule::OverlappingReceives]);
    let completion =
        |queue, number| Completion { queue, number, wr_id, is_receive: true, failure: None, peer: None };
    for elsewhere in [completion(99, 19), completion(99, 77)] {
        program.checker.completed(&elsewhere, &program.memory, &Line(20));
    }
    assert_eq!(program.send(0x1000, 8), [Rule::ReceiveOverSend]);
    program.checker.completed(&completion(ITS_QUEUE, 77), &program.memory, &Line(21));
    assert_eq!(receive(&mut program, 0x1000), [Rule::OverlappingReceives], "the second is left");
}

#[test]
fn more_receives_than_the_completion_queue_of_their_queue_holds_are_found() {
    let mut program = with_queue_for_xrc();
    let found = (0..3).flat_map(|n| receive(&mut program, 0x1000 + 64 * n)).collect::<Vec<_>>();
    assert_eq!(found, [Rule::QueueMayOverrun]);
    program.checker.shared_gone(FOR_XRC);
    program.checker.shared_made(FOR_XRC, queue_for_xrc());
    assert_eq!(receive(&mut program, 0x1000), [], "those of a destroyed queue complete no more");
}

#[test]
fn a_region_goes_under_a_queue_for_xrc_only_where_a_target_serves_it() {
    let mut program = with_queue_for_xrc();
    receive(&mut program, 0x1000);
    let found = program.checker.region_going(KEY, &program.memory, &Line(20));
    assert_eq!(rules(found), [Rule::RegionInUse]);
    program.checker.pair_gone(TARGET);
    assert_eq!(rules(program.checker.region_going(KEY, &program.memory, &Line(21))), []);
}
