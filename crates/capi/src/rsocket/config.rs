//! The configuration directory of rsocket(7), read once a process.

use rsocket::Settings;
use rsocket::settings::FILES;
use sys::per_process::Kept;

/// Where the files lie.
const DIRECTORY: &str = "/etc/rdma/rsocket";

/// What the files say.
pub(super) struct Config {
    pub(super) settings: Settings,
    /// Microseconds for which a call looks before it sleeps. By itself a thread that waits looks as
    /// long as that is of use (`linux::Host::wait_as_driver`).
    pub(super) polling_us: u32,
}

static CONFIG: Kept<Config> = Kept::new();

fn file(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("{DIRECTORY}/{name}")).ok()
}

/// The configuration.
pub(super) fn get() -> &'static Config {
    CONFIG.get_or_make(|| {
        let mut settings = Settings::default();
        for name in FILES {
            if let Some(text) = file(name) {
                settings.configure(name, &text);
            }
        }
        let polling_us = file("polling_time").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Config { settings: settings.in_range(), polling_us: u32::min(polling_us, 1_000_000) }
    })
}
