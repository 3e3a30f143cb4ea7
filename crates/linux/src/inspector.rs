//! Asks processes on Verbena in this network namespace what they have: the other end of
//! `inspected`. A process is what the kernel says of its socket, and not what a name says.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read};
use std::os::linux::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use inspect::{Process, Unreadable};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use sys::fork::Fd;

/// How long a process may take to begin its answer: one that is stopped does not.
const FIRST_BYTES: Duration = Duration::from_millis(600);
/// How long an answer may take in all.
const WHOLE: Duration = Duration::from_secs(3);
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 256 << 20;
/// Processes that are asked at once: each takes a thread and a descriptor.
const AT_ONCE: usize = 256;
/// Bytes of the stack of a thread that asks.
const STACK: usize = 256 << 10;

/// A process that was asked.
#[derive(Debug)]
pub struct Asked {
    /// The name at which it answers: no other process ever has it.
    pub name: String,
    /// The process's number here; `None` where it has none in this PID namespace.
    pub pid: Option<u32>,
    /// What came of it.
    pub answer: Answer,
}

/// What came of asking a process.
#[derive(Debug)]
pub enum Answer {
    /// What it has.
    Process(Box<Process>),
    /// Nothing in time: it is stopped, or its threads are kept from running.
    Silent,
    /// The process is another user's; or we are root, and it does not know root in its user
    /// namespace.
    OtherUser,
    /// The process runs a build of Verbena that has another format.
    OtherBuild,
}

/// Asks all processes: those of this user, and as root those of all users.
pub fn processes() -> Vec<Asked> {
    let mut asked = ask_all(&names());
    asked.retain(|asked| sys::own_uid() == 0 || !matches!(asked.answer, Answer::OtherUser));
    asked.sort_by_key(|asked| asked.pid);
    asked
}

/// Asks one process; `None` where no process of this number is on Verbena here.
pub fn process(pid: u32) -> Option<Answer> {
    let says_so = |name: &String| inspect::pid_of(name) == Some(pid);
    let (likely, others): (Vec<_>, Vec<_>) = names().into_iter().partition(says_so);
    // In another PID namespace the process has another number, and says that.
    [likely, others].into_iter().find_map(|names| {
        ask_all(&names).into_iter().find(|asked| asked.pid == Some(pid)).map(|asked| asked.answer)
    })
}

/// The names at which processes answer (/proc/net/unix, proc_net(5)), each once.
fn names() -> Vec<String> {
    let table = std::fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let names = table.lines().filter_map(|line| line.rsplit_once(' ')?.1.strip_prefix('@'));
    let names: BTreeSet<_> = names.filter(|name| inspect::pid_of(name).is_some()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Asks so many at once, and then the others.
fn ask_all(names: &[String]) -> Vec<Asked> {
    names.chunks(AT_ONCE).flat_map(ask_at_once).collect()
}

/// Asks processes at once. One for which there is no thread is not asked.
fn ask_at_once(names: &[String]) -> Vec<Asked> {
    thread::scope(|scope| {
        let mut asking = Vec::new();
        for name in names {
            let builder = thread::Builder::new().stack_size(STACK);
            asking.push((name, builder.spawn_scoped(scope, move || ask(name))));
        }
        let answers = asking.into_iter().map(|(name, asking)| match asking {
            Ok(asking) => asking.join().ok()?,
            Err(_) => silent_of(name),
        });
        answers.flatten().collect()
    })
}

/// Asks the process that has a name; `None` where none has it any more, or it is not a process on
/// Verbena that has it.
fn ask(name: &str) -> Option<Asked> {
    let fd = match connect(name) {
        Ok(fd) => fd,
        // Others have asked before, and it has not looked.
        Err(error) if error.kind() == ErrorKind::WouldBlock => return silent_of(name),
        Err(_) => return None,
    };
    let (uid, pid) = (sys::peer_uid(&fd).ok()?, sys::peer_pid(&fd).ok()?);
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
    let (own, is_other) = (sys::own_uid(), sys::own_uid() != uid);
    if is_other && own != 0 {
        return Some(Asked { name: name.to_owned(), pid, answer: Answer::OtherUser });
    }
    let answer = match read(fd) {
        Ok(answer) => answer,
        // A process in a user namespace of its own does not see that we are root.
        Err(_) if is_other && sys::thread::act_as(uid).is_ok() => {
            connect(name).and_then(read).unwrap_or(Answer::OtherUser)
        }
        Err(_) if is_other => Answer::OtherUser,
        // It has ended meanwhile, or could not answer.
        Err(_) if is_there(pid) => Answer::Silent,
        Err(_) => return None,
    };
    Some(Asked { name: name.to_owned(), pid, answer })
}

/// The process of a name, which did not even take the question.
fn silent_of(name: &str) -> Option<Asked> {
    let pid = inspect::pid_of(name)?;
    let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.st_uid();
    let is_ours = [owner, 0].contains(&sys::own_uid());
    is_ours.then(|| Asked { name: name.to_owned(), pid: Some(pid), answer: Answer::Silent })
}

/// Connects; WouldBlock where the process does not take connections.
fn connect(name: &str) -> io::Result<Fd> {
    let fd = Fd::open(|| Socket::new(Domain::UNIX, Type::STREAM, None))?;
    let socket = SockRef::from(&fd);
    socket.set_write_timeout(Some(FIRST_BYTES))?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(fd)
}

/// Reads an answer.
///
/// # Errors
///
/// UnexpectedEof where there is none.
fn read(fd: Fd) -> io::Result<Answer> {
    let (began, mut bytes, mut room) = (Instant::now(), Vec::new(), vec![0; 64 << 10]);
    loop {
        let limit = if bytes.is_empty() { FIRST_BYTES } else { WHOLE };
        let left = limit.saturating_sub(began.elapsed());
        if left.is_zero() || bytes.len() > MAX_ANSWER {
            return Ok(Answer::Silent);
        }
        SockRef::from(&fd).set_read_timeout(Some(left))?;
        match (&*SockRef::from(&fd)).read(&mut room) {
            Ok(0) if bytes.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&room[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Answer::Silent),
            Err(error) => return Err(error),
        }
    }
    Ok(match Process::from_bytes(&bytes) {
        Ok(process) => Answer::Process(Box::new(process)),
        Err(Unreadable::Version(_)) => Answer::OtherBuild,
        Err(Unreadable::Malformed) => Answer::Silent,
    })
}

fn is_there(pid: Option<u32>) -> bool {
    pid.is_some_and(|pid| std::fs::exists(format!("/proc/{pid}")).unwrap_or(false))
}
