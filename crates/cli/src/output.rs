//! Standard output, and what may be printed there.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Writes to standard output. A reader that closed it early, as `head` does, is no error.
///
/// # Errors
/// A message: the system refused to write.
pub(crate) fn write(bytes: impl AsRef<[u8]>) -> Result<ExitCode, String> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write: {error}")),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Text of another process, in which nothing moves the cursor of a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
