//! Events and the threads that wait for them. None is lost, none is used after its object, and a
//! process may end while a thread waits.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capi::cma::{channel as events, connect, id};
use capi::verbs::cq;
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use support::{Loop, errno, in_a_child, send};

/// Messages of each run.
const MESSAGES: u64 = 2000;

/// Sends messages, two completions each, in bursts of one or two, as fast as room comes back. A
/// receive may complete before its send: so of four requests that a queue holds two are out on
/// average.
fn send_all(l: &Loop, done: &std::sync::atomic::AtomicU64) {
    let (mut sent, start) = (0, Instant::now());
    while sent < MESSAGES {
        let burst = (1 + sent % 2).min(MESSAGES - sent);
        while sent + burst > done.load(Ordering::Acquire) / 2 + 2 {
            // The thread that takes them has given up.
            if start.elapsed() > Duration::from_secs(60) {
                return;
            }
            std::thread::yield_now();
        }
        for _ in 0..burst {
            assert_eq!(l.post_recv(sent, 8), 0);
            assert_eq!(l.post_send(&mut send(sent, IBV_WR_SEND, &mut [l.sge(0, 8)])), 0);
            sent += 1;
        }
    }
}

/// The program of every manual, with the queue armed: wait, take the event, arm again, poll until
/// nothing is left. `wait` says whether there may be an event, false after a time in which one
/// should have come.
fn take_all(l: &Loop, done: &std::sync::atomic::AtomicU64, wait: impl Fn() -> bool) {
    let poll = unsafe { (*l.context).ops.poll_cq.expect("built") };
    let arm = unsafe { (*l.context).ops.req_notify_cq.expect("built") };
    let mut events = 0;
    while done.load(Ordering::Relaxed) < 2 * MESSAGES {
        assert!(wait(), "no event after {} of {} completions", done.load(Ordering::Relaxed), 2 * MESSAGES);
        let (mut cq, mut user) = (null_mut(), null_mut());
        unsafe {
            if cq::ibv_get_cq_event(l.channel, &raw mut cq, &raw mut user) != 0 {
                assert_eq!(errno(), libc::EAGAIN);
                continue;
            }
            events += 1;
            assert_eq!(arm(l.cq, 0), 0);
            let mut wc: [ibv_wc; 3] = std::mem::zeroed();
            loop {
                let n = poll(l.cq, 3, wc.as_mut_ptr());
                assert!(n >= 0);
                if n == 0 {
                    break;
                }
                assert!(wc[..n as usize].iter().all(|wc| wc.status == IBV_WC_SUCCESS));
                done.fetch_add(n as u64, Ordering::Release);
            }
        }
    }
    unsafe { cq::ibv_ack_cq_events(l.cq, events) };
}

/// A [`Loop`] whose threads share it: the verbs are thread-safe.
struct Shared(Loop);
unsafe impl Sync for Shared {}

fn run(wait: impl Fn(&Loop) -> bool) {
    let l = Shared(Loop::open());
    let shared = &l;
    let done = std::sync::atomic::AtomicU64::new(0);
    // Before the first completion: one that was there already would raise no event.
    let arm = unsafe { (*l.0.context).ops.req_notify_cq.expect("built") };
    unsafe { assert_eq!(arm(l.0.cq, 0), 0) };
    std::thread::scope(|s| {
        s.spawn(|| send_all(&{ shared }.0, &done));
        take_all(&shared.0, &done, || wait(&shared.0));
    });
    l.0.close();
}

#[test]
fn no_completion_is_lost_between_arming_and_polling() {
    run(|l| unsafe {
        let mut waiting = libc::pollfd { fd: (*l.channel).fd, events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut waiting, 1, 5000) == 1
    });
}

#[test]
fn no_completion_is_lost_where_the_thread_blocks() {
    // One that is lost is waited for for ever.
    unsafe { libc::alarm(100) };
    run(|_| true);
}

#[test]
fn a_signal_interrupts_a_thread_that_blocks_unless_its_handler_says_otherwise() {
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    unsafe { libc::alarm(100) };
    let l = Shared(Loop::open());
    let shared = &l;
    let arm = || unsafe { assert_eq!((*l.0.context).ops.req_notify_cq.unwrap()(l.0.cq, 0), 0) };
    let get = move || unsafe {
        let (mut cq, mut user) = (null_mut(), null_mut());
        let result = cq::ibv_get_cq_event({ shared }.0.channel, &raw mut cq, &raw mut user);
        if result == 0 {
            cq::ibv_ack_cq_events(cq, 1);
            assert!(!{ shared }.0.completions(2).is_empty());
        }
        (result, errno())
    };
    let message = || {
        assert_eq!(l.0.post_recv(1, 8), 0);
        assert_eq!(l.0.post_send(&mut send(1, IBV_WR_SEND, &mut [l.0.sge(0, 8)])), 0);
    };
    for restart in [0, libc::SA_RESTART] {
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = restart;
        unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()) };
        for _ in 0..20 {
            // In the driver slot, where there is a ring by now.
            arm();
            message();
            assert_eq!(get().0, 0);
            arm();
            let handled = HANDLED.load(Ordering::Relaxed);
            let got = std::thread::scope(|scope| {
                let (tell, told) = std::sync::mpsc::channel();
                let waiter = scope.spawn(move || {
                    tell.send(unsafe { libc::pthread_self() }).unwrap();
                    get()
                });
                let thread = told.recv().unwrap();
                std::thread::sleep(Duration::from_millis(20));
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                while HANDLED.load(Ordering::Relaxed) == handled {
                    std::thread::yield_now();
                }
                if restart != 0 {
                    message();
                }
                waiter.join().unwrap()
            });
            match restart {
                0 => assert_eq!(got, (-1, libc::EINTR)),
                _ => assert_eq!(got.0, 0),
            }
        }
    }
    l.0.close();
}

