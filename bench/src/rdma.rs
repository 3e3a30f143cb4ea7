//! Runs `rdma_bench.c` and `rdma_connections.c`, RDMA programs like any other, on Verbena: a server
//! and client processes on 127.0.0.1.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Options of `verbena run` for what stands beside sockets.
pub(crate) const BY_NETWORK: &[&str] = &["--wire"];

/// A compiled program and the command that puts it on Verbena.
pub(crate) struct Program {
    verbena: PathBuf,
    binary: PathBuf,
}

impl Program {
    /// The command that runs it.
    pub(crate) fn verbena(&self) -> &Path {
        &self.verbena
    }

    /// Where it is.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Compiles `name.c` against the installed headers with `cc`, linked to `libraries`, -libverbs
    /// and -lrdmacm as anyone would.
    ///
    /// # Errors
    /// When there is no compiler, or libibverbs-dev and librdmacm-dev are not installed.
    pub(crate) fn compile(
        verbena: &Path,
        sources: &Path,
        name: &str,
        libraries: &[&str],
    ) -> io::Result<Self> {
        let binary = std::env::temp_dir().join(format!("verbena-{name}-{}", std::process::id()));
        let program = Self { verbena: std::path::absolute(verbena)?, binary };
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-o"])
            .arg(&program.binary)
            .arg(sources.join(name).with_extension("c"))
            .args(libraries)
            .args(["-libverbs", "-lrdmacm"])
            .status()?;
        if status.success() {
            Ok(program)
        } else {
            Err(io::Error::other(format!(
                "{name}.c does not compile: libibverbs-dev, librdmacm-dev and librpma-dev are needed"
            )))
        }
    }

    /// Starts it with these arguments.
    ///
    /// # Errors
    /// When it can not be started.
    pub(crate) fn start(&self, what: &[&str]) -> io::Result<Running> {
        self.start_with(&[], what)
    }

    /// The pair of programs, with options of `verbena run`.
    ///
    /// # Errors
    /// When it can not be started.
    pub(crate) fn start_with(&self, options: &[&str], what: &[&str]) -> io::Result<Running> {
        let mut command = Command::new(&self.verbena);
        command.arg("run").args(options).arg("--").arg(&self.binary).args(what);
        Running::start(&mut command)
    }

    /// One measurement of `rdma_bench`: the number the client prints last, after the server has
    /// verified what came.
    ///
    /// # Errors
    /// When one of the two processes fails.
    pub(crate) fn measure(&self, what: &[&str]) -> io::Result<f64> {
        self.measure_with(&[], what)
    }

    /// One program, with options of `verbena run`.
    ///
    /// # Errors
    /// When one of the two processes fails.
    pub(crate) fn measure_with(&self, options: &[&str], what: &[&str]) -> io::Result<f64> {
        let server = self.start_with(options, &[&["server"], what].concat())?;
        measured(server, || self.start_with(options, &[&["client"], what].concat()))
    }

    /// Connections a second of `rdma_connections` with options of `verbena run`: as many client
    /// processes as `clients`, each of which makes `each`, one after the other.
    ///
    /// # Errors
    /// When one of the processes fails.
    pub(crate) fn connects(&self, options: &[&str], clients: usize, each: usize) -> io::Result<f64> {
        let mut server = self.start_with(options, &["server", &(clients * each).to_string()])?;
        server.expect("listening")?;
        let each = each.to_string();
        let client = |_| self.start_with(options, &["client", &each]);
        let mut running = (0..clients).map(client).collect::<io::Result<Vec<Running>>>()?;
        running.iter_mut().try_for_each(|client| client.expect("ready"))?;
        let begin = Instant::now();
        running.iter_mut().try_for_each(Running::go)?;
        running.iter_mut().try_for_each(|client| client.end().map(drop))?;
        let took = begin.elapsed();
        server.end()?;
        Ok((clients * each.parse::<usize>().unwrap_or(0)) as f64 / took.as_secs_f64())
    }

    /// What each of `count` connections that stand at once takes of the client's and of the
    /// server's resident memory, in bytes.
    ///
    /// # Errors
    /// When one of the two processes fails.
    pub(crate) fn held(&self, count: usize) -> io::Result<(f64, f64)> {
        let mut server = self.start(&["server", &(count + 1).to_string()])?;
        server.expect("listening")?;
        let mut client = self.start(&["hold", &count.to_string()])?;
        client.expect("ready")?;
        client.go()?;
        Ok((client.number()?, server.number()?))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Nothing to do about a file in the temporary directory that cannot be removed.
        let _ = std::fs::remove_file(&self.binary);
    }
}

/// The number that a client prints last; its server, which must end well, says when it listens.
///
/// # Errors
/// When one of the two fails.
pub(crate) fn measured(mut server: Running, client: impl FnOnce() -> io::Result<Running>) -> io::Result<f64> {
    server.expect("listening")?;
    let number = client()?.number()?;
    server.end()?;
    Ok(number)
}

/// A process that does not outlive its measurement.
pub(crate) struct Running {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// When it can not be started.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self { child, output })
    }

    /// Waits for a line.
    ///
    /// # Errors
    /// When it says something else.
    pub(crate) fn expect(&mut self, wanted: &str) -> io::Result<()> {
        let mut line = String::new();
        if let Some(output) = &mut self.output {
            output.read_line(&mut line)?;
        }
        if line.trim() == wanted {
            Ok(())
        } else {
            Err(io::Error::other(format!("{line:?} instead of {wanted:?}")))
        }
    }

    /// Lets it begin, or go on.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn go(&mut self) -> io::Result<()> {
        self.tell("")
    }

    /// Tells it a line.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn tell(&mut self, line: &str) -> io::Result<()> {
        match &mut self.child.stdin {
            Some(input) => writeln!(input, "{line}"),
            None => Ok(()),
        }
    }

    /// The numbers of its next line.
    ///
    /// # Errors
    /// When it fails, or the line has others.
    pub(crate) fn numbers<const N: usize>(&mut self) -> io::Result<[f64; N]> {
        let mut line = String::new();
        if let Some(output) = &mut self.output {
            output.read_line(&mut line)?;
        }
        let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
        numbers.ok_or_else(|| io::Error::other(format!("{line:?} instead of {N} numbers")))
    }

    /// The rest of what it prints, when it has ended well.
    ///
    /// # Errors
    /// When it has not.
    pub(crate) fn end(&mut self) -> io::Result<String> {
        let mut text = String::new();
        if let Some(output) = &mut self.output {
            output.read_to_string(&mut text)?;
        }
        let status = self.child.wait()?;
        if status.success() { Ok(text) } else { Err(io::Error::other(format!("{status}: {text}"))) }
    }

    /// The number it prints last.
    ///
    /// # Errors
    /// When it fails, or prints none.
    pub(crate) fn number(&mut self) -> io::Result<f64> {
        let text = self.end()?;
        let number = text.lines().last().and_then(|line| line.trim().parse().ok());
        number.ok_or_else(|| io::Error::other(format!("no number: {text:?}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless the measurement failed; both calls then do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
