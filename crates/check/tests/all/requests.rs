//! Each rule, broken once and kept once.

use crate::program::{DOMAIN, FOREIGN, KEY, Line, PAIR, Program, QUEUE, READ_ONLY, SHARED, rules};
use check::objects::{CompletionQueue, Identifier, QueuePair};
use check::{Checker, Completion, Direction, Element, Queue, Refusal, Request, Rule, Suppressions};

#[test]
fn a_program_that_keeps_the_rules_hears_nothing() {
    let mut program = Program::new();
    for round in 0..100 {
        assert_eq!(program.receive(0x1000, 64), []);
        let received = program.line;
        assert_eq!(program.send(0x1040, 64), []);
        let sent = program.line;
        assert_eq!(program.complete(sent, false), []);
        program.memory.bytes.borrow_mut().insert(0x1040, round);
        assert_eq!(program.complete(received, true), []);
    }
}

#[test]
fn a_send_whose_bytes_changed_before_its_completion_is_found_with_both_calls() {
    let mut program = Program::new();
    program.send(0x1000, 64);
    let sent = program.line;
    program.memory.bytes.borrow_mut().insert(0x1000, 7);
    let [finding] = &program.complete(sent, false)[..] else { panic!("one finding") };
    assert_eq!(
        finding.to_string(),
        "check: send-buffer-changed\n  \
         The 64 bytes at 0x1000 of SEND 11 on queue pair 17 changed before its completion was taken.\n  \
         completion taken at\n      main (program.c:12)\n  posted at\n      main (program.c:11)\n  \
         ibv_post_send(3): the buffers of a request may be used again once its completion is taken.\n  \
         Take the completion before the buffer is written, or send a copy.\n"
    );
    let json = finding.to_json();
    assert_eq!(json["rule"], "send-buffer-changed");
    assert_eq!(json["calls"][1]["frames"][0], "main (program.c:11)");
}

#[test]
fn a_send_whose_bytes_were_unmapped_is_found_and_said_to_be() {
    let mut program = Program::new();
    program.send(0x1000, 64);
    let sent = program.line;
    program.memory.is_unmapped.set(true);
    let found = program.complete(sent, false);
    assert!(found[0].what.contains("SEND 11 on queue pair 17 were unmapped before its completion"));
}

#[test]
fn a_completion_ends_the_requests_before_it_that_give_none() {
    let mut program = Program::new();
    let unsignaled = Element { addr: 0x1000, len: 8, key: KEY };
    assert_eq!(program.post(Queue::Send(PAIR), "WRITE", unsignaled, false), []);
    program.send(0x1100, 8);
    let signaled = program.line;
    program.memory.bytes.borrow_mut().insert(0x1000, 7);
    assert_eq!(rules(program.complete(signaled, false)), [Rule::SendBufferChanged]);
    assert_eq!(program.receive(0x1000, 8), [], "the bytes are the program's again");
}

#[test]
fn requests_over_the_same_bytes_are_found_while_the_first_is_outstanding() {
    let mut program = Program::new();
    assert_eq!(program.receive(0x1000, 64), []);
    let first = program.line;
    assert_eq!(program.receive(0x103f, 64), [Rule::OverlappingReceives]);
    assert_eq!(program.send(0x1010, 1), [Rule::ReceiveOverSend]);
    program.complete(first, true);
    assert_eq!(program.send(0x1800, 8), []);
    let read = Element { addr: 0x1800, len: 8, key: KEY };
    assert_eq!(program.post(Queue::Send(PAIR), "RDMA READ", read, true), [Rule::ReceiveOverSend]);
    program.memory.is_dead.set(true);
    assert_eq!(program.receive(0x1800, 8), [], "the queue pair executes nothing any more");
}

#[test]
fn elements_that_their_keys_do_not_cover_are_found_with_the_nearest_region() {
    let mut program = Program::new();
    let mut post =
        |name, addr, key| program.post(Queue::Send(PAIR), name, Element { addr, len: 8, key }, true);
    assert_eq!(post("SEND", 0x1000, 0x999), [Rule::UnknownKey]);
    assert_eq!(post("SEND", 0x1ffc, KEY), [Rule::OutsideRegion]);
    assert_eq!(post("SEND", 0x20_000, FOREIGN), [Rule::WrongDomain]);
    assert_eq!(post("SEND", 0x10_000, READ_ONLY), []);
    assert_eq!(post("RDMA READ", 0x10_100, READ_ONLY), [Rule::NoLocalWrite]);
    let found = program.send_finds(0x2004, KEY);
    assert!(
        found[0]
            .what
            .ends_with("The nearest region, lkey 0x100, has 4096 bytes from 0x1000; it is 5 bytes away.")
    );
}

