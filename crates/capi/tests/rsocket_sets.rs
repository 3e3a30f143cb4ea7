//! Sets of epoll(7) that hold rsockets, by the rules of the manual page.

#[expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]
mod support;

#[path = "support/streams.rs"]
mod streams;

use std::ffi::c_int;
use std::thread;

use capi::rsocket::{raccept, rclose, rconnect, repoll_create, repoll_ctl, repoll_wait, rshutdown};
use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT,
    EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT, POLLIN, epoll_event,
};

use streams::{LEN, address, close, errno, events, listener, pair, receive, send, socket};

const IN: u32 = EPOLLIN.cast_unsigned();
/// Longer than any event takes.
const LONG: c_int = 20_000;

/// A set; one that a thread has slept in keeps its rsockets itself.
fn set(slept_in: bool) -> c_int {
    // SAFETY: no pointers.
    let set = unsafe { repoll_create(0) };
    assert!(set >= 0, "errno {}", errno());
    if slept_in {
        assert_eq!(told(set, 1), []);
    }
    set
}

fn pipe() -> [c_int; 2] {
    let mut pipe = [0; 2];
    // SAFETY: two numbers.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    pipe
}

fn close_all(fds: &[c_int]) {
    // SAFETY: descriptors of a test.
    fds.iter().for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
}

/// What a set of epoll tells, within so many milliseconds.
fn told(set: c_int, timeout: c_int) -> Vec<(u32, u64)> {
    let mut events = [epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: so many events.
    let n = unsafe { repoll_wait(set, events.as_mut_ptr(), 8, timeout) };
    let n = usize::try_from(n).unwrap_or_else(|_| panic!("errno {}", errno()));
    events[..n].iter().map(|event| (event.events, event.u64)).collect()
}

fn control(set: c_int, op: c_int, fd: c_int, events: c_int, data: u64) -> Result<(), c_int> {
    let mut event = epoll_event { events: events.cast_unsigned(), u64: data };
    // SAFETY: an event that lives across the call.
    let done = unsafe { repoll_ctl(set, op, fd, &raw mut event) };
    if done == 0 { Ok(()) } else { Err(errno()) }
}

#[test]
fn a_set_of_epoll_holds_an_rsocket_beside_a_pipe_and_edges_come_again() {
    let (client, server) = pair();
    let mut pipe = [0; 2];
    // SAFETY: arrays and events that live across the calls.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let set = repoll_create(0);
        for (fd, more) in [(server, EPOLLET as u32), (pipe[0], 0)] {
            let mut event = epoll_event { events: EPOLLIN as u32 | more, u64: fd as u64 };
            assert_eq!(repoll_ctl(set, EPOLL_CTL_ADD, fd, &raw mut event), 0);
        }
        let mut found = [epoll_event { events: 0, u64: 0 }; 4];
        let mut wait = |timeout| repoll_wait(set, found.as_mut_ptr(), 4, timeout);
        assert_eq!(wait(0), 0);
        send(client, b"one", 0);
        assert_eq!(wait(LONG), 1);
        // The edge was told, and nothing was read; what else happens to the rsocket is no edge.
        assert_eq!(wait(0), 0);
        assert_eq!(send(server, b"back", 0), 4);
        assert_eq!(receive(client, 100, 0).unwrap(), b"back");
        assert_eq!(wait(20), 0);
        send(client, b"two", 0);
        assert_eq!(wait(LONG), 1);
        assert_eq!(receive(server, 100, MSG_DONTWAIT).unwrap(), b"onetwo");
        assert_eq!(libc::write(pipe[1], b"x".as_ptr().cast(), 1), 1);
        assert_eq!(wait(LONG), 1);
        assert_eq!(libc::read(pipe[0], [0_u8].as_mut_ptr().cast(), 1), 1);
        rshutdown(client, libc::SHUT_RDWR);
        assert_eq!(wait(LONG), 1);
        assert_eq!(receive(server, 1, 0).unwrap(), b"");
        assert_eq!((rclose(set), rclose(server), rclose(client)), (0, 0, 0));
    }
}

