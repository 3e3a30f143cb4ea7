//! Verbena between two hosts beside plain sockets: two network namespaces that a veth joins, at the
//! MTUs of networks. Perftest's programs under `verbena run --wire` and the sockets by turns.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::beside::{by_turns_beside_last, figure};
use crate::floor::{self, Acks, Fastest};
use crate::peers::program::{ends_well, pair};
use crate::peers::{Test, perftest};
use crate::report::{self, Figure};

/// Runs of each: the figures are medians.
const TURNS: usize = 5;
/// The MTU of the veth, and the payload of a full packet then (IBA 1.4 table 38's path MTU).
const MTUS: [(u32, usize); 2] = [(1500, 1024), (9000, 4096)];
const HERE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const NET: &str = "10.99.0.0/24";
/// The end of the veth in either namespace.
pub(crate) const INTERFACE: &str = "bench0";
const DEVICE: &str = "rxe_bench0";
const PORT: u16 = 17_552;
/// Until another process is in a namespace of its own.
const PATIENCE: Duration = Duration::from_secs(5);
const SMALL: usize = 64;

/// Two hosts: the namespace of this process, and that of a child.
pub(crate) struct Hosts {
    there: Child,
}

impl Hosts {
    /// Moves this process to a namespace of its own, and joins another one to it.
    ///
    /// # Errors
    /// When the system refuses namespaces, or ip(8) is not installed.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let there =
            Command::new("unshare").args(["--net", "sleep", "infinity"]).stdin(Stdio::null()).spawn()?;
        let hosts = Self { there };
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let until = Instant::now() + PATIENCE;
        while std::fs::read_link(hosts.namespace())? == own {
            if Instant::now() > until {
                return Err(io::Error::other("no other network namespace"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let pid = hosts.there.id().to_string();
        ip(&["link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", &pid])?;
        let there = ["-t", &pid, "--net", "ip"];
        for (before, address) in [(&[][..], HERE), (&there, THERE)] {
            let address = format!("{address}/24");
            for what in [
                &["link", "set", "lo", "up"][..],
                &["addr", "add", &address, "dev", INTERFACE],
                &["link", "set", INTERFACE, "up"],
            ] {
                if before.is_empty() { ip(what)? } else { run("nsenter", before, what)? }
            }
        }
        Ok(hosts)
    }

    fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.there.id()).into()
    }

    pub(crate) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let (pid, mtu) = (self.there.id().to_string(), mtu.to_string());
        let what = ["link", "set", INTERFACE, "mtu", &mtu];
        ip(&what)?;
        run("nsenter", &["-t", &pid, "--net", "ip"], &what)
    }

    /// What a thread makes in the other namespace.
    fn there<T: Send>(&self, make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let namespace = File::open(self.namespace())?;
        let moved = || {
            // SAFETY: no pointers; the descriptor is open.
            match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
                0 => make(),
                _ => Err(io::Error::last_os_error()),
            }
        };
        thread::scope(|scope| scope.spawn(moved).join())
            .map_err(|_| io::Error::other("a thread in the other namespace panicked"))?
    }

    /// TCP between the two paces by windows (CUBIC), whatever the system's default is.
    ///
    /// # Errors
    /// When ip(8) refuses it.
    pub(crate) fn set_congestion_control(&self) -> io::Result<()> {
        let pid = self.there.id().to_string();
        let route = ["route", "change", NET, "dev", INTERFACE, "congctl", "cubic"];
        ip(&route)?;
        run("nsenter", &["-t", &pid, "--net", "ip"], &route)
    }

    fn udp(&self) -> io::Result<(UdpSocket, UdpSocket)> {
        let here = UdpSocket::bind((HERE, 0))?;
        let there = self.there(|| UdpSocket::bind((THERE, 0)))?;
        here.connect(there.local_addr()?)?;
        there.connect(here.local_addr()?)?;
        Ok((here, there))
    }

    pub(crate) fn tcp(&self) -> io::Result<(TcpStream, TcpStream)> {
        let listener = self.there(|| TcpListener::bind(SocketAddr::from((THERE, 0))))?;
        let here = TcpStream::connect(listener.local_addr()?)?;
        Ok((here, listener.accept()?.0))
    }

    /// A figure of perftest's, by Verbena, where its server is there.
    fn verbena(&self, verbena: &Path, test: Test, size: usize, more: &[&str]) -> io::Result<f64> {
        let count = test.iterations(size);
        self.perftest(verbena, &["--wire"], DEVICE, (test, size, count), more)
    }

    /// Like [`Hosts::verbena`], with options of `verbena run`, on a device, so many messages.
    pub(crate) fn perftest(
        &self,
        verbena: &Path,
        options: &[&str],
        device: &str,
        (test, size, count): (Test, usize, usize),
        more: &[&str],
    ) -> io::Result<f64> {
        let pid = self.there.id().to_string();
        let program = || {
            let mut words = ["run"]
                .into_iter()
                .chain(options.iter().copied())
                .chain(["--", perftest::program(test), "-F", "-d", device])
                .chain(more.iter().copied())
                .map(str::to_owned)
                .collect::<Vec<_>>();
            for (name, value) in [("-p", usize::from(PORT)), ("-s", size), ("-n", count)] {
                words.extend([name.to_owned(), value.to_string()]);
            }
            words
        };
        let server = || {
            let mut command = Command::new("nsenter");
            command.args(["-t", &pid, "--net"]).arg(verbena).args(program());
            command
        };
        let client = || {
            let mut command = Command::new(verbena);
            command.args(program()).arg(THERE.to_string());
            command
        };
        pair(PORT, server, client, |said| perftest::figure(test, size, said))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // It has ended already where that fails.
        let _ = self.there.kill();
        let _ = self.there.wait();
    }
}

