//! UCX's transports within one host, by ucx_perftest: one pair of processes for all sizes of a
//! test, by a file with a line a size.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use super::program::pair;
use super::{LOCALHOST, MIB, Peer, Test};
use crate::picture::{Dash, Family};

/// The program.
pub(crate) const PROGRAM: &str = "ucx_perftest";
const PORT: u16 = 17_552;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Path {
    /// Memory that both map, by shm_open(3).
    Posix,
    /// Shared memory for messages, where the program's memory is its own: so UCX's WRITEs and READs
    /// are messages, too.
    Heap,
    /// process_vm_readv(2) for what is large; small messages as with `Posix`.
    Cma,
    /// Sockets.
    Tcp,
}

/// UCX.
pub(crate) struct Ucx(pub Path);

impl Ucx {
    fn transports(&self) -> &'static str {
        match self.0 {
            Path::Posix | Path::Heap => "posix,self",
            Path::Cma => "posix,cma,self",
            Path::Tcp => "tcp,self",
        }
    }

    /// The test's name and how it is told which transport to take. With memory of its own making
    /// UCX's WRITEs and READs never take cma, for it maps that memory at both ends: so cma is
    /// measured by itself.
    fn test(&self, test: Test) -> &'static str {
        match (test, self.0) {
            (Test::SendLatency, _) => "tag_lat",
            (Test::SendBandwidth, _) => "tag_bw",
            (Test::WriteLatency, Path::Cma) => "put_lat -x cma -d memory -D zcopy",
            (Test::WriteBandwidth, Path::Cma) => "put_bw -x cma -d memory -D zcopy",
            (Test::ReadBandwidth, Path::Cma) => "get -x cma -d memory -D zcopy",
            (Test::WriteLatency, _) => "ucp_put_lat",
            (Test::WriteBandwidth, _) => "ucp_put_bw",
            (Test::ReadBandwidth, _) => "ucp_get",
        }
    }
}

/// A line a size, each with how many messages; the name that stands first comes back in the result.
fn batch(test: Test, name: &str, sizes: &[usize], count: impl Fn(usize) -> usize) -> String {
    let outstanding = if test.is_latency() { "" } else { " -O 16" };
    sizes.iter().fold(String::new(), |mut text, &size| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{size} -t {name} -s {size} -n {}{outstanding}", count(size));
        text
    })
}

/// Messages of which the mean is asked for: as many as a round of `rdma_bench` has, so that as
/// often something comes between.
const OF_A_ROUND: usize = 20_000;

/// Where the numbers of a result stand: of a latency the median and the mean of all, of a bandwidth
/// that of all.
const MEDIAN_LATENCY: usize = 2;
const MEAN_LATENCY: usize = 4;
const BANDWIDTH: usize = 6;

/// Of each size the number in this column, of a latency in us, of a bandwidth in GB/s: UCX's "MB"
/// is a MiB. `None` unless all are there.
fn figures(column: usize, sizes: &[usize], said: &str) -> Option<Vec<f64>> {
    let one = |size: &usize| {
        let size = size.to_string();
        let found = said.lines().map(|line| line.split(',').collect::<Vec<_>>()).find(|f| f[0] == size)?;
        let value: f64 = found.get(column)?.trim().parse().ok()?;
        (value > 0.0).then_some(if column == BANDWIDTH { value * MIB / 1e9 } else { value })
    };
    sizes.iter().map(one).collect()
}

/// A file that does not outlive its measurement.
struct Batch(PathBuf);

impl Drop for Batch {
    fn drop(&mut self) {
        // Nothing to do about a file in the temporary directory that cannot be removed.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Peer for Ucx {
    fn name(&self) -> &'static str {
        match self.0 {
            Path::Posix => "UCX posix",
            Path::Heap => "UCX posix, memory from malloc",
            Path::Cma => "UCX cma",
            Path::Tcp => "UCX tcp",
        }
    }

    fn look(&self) -> (Family, Dash) {
        let dash = match self.0 {
            Path::Posix | Path::Heap => Dash::Solid,
            Path::Cma => Dash::Long,
            Path::Tcp => Dash::Short,
        };
        (Family::Ucx, dash)
    }

    fn measure(&self, test: Test, sizes: &[usize]) -> io::Result<Option<Vec<f64>>> {
        let column = if test.is_latency() { MEDIAN_LATENCY } else { BANDWIDTH };
        self.run(test, sizes, |size| test.iterations(size), column).map(Some)
    }
}

impl Ucx {
    /// Half a round trip, us, the mean: beside `rdma_bench` and the crate's programs, which say
    /// theirs.
    ///
    /// # Errors
    /// When a program fails, again and again.
    pub(crate) fn mean(&self, test: Test, size: usize) -> io::Result<f64> {
        self.run(test, &[size], |_| OF_A_ROUND, MEAN_LATENCY).map(|figures| figures[0])
    }

    fn run(
        &self,
        test: Test,
        sizes: &[usize],
        count: impl Fn(usize) -> usize,
        column: usize,
    ) -> io::Result<Vec<f64>> {
        let batches = Batch(std::env::temp_dir().join(format!("verbena-ucx-{}", std::process::id())));
        std::fs::write(&batches.0, batch(test, self.test(test), sizes, count))?;
        let command = |to: Option<&str>| {
            let mut command = Command::new(PROGRAM);
            command.env("UCX_TLS", self.transports()).env("UCX_NET_DEVICES", "lo");
            if self.0 == Path::Heap {
                command.env("UCX_ALLOC_PRIO", "heap");
            }
            command.args(to).args(["-f", "-v", "-p", &PORT.to_string(), "-b"]).arg(&batches.0);
            command
        };
        pair(PORT, || command(None), || command(Some(LOCALHOST)), |said| figures(column, sizes, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "batch,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
        64,5000,0.160,0.165,0.165,370.37,370.37,6068148,6068148\n65536, 100,8.331,8.305,8.305,7525.31,1000.00,120405,120405\n";

    #[test]
    fn the_figures_of_all_sizes_are_found() {
        assert_eq!(figures(MEDIAN_LATENCY, &[64, 65536], SAID), Some(vec![0.16, 8.331]));
        assert_eq!(figures(MEAN_LATENCY, &[64], SAID), Some(vec![0.165]));
        assert_eq!(figures(BANDWIDTH, &[65536], SAID), Some(vec![1.048576]));
        assert_eq!(figures(MEDIAN_LATENCY, &[64, 128], SAID), None);
    }

    #[test]
    fn a_batch_has_a_line_a_size() {
        let lines = batch(Test::SendBandwidth, "tag_bw", &[64, 4 << 20], |size| (1 << 30) / size.max(65_536));
        assert_eq!(lines, "64 -t tag_bw -s 64 -n 16384 -O 16\n4194304 -t tag_bw -s 4194304 -n 256 -O 16\n");
    }
}
