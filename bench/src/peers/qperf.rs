//! TCP and UDP, by qperf: messages over one connection, or datagrams, whose two sides sleep while
//! nothing is there.

use std::io;
use std::process::Command;

use super::program::pair;
use super::{LOCALHOST, Peer, Test};
use crate::picture::{Dash, Family};

/// The program.
pub(crate) const PROGRAM: &str = "qperf";
/// Of the connection by which its two sides meet.
const PORT: u16 = 17_554;
/// Seconds of a measurement: qperf takes no less.
const SECONDS: &str = "1";

/// TCP.
pub(crate) struct Qperf;

/// What carries the bytes.
#[derive(Clone, Copy)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// What a client's call ends with; the last word ends the server.
pub(crate) fn arguments(protocol: Protocol, test: Test, size: usize) -> Vec<String> {
    let what = match (protocol, test.is_latency()) {
        (Protocol::Tcp, true) => "tcp_lat",
        (Protocol::Tcp, false) => "tcp_bw",
        (Protocol::Udp, true) => "udp_lat",
        (Protocol::Udp, false) => "udp_bw",
    };
    ["-t", SECONDS, "-uu", "-m", &size.to_string(), what, "quit"].map(str::to_owned).to_vec()
}

/// Of a latency half a round trip in us, of a bandwidth GB/s, of UDP of what was received; qperf is
/// asked for ns and bytes a second.
pub(crate) fn figure(protocol: Protocol, test: Test, said: &str) -> Option<f64> {
    let (name, unit) = match (protocol, test.is_latency()) {
        (_, true) => ("latency", 1e3),
        (Protocol::Tcp, false) => ("bw", 1e9),
        (Protocol::Udp, false) => ("recv_bw", 1e9),
    };
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
                command.arg(LOCALHOST).args(arguments(Protocol::Tcp, test, size));
                command
            };
            pair(PORT, server, client, |said| figure(Protocol::Tcp, test, said))
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
        assert_eq!(figure(Protocol::Tcp, Test::SendLatency, said), Some(26.504));
        let said = "tcp_bw:\n    bw  =  1840381952 bytes/sec\nquit:\n";
        assert_eq!(figure(Protocol::Tcp, Test::SendBandwidth, said), Some(1.840381952));
        assert_eq!(figure(Protocol::Tcp, Test::SendBandwidth, "tcp_lat:\n"), None);
        let said = "udp_bw:\n    send_bw  =  45252990 bytes/sec\n    recv_bw  =  40714600 bytes/sec\nquit:\n";
        assert_eq!(figure(Protocol::Udp, Test::SendBandwidth, said), Some(0.0407146));
    }
}
