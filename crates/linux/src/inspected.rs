//! The socket at which this process says what RDMA objects it has, to its own user and to root
//! (`verbena ps`, `verbena show`). Here connections are taken in and answered; `collect` makes the
//! answer, object by object.
//!
//! The engine thread only starts a thread, and looks at the socket again when that has ended. The
//! thread answers a few connections at a time, reads nothing, and drops what takes its answer too
//! slowly.

mod collect;

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use sys::fork::Fd;

use crate::process::{self, Instance};
use crate::random::Randomness;
use crate::reactor::{IN, Source};
use crate::user;

/// Connections that wait to be taken in.
const BACKLOG: i32 = 64;
/// Connections that are answered at a time.
const MAX_ANSWERS: usize = 4;
/// How long an answer may take to be read.
const PATIENCE: Duration = Duration::from_secs(5);
/// When the thread looks again where it could do nothing.
const PAUSE: Duration = Duration::from_millis(1);
/// When the thread looks again whether there is a descriptor; and when, once there was none for
/// [`PATIENCE`].
const DESCRIPTOR_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// Bytes of the heap for a thread and small answers.
const ROOM: usize = 1 << 20;

/// The listening socket.
pub(crate) struct Inspected {
    fd: Fd,
    token: u64,
    instance: Weak<Instance>,
    since: Instant,
}

/// What came of looking for a connection.
enum Accepted {
    /// One from our user or root.
    Asks(Fd),
    /// One that is gone: it was from another user, and has been closed.
    Refused,
    /// None waits.
    Nothing,
    /// The system has no descriptor or no memory for one.
    NoRoom,
}

/// An answer on its way.
struct Answer {
    fd: Fd,
    bytes: Vec<u8>,
    sent: usize,
    until: Instant,
}

/// How far an answer has come.
#[derive(PartialEq, Eq)]
enum Step {
    /// Some bytes left.
    Sent,
    /// The reader has not read those before.
    Waits,
    /// All is sent, or the reader is gone or too slow.
    Ends,
}

impl Inspected {
    /// Listens at a name of this process, and has the engine answer.
    ///
    /// # Errors
    ///
    /// Those of socket(2), bind(2) and listen(2).
    pub(crate) fn listen(instance: &Arc<Instance>) -> io::Result<()> {
        let fd = Fd::open(|| Socket::new(Domain::UNIX, Type::STREAM, None))?;
        let socket = SockRef::from(&fd);
        socket.set_nonblocking(true)?;
        let mut random = [0; 8];
        Randomness::default().fill(&mut random);
        let name = inspect::name(std::process::id(), u64::from_ne_bytes(random));
        socket.bind(&SockAddr::unix(format!("\0{name}"))?)?;
        socket.listen(BACKLOG)?;
        let reactor = &instance.host.env().reactor;
        let (token, since) = (reactor.token(), Instant::now());
        let inspected = Arc::new(Self { fd, token, instance: Arc::downgrade(instance), since });
        reactor.add(token, &inspected.fd, IN, Source::Inspected(inspected.clone()))
    }

    /// The engine thread: a connection waits. Has a thread answer, and waits for no other
    /// connection until that has ended. False where there is neither a thread nor a descriptor to
    /// be had: to be called again some time later.
    pub(crate) fn answer(self: &Arc<Self>) -> bool {
        let Some(instance) = self.instance.upgrade() else { return true };
        instance.host.env().reactor.pause(&self.fd);
        let (inspected, answering) = (self.clone(), instance.clone());
        let answer = move || {
            // A panic is a defect, after which nothing is to be trusted.
            if catch_unwind(AssertUnwindSafe(|| inspected.serve(&answering))).is_err() {
                process::fail();
            }
            inspected.resume(&answering);
        };
        let named = thread::Builder::new().name("verbena-state".to_owned());
        let has_room = process::room(ROOM).is_ok();
        let started = has_room.then(|| sys::thread::with_signals_blocked(|| named.spawn(answer)));
        if started.is_some_and(|started| started.is_ok()) {
            return true;
        }
        let is_done = self.turn_away();
        if is_done {
            self.resume(&instance);
        }
        is_done
    }

    fn resume(&self, instance: &Instance) {
        instance.host.env().reactor.resume(self.token, &self.fd, IN);
    }

    /// Closes what waits, as there is no thread to be had. False where there is no descriptor for
    /// that either.
    fn turn_away(&self) -> bool {
        for _ in 0..BACKLOG {
            match self.accept() {
                Accepted::Asks(_) | Accepted::Refused => {}
                Accepted::Nothing => return true,
                Accepted::NoRoom => return false,
            }
        }
        true
    }

    fn accept(&self) -> Accepted {
        match Fd::open(|| SockRef::from(&self.fd).accept().map(|(socket, _)| socket)) {
            Ok(fd) if is_allowed(&fd) => Accepted::Asks(fd),
            Ok(_) => Accepted::Refused,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Accepted::Nothing,
                ErrorKind::Interrupted | ErrorKind::ConnectionAborted => Accepted::Refused,
                _ => Accepted::NoRoom,
            },
        }
    }

    /// The thread: answers until no connection waits.
    fn serve(&self, instance: &Instance) {
        let mut answers: Vec<Answer> = Vec::new();
        let mut until = Instant::now() + PATIENCE;
        loop {
            let mut pause = Some(PAUSE);
            if answers.len() < MAX_ANSWERS {
                match self.accept() {
                    Accepted::Asks(fd) => {
                        answers.extend(Answer::new(fd, self.since, instance));
                        pause = None;
                    }
                    // Another user that connects in a loop shall not keep a processor busy here.
                    Accepted::Refused => {}
                    Accepted::Nothing if answers.is_empty() => return,
                    Accepted::Nothing => {}
                    Accepted::NoRoom => {
                        pause = Some(DESCRIPTOR_PAUSES[usize::from(Instant::now() > until)]);
                    }
                }
            }
            answers.retain_mut(|answer| {
                let step = answer.step();
                pause = pause.filter(|_| step == Step::Waits);
                step != Step::Ends
            });
            match pause {
                Some(pause) => thread::sleep(pause),
                None => until = Instant::now() + PATIENCE,
            }
        }
    }
}

/// Whether the process at the other end may know what this one has.
fn is_allowed(fd: &Fd) -> bool {
    sys::peer_uid(fd).is_ok_and(|uid| uid == 0) || user::check(fd).is_ok()
}

impl Answer {
    /// `None` where the heap has no room for it.
    fn new(fd: Fd, since: Instant, instance: &Instance) -> Option<Self> {
        SockRef::from(&fd).set_nonblocking(true).ok()?;
        let bytes = collect::process(instance, since)?.to_bytes();
        Some(Self { fd, bytes, sent: 0, until: Instant::now() + PATIENCE })
    }

    fn step(&mut self) -> Step {
        let rest = &self.bytes[self.sent..];
        match SockRef::from(&self.fd).send_with_flags(rest, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            Ok(sent) if sent == rest.len() => Step::Ends,
            Ok(sent) => {
                self.sent += sent;
                Step::Sent
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Step::Sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < self.until => Step::Waits,
            Err(_) => Step::Ends,
        }
    }
}
