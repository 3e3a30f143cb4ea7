//! A hundred processes of one host, each connected to every other one: 4,950 connections. One of
//! them is stopped for two seconds, one is killed, and the others go on. What so many neighbours
//! take of a process is printed: memory, and descriptors.
#![cfg(feature = "software")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::future::Future;
use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use verbena::op::WithBuf;
use verbena::{Connection, Memory, Mr, Pd, QueueConfig, RemoteMemory, RemoteWrite, Result};

/// Processes; `VERBENA_TEST_PROCESSES` says otherwise.
const PROCESSES: usize = 100;
/// Which one a process is, and of how many.
const NUMBER: &str = "VERBENA_TEST_NUMBER";
const COUNT: &str = "VERBENA_TEST_PROCESSES";
/// Marks the lines by which a process answers.
const SAYS: &str = "> ";
/// Nothing takes longer, on a machine that has other things to do too.
const TIMEOUT: Duration = Duration::from_secs(180);
/// How long one is stopped.
const STOPPED: Duration = Duration::from_secs(2);
/// 4.3 s, eight times: longer than a process waits for a processor.
const ACK_TIMEOUT: u8 = 20;
/// Bytes of a WRITE or READ.
const LEN: usize = 1024;
/// What bytes are for.
const STAYS: u32 = 1;
const WRITE: u32 = 2;
const SEND: u32 = 3;
/// Rounds of each pair before anything happens.
const ROUNDS: u32 = 3;
/// Rounds of a pair whose connection has ended.
const ENDED: u32 = u32::MAX;

// ---- one of the processes ----

/// What `from` writes or sends for `to`, in this round; of a period that divides no page.
fn bytes(mark: u32, from: usize, to: usize, round: u32) -> Vec<u8> {
    let words = [mark, from as u32, to as u32, round, !round].map(u32::to_le_bytes);
    let mut bytes = words.concat().repeat(LEN / 20 + 1);
    bytes.truncate(LEN);
    bytes
}

/// What lies in a process's memory: a page that stays, and for each peer two parts, by turns: it
/// may be a round ahead.
fn place(peer: usize, round: u32) -> usize {
    LEN * (1 + 2 * peer + round as usize % 2)
}

/// What lies at this place of a peer's.
fn part(theirs: RemoteMemory, at: usize) -> Result<RemoteMemory> {
    theirs.slice(at as u64..(at + LEN) as u64)
}

struct Process {
    number: usize,
    mr: Mr<RemoteWrite>,
    /// How many rounds each pair has completed.
    rounds: Vec<AtomicU32>,
    /// As many as each may make.
    allowed: AtomicU32,
    /// Pairs that wait for more.
    waiting: Mutex<Vec<Waker>>,
}

impl Process {
    /// WRITE, READ what was written, READ what is always there, SEND; then the peer's message,
    /// after which its WRITE has come.
    async fn round(&self, conn: &Connection, peer: usize, theirs: RemoteMemory, round: u32) -> Result<()> {
        let (ours, me) = (place(self.number, round), self.number);
        let mut buf = conn.buffer()?.sized(LEN)?;
        buf.copy_from_slice(&bytes(WRITE, me, peer, round));
        let mut buf = conn.write(buf, part(theirs, ours)?).await.buf()?;
        for (from, wanted) in [(ours, bytes(WRITE, me, peer, round)), (0, bytes(STAYS, peer, peer, 0))] {
            buf.fill(0);
            buf = conn.read(buf, part(theirs, from)?).await.buf()?;
            assert!(buf[..] == wanted, "{me} reads something else of {peer}, at {from} in round {round}");
        }
        buf.copy_from_slice(&bytes(SEND, me, peer, round));
        conn.send(buf).await.buf()?;
        let Some(message) = conn.recv().await? else { return Err(conn.ended().await) };
        assert!(
            message[..] == bytes(SEND, peer, me, round),
            "{me} gets another message of {peer} in round {round}"
        );
        let mut written = [0; LEN];
        self.mr.memory().shared().copy_to(place(peer, round), &mut written)?;
        assert!(
            written[..] == bytes(WRITE, peer, me, round),
            "{peer} wrote something else to {me} in round {round}"
        );
        Ok(())
    }