#[test]
fn a_region_that_goes_while_a_request_uses_it_is_found_and_a_dead_queue_pair_uses_none() {
    let going = |key, prepare: fn(&mut Program)| {
        let mut program = Program::new();
        program.receive(0x1000, 64);
        prepare(&mut program);
        let site = program.here();
        rules(program.checker.region_going(key, &program.memory, &site))
    };
    assert_eq!(going(READ_ONLY, |_| {}), []);
    assert_eq!(going(KEY, |_| {}), [Rule::RegionInUse]);
    assert_eq!(going(KEY, |program| program.memory.is_dead.set(true)), []);
    assert_eq!(going(KEY, |program| program.checker.pair_reset(PAIR)), []);
    assert_eq!(going(KEY, |program| program.checker.pair_gone(PAIR)), []);
}

#[test]
fn a_completion_queue_that_is_too_short_for_what_is_outstanding_is_found() {
    let mut program = Program::new();
    program.checker.queue_resized(QUEUE, 4);
    (0..4).for_each(|n| assert_eq!(program.receive(0x1000 + n * 64, 64), []));
    program.complete(11, true);
    assert_eq!(program.receive(0x1000, 64), []);
    assert_eq!(program.receive(0x1800, 64), [Rule::QueueMayOverrun]);
}

#[test]
fn a_send_queue_that_is_full_of_sends_without_a_completion_is_found() {
    let element = Element { addr: 0x1000, len: 8, key: KEY };
    let post = |signaled: [bool; 3]| {
        let mut program = Program::new();
        let mut pair = QueuePair::new(18, Line(5));
        (pair.domain, pair.send_queue, pair.receive_queue, pair.max_sends) = (DOMAIN, QUEUE, QUEUE, 2);
        program.checker.pair_made(5, pair);
        signaled.map(|signaled| {
            let mut found = program.post(Queue::Send(5), "SEND", element, signaled);
            let site = program.here();
            found.extend(rules(program.checker.posted(Queue::Send(5), &site)));
            found
        })
    };
    assert_eq!(post([false; 3]), [vec![], vec![], vec![Rule::NeverSignaled]]);
    assert_eq!(post([true, false, false]), [vec![], vec![], vec![Rule::MoreRequestsThanAsked]]);
}

#[test]
fn what_is_refused_is_not_outstanding() {
    let mut program = Program::new();
    assert_eq!(program.receive(0x1000, 64), []);
    assert_eq!(program.checker.refused(Queue::Receive(PAIR), 1, None, &Line(50)), []);
    assert_eq!(program.receive(0x1000, 64), []);
}

#[test]
fn more_inline_bytes_than_asked_for_are_found() {
    let mut program = Program::new();
    let mut post = |len| {
        let site = program.here();
        let request = Request {
            wr_id: 1,
            name: "SEND",
            direction: Direction::Reads,
            is_inline: true,
            is_signaled: true,
            elements: &[Element { addr: 0x9_0000, len, key: 0 }],
            remote: None,
        };
        rules(program.checker.posting(Queue::Send(PAIR), &request, &program.memory, &site))
    };
    assert_eq!(post(16), []);
    assert_eq!(post(17), [Rule::MoreInlineThanAsked]);
}

#[test]
fn a_request_that_fails_is_told_with_its_call_and_those_that_are_flushed_are_not() {
    let mut program = Program::new();
    program.send(0x1000, 8);
    program.send(0x1100, 8);
    let failed = program.end(11, false, Some(("RNR retry counter exceeded", 13)));
    assert_eq!(
        failed[0].what,
        "SEND 11 on queue pair 17, of 8 bytes, ended with: RNR retry counter exceeded.\n\
         The peer had no receive posted for as long as rnr_retry and min_rnr_timer allow."
    );
    assert_eq!(program.end(12, false, Some(("Work Request Flushed Error", 5))), []);
    program.receive(0x1000, 8);
    let posted = program.line;
    program.memory.is_unmapped.set(true);
    let failed = program.end(posted, true, Some(("local protection error", 4)));
    assert!(failed[0].what.ends_with("\nThe 8 bytes at 0x1000 are not mapped any more."));
}

