//! Why the adapter refuses: calls, and work requests. An error names what was wrong and, where
//! there is one, the value; each has one errno, given here and nowhere else.

use std::fmt;
use std::net::IpAddr;

use wire::Address;

use crate::errno::Errno;

/// Why the adapter refuses a call; the C functions map each to its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Objects or options do not go together, or an object is in a state that does not allow the
    /// call (EINVAL). The text names them.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A value is wrong, and no range says which are right: nothing has that key or index, a flag
    /// is not known (EINVAL).
    #[error("invalid argument: {what}: {value}")]
    Value {
        /// What is wrong with the value.
        what: &'static str,
        /// The value.
        value: Value,
    },
    /// The table has nothing at an index (ENODATA).
    #[error("there is nothing at {what} {index}")]
    Vacant {
        /// What the index is, by its name in the manual pages.
        what: &'static str,
        /// The index.
        index: u64,
    },
    /// The object's state is another than the caller says, or has no way to the one that is asked
    /// for (EINVAL).
    #[error("invalid argument: {what} {asked} in state {current}")]
    State {
        /// What the caller says of the state: a member by its name in the manual pages, or that it
        /// asks for it.
        what: &'static str,
        /// The state that it says, as the manual pages write it.
        asked: &'static str,
        /// The state that the object is in.
        current: &'static str,
    },
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
    /// What this adapter does not do (EOPNOTSUPP).
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
            Self::Invalid(_) | Self::Value { .. } | Self::State { .. } | Self::OutOfRange { .. } => {
                Errno::EINVAL
            }
            Self::Vacant { .. } => Errno::ENODATA,
            Self::Limit(_) => Errno::ENOMEM,
            Self::Fault => Errno::EFAULT,
            Self::Missing(_) => Errno::ENOENT,
            Self::Busy => Errno::EBUSY,
            Self::Unsupported(_) => Errno::EOPNOTSUPP,
            Self::System(errno) => errno,
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        error.errno()
    }
}

/// A value that was wrong, in the form in which a reader knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number or an index.
    Number(u64),
    /// Flags, a key, an address in memory: hexadecimal.
    Hex(u64),
    /// An address in the network.
    Address(IpAddr),
    /// A state or a type, as the manual pages write it.
    Name(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Hex(bits) => write!(f, "{bits:#x}"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Error {
    /// A number or an index that is wrong.
    pub fn number(what: &'static str, value: impl Into<u64>) -> Self {
        Self::Value { what, value: Value::Number(value.into()) }
    }
    /// Flags, a key or an address in memory that are wrong.
    pub fn hex(what: &'static str, value: impl Into<u64>) -> Self {
        Self::Value { what, value: Value::Hex(value.into()) }
    }
    /// An address in the network that is wrong.
    pub fn address(what: &'static str, value: IpAddr) -> Self {
        Self::Value { what, value: Value::Address(value) }
    }
    /// A state or a type that is wrong.
    pub fn name(what: &'static str, value: &'static str) -> Self {
        Self::Value { what, value: Value::Name(value) }
    }
}

/// Whether a number is in its range, both ends included.
///
/// # Errors
///
/// [`Error::OutOfRange`].
pub fn in_range(
    what: &'static str,
    value: impl Into<u64>,
    least: impl Into<u64>,
    most: impl Into<u64>,
) -> Result<(), Error> {
    let (value, least, most) = (value.into(), least.into(), most.into());
    if (least..=most).contains(&value) { Ok(()) } else { Err(Error::OutOfRange { what, value, least, most }) }
}

/// Why a work request was not taken. Small, and built where a request is refused only: posting is
/// the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The request does not go with its queue, or the queue is in a state that takes none; the text
    /// says which (EINVAL).
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
    /// The queue pair is in a state that does not send, named as the manual pages write it
    /// (EINVAL).
    #[error("invalid work request: a queue pair in state {0} does not send")]
    State(&'static str),
    /// More elements than the queue was made for (EINVAL).
    #[error("invalid work request: num_sge is {num_sge}, not 0 to {most}")]
    Elements {
        /// Elements of the request.
        num_sge: u32,
        /// Elements that the queue was made for: `max_send_sge`, `max_recv_sge` or `max_sge`.
        most: u32,
    },
    /// More inline data than the queue pair was made for (EINVAL).
    #[error("invalid work request: {len_bytes} bytes of inline data, not 0 to {most} (max_inline_data)")]
    Inline {
        /// Bytes of the request.
        len_bytes: u64,
        /// `max_inline_data` of the queue pair.
        most: u32,
    },
    /// An atomic operation on other than eight bytes at an address that is a multiple of eight
    /// (EINVAL).
    #[error(
        "invalid work request: an atomic works on 8 bytes at a multiple of 8, not on {len_bytes} at {addr:#x}"
    )]
    Atomic {
        /// The request's `remote_addr`.
        addr: u64,
        /// Bytes of its elements, cut to what fits.
        len_bytes: u32,
    },
    /// The way to an address handle's GID is gone, for the interfaces have changed (EINVAL).
    #[error("invalid work request: {0} is not reached any more")]
    Unreachable(Address),
    /// The queue is full (ENOMEM).
    #[error("work queue is full")]
    Full,
}

