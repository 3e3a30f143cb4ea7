//! What goes wrong: upstream's error codes (`RPMA_E_*`) as an enum, with its texts
//! (rpma_err_2str(3)) and, after them, the cause.
//!
//! ```
//! use rpma::{Error, MrRemote};
//!
//! let error = MrRemote::from_descriptor(&[0; 20]).unwrap_err();
//! assert!(matches!(error, Error::Inval(_)));
//! assert_eq!((error.code(), error.text()), (-100_004, "Invalid argument"));
//! assert_eq!(error.to_string(), "Invalid argument: a descriptor of less than 21 bytes");
//! ```

use std::fmt::{self, Display, Formatter};

use verbena::ErrorKind;

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// RPMA_E_UNKNOWN: an event or answer that the library has no name for.
    Unknown,
    /// RPMA_E_NOSUPP: not supported, and what.
    NoSupp(&'static str),
    /// RPMA_E_PROVIDER: a call of the stack below failed, which and why.
    Provider(verbena::Error),
    /// RPMA_E_NOMEM: out of memory, in which call.
    NoMem(verbena::Error),
    /// RPMA_E_INVAL: an argument that can not be, and why.
    Inval(&'static str),
    /// RPMA_E_NO_COMPLETION: no next completion available.
    NoCompletion,
    /// RPMA_E_NO_EVENT: no next event available.
    NoEvent,
    /// RPMA_E_AGAIN: a temporary error, try again.
    Again,
    /// RPMA_E_SHARED_CHANNEL: the completion channel is shared.
    SharedChannel,
    /// RPMA_E_NOT_SHARED_CHNL: the completion channel is not shared.
    NotSharedChannel,
}

impl Error {
    /// The code of librpma.h, -100000 to -100009.
    pub fn code(&self) -> i32 {
        match self {
            Self::Unknown => -100_000,
            Self::NoSupp(_) => -100_001,
            Self::Provider(_) => -100_002,
            Self::NoMem(_) => -100_003,
            Self::Inval(_) => -100_004,
            Self::NoCompletion => -100_005,
            Self::NoEvent => -100_006,
            Self::Again => -100_007,
            Self::SharedChannel => -100_008,
            Self::NotSharedChannel => -100_009,
        }
    }

    /// Upstream's text for the code (rpma_err_2str(3)).
    pub fn text(&self) -> &'static str {
        match self {
            Self::Unknown => "Unknown error",
            Self::NoSupp(_) => "Not supported",
            Self::Provider(_) => "Provider error occurred",
            Self::NoMem(_) => "Out of memory",
            Self::Inval(_) => "Invalid argument",
            Self::NoCompletion => "No next completion available",
            Self::NoEvent => "No next event available",
            Self::Again => "Temporary error, try again",
            Self::SharedChannel => "Completion channel is shared",
            Self::NotSharedChannel => "Completion channel is not shared",
        }
    }

    /// What the stack below said.
    pub fn provider(&self) -> Option<&verbena::Error> {
        match self {
            Self::Provider(error) | Self::NoMem(error) => Some(error),
            _ => None,
        }
    }
}

impl From<verbena::Error> for Error {
    /// `NoMem` where memory or a limit of the device is used up, `Provider` otherwise.
    fn from(error: verbena::Error) -> Self {
        match error.kind() {
            ErrorKind::Exhausted => Self::NoMem(error),
            _ => Self::Provider(error),
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self {
            Self::Provider(error) | Self::NoMem(error) => write!(f, ": {error}"),
            Self::NoSupp(why) | Self::Inval(why) => write!(f, ": {why}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.provider().map(|error| error as _)
    }
}

/// Why [`Op::post`](crate::Op::post) or [`Op::post_to_cq`](crate::Op::post_to_cq) posted nothing,
/// with the operation as it was. It prints as its cause does, and `?` makes the cause of it in a
/// function that returns [`Error`].
pub struct PostError<O> {
    error: Error,
    op: O,
}

impl<O> PostError<O> {
    pub(crate) fn new(error: Error, op: O) -> Self {
        Self { error, op }
    }
    /// The cause.
    pub fn error(&self) -> &Error {
        &self.error
    }
    /// The operation, to be posted again.
    pub fn into_op(self) -> O {
        self.op
    }
    /// The cause, and the operation.
    pub fn into_parts(self) -> (Error, O) {
        (self.error, self.op)
    }
}

impl<O> fmt::Debug for PostError<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "PostError({:?})", self.error)
    }
}

impl<O> Display for PostError<O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.error, f)
    }
}

impl<O> std::error::Error for PostError<O> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<O> From<PostError<O>> for Error {
    fn from(failed: PostError<O>) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes and texts as Debian's librpma 1.2.0 gives them.
    #[test]
    fn codes_and_texts_are_upstreams() {
        let all = [
            (Error::Unknown, "Unknown error"),
            (Error::NoSupp("x"), "Not supported"),
            (Error::Inval("x"), "Invalid argument"),
            (Error::NoCompletion, "No next completion available"),
            (Error::NoEvent, "No next event available"),
            (Error::Again, "Temporary error, try again"),
            (Error::SharedChannel, "Completion channel is shared"),
            (Error::NotSharedChannel, "Completion channel is not shared"),
        ];
        let codes: Vec<_> = all.iter().map(|(error, _)| -error.code() - 100_000).collect();
        assert_eq!(codes, [0, 1, 4, 5, 6, 7, 8, 9]);
        assert!(all.iter().all(|(error, text)| error.text() == *text));
    }
}
