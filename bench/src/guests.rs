//! Verbena beside the kernel's rdma_rxe, its siw and sockets, by the same programs between the same
//! two guests of conformance/kernel-peer, and within one of two processors. A guest is a user mode
//! kernel where one can be built: its system calls and page faults are dear, code between them runs
//! at the machine's speed. Elsewhere QEMU emulates processors. In either only the ratios say what a
//! machine does.
//!
//! A kernel that has rdma_rxe holds the UDP port of RoCEv2: one whose module is loaded at all its
//! addresses, a newer one while it has such a device. So while Verbena is measured there is
//! neither. QEMU translates code for the address it is at, and a process has its libraries
//! elsewhere each time: some 80 of the 140 ms that 100 connections of a new program took went into
//! code translated anew. No machine does that, so programs lie at the same addresses each time, for
//! either side.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::beside::{by_turns, figure, median};
use crate::peers::qperf::Protocol;
use crate::peers::{Test, perftest, program, qperf};
use crate::rdma::Program;
use crate::report::Figure;

const TURNS: usize = 3;
/// Of connections, which vary more.
const CONNECTION_TURNS: usize = 7;
/// The network namespace of the guests' bridge.
const NETNS: &str = "verbena-bench";
/// Names, addresses and processors.
const CLIENT: Guest = Guest { name: "A", ip: "10.77.0.2", processors: "1" };
const SERVER: Guest = Guest { name: "B", ip: "10.77.0.3", processors: "1" };
/// That with both ends in it.
const BOTH: Guest = Guest { name: "C", ip: "10.77.0.4", processors: "2" };
/// MiB of memory: what is given to a guest is there, too.
const MEMORY: &str = "1024";
/// Where Verbena is in a guest.
const OURS: &str = "/ours";
const PORT: u16 = 17_551;
/// Seconds that a program of a guest may take.
const PATIENCE: &str = "90";
/// Connections that cmtime makes at once.
const CONNECTIONS: usize = 100;
/// Connections that are made one after the other, by a program that lies there in a guest.
const ONE_BY_ONE: usize = 200;
const CONNECTOR: &str = "/bin/rdma_connections";
/// What its server has said.
const CONNECTOR_SAID: &str = "/tmp/rdma_connections";
const RXE: &str = "the kernel's rdma_rxe at both ends, by the same program";
/// What perftest measures: messages of how many bytes, and how many of them.
const MEASURED: [(&str, Test, usize, usize); 8] = [
    ("64-byte SEND, half round trip (ib_send_lat)", Test::SendLatency, 64, 500),
    ("8-byte WRITE, half round trip, both watch their memory (ib_write_lat)", Test::WriteLatency, 8, 500),
    ("64 KiB WRITEs (ib_write_bw)", Test::WriteBandwidth, 64 << 10, 200),
    ("1 MiB WRITEs (ib_write_bw)", Test::WriteBandwidth, 1 << 20, 40),
    ("64 KiB READs (ib_read_bw)", Test::ReadBandwidth, 64 << 10, 200),
    ("1 MiB READs (ib_read_bw)", Test::ReadBandwidth, 1 << 20, 40),
    ("64 KiB SENDs (ib_send_bw)", Test::SendBandwidth, 64 << 10, 200),
    ("1 MiB SENDs (ib_send_bw)", Test::SendBandwidth, 1 << 20, 40),
];
/// Bytes of a message in a packet between the guests, whose path has an MTU of 1,024; and those of
/// BTH and ICRC.
const OF_A_PACKET: usize = 1024;
const HEADERS: usize = 16;

#[derive(Clone, Copy)]
struct Guest {
    name: &'static str,
    ip: &'static str,
    processors: &'static str,
}

/// Where a server and its client run.
#[derive(Clone, Copy)]
struct Ends {
    server: Guest,
    client: Guest,
}

/// What carries the bytes.
#[derive(Clone, Copy, PartialEq)]
enum Stack {
    Verbena,
    Kernel,
}

#[derive(Clone, Copy, PartialEq)]
enum Wire {
    Roce,
    Iwarp,
}

/// Devices of one kind at both ends.
#[derive(Clone, Copy)]
struct Devices(Stack, Wire);

impl Devices {
    /// How a program is called that goes by them.
    fn command(self, program: &str) -> String {
        match self {
            Self(Stack::Verbena, Wire::Roce) => format!("{OURS}/verbena run -- {program}"),
            Self(Stack::Verbena, Wire::Iwarp) => format!("{OURS}/verbena run --iwarp -- {program}"),
            Self(Stack::Kernel, _) => program.to_owned(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self(Stack::Verbena, Wire::Roce) => "rxe_eth0",
            Self(Stack::Verbena, Wire::Iwarp) => "siw_eth0",
            Self(Stack::Kernel, Wire::Roce) => "rxe0",
            Self(Stack::Kernel, Wire::Iwarp) => "siw0",
        }
    }

    /// What else perftest is told: only the connection manager connects queue pairs of iWARP.
    fn options(self) -> &'static str {
        if self.1 == Wire::Iwarp { "-R" } else { "" }
    }
}

