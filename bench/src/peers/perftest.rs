//! Verbena, by perftest's programs under `verbena run`: one pair of processes for each figure.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use super::program::{installed, pair};
use super::{LOCALHOST, MIB, Peer, Test};
use crate::picture::{Dash, Family};

const PORT: u16 = 17_551;
/// The device on the loopback interface.
const DEVICE: &str = "rxe_lo";

/// Which way packets go.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Path {
    /// Memory that both map: what `verbena run` does.
    Memory,
    /// Shared memory where the system refuses copies between processes' memory: all goes through a
    /// ring, in packets.
    Refused,
    /// Sockets.
    Network,
}

/// Verbena.
pub(crate) struct Perftest {
    /// The command.
    pub verbena: PathBuf,
    /// How it is run.
    pub path: Path,
}

/// The program of a test.
pub(crate) fn program(test: Test) -> &'static str {
    match test {
        Test::SendLatency => "ib_send_lat",
        Test::WriteLatency => "ib_write_lat",
        Test::SendBandwidth => "ib_send_bw",
        Test::WriteBandwidth => "ib_write_bw",
        Test::ReadBandwidth => "ib_read_bw",
    }
}

/// Whether its programs are there.
pub(crate) fn is_installed() -> bool {
    installed("ib_send_lat")
}

/// Below so many bytes the messages a second have more digits than the bytes a second.
const SMALL: usize = 4096;

/// The figure of a table: of a latency's half round trip the median in us, of a bandwidth the mean
/// in GB/s. perftest's "MB" is a MiB. Where the clock's rate was unsteady its numbers mean nothing.
pub(crate) fn figure(test: Test, size: usize, said: &str) -> Option<f64> {
    if said.contains("Correlation coefficient") {
        return None;
    }
    let first = size.to_string();
    let numbers =
        said.lines().filter(|line| line.split_whitespace().next() == Some(&first)).find_map(|line| {
            line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()
        })?;
    let value = match (test.is_latency(), size < SMALL) {
        // bytes, iterations, least, most, typical...
        (true, _) => *numbers.get(4)?,
        // bytes, iterations, peak, mean, millions of messages a second
        (false, true) => *numbers.get(4)? * size as f64 / 1e3,
        (false, false) => *numbers.get(3)? * MIB / 1e9,
    };
    (value > 0.0).then_some(value)
}

impl Peer for Perftest {
    fn name(&self) -> &'static str {
        match self.path {
            Path::Memory => "Verbena, memory",
            Path::Refused => "Verbena, copies refused",
            Path::Network => "Verbena, network",
        }
    }

    fn look(&self) -> (Family, Dash) {
        let dash = if self.path == Path::Network { Dash::Short } else { Dash::Solid };
        (Family::Verbena, dash)
    }

    fn measure(&self, test: Test, sizes: &[usize]) -> io::Result<Option<Vec<f64>>> {
        let one = |&size: &usize| self.run(test, size, test.iterations(size), &[]);
        sizes.iter().map(one).collect::<io::Result<_>>().map(Some)
    }
}

impl Perftest {
    /// Half a round trip of messages, us, where both sides sleep until a completion event.
    ///
    /// # Errors
    /// When a program fails, again and again.
    pub(crate) fn by_events(&self, size: usize, iterations: usize) -> io::Result<f64> {
        self.run(Test::SendLatency, size, iterations, &["-e"])
    }

    /// GB/s of so many queue pairs in turn, each of which has memory of its own.
    ///
    /// # Errors
    /// When a program fails, again and again.
    pub(crate) fn by_queue_pairs(&self, test: Test, size: usize, count: usize) -> io::Result<f64> {
        let (each, count) = (test.iterations(size) / count, count.to_string());
        self.run(test, size, each, &["-q", &count])
    }

    fn run(&self, test: Test, size: usize, iterations: usize, more: &[&str]) -> io::Result<f64> {
        let this = std::env::current_exe()?;
        let verbena = || match self.path {
            Path::Refused => {
                let mut command = Command::new(&this);
                command.arg("refused").arg(&self.verbena);
                command
            }
            Path::Memory | Path::Network => Command::new(&self.verbena),
        };
        let command = |to: Option<&str>| {
            let mut command = verbena();
            let options: &[&str] = if self.path == Path::Network { &["--wire"] } else { &[] };
            command.arg("run").args(options).args(["--", program(test), "-F", "-d", DEVICE]).args(more);
            let numbers = [("-p", usize::from(PORT)), ("-s", size), ("-n", iterations)];
            numbers.iter().for_each(|(name, value)| _ = command.args([*name, &value.to_string()]));
            command.args(to);
            command
        };
        pair(PORT, || command(None), || command(Some(LOCALHOST)), |said| figure(test, size, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_of_a_table_is_found() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       64      5000          0.75           4062.20      0.95     \t       2.33  5.93  31.46  82.82\n";
        assert_eq!(figure(Test::SendLatency, 64, latency), Some(0.95));
        assert_eq!(figure(Test::SendLatency, 8, latency), None);
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         65536      1000             0.00               2000.00\t\t   0.036455\n";
        assert_eq!(figure(Test::ReadBandwidth, 65536, bandwidth), Some(2.097152));
        let small = " 64   1000   0.00   0.00   0.500000\n";
        assert_eq!(figure(Test::SendBandwidth, 64, small), Some(0.032));
    }

    #[test]
    fn numbers_of_an_unsteady_clock_are_not_taken() {
        let said = "Correlation coefficient r^2: 0.7 < 0.9\n 64 5000 0.75 4062.20 0.95 2.33\n";
        assert_eq!(figure(Test::SendLatency, 64, said), None);
    }
}
