//! libfabric's providers within one host, by fi_pingpong, whose two sides answer each other: its
//! bandwidth is that of one message at a time.

use std::io;
use std::process::Command;

use super::program::{ends_well, pair};
use super::{LOCALHOST, Peer, Test};
use crate::picture::{Dash, Family};

/// The program.
pub(super) const PROGRAM: &str = "fi_pingpong";
/// Of the connection by which its two sides meet.
const PORT: u16 = 17_553;

/// A provider of libfabric's.
pub(super) struct Libfabric {
    /// What the tables call it.
    pub name: &'static str,
    dash: Dash,
    /// The options that choose it; the first two are those of fi_info, too.
    options: &'static [&'static str],
}

/// By memory that both map, and process_vm_readv(2) for what is large.
pub(super) const SHM: Libfabric =
    Libfabric { name: "libfabric shm", dash: Dash::Solid, options: &["-p", "shm", "-e", "rdm"] };
/// By sockets.
pub(super) const TCP: Libfabric =
    Libfabric { name: "libfabric tcp", dash: Dash::Short, options: &["-p", "tcp", "-d", "lo", "-e", "msg"] };

/// Whether this machine has the provider.
pub(super) fn has(libfabric: &Libfabric) -> bool {
    ends_well(Command::new("fi_info").args(&libfabric.options[..2]))
}

/// The mean of half round trips in us, from the one line of a table.
fn half_round_trip(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("bytes"));
    let head = lines.next()?.split_whitespace().position(|word| word == "usec/xfer")?;
    let value: f64 = lines.next()?.split_whitespace().nth(head)?.parse().ok()?;
    (value > 0.0).then_some(value)
}

impl Peer for Libfabric {
    fn name(&self) -> &'static str {
        self.name
    }

    fn look(&self) -> (Family, Dash) {
        (Family::Libfabric, self.dash)
    }

    fn measure(&self, test: Test, sizes: &[usize]) -> io::Result<Option<Vec<f64>>> {
        if !matches!(test, Test::SendLatency | Test::SendBandwidth) {
            return Ok(None);
        }
        let one = |&size: &usize| {
            let command = |port: &str, to: Option<&str>| {
                let mut command = Command::new(PROGRAM);
                command.args([port, &PORT.to_string()]).args(self.options);
                // Of both tests, for both are one.
                let iterations = Test::SendLatency.iterations(size);
                command.args(["-S", &size.to_string(), "-I", &iterations.to_string()]).args(to);
                command
            };
            let took =
                pair(PORT, || command("-B", None), || command("-P", Some(LOCALHOST)), half_round_trip)?;
            Ok(if test.is_latency() { took } else { size as f64 / took / 1e3 })
        };
        sizes.iter().map(one).collect::<io::Result<_>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_half_round_trips_is_found() {
        let said = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    1m      50      =50      100m        0.06s   1710.87     612.89       0.00\n";
        assert_eq!(half_round_trip(said), Some(612.89));
        assert_eq!(
            half_round_trip("bytes   #sent   #ack     total       time     MB/sec    usec/xfer\n"),
            None
        );
    }
}