#[test]
fn what_was_not_destroyed_is_a_tree() {
    let mut program = Program::new();
    let checker = &mut program.checker;
    checker.channel_made(50, &Line(5));
    checker.channel_made(51, &Line(6));
    for (handle, channel) in [(60, Some(50)), (61, None), (62, Some(50)), (63, Some(50))] {
        checker.identifier_made(handle, Identifier { channel, made: Line(handle as u32) });
    }
    checker.identifier_moved(62, Some(51));
    checker.identifier_gone(63);
    let [finding] = &program.checker.leaks()[..] else { panic!("one finding") };
    assert_eq!(
        finding.what,
        "12 objects were not destroyed, 12288 bytes are registered:\n  \
         protection domain, made at main (program.c:1)\n    \
         memory region of 4096 bytes, made at main (program.c:256)\n    \
         memory region of 4096 bytes, made at main (program.c:512)\n    \
         queue pair 17, made at main (program.c:3)\n    \
         shared receive queue, made at main (program.c:4)\n  \
         memory region of 4096 bytes, made at main (program.c:768)\n  \
         completion queue of 16 entries, made at main (program.c:2)\n  \
         event channel, made at main (program.c:5)\n    \
         identifier of rdma_cm, made at main (program.c:60)\n  \
         event channel, made at main (program.c:6)\n    \
         identifier of rdma_cm, made at main (program.c:62)\n  \
         identifier of rdma_cm, made at main (program.c:61)"
    );
    assert_eq!(Checker::<Line>::default().leaks(), []);
}

#[test]
fn a_receive_of_datagrams_without_room_for_the_header_is_found() {
    let mut program = Program::new();
    let mut pair = QueuePair::new(18, Line(5));
    (pair.domain, pair.send_queue, pair.receive_queue, pair.is_datagram) = (DOMAIN, QUEUE, QUEUE, true);
    program.checker.pair_made(5, pair);
    let mut receive =
        |addr, len| program.post(Queue::Receive(5), "RECV", Element { addr, len, key: KEY }, true);
    assert_eq!(receive(0x1000, 39), [Rule::NoRoomForHeader]);
    assert_eq!(receive(0x1100, 40), []);
    assert_eq!(program.receive(0x1200, 8), [], "other queue pairs have none");
}

#[test]
fn the_same_calls_are_told_of_once() {
    let mut program = Program::new();
    let element = Element { addr: 0x1000, len: 8, key: 0x999 };
    assert_eq!(program.post(Queue::Send(PAIR), "SEND", element, true), [Rule::UnknownKey]);
    program.line -= 1;
    assert_eq!(program.post(Queue::Send(PAIR), "SEND", element, true), []);
}

#[test]
fn receives_of_a_shared_queue_are_the_queue_pairs_that_take_them() {
    let mut program = Program::new();
    let mut pair = QueuePair::new(18, Line(5));
    (pair.domain, pair.send_queue, pair.receive_queue, pair.shared) = (DOMAIN, QUEUE, QUEUE, Some(SHARED));
    program.checker.pair_made(5, pair);
    let element = Element { addr: 0x1000, len: 8, key: KEY };
    assert_eq!(program.post(Queue::Shared(SHARED), "RECV", element, true), []);
    assert_eq!(program.post(Queue::Shared(SHARED), "RECV", element, true), [Rule::OverlappingReceives]);
    for wr_id in [11, 12] {
        let completion =
            Completion { queue: QUEUE, number: 18, wr_id, is_receive: true, failure: None, peer: None };
        assert_eq!(rules(program.checker.completed(&completion, &program.memory, &Line(90))), []);
    }
    assert_eq!(program.receive(0x1000, 8), []);
}

#[test]
fn a_request_that_is_invalid_is_told_with_the_state_where_that_is_why() {
    let refused = |state| {
        let mut program = Program::new();
        program.send(0x1000, 8);
        let why = Refusal { error: "EINVAL", state, why: None };
        let found = program.checker.refused(Queue::Send(PAIR), 1, Some(&why), &Line(11));
        found[0].what.clone()
    };
    assert_eq!(refused("RTS"), "ibv_post_send refused SEND 11 on queue pair 17 with EINVAL.");
    let in_init = "ibv_post_send refused SEND 11 on queue pair 17 with EINVAL. The queue pair is in INIT.";
    assert_eq!(refused("INIT"), in_init);
}

const CHANNEL: u64 = 6;
const QUEUE_OF_CHANNEL: u64 = 7;

