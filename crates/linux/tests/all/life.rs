//! Timers, panics, the end of a host, and forks.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{LO, Told, V4, alone, batch, counter, path, start};
use linux::Config;
use nic::{Errno, Link, Platform};
use stack::{Env, Name};

fn expired(told: &Told) -> Option<Instant> {
    match told {
        Told::Expired(at) => Some(*at),
        _ => None,
    }
}

#[test]
fn the_engine_wakes_in_time_when_asked_to_wake_earlier() {
    let _alone = alone();
    let host = start();
    *host.handler().deadline.lock().unwrap() = Some(Instant::now() + Duration::from_secs(3600));
    host.env().wake_at(Instant::now() + Duration::from_secs(3600));
    let mut latest = Duration::ZERO;
    for _ in 0..20 {
        let at = Instant::now() + Duration::from_micros(700);
        *host.handler().deadline.lock().unwrap() = Some(at);
        host.env().wake_at(at);
        let late = host.handler().find(expired).unwrap().checked_duration_since(at);
        latest = latest.max(late.expect("not early"));
    }
    assert!(latest < Duration::from_secs(1), "{latest:?}");
}

#[test]
fn a_panic_of_the_input_handler_is_counted_and_the_engine_lives_on() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    *host.handler().panic_once.lock().unwrap() = true;
    host.env().send(&path(V4), &mut batch(1, &[64]));
    while counter(&host, "panics") == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    host.env().send(&path(V4), &mut batch(2, &[64]));
    assert_eq!(host.handler().packet().unwrap().psn(), 2);
    assert!(host.env().claim(Name::Block(1)).is_ok());
}

#[test]
fn a_stopped_host_gives_back_its_sockets_and_its_thread() {
    let alone = alone();
    for _ in 0..3 {
        let host = start();
        host.env().attach(LO).unwrap();
        let claim = host.env().claim(Name::Block(1)).unwrap();
        assert!(host.env().watch(Name::Block(1)).is_some());
        host.env().send(&path(V4), &mut batch(2, &[64]));
        assert!(host.handler().packet().is_some());
        host.stop();
        host.stop();
        assert!(!host.poll());
        drop((claim, host));
    }
    if alone.own_namespace {
        assert!(std::net::UdpSocket::bind("127.0.0.1:4791").is_ok());
    }
}

#[test]
fn an_engine_that_can_wait_no_more_tells_of_it_and_ends() {
    static FAILURES: AtomicU32 = AtomicU32::new(0);
    let _alone = alone();
    let is_epoll = |fd: &RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|link| link.to_string_lossy().contains("eventpoll"))
    };
    let before: Vec<_> = open_descriptors().into_iter().filter(is_epoll).collect();
    let on_failure = || {
        FAILURES.fetch_add(1, Ordering::SeqCst);
    };
    let host = support::start_with(Config { same_host: false, on_failure, ..Config::default() });
    let ours = open_descriptors().into_iter().filter(is_epoll).find(|fd| !before.contains(fd)).unwrap();
    let other = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the number stays open, as something that nothing can wait at with epoll_wait(2). The
    // test is alone.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), ours) }, ours);
    let begin = Instant::now();
    while FAILURES.load(Ordering::SeqCst) == 0 && begin.elapsed() < Duration::from_secs(10) {
        host.env().wake_at(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
    host.stop();
    assert_eq!((FAILURES.load(Ordering::SeqCst), counter(&host, "engine_ended")), (1, 1));
}

/// The threads of this process that bear the engine's name, which it takes as its first step.
fn engines() -> Vec<OsString> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let is_ours = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == "verbena")
    };
    tasks.filter(is_ours).map(|task| task.file_name()).collect()
}

#[test]
fn a_host_that_has_started_has_its_thread_at_work() {
    let _alone = alone();
    for _ in 0..100 {
        // One that was joined may be there for a moment longer.
        let before = engines();
        let host = start();
        assert!(engines().iter().any(|engine| !before.contains(engine)));
        host.stop();
    }
}

fn open_descriptors() -> Vec<RawFd> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).collect()
}

/// Sockets, epoll instances and eventfds in the list of descriptors.
fn count_ours(fds: &[RawFd]) -> usize {
    let is_ours = |fd: &&RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|link| {
            let link = link.to_string_lossy().into_owned();
            link.starts_with("socket:") || link.contains("eventpoll") || link.contains("eventfd")
        })
    };
    fds.iter().filter(is_ours).count()
}

#[test]
fn a_forked_child_keeps_no_descriptor_and_an_inert_host_and_can_start_its_own() {
    let _alone = alone();
    let host = start();
    host.env().attach(LO).unwrap();
    let claim = host.env().claim(Name::Block(0x777)).unwrap();
    host.env().send(&path(V4), &mut batch(2, &[64]));
    assert!(host.handler().packet().is_some());
    // SAFETY: the child runs the code below only and ends with _exit. It allocates, which glibc
    // makes safe in a child.
    match unsafe { libc::fork() } {
        0 => {
            let code = child(host, claim);
            // SAFETY: it does not return.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
            // The parent's are as they were.
            host.env().send(&path(V4), &mut batch(3, &[64]));
            assert_eq!(host.handler().packet().unwrap().psn(), 3);
            assert!(start().env().claim(Name::Block(0x777)).is_err());
        }
    }
}

/// 0, or the number of the thing that is not as it should be. No panic: the test harness is the
/// parent's.
fn child(host: support::Recording, claim: Box<dyn stack::env::Claim>) -> i32 {
    if host.is_ours() || host.poll() {
        return 1;
    }
    if count_ours(&open_descriptors()) != 0 {
        return 2;
    }
    if host.env().claim(Name::Block(1)).is_ok() || host.env().attach(LO) != Err(Errno::ENODEV) {
        return 3;
    }
    host.env().send(&path(V4), &mut batch(3, &[64]));
    host.stop();
    let own = start();
    if own.env().attach(LO).is_err() || own.env().claim(Name::Block(0x777)).is_ok() {
        return 4;
    }
    let before = count_ours(&open_descriptors());
    // Dropping what was inherited leaves our own new descriptors alone.
    drop((host, claim));
    if count_ours(&open_descriptors()) != before || before == 0 {
        return 5;
    }
    let name = Name::Block(0x778);
    if own.env().claim(name).is_err() { 6 } else { 0 }
}
