//! READs and atomics that the peer does not serve.

use crate::program::{DOMAIN, KEY, Line, NUMBER, PAIR, Program, QUEUE};
use check::objects::QueuePair;
use check::reads::Reads;
use check::{Element, Queue, Rule};

const PEER: u64 = 5;
const PEER_NUMBER: u32 = 18;

/// A program whose queue pair sends so many READs at a time, to a peer that serves so many.
fn connected(sent: u8, served: u8) -> Program {
    let program = Program::new();
    let mut reads = program.memory.reads.borrow_mut();
    reads.insert(PAIR, Reads { sent, served: 1, peer: PEER_NUMBER });
    reads.insert(PEER, Reads { sent: 1, served, peer: NUMBER });
    drop(reads);
    program
}

fn with_own_peer(sent: u8, served: u8) -> Program {
    let mut program = connected(sent, served);
    let mut peer = QueuePair::new(PEER_NUMBER, Line(5));
    (peer.domain, peer.send_queue, peer.receive_queue) = (DOMAIN, QUEUE, QUEUE);
    program.checker.pair_made(PEER, peer);
    program
}

/// Posts so many READs, of which each has bytes of its own.
fn read(program: &mut Program, count: u64) -> Vec<Rule> {
    let element = |n| Element { addr: 0x1000 + 8 * n, len: 8, key: KEY };
    let post = |n| program.post(Queue::Send(PAIR), "RDMA READ", element(n), true);
    (0..count).flat_map(post).collect()
}

#[test]
fn more_reads_than_the_peer_serves_are_found_when_they_are_outstanding() {
    assert_eq!(read(&mut with_own_peer(4, 2), 2), []);
    assert_eq!(read(&mut with_own_peer(4, 2), 3), [Rule::MoreReadsThanServed]);
    assert_eq!(read(&mut with_own_peer(2, 2), 8), [], "the adapter sends no more at a time");
    assert_eq!(read(&mut connected(4, 2), 3), [], "the peer is of another process");
    assert_eq!(read(&mut with_own_peer(4, 0), 1), [Rule::MoreReadsThanServed]);
    assert_eq!(read(&mut with_own_peer(0, 4), 1), [Rule::MoreReadsThanServed]);
    let mut sends = with_own_peer(4, 0);
    assert_eq!(sends.send(0x1000, 8), []);
}

#[test]
fn a_peer_of_another_process_is_asked_once_and_what_it_serves_is_compared() {
    let mut program = connected(4, 2);
    let (queue, here) = (Queue::Send(PAIR), Line(99));
    read(&mut program, 1);
    assert_eq!(program.checker.peer_wanted(queue, &program.memory), None, "one alone fits");
    read(&mut program, 2);
    assert_eq!(program.checker.peer_wanted(queue, &program.memory), Some(NUMBER));
    assert_eq!(program.checker.peer_wanted(queue, &program.memory), None);
    let [finding] = &program.checker.peer_serves(queue, 2, &program.memory, &here)[..] else {
        panic!("one finding")
    };
    let said = "3 are outstanding, and max_rd_atomic is 4; the peer's max_dest_rd_atomic is 2.";
    assert!(finding.what.ends_with(said), "{}", finding.what);
}

#[test]
fn a_depth_beyond_that_of_the_connection_request_is_found_when_it_is_used() {
    let accepted = |asked, count| {
        let mut program = connected(1, 1);
        program.checker.accepted(PAIR, asked, 1, &Line(7));
        read(&mut program, count)
    };
    assert_eq!(accepted(4, 2), [Rule::MoreReadsThanServed]);
    assert_eq!((accepted(4, 1), accepted(1, 2)), (vec![], vec![]));
}
