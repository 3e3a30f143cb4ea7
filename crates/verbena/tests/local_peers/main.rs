//! Another process of this host, of the same user, that ends or stops at any moment, or means harm:
//! what it shared with us hurts its own connections and nothing else. Real processes, SIGKILL,
//! SIGSTOP.
#![cfg(feature = "software")]

mod child;
#[path = "../support/mod.rs"]
mod support;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbena::op::WithBuf;
use verbena::{Connection, Listener, Memory, Mr, Pool, QueueConfig, RemoteMemory, RemoteWrite};

/// Bytes of what is written and read at once: long enough that some end in the middle.
const LEN: usize = 256 << 10;
/// Bytes of a message that is copied to the ring.
const MESSAGE: usize = 4096;
/// Bytes of one that goes in pieces.
const LONG: usize = 64 << 10;
/// What the other process does.
const DOES: &str = "VERBENA_TEST_DOES";
/// Where we listen.
const AT: &str = "VERBENA_TEST_AT";
/// The survivor waits for nothing longer, on a machine that has other things to do too: less than
/// the time for which a peer that lies is believed.
const SOON: Duration = Duration::from_secs(4);
/// On such a machine a process may get its processor far later than the two seconds in which a
/// connection is usually there.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Of twenty times, nineteen are shorter.
const USUALLY: Duration = Duration::from_secs(1);
/// What each process writes.
const MARK: u8 = 0xa5;
const STOP: &[u8] = b"stop";

/// Where memory is that the other process may reach.
#[derive(Clone, Copy)]
enum Place {
    /// In memory of one process: the system copies.
    Ours,
    /// In memory that both map.
    BothMap,
}

impl Place {
    fn memory(self) -> Memory<RemoteWrite> {
        match self {
            Self::BothMap => Memory::zeroed(LEN).expect("memory"),
            Self::Ours => {
                let words = Box::into_raw(vec![0_u64; LEN / 8].into_boxed_slice());
                let at = words.addr();
                let done = move || {
                    let words = std::ptr::slice_from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut(at),
                        LEN / 8,
                    );
                    // SAFETY: the words of above, of which there is no handle any more.
                    drop(unsafe { Box::<[u64]>::from_raw(words) });
                };
                words.expose_provenance();
                // SAFETY: zeros of our own until `done` is called, and no code looks at them but by
                // the memory.
                unsafe { Memory::from_raw(words.cast(), LEN, done) }.expect("memory")
            }
        }
    }
}

/// A child, ended with this value.
struct Neighbour(Child);