/// Guests, which end with this.
struct Guests {
    tool: PathBuf,
}

impl Guests {
    /// Boots them and gives them the programs that they have not.
    fn up(tool: &Path, given: &[(PathBuf, String)]) -> io::Result<Self> {
        let guests = Self { tool: std::path::absolute(tool)? };
        for Guest { name, ip, processors } in [CLIENT, SERVER, BOTH] {
            guests.tool(&["up", "--name", name, "--ip", ip, "--mem", MEMORY, "--smp", processors])?;
            for (file, to) in given {
                guests.tool(&["put", name, &file.to_string_lossy(), to])?;
            }
            guests.tool(&["exec", name, "--", "echo 0 > /proc/sys/kernel/randomize_va_space"])?;
        }
        Ok(guests)
    }

    /// One call of kernel-peer: all that it says.
    fn tool(&self, args: &[&str]) -> io::Result<String> {
        let mut command = Command::new(&self.tool);
        let output = command.env("KERNEL_PEER_NETNS", NETNS).args(args).stdin(Stdio::null()).output()?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if output.status.success() {
            Ok(said.concat())
        } else {
            let last =
                said.concat().lines().rev().take(3).map(|line| format!("; {line}")).collect::<String>();
            Err(io::Error::other(format!("kernel-peer {}: {}{last}", args.join(" "), output.status)))
        }
    }

    /// Has the kernel's devices at both ends, or none, not even the module of rdma_rxe. A kernel
    /// deletes a device some time after the command has ended.
    fn load(&self, ends: Ends, devices: Devices) -> io::Result<()> {
        let script = match devices {
            Devices(Stack::Kernel, Wire::Roce) => {
                "[ ! -e /sys/class/infiniband/rxe0 ] || exit 0; \
                 [ ! -e /proc/modules ] || insmod /m/rdma_rxe.ko || exit 1; \
                 for i in $(seq 100); do \
                 rdma link add rxe0 type rxe netdev eth0 2> /tmp/added && exit 0; usleep 100000; done; \
                 cat /tmp/added; exit 1"
            }
            Devices(Stack::Kernel, Wire::Iwarp) => {
                "[ -e /sys/class/infiniband/siw0 ] || rdma link add siw0 type siw netdev eth0"
            }
            Devices(Stack::Verbena, Wire::Roce) => {
                "[ -e /sys/class/infiniband/rxe0 ] || exit 0; \
                 rdma link delete rxe0 || exit 1; [ ! -e /proc/modules ] || rmmod rdma_rxe || exit 1; \
                 for i in $(seq 100); do \
                 netstat -lun | grep -q ':4791 ' || exit 0; usleep 100000; done; \
                 echo 'the port is still held'; exit 1"
            }
            Devices(Stack::Verbena, Wire::Iwarp) => {
                "[ ! -e /sys/class/infiniband/siw0 ] || rdma link delete siw0"
            }
        };
        [ends.server, ends.client]
            .iter()
            .try_for_each(|guest| self.tool(&["exec", guest.name, "--", script]).map(drop))
    }

    /// What a client says whose server is `ready` when that script succeeds.
    fn pair(&self, ends: Ends, server: &str, ready: &str, client: &str) -> io::Result<String> {
        let job = self.tool(&["exec", "-d", ends.server.name, "--", server])?;
        let wait = format!("until {ready}; do usleep 50000; done");
        let said = self
            .tool(&["exec", "-t", PATIENCE, ends.server.name, "--", &wait])
            .and_then(|_| self.tool(&["exec", "-t", PATIENCE, ends.client.name, "--", client]));
        self.tool(&["kill", ends.server.name, job.trim()])?; // Some servers stay, and some clients fail.
        said
    }

    /// A figure, when `read` finds one: perftest finds the clock of an emulated processor unsteady
    /// now and then.
    fn figure<T>(
        &self,
        ends: Ends,
        [server, ready, client]: [String; 3],
        read: impl Fn(&str) -> Option<T>,
    ) -> io::Result<T> {
        program::tried(|| {
            let said = self.pair(ends, &server, &ready, &client)?;
            read(&said).ok_or_else(|| io::Error::other(format!("no figure of {client}: {said}")))
        })
    }

