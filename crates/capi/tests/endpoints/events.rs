//! Events: of the program's own, of synchronous identifiers, of identifiers that move or end while
//! events wait.

use super::*;

#[test]
fn a_program_writes_events_of_its_own_into_a_channel() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    unsafe {
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, -7, 0x1122_3344_5566_7788));
        let event = fetch(ch);
        let seen = ((*event).id, (*event).event, (*event).status, (*event).param.arg);
        assert_eq!(seen, (made, RDMA_CM_EVENT_USER, -7, 0x1122_3344_5566_7788));
        works(channel::rdma_ack_cm_event(event));
        fails(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_ESTABLISHED, 0, 0), libc::EINVAL);
        fails(connect::rdma_write_cm_event(null_mut(), RDMA_CM_EVENT_USER, 0, 0), libc::EINVAL);
    }
    destroy(made);
}

#[test]
fn a_thread_that_waits_on_a_channel_is_woken_by_a_written_event() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    let waiting = Sent(ch);
    let thread = std::thread::spawn(move || next(waiting.get()).event);
    std::thread::sleep(Duration::from_millis(30));
    works(unsafe { connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 0) });
    assert_eq!(thread.join().unwrap(), RDMA_CM_EVENT_USER);
    destroy(made);
}

#[test]
fn without_a_channel_every_call_waits_for_its_event_and_leaves_it_in_the_identifier() {
    let made = id(null_mut(), RDMA_PS_TCP);
    let (listener, port) = passive(&mut attr(), null_mut());
    unsafe {
        works(resolve(made, &loopback(port)));
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        works(connect::rdma_resolve_route(made, 2000));
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ROUTE_RESOLVED);
        with_qp(made);
        let asking = connecting(made);
        let server = request(listener);
        assert_eq!((*(*server).event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
        works(connect::rdma_accept(server, null_mut()));
        assert_eq!(asking.join().unwrap().0, 0);
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!((*(*server).event).event, RDMA_CM_EVENT_ESTABLISHED);
        [made, server, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn requests_are_fetched_from_synchronous_listeners_only() {
    let (listener, _) = listener(channel(), RDMA_PS_TCP, 1);
    let mut made = null_mut();
    fails(unsafe { connect::rdma_get_request(listener, &raw mut made) }, libc::EINVAL);
    destroy(listener);
}

#[test]
fn an_identifier_moves_to_another_channel_with_the_events_that_wait() {
    let (old, new) = (channel(), channel());
    let made = id(old, RDMA_PS_TCP);
    let other = id(old, RDMA_PS_TCP);
    unsafe {
        for arg in 1..4 {
            works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, arg));
            works(connect::rdma_write_cm_event(other, RDMA_CM_EVENT_USER, 0, 10 + arg));
        }
        works(id::rdma_migrate_id(made, new));
        assert_eq!((*made).channel, new);
        let args = |ch| (0..3).map(|_| next(ch).param.arg).collect::<Vec<u64>>();
        assert_eq!((args(new), args(old)), (vec![1, 2, 3], vec![11, 12, 13]));
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 4));
        assert_eq!(next(new).param.arg, 4);
        assert!(!comes(old, 0));
    }
    [made, other].into_iter().for_each(destroy);
}

#[test]
fn an_identifier_becomes_synchronous_and_asynchronous_again() {
    let ch = channel();
    let (listener, port) = listener(ch, RDMA_PS_TCP, 4);
    let ours = channel();
    let made = id(ours, RDMA_PS_TCP);
    works(resolve(made, &loopback(port)));
    unsafe {
        // The event of the resolution goes along.
        assert!(comes(ours, 2000));
        works(id::rdma_migrate_id(made, null_mut()));
        assert!(!comes(ours, 0) && comes((*made).channel, 0));
        expect((*made).channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        fails(id::rdma_migrate_id(made, null_mut()), libc::EINVAL);
        works(connect::rdma_resolve_route(made, 2000));
        assert_eq!((*(*made).event).event, RDMA_CM_EVENT_ROUTE_RESOLVED);
        works(id::rdma_migrate_id(made, ours));
        assert!((*made).event.is_null());
        with_qp(made);
        works(connect::rdma_connect(made, null_mut()));
        let asked = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
        works(connect::rdma_reject(asked.id, null_mut(), 0));
        expect(ours, RDMA_CM_EVENT_REJECTED);
        [made, asked.id, listener].into_iter().for_each(destroy);
    }
}

#[test]
fn an_identifier_does_not_move_to_a_channel_that_is_gone() {
    let (ch, gone) = (channel(), channel());
    let made = id(ch, RDMA_PS_TCP);
    unsafe {
        channel::rdma_destroy_event_channel(gone);
        fails(id::rdma_migrate_id(made, gone), libc::EBADF);
        fails(id::rdma_migrate_id(null_mut(), ch), libc::EINVAL);
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 5));
    }
    assert_eq!(arg(&next(ch)), 5);
    destroy(made);
}