#[test]
fn a_set_that_a_thread_has_slept_in_keeps_the_rules_of_epoll() {
    let (client, server) = pair();
    // SAFETY: no pointers.
    let set = unsafe { repoll_create(0) };
    control(set, EPOLL_CTL_ADD, server, EPOLLIN, 5).unwrap();
    assert_eq!(told(set, 20), [], "a thread sleeps in it");

    // Level-triggered, until all is read.
    assert_eq!(control(set, EPOLL_CTL_ADD, server, EPOLLIN, 5), Err(libc::EEXIST));
    send(client, b"xx", 0);
    assert_eq!([told(set, LONG), told(set, 0)], [[(IN, 5)], [(IN, 5)]]);
    assert_eq!(receive(server, 1, 0).unwrap(), b"x");
    assert_eq!(told(set, 0), [(IN, 5)]);
    assert_eq!(receive(server, 1, 0).unwrap(), b"x");
    assert_eq!(told(set, 0), []);

    // By edges: once for what has come.
    control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLET, 6).unwrap();
    for _ in 0..2 {
        send(client, b"y", 0);
        assert_eq!(told(set, LONG), [(IN, 6)]);
        assert_eq!(told(set, 10), []);
    }

    // Once, until it is asked for again.
    for _ in 0..2 {
        control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLONESHOT, 7).unwrap();
        assert_eq!([told(set, LONG), told(set, 10)], [vec![(IN, 7)], vec![]]);
    }

    // Room is an edge, once a write has found too little.
    control(set, EPOLL_CTL_ADD, client, EPOLLOUT | EPOLLET, 8).unwrap();
    let room = vec![(EPOLLOUT.cast_unsigned(), 8)];
    assert_eq!([told(set, LONG), told(set, 10)], [room.clone(), vec![]]);
    let mut sent = 2;
    while let n @ 1.. = send(client, &[0; 1 << 16], MSG_DONTWAIT) {
        sent += n;
    }
    while sent > 0 {
        sent -= receive(server, 1 << 16, 0).unwrap().len().cast_signed();
    }
    assert_eq!([told(set, LONG), told(set, 10)], [room, vec![]]);

    // A thread that sleeps is woken, and other descriptors are heard beside an rsocket.
    control(set, EPOLL_CTL_MOD, server, EPOLLIN, 9).unwrap();
    let later = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(50));
        send(client, b"z", 0);
    });
    assert_eq!(told(set, LONG), [(IN, 9)]);
    later.join().unwrap();
    let mut pipe = [0; 2];
    // SAFETY: two numbers, and a byte.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(libc::write(pipe[1], [1_u8].as_ptr().cast(), 1), 1);
    }
    control(set, EPOLL_CTL_ADD, pipe[0], EPOLLIN, 10).unwrap();
    assert!((0..4).any(|_| told(set, 0).contains(&(IN, 10))));

    control(set, EPOLL_CTL_DEL, server, 0, 0).unwrap();
    assert_eq!(control(set, EPOLL_CTL_DEL, server, 0, 0), Err(libc::ENOENT));
    control(set, EPOLL_CTL_DEL, pipe[0], 0, 0).unwrap();
    assert_eq!(told(set, 10), []);
    control(set, EPOLL_CTL_ADD, server, EPOLLIN, 11).unwrap();
    assert_eq!(told(set, 0), [(IN, 11)]);
    control(set, EPOLL_CTL_DEL, client, 0, 0).unwrap();
    close([server]);
    assert_eq!(told(set, 10), [], "a closed descriptor is in no set");
    close([client, set]);
    // SAFETY: descriptors of this test.
    pipe.iter().for_each(|fd| assert_eq!(unsafe { libc::close(*fd) }, 0));
}