/// A receive, then calls of threads; what is found when thread 1 waits.
fn waits_behind(calls: &[(u64, &str)], prepare: fn(&mut Program)) -> Vec<Rule> {
    let mut program = Program::new();
    let mut queue = CompletionQueue::new(16, Line(6));
    queue.channel = Some(CHANNEL);
    program.checker.queue_made(QUEUE_OF_CHANNEL, queue);
    let mut pair = QueuePair::new(18, Line(7));
    (pair.domain, pair.send_queue, pair.receive_queue) = (DOMAIN, QUEUE_OF_CHANNEL, QUEUE_OF_CHANNEL);
    program.checker.pair_made(8, pair);
    program.post(Queue::Receive(8), "RECV", Element { addr: 0x1000, len: 8, key: KEY }, true);
    prepare(&mut program);
    for (thread, call) in calls {
        let site = program.here();
        match *call {
            "arm" => program.checker.armed(QUEUE_OF_CHANNEL, *thread, &program.memory, &site),
            _ => _ = program.checker.polled(QUEUE_OF_CHANNEL, *thread),
        }
    }
    let site = program.here();
    rules(program.checker.waiting(CHANNEL, 1, &site))
}

#[test]
fn a_queue_that_is_armed_and_not_polled_before_waiting_is_found() {
    let lost = [Rule::LostEvent];
    assert_eq!(waits_behind(&[(1, "poll"), (1, "arm")], |_| {}), lost);
    assert_eq!(waits_behind(&[(1, "arm"), (1, "poll")], |_| {}), []);
    assert_eq!(waits_behind(&[(1, "poll")], |_| {}), []);
    assert_eq!(waits_behind(&[(2, "poll"), (1, "arm")], |_| {}), [], "another thread polls");
    assert_eq!(waits_behind(&[(1, "poll"), (2, "arm")], |_| {}), [], "another thread arms");
    assert_eq!(waits_behind(&[(1, "arm")], |_| {}), [], "nothing was taken yet");
    let polled = [(1, "poll"), (1, "arm")];
    assert_eq!(waits_behind(&polled, |program| program.memory.is_unconnected.set(true)), []);
    assert_eq!(waits_behind(&polled, |program| program.checker.pair_reset(8)), []);
}

#[test]
fn the_use_of_a_destroyed_object_is_found_until_its_name_is_used_again() {
    let mut program = Program::new();
    assert_eq!(program.checker.used(PAIR, &Line(20)), []);
    program.checker.pair_gone(PAIR);
    program.checker.destroyed(PAIR, "queue pair", &Line(21));
    assert!(program.checker.is_gone(PAIR));
    let [finding] = &program.checker.used(PAIR, &Line(22))[..] else { panic!("one finding") };
    assert_eq!((finding.rule, &finding.calls[1].1), (Rule::UseAfterDestroy, &Line(21)));
    program.checker.forgotten(PAIR);
    assert_eq!(program.checker.used(PAIR, &Line(23)), []);
}

#[test]
fn a_key_whose_region_was_deregistered_is_said_to_be_one() {
    let mut program = Program::new();
    program.checker.region_gone(KEY, &Line(30));
    let found = program.send_finds(0x1000, KEY);
    assert_eq!((found[0].rule, &found[0].calls[1].1), (Rule::UnknownKey, &Line(30)));
}

#[test]
fn a_fork_with_regions_is_found_unless_it_was_prepared() {
    let mut program = Program::new();
    assert_eq!(rules(program.checker.forking(&Line(40))), [Rule::ForkUnprepared]);
    program.checker.fork_prepared();
    assert_eq!(program.checker.forking(&Line(41)), []);
    assert_eq!(Checker::<Line>::default().forking(&Line(42)), []);
}

#[test]
fn what_a_file_lists_is_suppressed_and_a_mistake_in_it_is_said_with_its_line() {
    let found = Program::new().send_finds(0x1000, 0x999);
    let has = |text| Suppressions::parse(text).unwrap().has(&found[0]);
    assert!(has("# theirs\n\nunknown-key:program.c:11") && has("*:main") && has("*:lkey 0x999"));
    assert!(!has("") && !has("leak:main") && !has("unknown-key:program.c:12"));
    let wrong = |text| Suppressions::parse(text).unwrap_err().to_string();
    assert_eq!(wrong("leak:x\nunknown-key"), "line 2: RULE:PATTERN is expected");
    assert_eq!(wrong("no-such-rule:x"), "line 1: 'no-such-rule' is no rule");
}
