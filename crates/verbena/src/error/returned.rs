//! Errors of calls that take a value and give it back where they fail, as
//! `std::sync::mpsc::SendError` does.

use std::error::Error as StdError;
use std::fmt::{self, Debug, Display, Formatter};

use super::Error;
use crate::cm::Connection;
use crate::mem::{Exposed, RegBuf};
use crate::stream::{ReadHalf, WriteHalf};

/// An error with a cause and a value. It prints as the cause does, and `?` makes the cause of it in
/// a function that returns [`Error`] or [`std::io::Error`].
macro_rules! with_cause {
    ($(#[$doc:meta])* $name:ident $([$g:ident])?, $value:ty, $(#[$into_doc:meta])* $into:ident) => {
        $(#[$doc])*
        pub struct $name$(<$g>)? {
            error: Error,
            value: $value,
        }

        impl$(<$g>)? $name$(<$g>)? {
            pub(crate) fn new(error: Error, value: $value) -> Self {
                Self { error, value }
            }
            /// The cause.
            pub fn error(&self) -> &Error {
                &self.error
            }
            $(#[$into_doc])*
            pub fn $into(self) -> $value {
                self.value
            }
            /// The cause, and the value that the call took.
            pub fn into_parts(self) -> (Error, $value) {
                (self.error, self.value)
            }
        }

        impl$(<$g>)? Debug for $name$(<$g>)? {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.error)
            }
        }

        impl$(<$g>)? Display for $name$(<$g>)? {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                Display::fmt(&self.error, f)
            }
        }

        impl$(<$g>)? StdError for $name$(<$g>)? {}

        impl$(<$g>)? From<$name$(<$g>)?> for Error {
            fn from(failed: $name$(<$g>)?) -> Error {
                failed.error
            }
        }

        impl$(<$g>)? From<$name$(<$g>)?> for std::io::Error {
            fn from(failed: $name$(<$g>)?) -> std::io::Error {
                failed.error.into()
            }
        }
    };
}

with_cause!(
    /// Why [`Op::post`](crate::Op::post) or [`QueuePair::post_all`](crate::QueuePair::post_all)
    /// posted nothing, with the operation or operations as they were.
    ///
    /// ```
    /// use verbena::{Connection, ErrorKind};
    ///
    /// fn try_send(conn: &Connection, bytes: &[u8]) -> verbena::Result<bool> {
    ///     match conn.send_inline(bytes).post() {
    ///         Ok(sending) => drop(sending),
    ///         Err(full) if full.error().kind() == ErrorKind::QueueFull => return Ok(false),
    ///         Err(failed) => return Err(failed.into()),
    ///     }
    ///     Ok(true)
    /// }
    /// ```
    PostError[O], O,
    /// The operation or operations, to be posted again.
    into_op
);

with_cause!(
    /// Why [`RegBuf::expose`] granted no right, with the buffer.
    ExposeError, RegBuf,
    /// The buffer as it was.
    into_buf
);

with_cause!(
    /// Why [`Exposed::revoke`] could not take the right back, with the buffer, which stays exposed.
    RevokeError, Exposed,
    /// The buffer, still exposed.
    into_exposed
);

/// An error with a value, which has one cause only.
macro_rules! of_value {
    ($(#[$doc:meta])* $name:ident($($value:ty),*), $text:literal) => {
        $(#[$doc])*
        pub struct $name($(pub $value),*);

        impl Debug for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }

        impl StdError for $name {}
    };
}

of_value!(
    /// Two buffers that [`RegBuf::unsplit`] could not join: the first one, and the one that was to
    /// follow it.
    UnsplitError(RegBuf, RegBuf),
    "the buffers are no neighbours, or the first one is not full"
);

of_value!(
    /// Two halves that [`ReadHalf::reunite`] could not join: they are of two streams.
    ReuniteError(ReadHalf, WriteHalf),
    "the halves are of two streams"
);

of_value!(
    /// A connection that [`Connection::into_polled`] could not give to one thread: it has clones,
    /// or its completions come to a queue that other queue pairs share.
    IntoPolledError(Connection),
    "the connection has clones, or a completion queue that other queue pairs share"
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// As `?` does in a function that returns `Box<dyn Error>`, or an error of this crate.
    #[test]
    fn the_question_mark_takes_an_error_that_gives_a_value_back() {
        fn post() -> Result<(), PostError<u8>> {
            Err(PostError::new(Error::new(ErrorKind::QueueFull, "ibv_post_send"), 7))
        }
        let boxed = || -> Result<(), Box<dyn StdError + Send + Sync>> { Ok(post()?) };
        let io = || -> std::io::Result<()> { Ok(post()?) };
        let own = || -> crate::Result<()> { Ok(post()?) };
        let text = "ibv_post_send: the work queue is full";
        assert_eq!(boxed().unwrap_err().to_string(), text);
        assert_eq!(io().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!((own().unwrap_err().to_string(), post().unwrap_err().into_op()), (text.to_owned(), 7));
    }
}