fn ip(what: &[&str]) -> io::Result<()> {
    run("ip", &[], what)
}

fn run(program: &str, before: &[&str], what: &[&str]) -> io::Result<()> {
    if ends_well(Command::new(program).args(before).args(what)) {
        Ok(())
    } else {
        Err(io::Error::other(format!("{program} {} {} fails", before.join(" "), what.join(" "))))
    }
}

/// The lines of the table.
///
/// # Errors
/// When the system refuses namespaces, or a program fails again and again.
pub(crate) fn figures(verbena: &Path) -> io::Result<Vec<Figure>> {
    let verbena = std::path::absolute(verbena)?;
    let hosts = Hosts::new()?;
    let udp = || hosts.udp();
    let mut figures = Vec::new();
    for (mtu, payload) in MTUS {
        hosts.set_mtu(mtu)?;
        let mut line = |what: &str, unit, [ours, floor]: [f64; 2], ratio, floor_is| {
            let what = format!("MTU {mtu}: {what}");
            figures.push(Figure { of_pairs: Some(ratio), ..figure(what, unit, ours, floor, floor_is) });
        };
        for (test, sizes) in [
            (Test::WriteBandwidth, &[1 << 10, 4 << 10, 64 << 10, 1 << 20][..]),
            (Test::ReadBandwidth, &[64 << 10, 1 << 20]),
            (Test::SendBandwidth, &[64 << 10, 1 << 20]),
        ] {
            for &size in sizes {
                let fastest = Fastest::find(&udp, size, payload, true)?;
                let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
                    0 => hosts.verbena(&verbena, test, size, &[]),
                    _ => fastest.measure(),
                })?;
                let what = format!("{} ({})", report::bytes(size), perftest::program(test));
                let floor = "UDP with GSO and GRO, the same datagrams, copied and with a CRC at both ends";
                line(&what, "GB/s", medians, ratio, floor);
            }
        }
        let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
            0 => hosts.verbena(&verbena, Test::SendLatency, SMALL, &[]),
            _ => floor::ping_pong(&udp, Acks::Sent),
        })?;
        let what = "64-byte SEND, half round trip, both ends spin (ib_send_lat)";
        line(what, "us", medians, ratio, "UDP, the same datagrams (80 bytes, and 20 for the ACK)");
        let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
            0 => hosts.verbena(&verbena, Test::SendLatency, SMALL, &["-e"]),
            _ => hosts.tcp().and_then(floor::tcp_ping_pong),
        })?;
        let what = "64-byte SEND, half round trip, both ends sleep (ib_send_lat -e)";
        line(what, "us", medians, ratio, "TCP, as many bytes, both ends sleep");
    }
    Ok(figures)
}
