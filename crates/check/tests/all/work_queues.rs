//! Receive work queues: no queue pair has to execute what is posted to them.

use check::objects::SharedQueue;
use check::{Completion, Element, Queue, Rule};

use crate::program::{DOMAIN, KEY, Line, Program, QUEUE, rules};

const WORK_QUEUE: u64 = 9;

fn with_work_queue() -> Program {
    let mut program = Program::new();
    program.checker.shared_made(WORK_QUEUE, SharedQueue::work_queue(DOMAIN, QUEUE, Line(6)));
    program.checker.work_queue_executes(WORK_QUEUE, true);
    program
}

fn receive(program: &mut Program, addr: u64) -> Vec<Rule> {
    program.post(Queue::Shared(WORK_QUEUE), "RECV", Element { addr, len: 64, key: KEY }, true)
}

#[test]
fn receives_of_a_work_queue_overlap_until_one_is_completed_or_the_queue_is_reset() {
    let mut program = with_work_queue();
    assert_eq!(receive(&mut program, 0x1000), []);
    let wr_id = program.line.into();
    assert_eq!(receive(&mut program, 0x1020), [Rule::OverlappingReceives]);
    let completion =
        Completion { queue: QUEUE, number: 77, wr_id, is_receive: true, failure: None, peer: None };
    program.checker.completed(&completion, &program.memory, &Line(20));
    assert_eq!(receive(&mut program, 0x1000), [Rule::OverlappingReceives], "the second is left");
    program.checker.shared_reset(WORK_QUEUE);
    assert_eq!(receive(&mut program, 0x1000), []);
}

#[test]
fn a_region_goes_under_a_work_queue_only_while_that_executes() {
    let mut program = with_work_queue();
    receive(&mut program, 0x1000);
    let found = program.checker.region_going(KEY, &program.memory, &Line(20));
    assert!(found[0].what.contains("RECV 11 on a receive work queue"), "{}", found[0].what);
    assert_eq!(rules(found), [Rule::RegionInUse]);
    program.checker.work_queue_executes(WORK_QUEUE, false);
    assert_eq!(rules(program.checker.region_going(KEY, &program.memory, &Line(21))), []);
}