#[test]
fn a_set_of_the_number_of_one_that_close_has_closed_begins_empty() {
    let (client, server) = pair();
    // SAFETY: no pointers.
    let create = || unsafe { repoll_create(0) };
    let set = create();
    control(set, EPOLL_CTL_ADD, server, EPOLLIN, 1).unwrap();
    // After a sleep the set keeps its rsockets itself.
    assert_eq!(told(set, 10), []);
    // SAFETY: a descriptor of this test.
    assert_eq!(unsafe { libc::close(set) }, 0);
    assert_eq!(create(), set, "the lowest number that is free");
    assert_eq!(send(client, b"x", 0), 1);
    assert_eq!(told(set, 20), []);
    control(set, EPOLL_CTL_ADD, server, EPOLLIN, 2).unwrap();
    assert_eq!(told(set, LONG), [(EPOLLIN.cast_unsigned(), 2)]);
    close([client, server, set]);
}

#[test]
fn a_set_in_another_set_or_in_poll_tells_of_its_rsockets_whether_a_thread_slept_in_it_or_not() {
    for slept_in in [false, true] {
        let (client, server) = pair();
        let [inner, outer] = [set(slept_in), set(slept_in)];
        control(inner, EPOLL_CTL_ADD, server, EPOLLIN, 5).unwrap();
        control(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 6).unwrap();
        assert_eq!(told(outer, 1), []);
        for _ in 0..2 {
            let waits = thread::spawn(move || told(outer, LONG));
            assert_eq!(send(client, b"x", 0), 1);
            assert_eq!(waits.join().unwrap(), [(IN, 6)]);
            assert_eq!(told(inner, 0), [(IN, 5)]);
            assert_eq!(receive(server, 9, 0).unwrap(), b"x");
            assert_eq!([told(outer, 1), told(inner, 1)], [[], []]);
        }
        control(outer, EPOLL_CTL_DEL, inner, 0, 0).unwrap();
        close([outer, inner]);
        let polled = set(slept_in);
        control(polled, EPOLL_CTL_ADD, server, EPOLLIN, 7).unwrap();
        assert_eq!((told(polled, 1), events(polled, POLLIN, 0)), (vec![], 0));
        assert_eq!(send(client, b"y", 0), 1);
        assert_eq!(events(polled, POLLIN, LONG), POLLIN);
        close([polled, client, server]);
    }
}

#[test]
fn a_thread_that_waits_in_a_set_hears_of_an_rsocket_that_another_thread_adds() {
    let (client, server) = pair();
    for is_ready in [false, true].repeat(10) {
        let set = set(false);
        let waits = thread::spawn(move || told(set, LONG));
        if is_ready {
            assert_eq!(send(client, b"x", 0), 1);
        }
        control(set, EPOLL_CTL_ADD, server, EPOLLIN, 1).unwrap();
        if !is_ready {
            assert_eq!(send(client, b"x", 0), 1);
        }
        assert_eq!(waits.join().unwrap(), [(IN, 1)]);
        assert_eq!(receive(server, 9, 0).unwrap(), b"x");
        close([set]);
    }
    close([client, server]);
}

#[test]
fn a_descriptor_that_is_no_set_is_refused_and_stays_what_it_is() {
    let ((client, server), pipe) = (pair(), pipe());
    let mut event = epoll_event { events: IN, u64: 0 };
    for fd in [server, pipe[0]] {
        // SAFETY: one event.
        let waited = unsafe { repoll_wait(fd, &raw mut event, 1, 0) };
        assert_eq!((waited, errno()), (-1, libc::EINVAL));
        assert_eq!(control(fd, EPOLL_CTL_ADD, client, EPOLLIN, 0), Err(libc::EINVAL));
    }
    // SAFETY: one event; no pointers.
    unsafe {
        assert_eq!((repoll_wait(-1, &raw mut event, 1, 0), errno()), (-1, libc::EBADF));
        assert_eq!((rclose(pipe[0]), errno()), (-1, libc::EBADF));
    }
    close_all(&pipe);
    close([server]);
    assert_eq!(receive(client, 9, 0).unwrap(), b"", "the connection of the closed end has ended");
    close([client]);
}