    /// Each pair may make so many rounds from now on.
    fn allow(&self, rounds: u32) {
        self.allowed.store(rounds, Ordering::Release);
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("nobody panics there"));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits for the leave to make this round.
    async fn may_begin(&self, round: u32) {
        std::future::poll_fn(|cx| {
            let mut waiting = self.waiting.lock().expect("nobody panics there");
            if round < self.allowed.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Rounds until the connection ends.
    async fn talk(&self, conn: Connection, peer: usize, theirs: RemoteMemory) {
        for round in 0.. {
            self.may_begin(round).await;
            if self.round(&conn, peer, theirs, round).await.is_err() {
                break;
            }
            self.rounds[peer].store(round + 1, Ordering::Relaxed);
        }
        conn.ended().await;
        self.rounds[peer].store(ENDED, Ordering::Relaxed);
    }

    fn queues() -> QueueConfig {
        QueueConfig::default().send_depth(4).recv_depth(4).recv_size(LEN)
    }

    /// Connects to all processes of lower numbers; those of higher ones come. Each end says where
    /// its memory is, and the one that connects also its number.
    fn connect(
        &self,
        listener: &verbena::Listener,
        pd: &Pd,
        ports: &[u16],
    ) -> Vec<(usize, Connection, RemoteMemory)> {
        let hello = [&self.mr.remote().to_bytes()[..], &(self.number as u32).to_be_bytes()].concat();
        let told = |conn: &Connection| RemoteMemory::from_bytes(&conn.private_data()[..20]).expect("memory");
        thread::scope(|scope| {
            let accepting = scope.spawn(|| -> Vec<_> {
                let accept = |_| {
                    let request = listener.blocking_request().expect("a request");
                    let number = request.private_data()[20..24].try_into().expect("four bytes");
                    let accept = request.accept().pd(pd).queues(Self::queues()).ack_timeout(ACK_TIMEOUT);
                    let conn = accept.private_data(&hello).wait().expect("a connection");
                    let theirs = told(&conn);
                    (u32::from_be_bytes(number) as usize, conn, theirs)
                };
                (self.number + 1..ports.len()).map(accept).collect()
            });
            let connect = |peer: usize| {
                let connect = support::connect(SocketAddr::new(support::address(), ports[peer])).pd(pd);
                let connect = connect.queues(Self::queues()).ack_timeout(ACK_TIMEOUT).timeout(TIMEOUT);
                let conn = connect.private_data(&hello).wait().expect("a connection");
                let theirs = told(&conn);
                (peer, conn, theirs)
            };
            let mut all: Vec<_> = (0..self.number).map(connect).collect();
            all.extend(accepting.join().expect("all have come"));
            all
        })
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A waker of one of many tasks: it wants to go on.
struct Woken {
    is_set: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs them in this thread, which sleeps while the engine thread brings nothing: a hundred that
/// poll would wait for each other's turns.
fn run(tasks: Vec<Task<'_>>) {
    let woken = || Arc::new(Woken { is_set: AtomicBool::new(true), thread: thread::current() });
    let mut tasks: Vec<_> = tasks.into_iter().map(|task| (task, woken())).collect();
    while !tasks.is_empty() {
        tasks.retain_mut(|(task, woken)| {
            let goes_on = woken.is_set.swap(false, Ordering::Acquire);
            let waker = || Waker::from(woken.clone());
            !goes_on || task.as_mut().poll(&mut Context::from_waker(&waker())).is_pending()
        });
        thread::park();
    }
}

fn say(words: impl std::fmt::Display) {
    // The test's own words may stand in the line already.
    println!("\n{SAYS}{words}");
}

/// A line from the process that started us, at whose end we end too.
fn asked() -> String {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => line,
        _ => std::process::exit(1),
    }
}

/// Runs as one of the processes, started by the test below.
#[test]
#[ignore = "run by another test"]
fn one_of_a_hundred() {
    let number = |name| std::env::var(name).expect("a number").parse::<usize>().expect("a number");
    let (number, count) = (number(NUMBER), number(COUNT));
    let pd =
        support::provider().device_of(support::address()).and_then(|device| device.pd()).expect("a domain");
    let memory = Memory::<RemoteWrite>::zeroed(LEN * (1 + 2 * count)).expect("memory");
    let mr = memory.mr(&pd).expect("a registration");
    memory.shared().copy_from(0, &bytes(STAYS, number, number, 0)).expect("inside");
    let rounds = (0..count).map(|_| AtomicU32::new(0)).collect();
    let (allowed, waiting) = (AtomicU32::new(0), Mutex::default());
    let process = Arc::new(Process { number, mr, rounds, allowed, waiting });
    let listener = support::listen(support::any_port()).backlog(count as u32).wait().expect("a port");
    say(listener.local_addr().port());
    let ports: Vec<u16> = asked().split_whitespace().map(|port| port.parse().expect("a port")).collect();
    let ends = process.connect(&listener, &pd, &ports);
    say("connected");
    let telling = process.clone();
    thread::spawn(move || {
        loop {
            match asked().trim() {
                "how" => say(telling.rounds.iter().fold(String::new(), |mut text, rounds| {
                    write!(text, "{} ", rounds.load(Ordering::Relaxed)).expect("a string");
                    text
                })),
                "stop" => std::process::exit(0),
                more => telling.allow(more.parse().expect("a number")),
            }
        }
    });
    let talk = |(peer, conn, theirs)| -> Task<'_> { Box::pin(process.talk(conn, peer, theirs)) };
    run(ends.into_iter().map(talk).collect());
    loop {
        thread::park();
    }
}

// ---- the process that starts them ----

/// A child, ended with this value.
struct Neighbour {
    number: usize,
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
}

impl Neighbour {
    fn start(number: usize, count: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["one_of_a_hundred", "--exact", "--ignored", "--nocapture"]);
        command.env(NUMBER, number.to_string()).env(COUNT, count.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (tell, said) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(|line| line.ok());
            let words = lines.filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned));
            // Until the receiver is gone.
            words.map(|words| tell.send(words)).find(|sent| sent.is_err());
        });
        Self { number, child, input, said }
    }

    fn ask(&mut self, words: &str) {
        writeln!(self.input, "{words}").unwrap_or_else(|e| panic!("{}: {e}", self.number));
    }

    fn says(&self) -> String {
        match self.said.recv_timeout(TIMEOUT) {
            Ok(words) => words,
            Err(RecvTimeoutError::Timeout) => panic!("{} says nothing for {TIMEOUT:?}", self.number),
            Err(RecvTimeoutError::Disconnected) => panic!("{} has ended", self.number),
        }
    }

    /// kill(1).
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.expect("kill(1)").success());
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Rounds of each with each.
fn rounds(all: &mut [Neighbour], asked: &[usize]) -> Vec<(usize, Vec<u32>)> {
    asked.iter().for_each(|&number| all[number].ask("how"));
    let parse = |words: &str| words.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    asked.iter().map(|&number| (number, parse(&all[number].says()))).collect()
}

/// Waits until all of `asked` are with all of `with` where `wanted` says; how long that took.
fn until(
    what: &str,
    all: &mut [Neighbour],
    (asked, with): (&[usize], &[usize]),
    wanted: impl Fn(usize, usize, u32) -> bool,
) -> Duration {
    let begin = Instant::now();
    loop {
        let rounds = rounds(all, asked);
        let missing = rounds.iter().find_map(|(number, rounds)| {
            let peer = with.iter().find(|&&peer| peer != *number && !wanted(*number, peer, rounds[peer]))?;
            Some((*number, *peer, rounds[*peer]))
        });
        let took = begin.elapsed();
        let Some((number, peer, rounds)) = missing else {
            println!("{what}: {took:.1?}");
            return took;
        };
        assert!(took < TIMEOUT, "{what}: {number} and {peer} have {rounds} rounds behind them");
        thread::sleep(Duration::from_millis(100));
    }
}

/// What a process has mapped of the memory that processes share, and how many descriptors it has.
fn print_what_it_takes(pid: u32) {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("a list");
    // Of each size and rights: how many, and KiB of each line that says some.
    let mut sums = BTreeMap::<(u64, &str), (u64, BTreeMap<&str, u64>)>::new();
    let mut current = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kib = words.get(1).and_then(|word| word.parse::<u64>().ok());
        match (words[0], kib, current) {
            (range, ..) if range.contains('-') => {
                current = line.contains("verbena ring").then_some((0, words[1]))
            }
            ("Size:", Some(kib), Some((_, rights))) => {
                current = Some((kib, rights));
                sums.entry((kib, rights)).or_default().0 += 1;
            }
            (name, Some(kib), Some(of)) => *sums.entry(of).or_default().1.entry(name).or_default() += kib,
            _ => {}
        }
    }
    for ((size, rights), (count, kib)) in sums {
        let of = |name| kib.get(name).copied().unwrap_or(0) as f64 / 1024.0;
        println!(
            "{count} mappings {rights} of {size} KiB: {:.0} MiB of address space, {:.1} MiB resident, {:.1} MiB divided by those who share them",
            (count * size) as f64 / 1024.0,
            of("Rss:"),
            of("Pss:")
        );
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a list");
    status.lines().filter(|line| line.starts_with("Vm")).for_each(|line| println!("{line}"));
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("a list").count();
    println!("{descriptors} descriptors");
}

#[test]
fn of_a_hundred_processes_one_is_stopped_and_one_killed_and_the_others_go_on() {
    if !support::is_software() {
        return;
    }
    let count = std::env::var(COUNT).map_or(PROCESSES, |text| text.parse().expect("a number"));
    let begin = Instant::now();
    let mut all: Vec<Neighbour> = (0..count).map(|number| Neighbour::start(number, count)).collect();
    let ports: Vec<String> = all.iter().map(Neighbour::says).collect();
    println!("{count} processes: {:.1?}", begin.elapsed());
    let begin = Instant::now();
    all.iter_mut().for_each(|one| one.ask(&ports.join(" ")));
    all.iter().for_each(|one| assert_eq!(one.says(), "connected"));
    println!("{} connections: {:.1?}", count * (count - 1) / 2, begin.elapsed());
    let everybody: Vec<usize> = (0..count).collect();
    let without =
        |left_out: usize| -> Vec<usize> { (0..count).filter(|&number| number != left_out).collect() };
    let allow = |all: &mut [Neighbour], to: &[usize], rounds: u32| {
        to.iter().for_each(|&number| all[number].ask(&rounds.to_string()));
    };
    let have = |wanted: u32| {
        move |number: usize, peer: usize, rounds: u32| {
            assert_ne!(rounds, ENDED, "the connection of {number} and {peer} has ended");
            rounds >= wanted
        }
    };
    allow(&mut all, &everybody, ROUNDS);
    until("rounds of each with each", &mut all, (&everybody, &everybody), have(ROUNDS));
    print_what_it_takes(all[0].child.id());

    let (stopped, killed) = (count / 3, 2 * count / 3);
    let others = without(stopped);
    allow(&mut all, &everybody, ROUNDS + 1);
    all[stopped].signal("-STOP");
    let begin = Instant::now();
    allow(&mut all, &everybody, ROUNDS + 2);
    until("two rounds while one is stopped", &mut all, (&others, &others), have(ROUNDS + 2));
    thread::sleep(STOPPED.saturating_sub(begin.elapsed()));
    all[stopped].signal("-CONT");
    until("those with it when it goes on", &mut all, (&everybody, &[stopped]), have(ROUNDS + 2));

    let others = without(killed);
    allow(&mut all, &everybody, ROUNDS + 3);
    all[killed].child.kill().expect("it can be killed");
    // A pair that had made its round waits for leave to make another one, and sees there that its
    // peer is gone.
    allow(&mut all, &others, ROUNDS + 4);
    until("all know that one was killed", &mut all, (&others, &[killed]), |_, _, rounds| rounds == ENDED);
    until("two rounds of the others", &mut all, (&others, &others), have(ROUNDS + 4));
    others.iter().for_each(|&number| all[number].ask("stop"));
    for number in others {
        let status = all[number].child.wait().expect("it ends");
        assert!(status.success(), "{number}: {status}");
    }
}
