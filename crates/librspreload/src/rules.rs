//! Which sockets get an rsocket: byte streams over IP, unless preload_config of rsocket(7) says
//! otherwise.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The file.
const FILE: &str = "/etc/rdma/rsocket/preload_config";
const FLAGS: c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// A line: program, domain, type and protocol, of which any may be `*`.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        let [program, domain, kind, protocol] = *line.split_whitespace().collect::<Vec<_>>() else {
            return None;
        };
        let any = |word: &str, known: &[(&str, c_int)]| match word {
            "*" => Some(None),
            word => {
                let bare = word.trim_start_matches(['A', 'P']).trim_start_matches("F_");
                let bare = bare.trim_start_matches("SOCK_").trim_start_matches("IPROTO_");
                let is = |name: &str| bare.eq_ignore_ascii_case(name) || word.eq_ignore_ascii_case(name);
                known.iter().find(|(name, _)| is(name)).map(|(_, value)| Some(*value))
            }
        };
        Some(Self {
            program: (program != "*").then(|| program.to_owned()),
            domain: any(domain, &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6)])?,
            kind: any(kind, &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)])?,
            protocol: any(
                protocol,
                &[
                    ("TCP", libc::IPPROTO_TCP),
                    ("IPPROTO_TCP", libc::IPPROTO_TCP),
                    ("UDP", libc::IPPROTO_UDP),
                    ("IPPROTO_UDP", libc::IPPROTO_UDP),
                ],
            )?,
        })
    }

    fn fits(&self, program: &str, domain: c_int) -> bool {
        let is = |rule: Option<c_int>, value| rule.is_none_or(|rule| rule == value);
        self.program.as_ref().is_none_or(|name| {
            program.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        }) && is(self.domain, domain)
            && is(self.kind, libc::SOCK_STREAM)
            && is(self.protocol, libc::IPPROTO_TCP)
    }
}

fn rules() -> &'static [Rule] {
    static RULES: AtomicPtr<Vec<Rule>> = AtomicPtr::new(std::ptr::null_mut());
    let mut rules = RULES.load(Ordering::Acquire);
    if rules.is_null() {
        let text = std::fs::read_to_string(FILE).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        rules = Box::into_raw(Box::new(lines.filter_map(Rule::parse).collect()));
        // Where two threads read at once both read the same.
        RULES.store(rules, Ordering::Release);
    }
    // SAFETY: made above, and never freed.
    unsafe { &*rules }
}

/// The name of the program, as argv has it, without directories.
fn program() -> String {
    unsafe extern "C" {
        static program_invocation_short_name: *const std::ffi::c_char;
    }
    // SAFETY: a string of the C library's.
    unsafe { CStr::from_ptr(program_invocation_short_name) }.to_string_lossy().into_owned()
}

/// Whether a socket gets an rsocket.
pub fn wants(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let is_stream = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !FLAGS == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    let rules = if is_stream { rules() } else { &[] };
    is_stream && (rules.is_empty() || rules.iter().any(|rule| rule.fits(&program(), domain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_preload_config_say_which_sockets_get_an_rsocket() {
        let rule = |line| Rule::parse(line).expect("a rule");
        assert!(rule("* * * *").fits("nc", libc::AF_INET6));
        let iperf = rule("iperf AF_INET SOCK_STREAM *");
        assert!(iperf.fits("iperf3", libc::AF_INET) && !iperf.fits("iperf3", libc::AF_INET6));
        assert!(!iperf.fits("nc", libc::AF_INET));
        assert!(rule("* INET stream IPPROTO_TCP").fits("x", libc::AF_INET));
        assert!(!rule("* * DGRAM UDP").fits("x", libc::AF_INET));
        assert_eq!(Rule::parse("nc INET STREAM"), None);
        assert_eq!(Rule::parse("nc IPX STREAM TCP"), None);
    }
}