    fn perftest(
        &self,
        ends: Ends,
        devices: Devices,
        (test, size, iterations): (Test, usize, usize),
    ) -> io::Result<f64> {
        let (called, device, options) = (perftest::program(test), devices.name(), devices.options());
        let server = devices
            .command(&format!("{called} {options} -F -d {device} -p {PORT} -s {size} -n {iterations}"));
        let client = format!("{server} {}", ends.server.ip);
        // A listener of siw is in no table of sockets.
        let ready = match devices {
            Devices(Stack::Kernel, Wire::Iwarp) => RDMA_LISTENS.to_owned(),
            _ => listens(PORT),
        };
        self.figure(ends, [server, ready, client], |said| perftest::figure(test, size, said))
    }

    /// Microseconds of the wall clock a connection, of those made at once: all steps, and that of
    /// connecting alone.
    fn connect(&self, ends: Ends, devices: Devices) -> io::Result<[f64; 2]> {
        let server = devices.command("cmtime");
        let client = format!("{server} -s {} -c {CONNECTIONS}", ends.server.ip);
        let ready = match devices.0 {
            Stack::Kernel => RDMA_LISTENS,
            // No table of the guest's names Verbena's listeners.
            Stack::Verbena => "sleep 3",
        };
        self.figure(ends, [server, ready.to_owned(), client], connected)
    }

    /// Microseconds of the wall clock a connection, of those made one after the other.
    fn one_by_one(&self, ends: Ends, devices: Devices) -> io::Result<f64> {
        let command =
            |role: &str| devices.command(&format!("{CONNECTOR} {role} {ONE_BY_ONE} {}", ends.server.ip));
        let server = format!("{} > {CONNECTOR_SAID}", command("server"));
        let ready = format!("grep -q listening {CONNECTOR_SAID}");
        let client = format!("echo | {}", command("client"));
        program::tried(|| {
            self.tool(&["exec", ends.server.name, "--", &format!("rm -f {CONNECTOR_SAID}")])?;
            let said = self.pair(ends, &server, &ready, &client)?;
            let took = said.lines().find_map(|line| line.parse().ok());
            took.ok_or_else(|| io::Error::other(format!("no figure of {client}: {said}")))
        })
    }

    fn sockets(&self, ends: Ends, protocol: Protocol, test: Test, size: usize) -> io::Result<f64> {
        let server = format!("{} -lp {PORT}", qperf::PROGRAM);
        let arguments = qperf::arguments(protocol, test, size).join(" ");
        let client = format!("{server} {} {arguments}", ends.server.ip);
        self.figure(ends, [server, listens(PORT), client], |said| qperf::figure(protocol, test, said))
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        if let Err(e) = self.tool(&["down", CLIENT.name, SERVER.name, BOTH.name]) {
            eprintln!("the guests do not go down: {e}");
        }
    }
}

/// Programs of this machine and their places in a guest, whose image has perftest and cmtime.
fn given(connector: &Program) -> Vec<(PathBuf, String)> {
    let verbena = connector.verbena().to_owned();
    let library = verbena.with_file_name("libverbena_rdma.so");
    let mut files = vec![
        (verbena, format!("{OURS}/verbena")),
        (library, format!("{OURS}/libverbena_rdma.so")),
        (connector.binary().to_owned(), CONNECTOR.to_owned()),
    ];
    match program::found(qperf::PROGRAM) {
        Some(file) => files.push((file, format!("/bin/{}", qperf::PROGRAM))),
        None => eprintln!("left out: TCP ({} is not installed)", qperf::PROGRAM),
    }
    files
}

/// A script that succeeds when a program listens at a device of the kernel.
const RDMA_LISTENS: &str = "rdma resource show cm_id | grep -q LISTEN";

/// A script that succeeds when a socket listens at the port.
fn listens(port: impl Display) -> String {
    format!("netstat -ltn | grep -q ':{port} '")
}

/// The last column of cmtime's table: all its lines together, and that about connecting.
fn connected(said: &str) -> Option<[f64; 2]> {
    let (mut all, mut connecting) = (0.0, None);
    for line in said.lines().skip_while(|line| !line.starts_with("step ")).skip(1) {
        let (step, figures) = line.split_once(':')?;
        let took: f64 = figures.split_whitespace().last()?.parse().ok()?;
        all += took;
        connecting = connecting.or((step.trim() == "connect").then_some(took));
    }
    Some([all, connecting?])
}

/// The lines of the tables: RoCE between two guests and within one, and iWARP between two.
/// `connector` is `rdma_connections`.
///
/// # Errors
/// When a guest does not come up, or a program fails again and again.
pub(crate) fn figures(tool: &Path, connector: &Program) -> io::Result<[Vec<Figure>; 3]> {
    let guests = Guests::up(tool, &given(connector))?;
    let (apart, together) = (Ends { server: SERVER, client: CLIENT }, Ends { server: BOTH, client: BOTH });
    let roce = |ends| {
        let mut figures = guests.figures(ends, Wire::Roce)?;
        figures.extend(guests.at_once(ends)?);
        io::Result::Ok(figures)
    };
    Ok([roce(apart)?, roce(together)?, guests.iwarp()?])
}

