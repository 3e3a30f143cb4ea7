//! `verbena doctor`: what this machine gives to programs on Verbena, a line each, with what helps
//! where it gives too little. What can be tried is tried, the rest is read from /proc and /sys.

use std::fmt::{self, Write as _};
use std::fs;
use std::net::IpAddr;
use std::process::{Command, ExitCode, Stdio};

use local::SameHost;
use nic::Device;
use nic::device::Port;

use crate::{devices, object, output};

/// Say what this machine gives, and what helps where that is too little
///
/// A line for each check: `ok`; `note`, where programs run but something is slower or missing; or
/// `problem`, where they do not run. The exit code is 1 if there is a problem.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Descriptors that a process of some connections needs.
const FEW_DESCRIPTORS: u64 = 1024;
/// Bytes of memory with which a process of some queue pairs runs well.
const LITTLE_MEMORY: u64 = 256 << 20;
/// The column in which what is said begins.
const COLUMN: usize = 26;

/// How well something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Ok,
    Note,
    Problem,
}

/// The outcome of a check.
struct Finding {
    verdict: Verdict,
    about: &'static str,
    says: String,
    helps: Option<String>,
}

fn ok(about: &'static str, says: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Ok, about, says: says.into(), helps: None }
}

fn note(about: &'static str, says: impl Into<String>, helps: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Note, about, says: says.into(), helps: Some(helps.into()) }
}

fn problem(about: &'static str, says: impl Into<String>, helps: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Problem, about, says: says.into(), helps: Some(helps.into()) }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Problem => "problem",
        };
        writeln!(f, "{verdict:<9}{:<17}{}", self.about, self.says)?;
        self.helps.iter().try_for_each(|helps| writeln!(f, "{:COLUMN$}{helps}", ""))
    }
}

/// Prints all findings.
///
/// # Errors
/// A message: VERBENA_DEVICES has no meaning, or the system refused to write.
pub(crate) fn run(_: &Args) -> Result<ExitCode, String> {
    let mut findings = vec![library()];
    match devices::start() {
        Ok(instance) => {
            let all = instance.node().devices();
            findings.extend(of_devices(&all));
            let roce = all.iter().filter(|device| device.port().ib.is_none());
            findings.extend(roce.map(|device| port_4791(&device.config.name, instance.attach(device))));
        }
        Err(why) => findings.push(problem("devices", why, "See the guide, Troubleshooting")),
    }
    findings.push(same_host(&local::same_host()));
    findings.push(sys_view());
    let asked = linux::Config::default();
    for (name, wanted) in [("rmem_max", asked.receive_buffer_bytes), ("wmem_max", asked.send_buffer_bytes)] {
        findings.push(buffer(name, wanted.into(), read_number(&format!("/proc/sys/net/core/{name}"))));
    }
    findings.push(segmentation(linux::has_segmentation()));
    findings.push(large_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")));
    findings.push(descriptors(&read("/proc/self/limits")));
    findings.push(processors(std::thread::available_parallelism().map_or(1, usize::from)));
    findings.extend(memory(read_number("/sys/fs/cgroup/memory.max")));
    findings.extend(adapters());
    let mut text = String::new();
    for finding in &findings {
        // Writing to a string does not fail.
        let _ = write!(text, "{finding}");
    }
    output::write(text)?;
    let is_well = findings.iter().all(|finding| finding.verdict < Verdict::Problem);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn read_number(path: &str) -> Option<u64> {
    read(path).trim().parse().ok()
}

/// The shared object that programs get.
fn library() -> Finding {
    match object::find() {
        Ok(path) => ok("library", path.display().to_string()),
        Err(why) => problem("library", why, "See the guide, Install"),
    }
}

fn of_devices(all: &[std::sync::Arc<Device>]) -> Vec<Finding> {
    if all.is_empty() {
        let says = "no network interface is up and has an address";
        return vec![problem("devices", says, "ip link set lo up; or VERBENA_DEVICES=rxe0=roce:INTERFACE")];
    }
    all.iter().map(|device| device_line(&device.config.name, &device.port())).collect()
}

fn device_line(name: &str, port: &Port) -> Finding {
    if let Some(ib) = &port.ib {
        let says = format!("{name}: LID {}; path MTU {}", ib.lid, port.mtu.bytes());
        let helps = "a subnet manager brings ports up: verbena run --on HOST -- opensm, or --sm builtin";
        return if port.up {
            ok("device", says)
        } else {
            note("device", format!("{says}; not active"), helps)
        };
    }
    let borne: Vec<IpAddr> =
        port.gids.iter().filter(|(_, entry)| entry.borne).map(|(_, e)| e.gid.ip()).collect();
    let addresses = borne.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    let says = format!("{name}: {addresses}; path MTU {}", port.mtu.bytes());
    if !port.up {
        return note("device", format!("{says}; its interface is down"), "ip link set INTERFACE up");
    }
    if !borne.iter().any(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())) {
        let helps = "ip addr add ADDRESS/PREFIX dev INTERFACE: rdma_cm resolves such addresses";
        return note("device", format!("{says}; only link-local addresses"), helps);
    }
    ok("device", says)
}

/// Whether the port of a device's addresses can be had.
fn port_4791(device: &str, attached: std::io::Result<()>) -> Finding {
    match attached {
        Ok(()) => ok("UDP port 4791", format!("{device}: free, or of this user")),
        Err(why) => problem(
            "UDP port 4791",
            format!("{device}: {why}"),
            "another user or the kernel's rdma_rxe has it: another interface (VERBENA_DEVICES), a network namespace, or `rdma link delete`",
        ),
    }
}

fn same_host(way: &SameHost) -> Finding {
    let about = "same host";
    match way {
        SameHost::Memory => ok(about, "shared memory; WRITE and READ straight to memory"),
        SameHost::Network => note(about, "by the network: VERBENA_SAME_HOST=off", "unset VERBENA_SAME_HOST"),
        SameHost::NoMemory(why) => note(
            about,
            format!("by the network: {why}"),
            "allow memfd_create(2) and mmap(2) (seccomp, RLIMIT_AS)",
        ),
        SameHost::Packets(why) => note(
            about,
            format!("shared memory, but WRITE and READ in packets: {why}"),
            "VERBENA_SAME_HOST=ptracer; sysctl kernel.yama.ptrace_scope=0; in a container --cap-add SYS_PTRACE",
        ),
    }
}

/// Whether programs see their devices in /sys: tried with one.
fn sys_view() -> Finding {
    let about = "/sys view";
    let names = devices::survey().unwrap_or_default();
    let (Some(own), Some((config, _))) = (object::own_path(), names.first()) else {
        return note(about, "not tried: there is no device", "ip link set lo up");
    };
    let shown = format!("/sys/class/infiniband/{}", config.name);
    let tried = Command::new(own)
        .args(["run", "--", "test", "-e", &shown])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => ok(about, "programs see their devices in /sys/class/infiniband"),
        _ => note(
            about,
            "programs do not see their devices in /sys/class/infiniband",
            "user namespaces: sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces; most programs need no /sys",
        ),
    }
}