impl Neighbour {
    fn start(does: &str, listener: &Listener) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["child::local_peer", "--exact", "--ignored", "--nocapture"]);
        command.env(DOES, does).env(AT, listener.local_addr().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        if does.ends_with("by both") {
            command.env("VERBENA_SAME_HOST", "both");
        }
        if does == "scribbles" {
            command.stderr(Stdio::null());
        }
        Self(command.spawn().expect("a process"))
    }

    /// kill(1).
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(status.expect("kill(1)").success());
    }

    fn kill(&mut self) {
        self.0.kill().expect("it can be killed");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Our end: a connection, and memory that the other process may reach.
struct Ours {
    conn: Connection,
    mr: Mr<RemoteWrite>,
}

/// Of both ends: room for long messages.
fn queues() -> QueueConfig {
    QueueConfig::default().recv_size(LONG).recv_depth(16)
}

fn listener() -> Listener {
    support::listen(support::any_port()).wait().expect("a port")
}

impl Ours {
    fn accept(listener: &Listener, place: Place) -> Self {
        let request = support::within(listener.request()).expect("a request");
        let memory = place.memory();
        let mr = memory.mr(request.pd()).expect("a registration");
        let accept = request.accept().queues(queues()).private_data(mr.remote().to_bytes());
        let conn = support::within(accept.into_future());
        Self { conn: conn.expect("a connection"), mr }
    }

    /// The next message, which comes.
    fn message(&self) -> Vec<u8> {
        let message = self.conn.blocking_recv_timeout(Duration::from_secs(10)).expect("it comes");
        message.expect("the connection is there").to_vec()
    }
}

/// All bytes to zero.
fn clear(memory: &Memory<RemoteWrite>) {
    memory.shared().copy_from(0, &[0; LEN]).expect("inside");
}

fn is_clear(memory: &Memory<RemoteWrite>) -> bool {
    let mut bytes = vec![1; LEN];
    memory.shared().copy_to(0, &mut bytes).expect("inside");
    bytes.iter().all(|byte| *byte == 0)
}

/// Runs something that is over soon.
fn soon<T>(what: &str, run: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    let result = run();
    let took = begin.elapsed();
    assert!(took < SOON, "{what} took {took:?}");
    (result, took)
}

/// Kills one in the middle of what it does, or of what we do to it; how long the end of the
/// connection and the key's end took.
fn kill_one(does: &str, place: Place, n: u64, listener: &Listener) -> (Duration, Duration) {
    let mut child = Neighbour::start(does, listener);
    let ours = Ours::accept(listener, place);
    let first = ours.message();
    let Ours { conn, mr } = ours;
    if does.starts_with("is reached") {
        access_until_it_ends(&conn, &first, n, &mut child);
    } else {
        // Anywhere in the first ones, or on its way from one to the next.
        thread::sleep(Duration::from_micros(n * 7919 % 2000));
        child.kill();
    }
    let end = || {
        // Whatever came before the end, each message whole.
        while let Ok(Some(message)) = conn.blocking_recv() {
            assert!(message.iter().all(|byte| *byte == MARK), "{does}, kill {n}: a message in pieces");
        }
        support::within(conn.ended())
    };
    let revoke = || {
        let memory = mr.revoke().expect("it is registered");
        clear(&memory);
        memory
    };
    // One order and the other.
    let ((memory, revoked), ended) = if n.is_multiple_of(2) {
        let revoked = soon("revoking", revoke);
        (revoked, soon("the end", end).1)
    } else {
        let ended = soon("the end", end).1;
        (soon("revoking", revoke), ended)
    };
    child.0.wait().expect("it is dead");
    assert!(is_clear(&memory), "{does}, kill {n}: written to when it was revoked");
    (ended, revoked)
}

/// WRITEs and READs of ours, in the middle of which it is killed: the last one fails soon.
fn access_until_it_ends(conn: &Connection, first: &[u8], n: u64, child: &mut Neighbour) {
    let theirs = RemoteMemory::from_bytes(first).expect("its memory");
    let pool = Pool::new(conn.pd(), LEN, 1).expect("a pool");
    let mut last = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_micros(n * 7919 % 2000));
            child.kill();
        });
        loop {
            let buf = pool.get().expect("it is back").sized(LEN).expect("it fits");
            let done = match n / 2 % 2 {
                0 => conn.write(buf, theirs).wait().buf(),
                _ => conn.read(buf, theirs).wait().buf(),
            };
            if done.is_err() {
                break;
            }
            last = Instant::now();
        }
    });
    assert!(last.elapsed() < SOON, "the last one took {:?}", last.elapsed());
}

#[test]
fn a_local_peer_killed_at_any_moment_leaves_queues_that_end_and_memory_that_stays() {
    if !support::is_software() {
        return;
    }
    let kills: u64 = std::env::var("VERBENA_TEST_KILLS").map_or(25, |text| text.parse().expect("a number"));
    thread::scope(|scope| {
        for (does, place) in [
            ("writes", Place::Ours),
            ("writes", Place::BothMap),
            ("reads", Place::Ours),
            ("reads", Place::BothMap),
            ("sends", Place::Ours),
            ("sends long", Place::Ours),
            ("sends long by both", Place::Ours),
            ("is reached", Place::Ours),
            ("is reached where both map", Place::Ours),
        ] {
            scope.spawn(move || {
                let listener = listener();
                let (mut ended, mut revoked) = (Vec::new(), Vec::new());
                for n in 0..kills {
                    let (end, revoke) = kill_one(does, place, n, &listener);
                    ended.push(end);
                    revoked.push(revoke);
                }
                for (what, mut times) in [("ended", ended), ("revoked", revoked)] {
                    times.sort_unstable();
                    let of = |share: usize| times[times.len() * share / 20 - 1];
                    println!("{does}: {kills} times {what}, half in {:?}, all in {:?}", of(10), of(20));
                    assert!(of(19) < USUALLY, "{does}: {what} in {:?}", of(19));
                }
            });
        }
    });
    assert_eq!(counter("panics"), 0);
}

#[test]
fn a_local_peer_that_is_stopped_is_not_waited_for_and_goes_on_without_what_was_taken_back() {
    if !support::is_software() {
        return;
    }
    let listener = listener();
    for n in 0..20_u64 {
        let place = if n.is_multiple_of(2) { Place::Ours } else { Place::BothMap };
        let child = Neighbour::start("writes", &listener);
        let Ours { conn, mr } = Ours::accept(&listener, place);
        let begun = Instant::now();
        while mr.memory().shared().load::<u64>(LEN - 8).expect("inside") == 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "it writes nothing");
            thread::sleep(Duration::from_micros(50));
        }
        thread::sleep(Duration::from_micros(n * 317 % 1000));
        child.signal("-STOP");
        let (memory, _) = soon("revoking", || mr.revoke().expect("it is registered"));
        clear(&memory);
        thread::sleep(Duration::from_millis(2));
        child.signal("-CONT");
        // Its next WRITE is refused, which ends the connection.
        while let Ok(Some(_)) = conn.blocking_recv() {}
        support::within(conn.ended());
        assert!(is_clear(&memory), "written to when it was revoked");
    }
}