/// Runs `f` in a thread while an event of `id` is not acknowledged; it ends only after the
/// acknowledgement.
fn waits_for_the_acknowledgement(ch: *mut rdma_event_channel, id: *mut rdma_cm_id, f: fn(*mut rdma_cm_id)) {
    works(unsafe { connect::rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 0) });
    let event = fetch(ch);
    let (sent, acknowledged) = (Sent(id), Arc::new(AtomicBool::new(false)));
    let seen = acknowledged.clone();
    let thread = std::thread::spawn(move || {
        f(sent.get());
        seen.load(Ordering::SeqCst)
    });
    std::thread::sleep(Duration::from_millis(100));
    acknowledged.store(true, Ordering::SeqCst);
    works(unsafe { channel::rdma_ack_cm_event(event) });
    assert!(thread.join().unwrap(), "it ended before");
}

#[test]
fn destroying_an_identifier_waits_until_its_events_are_acknowledged() {
    let ch = channel();
    waits_for_the_acknowledgement(ch, id(ch, RDMA_PS_TCP), destroy);
}

#[test]
fn moving_an_identifier_waits_until_its_events_are_acknowledged() {
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    waits_for_the_acknowledgement(ch, made, |id| works(unsafe { id::rdma_migrate_id(id, channel()) }));
    destroy(made);
}

#[test]
fn events_of_a_destroyed_identifier_are_never_seen() {
    let ch = channel();
    let (made, other) = (id(ch, RDMA_PS_TCP), id(ch, RDMA_PS_TCP));
    unsafe {
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 1));
        works(connect::rdma_write_cm_event(other, RDMA_CM_EVENT_USER, 0, 2));
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 3));
    }
    destroy(made);
    assert_eq!(arg(&next(ch)), 2);
    assert!(!comes(ch, 0));
    destroy(other);
}

#[test]
fn a_listener_destroyed_while_a_request_waits_refuses_it() {
    let (ours, theirs) = (channel(), channel());
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let made = routed(ours, RDMA_PS_TCP, port);
    with_qp(made);
    works(unsafe { connect::rdma_connect(made, null_mut()) });
    assert!(comes(theirs, 2000));
    destroy(listener);
    assert!(!comes(theirs, 0));
    expect(ours, RDMA_CM_EVENT_REJECTED);
    destroy(made);
}

#[test]
fn an_empty_channel_that_does_not_block_is_eagain() {
    let ch = channel();
    unsafe {
        let fd = (*ch).fd;
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK), 0);
        let mut event = null_mut();
        fails(channel::rdma_get_cm_event(ch, &raw mut event), libc::EAGAIN);
        let made = id(ch, RDMA_PS_TCP);
        works(connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 0));
        works(channel::rdma_get_cm_event(ch, &raw mut event));
        works(channel::rdma_ack_cm_event(event));
        fails(channel::rdma_get_cm_event(ch, &raw mut event), libc::EAGAIN);
        destroy(made);
    }
}

