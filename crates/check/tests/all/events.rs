//! Events that do not come, and polls in vain.

use check::objects::CompletionQueue;
use check::{Element, Queue, Rule};

use crate::program::{KEY, Line, PAIR, Program, QUEUE, rules};

const CHANNEL: u64 = 70;
const TOLD: u64 = 71;
const OTHER: u64 = 72;
const HERE: u64 = 1;
const ELSEWHERE: u64 = 2;

/// A program with two queues that tell a channel of completions.
fn with_channel() -> Program {
    let mut program = Program::new();
    for queue in [TOLD, OTHER] {
        let mut made = CompletionQueue::new(16, Line(5));
        made.channel = Some(CHANNEL);
        program.checker.queue_made(queue, made);
    }
    program
}

enum Step {
    Arm(u64, u64),
    Take(u64),
    Poll(u64, u64),
}
use Step::{Arm, Poll, Take};

fn waiting_after(steps: &[Step]) -> Vec<Rule> {
    let mut program = with_channel();
    let (checker, site) = (&mut program.checker, Line(9));
    for step in steps {
        match *step {
            Arm(queue, thread) => checker.armed(queue, thread, &program.memory, &site),
            Take(queue) => checker.event_taken(queue, &site),
            Poll(queue, thread) => _ = checker.polled(queue, thread),
        }
    }
    rules(checker.waiting_in_vain(CHANNEL, HERE, &Line(10)))
}

#[test]
fn waiting_for_an_event_that_no_queue_was_asked_for_again_is_found() {
    assert_eq!(waiting_after(&[Arm(TOLD, HERE), Take(TOLD)]), [Rule::EventNotAskedFor]);
    let polled = [Arm(TOLD, HERE), Take(TOLD), Poll(TOLD, HERE)];
    assert_eq!(waiting_after(&polled), [Rule::EventNotAskedFor]);
}

#[test]
fn waiting_is_right_where_an_event_may_come_or_another_thread_may_ask() {
    let right: [&[Step]; 7] = [
        &[],
        &[Arm(TOLD, HERE)],
        &[Arm(TOLD, HERE), Take(TOLD), Arm(TOLD, HERE)],
        &[Arm(TOLD, HERE), Arm(TOLD, HERE), Take(TOLD)],
        &[Arm(TOLD, HERE), Take(TOLD), Arm(OTHER, HERE)],
        &[Arm(TOLD, ELSEWHERE), Take(TOLD)],
        &[Arm(TOLD, HERE), Take(TOLD), Poll(TOLD, ELSEWHERE)],
    ];
    for steps in right {
        assert_eq!(waiting_after(steps), []);
    }
}

#[test]
fn completions_from_before_a_queue_was_armed_are_found_where_one_thread_polls_it_and_waits() {
    let waiting = |polled_by: &[u64], left| {
        let mut program = with_channel();
        polled_by.iter().for_each(|thread| _ = program.checker.polled(TOLD, *thread));
        program.checker.armed(TOLD, HERE, &program.memory, &Line(8));
        program.memory.unannounced.set(left);
        rules(program.checker.waiting_beside_completions(CHANNEL, HERE, &program.memory, &Line(9)))
    };
    assert_eq!(waiting(&[HERE], 2), [Rule::LostEvent]);
    assert_eq!(waiting(&[HERE], 0), []);
    assert_eq!(waiting(&[HERE, ELSEWHERE], 2), []);
    assert_eq!(waiting(&[], 2), [], "no thread has polled it yet");
}

#[test]
fn polling_for_ever_is_found_where_no_outstanding_request_gives_a_completion() {
    let found = |prepare: fn(&mut Program)| {
        let mut program = Program::new();
        prepare(&mut program);
        rules(program.checker.polled_in_vain(QUEUE, &program.memory, &Line(9)))
    };
    fn unsignaled(program: &mut Program) {
        program.post(Queue::Send(PAIR), "SEND", Element { addr: 0x1000, len: 8, key: KEY }, false);
    }
    assert_eq!(found(unsignaled), [Rule::NeverSignaled]);
    assert_eq!(found(|_| {}), [], "nothing is outstanding");
    let also_receives = |program: &mut Program| {
        unsignaled(program);
        program.receive(0x1800, 8);
    };
    assert_eq!(found(also_receives), []);
    let signals_at_times = |program: &mut Program| {
        program.send(0x1000, 8);
        program.complete(program.line, false);
        unsignaled(program);
    };
    assert_eq!(found(signals_at_times), []);
}

#[test]
fn polls_are_counted_from_the_last_request_that_was_posted() {
    let mut program = Program::new();
    program.checker.polled(QUEUE, HERE);
    program.receive(0x1000, 8);
    (1..1 << 20).for_each(|_| assert!(!program.checker.polled(QUEUE, HERE)));
    assert!(program.checker.polled(QUEUE, HERE));
    assert!(!program.checker.polled(QUEUE, HERE), "told once");
}

#[test]
fn a_thread_that_polls_several_queues_in_turns_polls_none_in_vain() {
    let mut program = Program::new();
    program.checker.queue_made(71, CompletionQueue::new(4, Line(5)));
    for _ in 0..1 << 20 {
        assert!(!program.checker.polled(QUEUE, HERE) && !program.checker.polled(71, HERE));
    }
    // Another thread that polls the other queue changes nothing.
    (1..1 << 20).for_each(|_| assert!(!program.checker.polled(QUEUE, HERE)));
    program.checker.polled(71, HERE + 1);
    assert!(program.checker.polled(QUEUE, HERE));
}
