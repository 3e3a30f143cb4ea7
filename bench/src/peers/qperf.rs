//! TCP, by qperf: messages over one connection, whose two sides sleep while nothing is there.

use std::io;
use std::process::Command;

use super::program::pair;
use super::{LOCALHOST, Peer, Test};
use crate::picture::{Dash, Family};

/// The program.
pub const PROGRAM: &str = "qperf";
/// Of the connection by which its two sides meet.
const PORT: u16 = 17_554;
/// Seconds of a measurement: qperf takes no less.
const SECONDS: &str = "1";

/// TCP.
pub struct Qperf;

/// What a client's call ends with; the last word ends the server.
pub fn arguments(test: Test, size: usize) -> Vec<String> {
    let what = if test.is_latency() { "tcp_lat" } else { "tcp_bw" };
    ["-t", SECONDS, "-uu", "-m", &size.to_string(), what, "quit"].map(str::to_owned).to_vec()
}

/// Of a latency half a round trip in us, of a bandwidth GB/s; qperf is asked for ns and bytes a second.
pub fn figure(test: Test, said: &str) -> Option<f64> {
    let (name, unit) = if test.is_latency() { ("latency", 1e3) } else { ("bw", 1e9) };
    let value = said.lines().find_map(|line| {
        let (what, value) = line.split_once('=')?;
        (what.trim() == name).then(|| value.split_whitespace().next()?.parse::<f64>().ok())?
    })?;
    (value > 0.0).then_some(value / unit)
}

impl Peer for Qperf {
    fn name(&self) -> &'static str {
        "TCP"
    }

    fn look(&self) -> (Family, Dash) {
        (Family::Tcp, Dash::Short)
    }

    fn measure(&self, test: Test, sizes: &[usize]) -> io::Result<Option<Vec<f64>>> {
        if !matches!(test, Test::SendLatency | Test::SendBandwidth) {
            return Ok(None);
        }
        let server = || {
            let mut command = Command::new(PROGRAM);
            command.args(["-lp", &PORT.to_string()]);
            command
        };
        let one = |&size: &usize| {
            let client = || {
                let mut command = server();
                command.arg(LOCALHOST).args(arguments(test, size));
                command
            };
            pair(PORT, server, client, |said| figure(test, said))
        };
        sizes.iter().map(one).collect::<io::Result<_>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found() {
        let said = "tcp_lat:\n    latency  =  26504 ns\nquit:\n";
        assert_eq!(figure(Test::SendLatency, said), Some(26.504));
        let said = "tcp_bw:\n    bw  =  1840381952 bytes/sec\nquit:\n";
        assert_eq!(figure(Test::SendBandwidth, said), Some(1.840381952));
        assert_eq!(figure(Test::SendBandwidth, "tcp_lat:\n"), None);
    }
}
