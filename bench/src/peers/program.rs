//! A peer's programs: a server on one core, a client on the other, on 127.0.0.1, each with an end
//! to the patience that one has with it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::pin;

/// How long a client may take; none of what is measured takes a third of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Until a server listens, and until it has ended after its client.
const AT_ITS_ENDS: Duration = Duration::from_secs(10);
/// Programs fail now and then by themselves: perftest does where it finds the clock's rate
/// unsteady.
const TRIES: usize = 4;
/// The state of a socket that listens, in /proc/net/tcp.
const LISTENS: &str = "0A";
/// Characters of what a program said that an error repeats.
const SAID: usize = 300;

/// Whether there is such a program.
pub(crate) fn installed(program: &str) -> bool {
    found(program).is_some()
}

/// Where a program is.
pub(crate) fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether a command ends well; what it says is dropped.
pub(crate) fn ends_well(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// What `read` finds in what the client said, when both have ended well. `server` and `client` make
/// the commands.
///
/// # Errors
/// When that fails again and again: how it failed the last time.
pub(crate) fn pair<T>(
    port: u16,
    server: impl Fn() -> Command,
    client: impl Fn() -> Command,
    read: impl Fn(&str) -> Option<T>,
) -> io::Result<T> {
    tried(|| {
        let mut server = Process::start(1, server())?;
        server.listens(port)?;
        let said = Process::start(0, client())?.end(PATIENCE)?;
        let found = read(&said).ok_or_else(|| io::Error::other(format!("no result: {}", end_of(&said))))?;
        server.end(AT_ITS_ENDS)?;
        Ok(found)
    })
}

/// What comes out the first time that it does not fail.
///
/// # Errors
/// When it fails again and again: how it failed the last time.
pub(crate) fn tried<T>(mut once: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut last = once();
    for _ in 1..TRIES {
        if last.is_ok() {
            break;
        }
        last = once();
    }
    last
}

/// A running program, which does not outlive this. What it says is collected.
pub(crate) struct Process {
    name: String,
    child: Child,
    said: Receiver<io::Result<String>>,
    complained: Receiver<io::Result<String>>,
}

impl Process {
    /// Starts it on a core.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(core: usize, mut command: Command) -> io::Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A child inherits the affinity of the thread that starts it.
        let starting = thread::spawn(move || -> io::Result<Child> {
            pin::to_core(core)?;
            command.spawn()
        });
        let mut child = starting.join().map_err(|_| io::Error::other("a starting thread panicked"))??;
        let (said, complained) = (collect(child.stdout.take()), collect(child.stderr.take()));
        Ok(Self { name, child, said, complained })
    }

    /// Waits until a socket listens at a port; this process listens there if any does.
    ///
    /// # Errors
    /// `TimedOut`; when it has ended.
    pub(crate) fn listens(&mut self, port: u16) -> io::Result<()> {
        let until = Instant::now() + AT_ITS_ENDS;
        while !is_listened_at(self.child.id(), port)? {
            if self.child.try_wait()?.is_some() {
                self.end(AT_ITS_ENDS)?;
                return Err(io::Error::other(format!("{} has ended before it listened", self.name)));
            }
            if Instant::now() > until {
                let what = format!("{} does not listen at port {port}", self.name);
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// All it said, and then what it complained of, when it has ended well.
    ///
    /// # Errors
    /// `TimedOut`; when it has failed.
    pub(crate) fn end(&mut self, timeout: Duration) -> io::Result<String> {
        let late = |_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("{} has not ended after {timeout:?}", self.name))
        };
        let said = self.said.recv_timeout(timeout).map_err(late)??;
        let complained = self.complained.recv_timeout(timeout).map_err(late)??;
        let status = self.child.wait()?;
        if status.success() {
            return Ok(said + &complained);
        }
        let last = if complained.trim().is_empty() { said } else { complained };
        Err(io::Error::other(format!("{}: {status}: {}", self.name, end_of(&last))))
    }
}

/// Reads to the end in a thread of its own: a caller that waits for the text need not wait for
/// ever.
fn collect(from: Option<impl Read + Send + 'static>) -> Receiver<io::Result<String>> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = from.map_or(Ok(0), |mut from| from.read_to_end(&mut bytes));
        // No one reads it when the measurement has been given up.
        let _ = tell.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    });
    told
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already unless the measurement failed, or it is a server of many; both calls
        // then do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last of what a program said, in one line.
fn end_of(said: &str) -> String {
    let words: Vec<&str> = said.split_whitespace().collect();
    let line = words.join(" ");
    let cut = line.char_indices().rev().nth(SAID).map_or(0, |(at, _)| at);
    line[cut..].to_owned()
}

/// Whether a socket listens at the port on the host of a process, whatever the address.
fn is_listened_at(pid: u32, port: u16) -> io::Result<bool> {
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    // Without IPv6 the second file is not there; without the process neither.
    let sockets = table("tcp").unwrap_or_default() + &table("tcp6").unwrap_or_default();
    let suffix = format!(":{port:04X}");
    Ok(sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some(LISTENS)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_seen_until_it_is_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listened_at(std::process::id(), port).unwrap());
        drop(listener);
        assert!(!is_listened_at(std::process::id(), port).unwrap());
    }

    #[test]
    fn what_a_program_says_comes_back_and_its_failure_is_told() {
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Process::start(0, command).unwrap().end(AT_ITS_ENDS)
        };
        assert_eq!(sh("echo one; echo two >&2").unwrap(), "one\ntwo\n");
        let error = sh("echo no such device; exit 3").unwrap_err().to_string();
        assert_eq!(error, "sh: exit status: 3: no such device");
    }

    #[test]
    fn what_fails_is_tried_again_but_not_for_ever() {
        let mut calls = 0;
        let mut fails = |times| {
            calls = 0;
            tried(|| {
                calls += 1;
                if calls > times { Ok(calls) } else { Err(io::Error::other(calls.to_string())) }
            })
        };
        assert_eq!(fails(TRIES - 1).unwrap(), TRIES);
        assert_eq!(fails(TRIES).unwrap_err().to_string(), TRIES.to_string());
    }

    #[test]
    fn who_does_not_end_in_time_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut process = Process::start(0, command).unwrap();
        let error = process.end(Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn an_error_repeats_the_end_of_what_was_said() {
        let long = "a".repeat(400) + "\n z";
        assert_eq!(end_of(&long).len(), SAID + 1);
        assert!(end_of(&long).ends_with("a z"));
        assert_eq!(end_of(" one\n two "), "one two");
    }
}
