//! Runs `rdma_bench.c`, an RDMA program like any other, on Verbena: a server and a client process on 127.0.0.1.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The compiled program and the command that puts it on Verbena.
pub struct Program {
    verbena: PathBuf,
    binary: PathBuf,
}

impl Program {
    /// Compiles `rdma_bench.c` against the installed headers with `cc`, linked to -libverbs and -lrdmacm as anyone would.
    ///
    /// # Errors
    /// When there is no compiler, or libibverbs-dev and librdmacm-dev are not installed.
    pub fn compile(verbena: &Path, sources: &Path) -> io::Result<Self> {
        let binary = std::env::temp_dir().join(format!("verbena-rdma-bench-{}", std::process::id()));
        let program = Self { verbena: std::path::absolute(verbena)?, binary };
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-o"])
            .arg(&program.binary)
            .arg(sources.join("rdma_bench.c"))
            .args(["-libverbs", "-lrdmacm"])
            .status()?;
        if status.success() {
            Ok(program)
        } else {
            Err(io::Error::other(
                "rdma_bench.c does not compile: libibverbs-dev and librdmacm-dev are needed",
            ))
        }
    }

    fn start(&self, role: &str, what: &[&str]) -> io::Result<Child> {
        Command::new(&self.verbena)
            .args(["run", "--"])
            .arg(&self.binary)
            .arg(role)
            .args(what)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    }

    /// One measurement: the number the client prints last, after the server has verified what came.
    ///
    /// # Errors
    /// When one of the two processes fails.
    pub fn measure(&self, what: &[&str]) -> io::Result<f64> {
        let mut server = Ended(self.start("server", what)?);
        let mut line = String::new();
        if let Some(out) = server.0.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        if line.trim() != "listening" {
            return Err(io::Error::other(format!("the server of {what:?} does not listen")));
        }
        let output = self.start("client", what)?.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.lines().last().and_then(|l| l.trim().parse().ok());
        let served = server.0.wait()?;
        match number {
            Some(n) if output.status.success() && served.success() => Ok(n),
            _ => {
                Err(io::Error::other(format!("{what:?}: client {}, server {served}: {text}", output.status)))
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Nothing to do about a file in the temporary directory that cannot be removed.
        let _ = std::fs::remove_file(&self.binary);
    }
}

/// A child that does not outlive its measurement.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended already unless the measurement failed; both calls then do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
