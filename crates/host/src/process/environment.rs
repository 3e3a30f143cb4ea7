//! The environment variables that say what an instance is like.
//!
//! | variable | what | where it has no meaning |
//! |---|---|---|
//! | `VERBENA_DEVICES` | the devices, as `name=roce:interface`, comma separated; all that are up where it is not set | no devices |
//! | `VERBENA_CM_TIMEOUT` | for how long connection requests are repeated, in seconds, 0.1 to 3600 | the default |
//! | `VERBENA_SAME_HOST` | `off`: what is for other processes of this host goes by the network, too | on |
//! | `VERBENA_COUNTERS` | a file for the counters, written at exit; `%p` stands for the process's number | a message at exit |

use std::path::PathBuf;
use std::time::Duration;

use node::DeviceSpec;
use node::devices::ConfigError;

/// What a node is to be like. What has no meaning is explained on standard error.
pub(super) fn config() -> node::Config {
    let devices = devices().unwrap_or_else(|e| {
        eprintln!("verbena: {e}");
        Some(Vec::new())
    });
    let mut config = node::Config { devices, ..node::Config::default() };
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
    text.map(|text| node::devices::parse(&text.to_string_lossy())).transpose()
}

/// For how long a connection request, or an answer to one, is repeated that nobody answers: `VERBENA_CM_TIMEOUT`.
fn cm_timeout() -> Option<Duration> {
    let text = std::env::var_os("VERBENA_CM_TIMEOUT")?;
    let seconds = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
    let total = seconds.filter(|s| (0.1..=3_600.0).contains(s)).map(Duration::from_secs_f64);
    if total.is_none() {
        eprintln!(
            "verbena: VERBENA_CM_TIMEOUT: '{}' is not a number from 0.1 to 3600",
            text.to_string_lossy()
        );
    }
    total
}

/// Whether packets for other processes of this host may go by memory that both map: `VERBENA_SAME_HOST`.
pub(crate) fn same_host() -> bool {
    match std::env::var_os("VERBENA_SAME_HOST") {
        Some(text) if text == "off" => false,
        Some(text) if text != "on" => {
            eprintln!("verbena: VERBENA_SAME_HOST: '{}' is neither on nor off", text.to_string_lossy());
            true
        }
        _ => true,
    }
}

/// The file that `VERBENA_COUNTERS` names, made absolute: a daemon changes its directory.
pub(super) fn counters_file() -> Option<PathBuf> {
    // SAFETY: a query without arguments in memory. A program with more rights than its user (ld.so(8), secure-execution
    // mode) writes no file at the user's wish.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    std::path::absolute(std::env::var_os("VERBENA_COUNTERS")?).ok()
}