#[test]
fn a_thread_that_is_cancelled_where_it_blocks_leaves_nothing_undone() {
    // As a C program would: Rust's own threads can not be cancelled.
    extern "C-unwind" fn blocks(channel: *mut libc::c_void) -> *mut libc::c_void {
        let (mut cq, mut user) = (null_mut(), null_mut());
        unsafe { cq::ibv_get_cq_event(channel.cast(), &raw mut cq, &raw mut user) };
        null_mut()
    }
    unsafe extern "C-unwind" {
        fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
        fn pthread_create(
            thread: *mut libc::pthread_t,
            attributes: *const libc::pthread_attr_t,
            start: extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void,
            with: *mut libc::c_void,
        ) -> libc::c_int;
    }
    unsafe { libc::alarm(100) };
    let l = Loop::open();
    for n in 0..10 {
        unsafe {
            let (mut thread, mut cq, mut user) = (0, null_mut(), null_mut());
            assert_eq!(pthread_create(&raw mut thread, std::ptr::null(), blocks, l.channel.cast()), 0);
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(pthread_cancel(thread), 0);
            let mut ended = null_mut();
            assert_eq!(libc::pthread_join(thread, &raw mut ended), 0);
            assert_eq!(ended.addr(), usize::MAX, "PTHREAD_CANCELED");
            assert_eq!((*l.context).ops.req_notify_cq.unwrap()(l.cq, 0), 0);
            assert_eq!(l.post_recv(n, 8), 0);
            assert_eq!(l.post_send(&mut send(n, IBV_WR_SEND, &mut [l.sge(0, 8)])), 0);
            assert_eq!(cq::ibv_get_cq_event(l.channel, &raw mut cq, &raw mut user), 0);
            cq::ibv_ack_cq_events(cq, 1);
            assert_eq!(l.completions(2).len(), 2);
        }
    }
    l.close();
}

#[test]
fn one_event_for_many_completions_is_enough_for_an_edge_triggered_loop() {
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let watched = AtomicBool::new(false);
    run(|l| unsafe {
        let fd = (*l.channel).fd;
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        if !watched.swap(true, Ordering::Relaxed) {
            libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        }
        libc::epoll_wait(epoll, &raw mut event, 1, 5000) == 1
    });
    unsafe { libc::close(epoll) };
}

#[test]
fn a_process_exits_while_threads_are_blocked_in_get_event_calls() {
    for by_exit in [true, false] {
        let ended = in_a_child(|| {
            let l = Loop::open();
            let (ctx, ch) = (l.context.expose_provenance(), l.channel.expose_provenance());
            let cm = unsafe { events::rdma_create_event_channel() }.expose_provenance();
            std::thread::spawn(move || {
                let (mut cq, mut user) = (null_mut(), null_mut());
                unsafe { cq::ibv_get_cq_event(with_exposed_provenance_mut(ch), &raw mut cq, &raw mut user) }
            });
            std::thread::spawn(move || unsafe {
                let mut event: ibv_async_event = std::mem::zeroed();
                capi::verbs::device::ibv_get_async_event(with_exposed_provenance_mut(ctx), &raw mut event)
            });
            std::thread::spawn(move || unsafe {
                let mut event = null_mut();
                events::rdma_get_cm_event(with_exposed_provenance_mut(cm), &raw mut event)
            });
            std::thread::sleep(Duration::from_millis(50));
            if by_exit {
                // With everything still open. Exit handlers run while the threads wait.
                unsafe { libc::exit(0) };
            }
        });
        assert!(ended, "exit called: {by_exit}");
    }
}

#[test]
fn destroying_an_identifier_waits_until_its_events_are_acknowledged() {
    unsafe {
        let channel = events::rdma_create_event_channel();
        let mut made = null_mut();
        assert_eq!(id::rdma_create_id(channel, &raw mut made, null_mut(), RDMA_PS_TCP), 0);
        let mut to: libc::sockaddr_in = std::mem::zeroed();
        to.sin_family = libc::AF_INET as _;
        to.sin_port = 7471_u16.to_be();
        to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        assert_eq!(connect::rdma_resolve_addr(made, null_mut(), (&raw mut to).cast(), 2000), 0);
        assert_eq!(connect::rdma_resolve_addr(made, null_mut(), (&raw mut to).cast(), 2000), -1);
        assert_eq!(errno(), libc::EINVAL, "one resolution at a time");
        let mut event = null_mut();
        assert_eq!(events::rdma_get_cm_event(channel, &raw mut event), 0);
        assert_eq!((*event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        let waiting = event.expose_provenance();
        let start = Instant::now();
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let event = with_exposed_provenance_mut::<rdma_cm_event>(waiting);
            // The identifier the event is about is still there.
            assert!(!(*event).id.is_null() && !(*(*event).id).verbs.is_null());
            assert_eq!(events::rdma_ack_cm_event(event), 0);
        });
        assert_eq!(id::rdma_destroy_id(made), 0);
        assert!(start.elapsed() >= Duration::from_millis(100));
        later.join().unwrap();
        events::rdma_destroy_event_channel(channel);
    }
}