fn buffer(name: &str, wanted: u64, most: Option<u64>) -> Finding {
    match most {
        None => ok("socket buffers", format!("net.core.{name} is not shown here")),
        Some(most) if most >= wanted => ok("socket buffers", format!("net.core.{name} is {most} bytes")),
        Some(most) => note(
            "socket buffers",
            format!("net.core.{name} is {most} bytes: bursts of packets from other hosts may be lost"),
            format!("sysctl -w net.core.{name}={wanted}"),
        ),
    }
}

fn segmentation(has: bool) -> Finding {
    let about = "segmentation";
    match has {
        true => ok(about, "one system call sends many packets (UDP_SEGMENT)"),
        false => {
            note(about, "each packet is a system call: no UDP_SEGMENT", "Linux 4.18 or later, no gVisor")
        }
    }
}

fn large_pages(setting: &str) -> Finding {
    let about = "large pages";
    match setting.contains("[never]") || setting.is_empty() {
        false => ok(about, "registered memory may lie in large pages"),
        true => note(
            about,
            "registered memory lies in small pages: long messages on this host are slower",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    }
}

/// From the lines of /proc/self/limits: name, soft limit, hard limit, unit.
fn descriptors(limits: &str) -> Finding {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    match soft {
        Some(soft) if soft < FEW_DESCRIPTORS => note(
            "descriptors",
            format!("{soft} a process: a process has one for each channel, and some for each peer"),
            "ulimit -n 4096",
        ),
        Some(soft) => ok("descriptors", format!("{soft} a process")),
        None => ok("descriptors", "no limit"),
    }
}

fn processors(count: usize) -> Finding {
    match count {
        1 => note(
            "processors",
            "one: a program that polls takes the time of its peer on this host",
            "give the container or machine a second one",
        ),
        _ => ok("processors", format!("{count}")),
    }
}

/// What a container may take; `None` where nothing limits it.
fn memory(most: Option<u64>) -> Option<Finding> {
    let most = most?;
    Some(match most < LITTLE_MEMORY {
        true => note("memory", format!("{} MiB in this control group", most >> 20), "256 MiB or more"),
        false => ok("memory", format!("{} MiB in this control group", most >> 20)),
    })
}

/// Adapters that the kernel knows.
fn adapters() -> Option<Finding> {
    let names = fs::read_dir("/sys/class/infiniband").ok()?;
    let names: Vec<_> = names.flatten().map(|name| name.file_name().to_string_lossy().into_owned()).collect();
    (!names.is_empty()).then(|| {
        let says = format!("{}: programs use them without `verbena run`", names.join(", "));
        ok("kernel's devices", says)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_says_what_is_and_what_helps() {
        let found = buffer("rmem_max", 16 << 20, Some(212_992));
        assert_eq!(
            found.to_string(),
            "note     socket buffers   net.core.rmem_max is 212992 bytes: bursts of packets from other hosts may be lost\n                          sysctl -w net.core.rmem_max=16777216\n"
        );
        assert_eq!(buffer("rmem_max", 1 << 20, Some(1 << 20)).verdict, Verdict::Ok);
        assert_eq!(buffer("rmem_max", 1 << 20, None).verdict, Verdict::Ok);
        assert!(Verdict::Note < Verdict::Problem);
    }

    #[test]
    fn limits_of_the_system_are_read() {
        let limits =
            |soft: &str| format!("Limit  Soft Limit\nMax open files            {soft}   1048576   files\n");
        assert_eq!(descriptors(&limits("256")).verdict, Verdict::Note);
        assert_eq!(descriptors(&limits("1024")).verdict, Verdict::Ok);
        assert_eq!(descriptors("").says, "no limit");
        assert_eq!(large_pages("always [madvise] never").verdict, Verdict::Ok);
        assert_eq!(large_pages("always madvise [never]").verdict, Verdict::Note);
        assert!(memory(None).is_none());
        assert_eq!(memory(Some(64 << 20)).map(|found| found.verdict), Some(Verdict::Note));
        assert_eq!([1, 2].map(|n| processors(n).verdict), [Verdict::Note, Verdict::Ok]);
        assert_eq!(same_host(&SameHost::Packets("Yama".into())).verdict, Verdict::Note);
        let refused = std::io::Error::from_raw_os_error(libc::EADDRINUSE);
        assert_eq!(port_4791("rxe_eth0", Err(refused)).verdict, Verdict::Problem);
    }
}
