//! Another process of this host, of the same user, that ends or stops at any moment, or means harm: what it shared with us hurts its own
//! connections and nothing else. Real processes, SIGKILL, SIGSTOP.
#![cfg(feature = "software")]

mod kit;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbena::op::WithBuf;
use verbena::{Connection, Listener, Memory, Mr, Pool, QueueConfig, RemoteMemory, RemoteWrite, Result};

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
/// The survivor waits for nothing longer, on a machine that has other things to do too: less than who lies is believed.
const SOON: Duration = Duration::from_secs(4);
/// On such a machine a process may get its processor far later than the two seconds in which a connection is usually there.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of twenty times, nineteen are shorter.
const USUALLY: Duration = Duration::from_secs(1);
/// What each process writes.
const MARK: u8 = 0xa5;
const STOP: &[u8] = b"stop";

/// The other process: run by the tests below. It ends when they do.
#[test]
#[ignore = "run by another test"]
fn neighbour() {
    thread::spawn(|| {
        _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let does = std::env::var(DOES).expect("something to do");
    let at = std::env::var(AT).expect("an address");
    if does == "may not reach" {
        refuse_copies().expect("a filter of system calls");
    }
    let conn = verbena::connect(at).timeout(PATIENCE).queues(queues()).wait().expect("a connection");
    let theirs = RemoteMemory::from_bytes(conn.private_data()).expect("memory");
    let pool = Pool::new(conn.pd(), LEN, 1).expect("a pool");
    match does.as_str() {
        "is honest" => is_honest(&conn, theirs, &pool).expect("nobody disturbs it"),
        "may not reach" => may_not_reach(&conn, theirs, &pool).expect("it needs nobody's leave"),
        "is reached" => {
            let memory = Memory::zeroed(LEN).expect("memory");
            let ours = memory.mr(conn.pd()).expect("a registration");
            conn.send_inline(&ours.remote().to_bytes()).wait().expect("it is heard");
            _ = conn.recv_wait();
        }
        "scribbles" => {
            thread::spawn(scribble);
            while is_at_work("writes", &conn, theirs, &pool).is_ok() {}
            thread::sleep(Duration::from_secs(60));
        }
        does => while is_at_work(does, &conn, theirs, &pool).is_ok() {},
    }
}

/// One operation, and a message before the first one.
fn is_at_work(does: &str, conn: &Connection, theirs: RemoteMemory, pool: &Pool) -> Result<()> {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        conn.send_inline(b"begins").wait()?;
    }
    let len = match does {
        "sends" => MESSAGE,
        "sends long" => LONG,
        _ => LEN,
    };
    let mut buf = pool.get()?.sized(len)?;
    buf.fill(MARK);
    match does {
        "writes" => conn.write(buf, theirs).wait().0.map(drop),
        "reads" => conn.read(buf, theirs).wait().0.map(drop),
        "sends" | "sends long" => conn.send(buf).wait().0.map(drop),
        other => panic!("{other}?"),
    }
}

/// WRITEs, READs and SENDs, checked, until it is told to stop.
fn is_honest(conn: &Connection, theirs: RemoteMemory, pool: &Pool) -> Result<()> {
    for n in 0_u64.. {
        let mut buf = pool.get()?.sized(8192)?;
        buf.fill(n as u8);
        let there = theirs.slice(0..8192)?;
        let written = conn.write(buf, there).wait().buf()?;
        let mut read = written;
        read.fill(!(n as u8));
        let read = conn.read(read, there).wait().buf()?;
        assert!(read.iter().all(|byte| *byte == n as u8), "round {n}");
        conn.send_inline(&n.to_be_bytes()).wait()?;
        if conn.try_recv()?.is_some_and(|message| message[..] == *STOP) {
            break;
        }
    }
    Ok(())
}

/// As in a container whose filter of system calls (seccomp(2)) refuses copies between processes' memory.
fn refuse_copies() -> std::io::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let is = |number, skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, 0, number as u32);
    let answer = |answer| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    let mut filter = [
        // The call's number, which the kernel puts in front of all else.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is(libc::SYS_process_vm_readv, 2),
        is(libc::SYS_process_vm_writev, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers, and a filter that lives across the call, which copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// WRITEs and READs of its own, and long SENDs both ways.
fn may_not_reach(conn: &Connection, theirs: RemoteMemory, pool: &Pool) -> Result<()> {
    for n in 0..20_u8 {
        let mut buf = pool.get()?.sized(LONG)?;
        buf.fill(n);
        let there = theirs.slice(0..LONG as u64)?;
        let mut buf = conn.write(buf, there).wait().buf()?;
        buf.fill(!n);
        let buf = conn.read(buf, there).wait().buf()?;
        assert!(buf.iter().all(|byte| *byte == n), "round {n}");
        conn.send(buf).wait().buf()?;
        let message = conn.recv_wait()?.expect("an answer");
        assert!(message.len() == LONG && message.iter().all(|byte| *byte == !n), "round {n}");
    }
    assert_eq!(["writes_at_once", "reads_at_once"].map(counter), [0; 2]);
    assert!(counter("ring_pieces_sent") > 20 && counter("packets_sent") == 0, "by the ring");
    Ok(())
}

/// Writes anything to all memory that this process shares with others.
fn scribble() {
    thread::sleep(Duration::from_millis(50));
    let mut state = u64::from(std::process::id()) | 1;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 16 ^ state << 40
    };
    let memory = File::options().write(true).open("/proc/self/mem").expect("our own memory");
    loop {
        let maps = fs::read_to_string("/proc/self/maps").expect("a list");
        for line in maps.lines().filter(|line| line.contains("verbena ring") && line.contains(" rw-s ")) {
            let range = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("a number");
            let (first, end) = (number(range.0), number(range.1));
            for at in (first..end).step_by(8) {
                let word = match random() % 8 {
                    0 => 0,
                    1 => !0,
                    // As if it used something.
                    2 => 1 << 63 | random() & 0x3_00ff_00ff,
                    _ => random(),
                };
                // Another thread may have unmapped it.
                _ = memory.write_at(&word.to_ne_bytes(), at);
            }
        }
    }
}

/// A child, ended with this value.
struct Neighbour(Child);

impl Neighbour {
    fn start(does: &str, listener: &Listener) -> Neighbour {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["neighbour", "--exact", "--ignored", "--nocapture"]);
        command.env(DOES, does).env(AT, listener.local_addr().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        if does == "scribbles" {
            command.stderr(Stdio::null());
        }
        Neighbour(command.spawn().expect("a process"))
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
    QueueConfig { recv_size: LONG, recv_depth: 16, ..QueueConfig::default() }
}

fn listener() -> Listener {
    kit::listen(kit::any_port()).wait().expect("a port")
}

impl Ours {
    fn accept(listener: &Listener) -> Ours {
        let request = kit::within(listener.request()).expect("a request");
        let memory = Memory::<RemoteWrite>::zeroed(LEN).expect("memory");
        let mr = memory.mr(request.pd()).expect("a registration");
        let accept = request.accept().queues(queues()).private_data(mr.remote().to_bytes());
        let conn = kit::within(accept.into_future());
        Ours { conn: conn.expect("a connection"), mr }
    }

    /// The next message, which comes.
    fn message(&self) -> Vec<u8> {
        let message = self.conn.recv_wait_for(Duration::from_secs(10)).expect("it comes");
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

/// Kills one in the middle of what it does, or of what we do to it; how long the end of the connection and the key's end took.
fn kill_one(does: &str, n: u64, listener: &Listener) -> (Duration, Duration) {
    let mut child = Neighbour::start(does, listener);
    let ours = Ours::accept(listener);
    let first = ours.message();
    let Ours { conn, mr } = ours;
    if does == "is reached" {
        reach_until_it_ends(&conn, &first, n, &mut child);
    } else {
        // Anywhere in the first ones, or on its way from one to the next.
        thread::sleep(Duration::from_micros(n * 7919 % 2000));
        child.kill();
    }
    let end = || {
        // Whatever came before the end, each message whole.
        while let Ok(Some(message)) = conn.recv_wait() {
            assert!(message.iter().all(|byte| *byte == MARK), "{does}, kill {n}: a message in pieces");
        }
        kit::within(conn.ended())
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
fn reach_until_it_ends(conn: &Connection, first: &[u8], n: u64, child: &mut Neighbour) {
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
fn a_neighbour_killed_at_any_moment_leaves_queues_that_end_and_memory_that_stays() {
    if !kit::is_software() {
        return;
    }
    let kills: u64 = std::env::var("VERBENA_TEST_KILLS").map_or(25, |text| text.parse().expect("a number"));
    thread::scope(|scope| {
        for does in ["writes", "reads", "sends", "sends long", "is reached"] {
            scope.spawn(move || {
                let listener = listener();
                let (mut ended, mut revoked) = (Vec::new(), Vec::new());
                for n in 0..kills {
                    let (end, revoke) = kill_one(does, n, &listener);
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
fn a_neighbour_that_is_stopped_is_not_waited_for_and_goes_on_without_what_was_taken_back() {
    if !kit::is_software() {
        return;
    }
    let listener = listener();
    for n in 0..10_u64 {
        let child = Neighbour::start("writes", &listener);
        let Ours { conn, mr } = Ours::accept(&listener);
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
        while let Ok(Some(_)) = conn.recv_wait() {}
        kit::within(conn.ended());
        assert!(is_clear(&memory), "written to when it was revoked");
    }
}

#[test]
fn a_neighbour_that_may_not_reach_our_memory_sends_writes_and_reads_by_the_ring() {
    if !kit::is_software() {
        return;
    }
    let listener = listener();
    let mut child = Neighbour::start("may not reach", &listener);
    let Ours { conn, mr: _mr } = Ours::accept(&listener);
    let pool = Pool::new(conn.pd(), LONG, 1).expect("a pool");
    for n in 0..20_u8 {
        let message = conn.recv_wait_for(PATIENCE).expect("it comes").expect("the connection is there");
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
    let instance = host::process::get().expect("it runs");
    let all = instance.node().world().counters().snapshot();
    all.into_iter().find(|(known, _)| *known == name).expect("a counter").1
}

#[test]
fn a_neighbour_that_scribbles_over_all_it_shares_hurts_its_own_connections_and_nothing_else() {
    if !kit::is_software() {
        return;
    }
    let (honest_at, hostile_at) = (listener(), listener());
    let mut honest = Neighbour::start("is honest", &honest_at);
    let ours = Ours::accept(&honest_at);
    let stop = AtomicBool::new(false);
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut told = false;
            for n in 0_u64.. {
                let next = match ours.conn.recv_wait_for(Duration::from_secs(10)) {
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
            let theirs = Ours::accept(&hostile_at);
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
    // Documented in host: 5 s for who lies, once.
    assert!(longest < Duration::from_secs(6), "{longest:?}");
    assert_eq!(counter("panics"), 0);
}