#[test]
fn a_local_peer_that_may_not_reach_our_memory_sends_writes_and_reads_by_the_ring() {
    speak_with_who_may_not_reach_us("may not reach", Place::Ours);
}

#[test]
fn a_local_peer_that_may_not_reach_our_memory_reaches_what_both_map() {
    speak_with_who_may_not_reach_us("may not reach but maps", Place::BothMap);
}

fn speak_with_who_may_not_reach_us(does: &str, place: Place) {
    if !support::is_software() {
        return;
    }
    let listener = listener();
    let mut child = Neighbour::start(does, &listener);
    let Ours { conn, mr: _mr } = Ours::accept(&listener, place);
    let pool = Pool::new(conn.pd(), LONG, 1).expect("a pool");
    for n in 0..20_u8 {
        let message =
            conn.blocking_recv_timeout(TIMEOUT).expect("it comes").expect("the connection is there");
        assert!(message.len() == LONG && message.iter().all(|byte| *byte == n), "round {n}");
        let mut buf = pool.get().and_then(|buf| buf.sized(LONG)).expect("a buffer");
        buf.fill(!n);
        conn.send(buf).wait().buf().expect("it is heard");
    }
    // It lives as long as its input is open, which `wait` would close.
    let _input = child.0.stdin.take();
    assert!(child.0.wait().expect("it ends").success(), "it failed");
}

fn counter(name: &str) -> u64 {
    let instance = linux::process::get().expect("it runs");
    let all = instance.node().env().counters().snapshot();
    all.into_iter().find(|(known, _)| *known == name).expect("a counter").1
}

/// Says so when it is dropped, by a panic, too.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_local_peer_that_scribbles_over_all_it_shares_hurts_its_own_connections_and_nothing_else() {
    if !support::is_software() {
        return;
    }
    let (honest_at, hostile_at) = (listener(), listener());
    let mut honest = Neighbour::start("is honest", &honest_at);
    let ours = Ours::accept(&honest_at, Place::Ours);
    let stop = AtomicBool::new(false);
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    thread::scope(|scope| {
        // Whatever fails below: the scope waits for the traffic.
        let _stops = Stops(&stop);
        let traffic = scope.spawn(|| {
            let mut told = false;
            for n in 0_u64.. {
                let next = match ours.conn.blocking_recv_timeout(Duration::from_secs(10)) {
                    Ok(Some(message)) => message,
                    // It has stopped.
                    _ if told => return n,
                    other => panic!("round {n}: {other:?}"),
                };
                assert_eq!(next[..], n.to_be_bytes());
                if stop.load(Ordering::Relaxed) && !told {
                    ours.conn.send_inline(STOP).wait().expect("it is told");
                    told = true;
                }
            }
            unreachable!("so many rounds")
        });
        for rings in 1..=3 {
            let hostile = Neighbour::start("scribbles", &hostile_at);
            let theirs = Ours::accept(&hostile_at, Place::Ours);
            let begin = Instant::now();
            // Some time longer than it takes until the ring is found to be of no use.
            let mut found = None;
            while found.is_none_or(|found: Instant| found.elapsed() < Duration::from_millis(300)) {
                assert!(begin.elapsed() < Duration::from_secs(30), "its ring is good");
                if found.is_none() && counter("ring_errors") >= rings {
                    found = Some(Instant::now());
                }
                // Registered and taken back, while it claims anything.
                let memory = Memory::<RemoteWrite>::zeroed(4096).expect("memory");
                let mr = memory.mr(ours.conn.pd()).expect("a registration");
                let began = Instant::now();
                mr.revoke().expect("it is registered");
                longest = longest.max(began.elapsed());
                thread::sleep(Duration::from_millis(1));
            }
            let began = Instant::now();
            drop(theirs);
            longest = longest.max(began.elapsed());
            drop(hostile);
        }
        stop.store(true, Ordering::Relaxed);
        rounds = traffic.join().expect("its messages come in order");
    });
    // It lives as long as its input is open, which `wait` would close.
    let _input = honest.0.stdin.take();
    assert!(honest.0.wait().expect("it ends").success(), "it failed");
    let errors = counter("ring_errors");
    println!("{rounds} rounds; taking back took {longest:?} at most; {errors} rings given up");
    assert!(rounds > 100 && errors >= 3, "{rounds} rounds, {errors} rings given up");
    // Documented in host: 5 s for a peer that lies, once.
    assert!(longest < Duration::from_secs(6), "{longest:?}");
    assert_eq!(counter("panics"), 0);
}
