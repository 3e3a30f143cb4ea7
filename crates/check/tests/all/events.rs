//! Events that no completion queue was asked for.

use check::Rule;
use check::objects::CompletionQueue;

use crate::program::{Line, Program, rules};

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
            Poll(queue, thread) => checker.polled(queue, thread),
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