/// The lines of the table of iWARP alone.
///
/// # Errors
/// Those of [`figures`].
pub(crate) fn iwarp_figures(tool: &Path, connector: &Program) -> io::Result<Vec<Figure>> {
    Guests::up(tool, &given(connector))?.iwarp()
}

impl Guests {
    /// iWARP between two guests, without a device of rdma_rxe beside that of siw.
    fn iwarp(&self) -> io::Result<Vec<Figure>> {
        let apart = Ends { server: SERVER, client: CLIENT };
        self.load(apart, Devices(Stack::Verbena, Wire::Roce))?;
        self.figures(apart, Wire::Iwarp)
    }

    /// Messages and connections one by one.
    fn figures(&self, ends: Ends, wire: Wire) -> io::Result<Vec<Figure>> {
        let devices = [Devices(Stack::Verbena, wire), Devices(Stack::Kernel, wire)];
        let kernel = match wire {
            Wire::Roce => RXE,
            Wire::Iwarp => "the kernel's siw at both ends, by the same program",
        };
        let mut figures = Vec::new();
        for (what, test, size, iterations) in MEASURED {
            let [ours, theirs] = by_turns(TURNS, |at| {
                self.load(ends, devices[at])?;
                self.perftest(ends, devices[at], (test, size, iterations))
            })?;
            // A guest is slow: what is GB/s elsewhere is MB/s there.
            let (unit, scale) = if test.is_latency() { ("us", 1.0) } else { ("MB/s", 1e3) };
            figures.push(figure(what.to_owned(), unit, ours * scale, theirs * scale, kernel));
            if program::found(qperf::PROGRAM).is_none() {
                continue;
            }
            for (sockets, theirs) in self.beside(ends, wire, (test, size))? {
                figures.push(figure(what.to_owned(), unit, ours * scale, theirs * scale, sockets));
            }
        }
        let [ours, theirs] = by_turns(CONNECTION_TURNS, |at| {
            self.load(ends, devices[at])?;
            self.one_by_one(ends, devices[at])
        })?;
        let what = format!("a connection, of {ONE_BY_ONE} one after the other, until it has ended");
        figures.push(figure(what, "us", ours, theirs, kernel));
        Ok(figures)
    }

    /// What sockets do, and which: TCP, and for RoCE UDP.
    fn beside(
        &self,
        ends: Ends,
        wire: Wire,
        (test, size): (Test, usize),
    ) -> io::Result<Vec<(&'static str, f64)>> {
        let (beside, datagram, udp_is) = if test.is_latency() {
            let udp_is = "UDP (qperf), one datagram each way, as long as the packet";
            (Test::SendLatency, size + HEADERS, udp_is)
        } else {
            let udp_is = "UDP (qperf), datagrams as long as a packet, as many as were received";
            (Test::SendBandwidth, OF_A_PACKET + HEADERS, udp_is)
        };
        let [tcp, udp] = by_turns(TURNS, |at| match at {
            0 => self.sockets(ends, Protocol::Tcp, beside, size),
            _ if wire == Wire::Iwarp => Ok(0.0),
            _ => self.sockets(ends, Protocol::Udp, beside, datagram),
        })?;
        let mut found = vec![("TCP (qperf)", tcp)];
        found.extend((wire == Wire::Roce).then_some((udp_is, udp)));
        Ok(found)
    }

    /// Connections made at once.
    fn at_once(&self, ends: Ends) -> io::Result<[Figure; 2]> {
        let mut connecting = [const { Vec::new() }; 2];
        let [ours, theirs] = by_turns(CONNECTION_TURNS, |at| {
            let devices = Devices([Stack::Verbena, Stack::Kernel][at], Wire::Roce);
            self.load(ends, devices)?;
            let [all, connect] = self.connect(ends, devices)?;
            connecting[at].push(connect);
            Ok(all)
        })?;
        let what =
            format!("a connection, of {CONNECTIONS} made at once, from its identifier to its end (cmtime)");
        let all = figure(what, "us", ours, theirs, RXE);
        let [ours, theirs] = connecting.map(median);
        Ok([all, figure("rdma_connect alone, of the same".to_owned(), "us", ours, theirs, RXE)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_connection_takes_is_found() {
        let said = "connecting\nstep              total ms     max ms     min us  us / conn\ncreate qp    :        0.60  0.35  0.00  6.00\n\
                    connect      :       23.69      16.92    6490.00     236.50\n";
        assert_eq!(connected(said), Some([242.5, 236.5]));
        assert_eq!(connected("connecting\n"), None);
        assert_eq!(connected("step  us / conn\ncreate qp : 6.00\n"), None);
    }
}