#[test]
fn an_rsocket_of_the_number_of_a_set_that_close_has_closed_is_closed_as_one() {
    let (listening, port) = listener();
    let client = (0..20)
        .find_map(|_| {
            let set = set(true);
            close_all(&[set]);
            let fd = socket(0);
            let is_it = fd == set;
            if !is_it {
                close([fd]);
            }
            is_it.then_some(fd)
        })
        .expect("the lowest number that is free");
    let addr = address(port);
    // SAFETY: an address that lives across the calls; no pointers.
    let server = unsafe {
        assert_eq!(rconnect(client, (&raw const addr).cast(), LEN), 0, "errno {}", errno());
        raccept(listening, std::ptr::null_mut(), std::ptr::null_mut())
    };
    close([client, listening]);
    assert_eq!(receive(server, 9, 0).unwrap(), b"");
    close([server]);
}

#[test]
fn the_rules_of_exclusive_members_are_those_of_the_kernel() {
    for slept_in in [false, true] {
        let ((client, server), [set, other]) = (pair(), [set(slept_in), set(slept_in)]);
        for beside in [EPOLLONESHOT, EPOLLRDHUP] {
            let refused = control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLEXCLUSIVE | beside, 0);
            assert_eq!(refused, Err(libc::EINVAL));
        }
        control(set, EPOLL_CTL_ADD, client, EPOLLIN, 1).unwrap();
        assert_eq!(control(set, EPOLL_CTL_MOD, client, EPOLLIN | EPOLLEXCLUSIVE, 1), Err(libc::EINVAL));
        for set in [set, other] {
            control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLEXCLUSIVE, 2).unwrap();
        }
        assert_eq!(control(set, EPOLL_CTL_MOD, server, EPOLLIN, 2), Err(libc::EINVAL));
        // SAFETY: no event.
        let without = unsafe { repoll_ctl(set, EPOLL_CTL_ADD, server, std::ptr::null_mut()) };
        assert_eq!((without, errno()), (-1, libc::EFAULT));
        assert_eq!(send(client, b"x", 0), 1);
        assert_eq!([told(set, LONG), told(other, LONG)], [[(IN, 2)], [(IN, 2)]]);
        close([set, other, client, server]);
    }
}

#[test]
fn the_end_of_the_peers_half_and_of_both_are_told_as_of_other_sockets() {
    let [read_hup, hup] = [EPOLLRDHUP, EPOLLHUP].map(c_int::cast_unsigned);
    for slept_in in [false, true] {
        let ((client, server), set) = (pair(), set(slept_in));
        control(set, EPOLL_CTL_ADD, server, EPOLLRDHUP | EPOLLET, 1).unwrap();
        assert_eq!(send(client, b"x", 0), 1);
        assert_eq!(events(server, POLLIN, LONG), POLLIN);
        assert_eq!(told(set, 1), [], "bytes were not asked for");
        // SAFETY: no pointers.
        assert_eq!(unsafe { rshutdown(client, libc::SHUT_WR) }, 0);
        assert_eq!([told(set, LONG), told(set, 1)], [vec![(read_hup, 1)], vec![]]);
        control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLRDHUP, 2).unwrap();
        assert_eq!(told(set, LONG), [(IN | read_hup, 2)]);
        control(set, EPOLL_CTL_MOD, server, 0, 3).unwrap();
        assert_eq!(told(set, 1), []);
        // SAFETY: no pointers.
        assert_eq!(unsafe { rshutdown(server, libc::SHUT_WR) }, 0);
        assert_eq!(told(set, LONG), [(hup, 3)], "that is told unasked");
        close([set, client, server]);
    }
}

