//! How what is for other processes of this host travels, before anything is sent. What is promised
//! is tried: filters of system calls and security modules have no place where one could read what
//! they refuse.

use std::ffi::OsStr;
use std::fs;
use std::io;

use crate::memory::SharedMemory;
use crate::record::RING_BYTES;

/// May trace, and so reach, any process (capabilities(7)).
const CAP_SYS_PTRACE: u32 = 19;

/// How what a queue pair sends to another process of this host and user travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SameHost {
    /// By the network: `VERBENA_SAME_HOST` is `off`.
    Network,
    /// By the network, as the system refuses memory that processes share, because of this.
    NoMemory(String),
    /// By memory that both map; WRITEs and READs, too, because of this, but for those of
    /// [`crate::arena`]'s.
    Packets(String),
    /// By memory that both map; WRITEs and READs of RC straight between the memory of both.
    Memory,
}

/// How what is for other processes of this host may travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// By the network.
    Off,
    /// By memory.
    #[default]
    On,
    /// By memory, which any process of the user may reach, also under Yama.
    Ptracer,
}

/// What `VERBENA_SAME_HOST` says.
///
/// # Errors
///
/// What is wrong with it.
pub fn wish() -> Result<Wish, String> {
    parse(std::env::var_os("VERBENA_SAME_HOST").as_deref())
}

fn parse(text: Option<&OsStr>) -> Result<Wish, String> {
    let Some(text) = text else { return Ok(Wish::On) };
    match text.to_str() {
        Some("on") => Ok(Wish::On),
        Some("off") => Ok(Wish::Off),
        Some("ptracer") => Ok(Wish::Ptracer),
        _ => Err(format!("VERBENA_SAME_HOST: '{}' is none of on, off and ptracer", text.to_string_lossy())),
    }
}

/// How it travels from programs that are started as this one was: a ring is made, and a child
/// copies from and to this process.
pub fn same_host() -> SameHost {
    let wish = wish().unwrap_or_default();
    if wish == Wish::Off {
        return SameHost::Network;
    }
    if let Err(error) = SharedMemory::create(RING_BYTES) {
        return SameHost::NoMemory(format!("memfd_create(2): {error}"));
    }
    match sys::try_copies() {
        Ok(()) => SameHost::Memory,
        Err(error) => SameHost::Packets(explain(wish, &error)),
    }
}

/// Why a child may not reach this process: Yama, or what the kernel said.
fn explain(wish: Wish, error: &io::Error) -> String {
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let yamas = refusal(&yama, may_trace(&status), wish == Wish::Ptracer);
    yamas.map_or_else(|| format!("process_vm_readv(2): {error}"), str::to_owned)
}

/// Whether the effective capabilities of /proc/PID/status hold CAP_SYS_PTRACE.
fn may_trace(status: &str) -> bool {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_SYS_PTRACE & 1 != 0)
}

/// Why the system lets no process of the user reach another one's memory. `yama`: what ptrace_scope
/// says, nothing where there is no Yama (Documentation/admin-guide/LSM/Yama.rst of the kernel).
/// `is_let`: by PR_SET_PTRACER.
fn refusal(yama: &str, may_trace: bool, is_let: bool) -> Option<&'static str> {
    match yama.trim() {
        "1" if !may_trace && !is_let => Some(
            "kernel.yama.ptrace_scope is 1; VERBENA_SAME_HOST=ptracer would let processes reach each other",
        ),
        "2" if !may_trace => Some("kernel.yama.ptrace_scope is 2"),
        "3" => Some("kernel.yama.ptrace_scope is 3"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_processes_of_a_host_reach_each_other_is_one_of_three_words() {
        let read = |text: &str| parse(Some(OsStr::new(text)));
        assert_eq!(parse(None), Ok(Wish::On));
        assert_eq!(read("on"), Ok(Wish::On));
        assert_eq!(read("off"), Ok(Wish::Off));
        assert_eq!(read("ptracer"), Ok(Wish::Ptracer));
        for other in ["", "OFF", "0", "off ", "both"] {
            assert!(read(other).is_err_and(|said| said.contains(&format!("'{other}'"))));
        }
    }

    #[test]
    fn who_may_trace_may_reach_and_yama_refuses() {
        let status = |bits| format!("Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t{bits}\n");
        assert!(may_trace(&status("000001ffffffffff")) && may_trace(&status("0000000000080000")));
        assert!(!may_trace(&status("00000000a80425fb")) && !may_trace("") && !may_trace(&status("x")));
        assert_eq!(
            (refusal("", false, false), refusal("0\n", false, false), refusal("1\n", true, false)),
            (None, None, None)
        );
        assert!(
            refusal("1\n", false, false).is_some_and(|why| why.starts_with("kernel.yama.ptrace_scope is 1;"))
        );
        assert_eq!(refusal("1\n", false, true), None);
        assert_eq!(refusal("2\n", false, true), Some("kernel.yama.ptrace_scope is 2"));
        assert_eq!(refusal("3\n", true, true), Some("kernel.yama.ptrace_scope is 3"));
    }
}