#[test]
fn several_threads_on_one_channel_get_each_event_once() {
    const THREADS: usize = 4;
    const EVENTS: u64 = 2000;
    let ch = channel();
    let made = id(ch, RDMA_PS_TCP);
    static SUM: AtomicUsize = AtomicUsize::new(0);
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let ch = Sent(ch);
            std::thread::spawn(move || {
                loop {
                    let arg = unsafe { next(ch.get()).param.arg };
                    if arg == 0 {
                        return;
                    }
                    SUM.fetch_add(arg as usize, Ordering::Relaxed);
                    SEEN.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for arg in (1..=EVENTS).chain([0; THREADS]) {
        works(unsafe { connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, arg) });
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    let n = EVENTS as usize;
    assert_eq!((SEEN.load(Ordering::Relaxed), SUM.load(Ordering::Relaxed)), (n, n * (n + 1) / 2));
    destroy(made);
}

#[test]
fn a_full_backlog_refuses_and_never_hangs() {
    const BACKLOG: usize = 2;
    let theirs = channel();
    let (listener, port) = listener(theirs, RDMA_PS_TCP, BACKLOG as c_int);
    let clients: Vec<_> = (0..BACKLOG + 2)
        .map(|_| {
            let ours = channel();
            let made = routed(ours, RDMA_PS_TCP, port);
            with_qp(made);
            works(unsafe { connect::rdma_connect(made, null_mut()) });
            (ours, made)
        })
        .collect();
    // No thread fetches: two have places, two are refused after a while.
    let begin = Instant::now();
    let refused = loop {
        let refused = clients.iter().filter(|(ours, _)| comes(*ours, 0)).count();
        if refused == 2 || begin.elapsed() > Duration::from_secs(5) {
            break refused;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(refused, 2);
    for (ours, _) in clients.iter().filter(|(ours, _)| comes(*ours, 0)) {
        assert_eq!(expect(*ours, RDMA_CM_EVENT_REJECTED).status, 3, "no resources");
    }
    // The others are served.
    for _ in 0..BACKLOG {
        let asked = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
        works(unsafe { connect::rdma_reject(asked.id, null_mut(), 0) });
        destroy(asked.id);
    }
    clients.into_iter().for_each(|(_, made)| destroy(made));
    destroy(listener);
}

/// A thread takes an event from a channel, and asks for the next when `between` has been called.
fn takes_one_then_asks(
    ch: *mut rdma_event_channel,
    between: impl FnOnce() + Send + 'static,
) -> std::thread::JoinHandle<(i32, i32)> {
    let made = id(ch, RDMA_PS_TCP);
    works(unsafe { connect::rdma_write_cm_event(made, RDMA_CM_EVENT_USER, 0, 0) });
    let sent = Sent(ch);
    std::thread::spawn(move || {
        next(sent.get());
        between();
        let mut event = null_mut();
        let result = unsafe { channel::rdma_get_cm_event(sent.get(), &raw mut event) };
        (result, errno())
    })
}

#[test]
fn a_thread_that_asks_a_channel_which_another_has_just_destroyed_waits_as_if_it_had_asked_before() {
    extern "C" fn nothing(_: i32) {}
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = (nothing as extern "C" fn(i32)) as usize;
        libc::sigaction(libc::SIGUSR2, &raw const action, null_mut());
    }
    let (destroyed, wait) = std::sync::mpsc::channel::<()>();
    let ch = channel();
    let thread = takes_one_then_asks(ch, move || wait.recv().unwrap());
    std::thread::sleep(Duration::from_millis(20));
    unsafe { channel::rdma_destroy_event_channel(ch) };
    destroyed.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!thread.is_finished());
    while !thread.is_finished() {
        use std::os::unix::thread::JoinHandleExt;
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR2) };
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(thread.join().unwrap(), (-1, libc::EINTR));
}

#[test]
fn who_destroyed_a_channel_or_would_not_have_waited_on_it_is_told_that_it_is_gone() {
    let ch = channel();
    let destroys = Sent(ch);
    let thread =
        takes_one_then_asks(ch, move || unsafe { channel::rdma_destroy_event_channel(destroys.get()) });
    assert_eq!(thread.join().unwrap(), (-1, libc::EBADF));

    let ch = channel();
    let (fd, destroys) = (unsafe { (*ch).fd }, Sent(ch));
    let thread = takes_one_then_asks(ch, move || {
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let other =
            std::thread::spawn(move || unsafe { channel::rdma_destroy_event_channel(destroys.get()) });
        other.join().unwrap();
    });
    assert_eq!(thread.join().unwrap(), (-1, libc::EBADF));
}
