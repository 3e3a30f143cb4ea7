//! Why the adapter refuses: calls, and work requests. Each error has one errno, given here and nowhere else.

use crate::errno::Errno;

/// Why the adapter refuses a call; the C functions map each to its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An argument is out of its range or does not fit the object's state (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A number is out of its range (EINVAL).
    #[error("invalid argument: {what} is {value}, not {least} to {most}")]
    OutOfRange {
        /// What the number is, by its name in the manual pages.
        what: &'static str,
        /// The number.
        value: u64,
        /// The smallest that is taken.
        least: u64,
        /// The largest that is taken.
        most: u64,
    },
    /// A limit of the table in [`limits`](crate::limits) is reached (ENOMEM).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// Memory is not mapped, or not with the rights asked for (EFAULT).
    #[error("memory is not mapped with the access asked for")]
    Fault,
    /// What a name stands for does not exist (ENOENT).
    #[error("there is none: {0}")]
    Missing(&'static str),
    /// The object is still used by others (EBUSY).
    #[error("object is in use")]
    Busy,
    /// Not something this adapter does (EOPNOTSUPP).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The system refused; its errno.
    #[error("the system refused: {0}")]
    System(Errno),
}

impl Error {
    /// The errno of the manual pages.
    pub fn errno(self) -> Errno {
        match self {
            Error::Invalid(_) | Error::OutOfRange { .. } => Errno::EINVAL,
            Error::Limit(_) => Errno::ENOMEM,
            Error::Fault => Errno::EFAULT,
            Error::Missing(_) => Errno::ENOENT,
            Error::Busy => Errno::EBUSY,
            Error::Unsupported(_) => Errno::EOPNOTSUPP,
            Error::System(errno) => errno,
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        error.errno()
    }
}

/// Whether a number is in its range; [`Error::OutOfRange`] where not.
pub(crate) fn in_range(
    what: &'static str,
    value: impl Into<u64>,
    least: impl Into<u64>,
    most: impl Into<u64>,
) -> Result<(), Error> {
    let (value, least, most) = (value.into(), least.into(), most.into());
    if (least..=most).contains(&value) { Ok(()) } else { Err(Error::OutOfRange { what, value, least, most }) }
}

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The state does not allow it, or an argument is wrong (EINVAL).
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
    /// The queue is full (ENOMEM).
    #[error("work queue is full")]
    Full,
}

impl PostError {
    /// The errno of `ibv_post_send` and `ibv_post_recv`.
    pub fn errno(self) -> Errno {
        match self {
            PostError::Invalid(_) => Errno::EINVAL,
            PostError::Full => Errno::ENOMEM,
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Errno {
        error.errno()
    }
}