#[test]
fn a_change_of_a_member_tells_anew_what_is_ready_then() {
    for slept_in in [false, true] {
        let ((client, server), set) = (pair(), set(slept_in));
        control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET, 1).unwrap();
        assert_eq!(send(client, b"x", 0), 1);
        assert_eq!(events(server, POLLIN, LONG), POLLIN);
        // An edge that was not told of yet goes with the change, and comes with the next.
        control(set, EPOLL_CTL_MOD, server, EPOLLET, 2).unwrap();
        assert_eq!(told(set, 1), []);
        for _ in 0..2 {
            control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLET, 3).unwrap();
            assert_eq!([told(set, LONG), told(set, 1)], [vec![(IN, 3)], vec![]]);
        }
        control(set, EPOLL_CTL_MOD, server, EPOLLIN | EPOLLONESHOT, 4).unwrap();
        assert_eq!([told(set, LONG), told(set, 1)], [vec![(IN, 4)], vec![]]);
        assert_eq!(send(client, b"y", 0), 1);
        assert_eq!(told(set, 20), [], "what was told once is silent");
        close([set, client, server]);
    }
}

#[test]
fn a_copy_of_a_sets_descriptor_is_the_same_set() {
    let own = std::process::id();
    // SAFETY: no pointers. Some sandboxes have no kcmp(2), by which copies are known.
    if unsafe { libc::syscall(libc::SYS_kcmp, own, own, 0, 0, 0) } != 0 {
        return;
    }
    for slept_in in [false, true] {
        let ((client, server), set) = (pair(), set(slept_in));
        control(set, EPOLL_CTL_ADD, server, EPOLLIN, 1).unwrap();
        // SAFETY: no pointers.
        let copy = unsafe { libc::dup(set) };
        assert_eq!(send(client, b"x", 0), 1);
        assert_eq!([told(copy, LONG), told(set, 0)], [[(IN, 1)], [(IN, 1)]]);
        assert_eq!(control(copy, EPOLL_CTL_ADD, server, EPOLLIN, 1), Err(libc::EEXIST));
        close([set]);
        assert_eq!(told(copy, 0), [(IN, 1)]);
        control(copy, EPOLL_CTL_DEL, server, 0, 0).unwrap();
        assert_eq!(told(copy, 1), []);
        close([copy, client, server]);
    }
}

#[test]
fn a_forked_child_leaves_the_sets_of_its_parent_as_they_are() {
    for slept_in in [false, true] {
        let ((client, server), set) = (pair(), set(slept_in));
        control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET, 1).unwrap();
        assert_eq!(told(set, 1), []);
        let child = || {
            told(set, 0);
            close([set]);
            close_all(&[server]);
        };
        assert!(support::in_a_child(child));
        assert_eq!(told(set, 1), []);
        assert_eq!(send(client, b"x", 0), 1);
        assert_eq!(told(set, LONG), [(IN, 1)]);
        close([set, client, server]);
    }
}

#[test]
fn no_edge_is_lost_while_a_thread_begins_to_sleep_in_a_set() {
    let pairs = [pair(), pair()];
    for _ in 0..50 {
        let set = set(false);
        for (at, (_, server)) in (0..).zip(pairs) {
            control(set, EPOLL_CTL_ADD, server, EPOLLIN | EPOLLET, at).unwrap();
        }
        let sends = thread::spawn(move || pairs.map(|(client, _)| assert_eq!(send(client, b"x", 0), 1)));
        let mut seen = [false; 2];
        while seen != [true; 2] {
            let mut event = epoll_event { events: 0, u64: 0 };
            // SAFETY: one event.
            assert_eq!(unsafe { repoll_wait(set, &raw mut event, 1, LONG) }, 1, "{seen:?}");
            seen[event.u64 as usize] = true;
        }
        sends.join().unwrap();
        for (_, server) in pairs {
            assert_eq!(receive(server, 9, MSG_DONTWAIT).unwrap(), b"x");
        }
        close([set]);
    }
    for (client, server) in pairs {
        close([client, server]);
    }
}
