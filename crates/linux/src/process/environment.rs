//! The environment variables that say what an instance is like.
//!
//! | variable | what | where it has no meaning |
//! |---|---|---|
//! | `VERBENA_DEVICES` | the devices, as `name=roce:interface` or `name=iwarp:interface`, comma separated; all that are up where it is not set | no devices |
//! | `VERBENA_CM_TIMEOUT` | for how long connection requests are repeated, in seconds, 0.1 to 3600 | the default |
//! | `VERBENA_SAME_HOST` | `off`: what is for other processes of this host goes by the network, too; `ptracer`: any process of the user may trace this one | on |
//! | `VERBENA_LARGE_PAGES` | `off`: registered memory stays in the pages in which it is | on, unless the system says `never` |
//! | `VERBENA_FABRIC`, `VERBENA_HOST` | the socket of a fabric, and a host of it whose ports are the devices | the system's interfaces |
//! | `VERBENA_CAPTURE`, `VERBENA_CAPTURE_FILTER` | the socket of `verbena run --capture`, its filter | no capture |
//! | `VERBENA_FAULTS`, `VERBENA_FAULTS_SEED` | rules for lost packets and others, their seed | a message |
//! | `VERBENA_PORT_COUNTERS` | the directory of devices whose counters this process adds to ([`crate::port_counters`]) | no counters |
//! | `VERBENA_COUNTERS` | a file for the counters, written at exit; `%p` stands for the process's number | a message at exit |

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use stack::DeviceSpec;
use stack::devices::ConfigError;

use crate::fabric::FabricPlace;

/// The page that helps, in messages.
pub(super) const SEE: &str = "See the guide, Environment variables";

/// What a node is to be like. What has no meaning is explained on standard error.
pub(super) fn config() -> stack::Config {
    let devices = devices().unwrap_or_else(|e| {
        eprintln!("verbena: {e}. {SEE}");
        Some(Vec::new())
    });
    let mut config = stack::Config { devices, ..stack::Config::default() };
    if let Some(total) = cm_timeout() {
        (config.timing.request.total, config.timing.reply.total) = (total, total);
    }
    config
}

/// The devices that `VERBENA_DEVICES` asks for: all (`None`) where it is not set.
///
/// # Errors
///
/// What is wrong with it.
pub fn devices() -> Result<Option<Vec<DeviceSpec>>, ConfigError> {
    let text = std::env::var_os("VERBENA_DEVICES");
    text.map(|text| stack::devices::parse(&text.to_string_lossy())).transpose()
}

/// The host of a fabric that this process is on: `VERBENA_FABRIC` is the path of its socket then,
/// as `verbena run --on` has it.
pub fn fabric() -> Option<FabricPlace> {
    let socket = PathBuf::from(std::env::var_os("VERBENA_FABRIC")?);
    let host = std::env::var("VERBENA_HOST").ok().filter(|host| !host.is_empty())?;
    socket.is_absolute().then_some(FabricPlace { socket, host })
}

/// For how long a connection request, or an answer to one, is repeated that the peer does not
/// answer: `VERBENA_CM_TIMEOUT`.
fn cm_timeout() -> Option<Duration> {
    let text = std::env::var_os("VERBENA_CM_TIMEOUT")?;
    let seconds = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
    let total = seconds.filter(|s| (0.1..=3_600.0).contains(s)).map(Duration::from_secs_f64);
    if total.is_none() {
        eprintln!(
            "verbena: VERBENA_CM_TIMEOUT: '{}' is not a number from 0.1 to 3600. {SEE}",
            text.to_string_lossy()
        );
    }
    total
}

/// Whether registered memory shall lie in large pages: `VERBENA_LARGE_PAGES`, and what is set for
/// this system. What has no meaning is explained on standard error.
pub(super) fn large_pages() -> bool {
    let wish = parse_large_pages(std::env::var_os("VERBENA_LARGE_PAGES").as_deref()).unwrap_or_else(|e| {
        eprintln!("verbena: {e}. {SEE}");
        true
    });
    // MADV_COLLAPSE of madvise(2) does not ask.
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    wish && !setting.is_ok_and(|setting| setting.contains("[never]"))
}

fn parse_large_pages(text: Option<&OsStr>) -> Result<bool, String> {
    let Some(text) = text else { return Ok(true) };
    match text.to_str() {
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(format!("VERBENA_LARGE_PAGES: '{}' is neither on nor off", text.to_string_lossy())),
    }
}

/// Whether the program has more rights than its user (ld.so(8), secure-execution mode).
pub fn is_secure() -> bool {
    // SAFETY: a query without arguments in memory.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The file that `VERBENA_COUNTERS` names, made absolute: a daemon changes its directory.
pub(super) fn counters_file() -> Option<PathBuf> {
    // It writes no file at the user's wish.
    if is_secure() {
        return None;
    }
    std::path::absolute(std::env::var_os("VERBENA_COUNTERS")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_are_on_or_off() {
        let parse = |text: &str| parse_large_pages(Some(OsStr::new(text)));
        assert_eq!((parse_large_pages(None), parse("on"), parse("off")), (Ok(true), Ok(true), Ok(false)));
        assert!(parse("never").is_err_and(|said| said.contains("'never'")));
    }
}
