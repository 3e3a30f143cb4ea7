//! This process asks itself what it has, and meets those that ask and do not listen. One binary of
//! its own: the process's instance lives until the process ends.

#![expect(clippy::disallowed_types, reason = "a lock of the tests' own has no rank")]

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linux::inspector::{self, Answer};

/// The tests count descriptors and threads of one process.
static ALONE: Mutex<()> = Mutex::new(());

/// The name at which this process answers.
fn address() -> SocketAddr {
    linux::process::get().expect("an instance");
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").expect("the table");
    let mut names = table.lines().filter_map(|line| line.rsplit_once(' ')?.1.strip_prefix('@'));
    let own = names.find(|name| inspect::pid_of(name) == Some(std::process::id()));
    SocketAddr::from_abstract_name(own.expect("a name")).expect("an address")
}

fn connect(address: &SocketAddr) -> UnixStream {
    let stream = UnixStream::connect_addr(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream
}

fn whole(mut stream: UnixStream) -> usize {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    inspect::Process::from_bytes(&bytes).expect("a process");
    bytes.len()
}

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).expect("/proc").count()
}

/// Waits until there are no more descriptors and threads than before.
fn is_as_before(before: (usize, usize)) -> bool {
    let until = Instant::now() + Duration::from_secs(12);
    while count("fd") > before.0 || count("task") > before.1 {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn a_process_finds_itself_with_its_devices() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _address = address();
    let own = std::process::id();
    let Some(Answer::Process(process)) = inspector::process(own) else { panic!("no answer") };
    let instance = linux::process::get().unwrap();
    let names: Vec<_> = instance.node().devices().iter().map(|device| device.config.name.clone()).collect();
    assert_eq!(process.devices.iter().map(|device| device.ifname.clone()).collect::<Vec<_>>(), names);
    assert_eq!(process.pid, own);
    assert!(process.counters.contains_key("host.packets_sent"), "{:?}", process.counters.keys());
    assert!(inspector::processes().iter().any(|asked| asked.pid == Some(own)));
}

#[test]
fn those_that_say_nothing_or_nonsense_or_leave_hold_nothing_up_and_nothing_stays() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let address = address();
    let before = (count("fd"), count("task"));
    // More than are answered at a time, none of which is read.
    let silent: Vec<_> = (0..16).map(|_| connect(&address)).collect();
    let mut talker = connect(&address);
    // It may be answered, and so closed, already.
    let _ = talker.write_all(&[0xff; 4096]);
    (0..64).for_each(|_| drop(connect(&address)));
    assert!(whole(connect(&address)) > 0);
    assert!(silent.into_iter().all(|stream| whole(stream) > 0), "an answer waits for its reader");
    drop(talker);
    assert!(is_as_before(before), "{} descriptors, {} threads", count("fd"), count("task"));
}

#[test]
fn a_program_that_is_executed_inherits_no_socket() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _address = address();
    let sockets = std::process::Command::new("sh")
        .args(["-c", "ls -l /proc/self/fd | grep -c 'socket:' || true"])
        .output()
        .expect("sh");
    assert_eq!(String::from_utf8_lossy(&sockets.stdout).trim(), "0");
}
