//! What the library says of itself (rpma_log_set_threshold(3), rpma_log_set_function(3)): messages
//! up to the main threshold go to a function of the program's, or to stderr up to the auxiliary
//! one; and in any case to `tracing`, under the target `rpma`, whose own filters decide. Upstream's
//! default function also writes to syslog(3): here that is a subscriber's of `tracing`.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use rpma::log::{self, Level, Threshold};
//!
//! assert_eq!(log::threshold(Threshold::Main), Some(Level::Warning));
//! assert_eq!(log::threshold(Threshold::Aux), None);
//! let heard = Arc::new(Mutex::new(Vec::new()));
//! let hears = heard.clone();
//! log::set_function(move |message| hears.lock().unwrap().push(message.to_string()));
//! let peer = rpma::Peer::local("127.0.0.1".parse().unwrap())?;
//! let nowhere = rpma::ConnReq::blocking_new(&peer, "no.such.host.invalid:1", &rpma::ConnCfg::default());
//! assert!(nowhere.is_err());
//! assert!(heard.lock().unwrap()[0].contains("no way to the peer"));
//! # rpma::Result::Ok(())
//! ```

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwapOption;

/// How much a message matters (`enum rpma_log_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// The library stops working at once.
    Fatal = 1,
    /// The library stops working properly.
    Error,
    /// What the program may handle.
    Warning,
    /// Few: connections come and go.
    Notice,
    /// Many.
    Info,
    /// All there is.
    Debug,
}

const LEVELS: [Level; 6] =
    [Level::Fatal, Level::Error, Level::Warning, Level::Notice, Level::Info, Level::Debug];

/// Which threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Messages above it are not made; [`Level::Warning`] where the program sets none.
    Main,
    /// For logging functions; without a program's own, what goes to stderr. None where the program
    /// sets none.
    Aux,
}

/// A level, or 0 for none.
static MAIN: AtomicU8 = AtomicU8::new(Level::Warning as u8);
static AUX: AtomicU8 = AtomicU8::new(0);
static FUNCTION: ArcSwapOption<Function> = ArcSwapOption::const_empty();

/// A message.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    /// How much it matters.
    pub level: Level,
    /// Where it comes from: source file and line.
    pub file: &'static str,
    /// The message's line.
    pub line: u32,
    /// The module, in place of upstream's function name.
    pub module: &'static str,
    text: fmt::Arguments<'a>,
}

impl Display for Message<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {:?}: {}", self.file, self.line, self.level, self.text)
    }
}

type Function = Box<dyn Fn(&Message<'_>) + Send + Sync>;

fn of(threshold: Threshold) -> &'static AtomicU8 {
    match threshold {
        Threshold::Main => &MAIN,
        Threshold::Aux => &AUX,
    }
}

/// Sets a threshold; `None` is RPMA_LOG_DISABLED.
pub fn set_threshold(threshold: Threshold, level: Option<Level>) {
    of(threshold).store(level.map_or(0, |level| level as u8), Ordering::Relaxed);
}

/// A threshold.
pub fn threshold(threshold: Threshold) -> Option<Level> {
    let is = of(threshold).load(Ordering::Relaxed);
    LEVELS.into_iter().find(|level| *level as u8 == is)
}

/// Has messages go to this function, whatever thread they come from. No lock is held meanwhile. A
/// panic of it is caught.
pub fn set_function(function: impl Fn(&Message<'_>) + Send + Sync + 'static) {
    let function: Function = Box::new(function);
    FUNCTION.store(Some(Arc::new(function)));
}

/// Has messages go where they go at first (RPMA_LOG_USE_DEFAULT_FUNCTION).
pub fn use_default_function() {
    FUNCTION.store(None);
}

pub(crate) fn say(
    level: Level,
    file: &'static str,
    line: u32,
    module: &'static str,
    text: fmt::Arguments<'_>,
) {
    // Subscribers and functions are the program's code, and this may be said by a destructor.
    nic::program::call(|| tell(level, file, line, module, text));
}

fn tell(level: Level, file: &'static str, line: u32, module: &'static str, text: fmt::Arguments<'_>) {
    match level {
        Level::Fatal | Level::Error => tracing::error!(target: "rpma", "{text}"),
        Level::Warning => tracing::warn!(target: "rpma", "{text}"),
        Level::Notice | Level::Info => tracing::info!(target: "rpma", "{text}"),
        Level::Debug => tracing::debug!(target: "rpma", "{text}"),
    }
    if level as u8 > MAIN.load(Ordering::Relaxed) {
        return;
    }
    let message = Message { level, file, line, module, text };
    match FUNCTION.load_full() {
        Some(function) => function(&message),
        None if level as u8 <= AUX.load(Ordering::Relaxed) => eprintln!("rpma: {message:?}"),
        None => {}
    }
}

macro_rules! log {
    ($level:expr, $($text:tt)*) => {
        crate::log::say($level, file!(), line!(), module_path!(), format_args!($($text)*))
    };
}
pub(crate) use log;
