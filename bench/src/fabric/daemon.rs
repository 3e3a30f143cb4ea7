//! A `verbena fabric run` of this run, what it says, and the subnet managers of its hosts.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How often a log is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// Until a fabric listens, and until it has ended.
const AT_ITS_ENDS: Duration = Duration::from_secs(60);
/// What a fabric says once it has read its file.
const IS_READ: &str = "Programs: ";

/// A fabric that runs.
pub(super) struct Fabric {
    verbena: PathBuf,
    name: String,
    child: Child,
    said: Receiver<String>,
    /// Seconds until it said that it has read its file.
    pub(super) read: f64,
}

/// Memory of the process, in MB.
pub(super) struct Memory {
    /// All that is resident.
    pub(super) resident: f64,
    /// Of that the pages of the plane.
    pub(super) plane: f64,
}

impl Fabric {
    /// Starts one, with these words behind `verbena fabric run`.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen.
    pub(super) fn start(verbena: &Path, what: &[&str]) -> io::Result<Self> {
        let name = format!("bench-{}", std::process::id());
        let began = Instant::now();
        let mut command = Command::new(verbena);
        command.args(["fabric", "run"]).args(what).args(["--name", &name]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = child.stdout.take().map(BufReader::new);
        let (tell, said) = mpsc::channel();
        thread::spawn(move || {
            let lines = lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
            // The measurement may have ended meanwhile.
            lines.for_each(|line| _ = tell.send(line));
        });
        let mut fabric = Self { verbena: verbena.to_owned(), name, child, said, read: 0.0 };
        fabric.says(IS_READ, AT_ITS_ENDS)?;
        fabric.read = began.elapsed().as_secs_f64();
        Ok(fabric)
    }

    /// The next line with this text.
    ///
    /// # Errors
    /// When none comes in this time.
    pub(super) fn says(&self, text: &str, within: Duration) -> io::Result<String> {
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let late = |_| io::Error::other(format!("the fabric does not say {text:?}"));
            let line = self.said.recv_timeout(left).map_err(late)?;
            if line.contains(text) {
                return Ok(line);
            }
        }
    }

    /// What a command of `verbena fabric` prints.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn ask(&self, words: &[&str]) -> io::Result<String> {
        let mut command = Command::new(&self.verbena);
        let output = command.arg("fabric").args(words).args(["--fabric", &self.name]).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// A number of `verbena fabric status`.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn status(&self, of: &str) -> io::Result<f64> {
        let text = self.ask(&["status"])?;
        let value = text.lines().find_map(|line| line.strip_prefix(of)?.trim().parse().ok());
        value.ok_or_else(|| io::Error::other(format!("verbena fabric status has no {of:?}")))
    }

    /// The memory of its process now.
    ///
    /// # Errors
    /// When /proc does not tell.
    pub(super) fn memory(&self) -> io::Result<Memory> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let missing = || io::Error::other("/proc/PID/status has no such line");
        let [resident, plane] = [of("VmRSS:"), of("RssShmem:")].map(|kib| kib.map(|kib| kib * 1024.0 / 1e6));
        Ok(Memory { resident: resident.ok_or_else(missing)?, plane: plane.ok_or_else(missing)? })
    }

    /// A program on a host.
    pub(super) fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.verbena);
        command.args(["run", "--on", host, "--fabric", &self.name, "--"]).args(words);
        command
    }

    /// Starts OpenSM on the first host; with the seconds until its subnet was up.
    ///
    /// # Errors
    /// When it does not come up in this time.
    pub(super) fn opensm(&self, within: Duration) -> io::Result<(OpenSm, f64)> {
        let files = ["conf", "log"].map(|kind| std::env::temp_dir().join(format!("{}.{kind}", self.name)));
        let _ = fs::remove_file(&files[1]);
        fs::write(&files[0], "transaction_timeout 2000\nforce_log_flush TRUE\n")?;
        let [conf, log] = files.each_ref().map(|file| file.to_string_lossy().into_owned());
        let began = Instant::now();
        let mut command = self.on("host0", &["opensm", "-F", &conf, "-s", "0", "-f", &log]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut opensm = OpenSm { child, files };
        while !fs::read(&opensm.files[1]).is_ok_and(|log| is_up(&log)) {
            let has_ended = opensm.child.try_wait()?.is_some();
            if has_ended || began.elapsed() > within {
                return Err(io::Error::other("OpenSM does not bring the subnet up"));
            }
            thread::sleep(LOOK);
        }
        Ok((opensm, began.elapsed().as_secs_f64()))
    }
}

fn is_up(log: &[u8]) -> bool {
    log.windows(9).any(|window| window == b"SUBNET UP")
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.ask(&["stop"]).is_err() {
            // It has ended, or does not listen.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// An OpenSM that runs.
pub(super) struct OpenSm {
    child: Child,
    /// Configuration and log.
    files: [PathBuf; 2],
}

impl Drop for OpenSm {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.files.iter().for_each(|file| _ = fs::remove_file(file));
    }
}