// A post returns it by value.
const _: () = assert!(size_of::<PostError>() <= 24 && size_of::<Result<(), PostError>>() <= 24);

impl PostError {
    /// The errno of `ibv_post_send` and `ibv_post_recv`.
    pub fn errno(self) -> Errno {
        match self {
            Self::Invalid(_)
            | Self::State(_)
            | Self::Elements { .. }
            | Self::Inline { .. }
            | Self::Atomic { .. }
            | Self::Unreachable(_) => Errno::EINVAL,
            Self::Full => Errno::ENOMEM,
        }
    }

    /// Whether a request with so many elements fits a queue made for `most`.
    #[inline]
    pub(crate) fn check_elements(num_sge: usize, most: u32) -> Result<(), Self> {
        if num_sge > most as usize {
            return Err(Self::Elements { num_sge: u32::try_from(num_sge).unwrap_or(u32::MAX), most });
        }
        Ok(())
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        error.errno()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_errno_of_the_manual_pages() {
        let table = [
            (Error::Invalid("a combination"), "EINVAL (22)"),
            (Error::hex("no memory region has the key", 7_u32), "EINVAL (22)"),
            (Error::State { what: "no transition to", asked: "RTS", current: "RESET" }, "EINVAL (22)"),
            (Error::OutOfRange { what: "max_wr", value: 9, least: 1, most: 8 }, "EINVAL (22)"),
            (Error::Limit("queue pairs"), "ENOMEM (12)"),
            (Error::Fault, "EFAULT (14)"),
            (Error::Missing("the file has no XRC domain"), "ENOENT (2)"),
            (Error::Busy, "EBUSY (16)"),
            (Error::Unsupported("hash fields"), "EOPNOTSUPP (95)"),
            (Error::System(Errno::EADDRINUSE), "EADDRINUSE (98)"),
            (Error::Vacant { what: "sgid_index", index: 9 }, "ENODATA (61)"),
        ];
        // A new variant does not compile here; it gets the next number, and a line above.
        let place = |error: Error| match error {
            Error::Invalid(_) => 0,
            Error::Value { .. } => 1,
            Error::State { .. } => 2,
            Error::OutOfRange { .. } => 3,
            Error::Limit(_) => 4,
            Error::Fault => 5,
            Error::Missing(_) => 6,
            Error::Busy => 7,
            Error::Unsupported(_) => 8,
            Error::System(_) => 9,
            Error::Vacant { .. } => 10,
        };
        for (at, (error, errno)) in table.into_iter().enumerate() {
            assert_eq!((place(error), error.errno().to_string().as_str()), (at, errno), "{error}");
        }
    }

    #[test]
    fn every_post_error_has_the_errno_of_the_manual_pages() {
        let table = [
            (PostError::Invalid("a combination"), "EINVAL (22)"),
            (PostError::State("INIT"), "EINVAL (22)"),
            (PostError::Elements { num_sge: 5, most: 4 }, "EINVAL (22)"),
            (PostError::Inline { len_bytes: 300, most: 256 }, "EINVAL (22)"),
            (PostError::Atomic { addr: 0x1004, len_bytes: 8 }, "EINVAL (22)"),
            (PostError::Unreachable(Address::Ip([10, 0, 0, 2].into())), "EINVAL (22)"),
            (PostError::Full, "ENOMEM (12)"),
        ];
        let place = |error: PostError| match error {
            PostError::Invalid(_) => 0,
            PostError::State(_) => 1,
            PostError::Elements { .. } => 2,
            PostError::Inline { .. } => 3,
            PostError::Atomic { .. } => 4,
            PostError::Unreachable(_) => 5,
            PostError::Full => 6,
        };
        for (at, (error, errno)) in table.into_iter().enumerate() {
            assert_eq!((place(error), error.errno().to_string().as_str()), (at, errno), "{error}");
        }
    }

    #[test]
    fn the_message_says_the_value_that_was_wrong() {
        for (error, message) in [
            (Error::number("no GID at sgid_index", 7_u8), "no GID at sgid_index: 7"),
            (Error::hex("unknown access flags", 0x800_u32), "unknown access flags: 0x800"),
            (Error::address("not a group", IpAddr::from([10, 0, 0, 2])), "not a group: 10.0.0.2"),
            (Error::name("only raw packet queue pairs", "RC"), "only raw packet queue pairs: RC"),
            (
                Error::State { what: "no transition to", asked: "RTS", current: "RESET" },
                "no transition to RTS in state RESET",
            ),
            (
                in_range("max_wr", 9_u32, 1_u32, 8_u32).expect_err("above the range"),
                "max_wr is 9, not 1 to 8",
            ),
        ] {
            assert_eq!(error.to_string(), format!("invalid argument: {message}"));
        }
        let elements = PostError::check_elements(5, 4).expect_err("one too many");
        assert_eq!(elements.to_string(), "invalid work request: num_sge is 5, not 0 to 4");
    }
}
