//! One error type: what kind, which call, which value was wrong, and the errno a C program would
//! have seen.

mod returned;
mod words;

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use nic::Errno;

pub use returned::{ExposeError, IntoPolledError, PostError, ReuniteError, RevokeError, UnsplitError};

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Cheap to move: details are in a box, on the error path only.
///
/// # Examples
///
/// ```
/// use verbena::{ErrorKind, Value};
///
/// let error = verbena::connect("127.0.0.1:7471").retry_count(8).wait().unwrap_err();
/// assert_eq!((error.kind(), error.call()), (ErrorKind::OutOfRange, "rdma_connect"));
/// assert!(matches!(error.value(), Some(Value::Number { name: "retry_count", is: 8, .. })));
/// assert_eq!(error.to_string(), "rdma_connect: out of range: retry_count is 8, not 0 to 7");
/// ```
#[derive(Clone)]
pub struct Error(Box<Repr>);

#[derive(Clone, Debug)]
struct Repr {
    kind: ErrorKind,
    call: &'static str,
    errno: Option<i32>,
    value: Option<Value>,
    rejection: Option<Rejection>,
}

/// What kind of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value is outside of what the device or the protocol allows; [`Error::value`] has it and
    /// the limit.
    OutOfRange,
    /// A buffer, queue or address handle belongs to another protection domain than the queue pair.
    WrongDomain,
    /// The object's state does not allow it.
    WrongState,
    /// No room in a work queue (only from `post` and `try_` calls; futures wait for room).
    QueueFull,
    /// A device's or the provider's limit, or locked memory (RLIMIT_MEMLOCK) is used up.
    Exhausted,
    /// No such device, name, service or file.
    NotFound,
    /// The port is taken.
    AddressInUse,
    /// No device bears the address, or there is no route.
    Unreachable,
    /// The peer, or its system, refused the connection; see [`Error::rejection`].
    Rejected,
    /// No answer in time.
    TimedOut,
    /// The connection has ended, by whichever side.
    Disconnected,
    /// A work request completed in error.
    Completion(WcStatus),
    /// This provider or device does not do it.
    Unsupported,
    /// `Provider::system()`: the libraries are not there, or are ours.
    ProviderMissing,
    /// The object was made before a fork, by the parent.
    Forked,
    /// A blocking call inside a simulation, where it could never return.
    BlockingInSimulation,
    /// EACCES, EPERM.
    PermissionDenied,
    /// An errno of the system other than those above.
    System,
}

/// The value that was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number, and what would have been right.
    Number {
        /// Which.
        name: &'static str,
        /// The number as it is.
        is: u64,
        /// What is allowed.
        allowed: RangeInclusive<u64>,
    },
    /// A range of bytes that leaves its buffer or memory.
    Range {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// Bytes that there are.
        of: u64,
    },
    /// An address.
    Address(SocketAddr),
    /// A name or text.
    Text(String),
}

/// How a peer refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason of the REJ message.
    pub reason: RejectReason,
    /// What the peer's program said; zero-padded to the message's field.
    pub private_data: Vec<u8>,
}

/// Reason of a REJ (IBA 12.6.7.2). Each variant says its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// 28, consumer: the peer's program called reject.
    Consumer,
    /// 8, invalid service ID: no program listens there.
    InvalidServiceId,
    /// 10, stale connection: the queue pair still belongs to an older connection at the peer.
    StaleConnection,
    /// 3, no resources: the backlog is full, for example.
    NoResources,
    /// 4, timeout: the sender of the REJ gave up waiting.
    Timeout,
    /// A reason other than those above, by its number.
    Other(u16),
}

/// Status of a completion: `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the header's")]
pub enum WcStatus {
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    /// Never executed: the queue pair failed or was closed before. Not the cause; see
    /// `Connection::failure`.
    Flushed = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    RemoteAbort = 16,
    Fatal = 19,
    ResponseTimeout = 20,
    General = 21,
    TagMatching = 22,
    TagRendezvousIncomplete = 23,
}

#[cfg(feature = "sim")]
impl RejectReason {
    /// As the connection manager says it.
    pub(crate) fn refusal(self) -> ::cm::Refusal {
        use wire::mad::reason;
        ::cm::Refusal::Other(match self {
            Self::Consumer => reason::CONSUMER_DEFINED,
            Self::InvalidServiceId => reason::INVALID_SERVICE_ID,
            Self::StaleConnection => reason::STALE_CONNECTION,
            Self::NoResources => reason::NO_RESOURCES,
            Self::Timeout => reason::TIMEOUT,
            Self::Other(reason) => reason,
        })
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, call: &'static str) -> Self {
        Self(Box::new(Repr { kind, call, errno: None, value: None, rejection: None }))
    }
    pub(crate) fn with(mut self, value: Value) -> Self {
        self.0.value = Some(value);
        self
    }
    pub(crate) fn range(call: &'static str, at: u64, len: u64, of: u64) -> Self {
        Self::new(ErrorKind::OutOfRange, call).with(Value::Range { at, len, of })
    }
    pub(crate) fn number(
        call: &'static str,
        name: &'static str,
        is: u64,
        allowed: RangeInclusive<u64>,
    ) -> Self {
        Self::new(ErrorKind::OutOfRange, call).with(Value::Number { name, is, allowed })
    }
    /// What kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The call that failed, by the name of the C function where there is one.
    pub fn call(&self) -> &'static str {
        self.0.call
    }
    /// What errno a C program would have seen.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }
    /// The value that was wrong.
    pub fn value(&self) -> Option<&Value> {
        self.0.value.as_ref()
    }
    /// How a completion failed.
    pub fn status(&self) -> Option<WcStatus> {
        match self.0.kind {
            ErrorKind::Completion(status) => Some(status),
            _ => None,
        }
    }
    /// How a peer refused.
    pub fn rejection(&self) -> Option<&Rejection> {
        self.0.rejection.as_ref()
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match e.kind() {
            ErrorKind::OutOfRange | ErrorKind::WrongDomain => K::InvalidInput,
            ErrorKind::QueueFull => K::WouldBlock,
            ErrorKind::NotFound | ErrorKind::ProviderMissing => K::NotFound,
            ErrorKind::AddressInUse => K::AddrInUse,
            ErrorKind::Unreachable => K::HostUnreachable,
            ErrorKind::Rejected => K::ConnectionRefused,
            ErrorKind::TimedOut => K::TimedOut,
            ErrorKind::Disconnected => K::ConnectionAborted,
            ErrorKind::Unsupported => K::Unsupported,
            ErrorKind::PermissionDenied => K::PermissionDenied,
            _ => K::Other,
        };
        Self::new(kind, e)
    }
}

/// What the stack below says, as what a caller of `call` is told.
impl Error {
    pub(crate) fn of_errno(call: &'static str, errno: Errno) -> Self {
        let kind = match errno {
            Errno::EADDRINUSE => ErrorKind::AddressInUse,
            Errno::EADDRNOTAVAIL | Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENODEV => {
                ErrorKind::Unreachable
            }
            Errno::ETIMEDOUT => ErrorKind::TimedOut,
            Errno::EACCES | Errno::EPERM => ErrorKind::PermissionDenied,
            Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN => ErrorKind::Exhausted,
            Errno::ENOENT => ErrorKind::NotFound,
            Errno::EOPNOTSUPP => ErrorKind::Unsupported,
            Errno::EINVAL => ErrorKind::WrongState,
            _ => ErrorKind::System,
        };
        Self::new(kind, call).errno_is(errno)
    }

    pub(crate) fn of_io(call: &'static str, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::of_errno(call, Errno(errno)),
            None => Self::new(ErrorKind::System, call).with(Value::Text(error.to_string())),
        }
    }

    pub(crate) fn of_nic(call: &'static str, error: nic::Error) -> Self {
        let text = || Value::Text(error.to_string());
        match error {
            nic::Error::OutOfRange { what, value, least, most } => {
                Self::number(call, what, value, least..=most)
            }
            nic::Error::Limit(_) => Self::new(ErrorKind::Exhausted, call).with(text()),
            nic::Error::System(errno) => return Self::of_errno(call, errno),
            nic::Error::Invalid(_)
            | nic::Error::Value { .. }
            | nic::Error::State { .. }
            | nic::Error::Vacant { .. }
            | nic::Error::Busy => Self::new(ErrorKind::WrongState, call).with(text()),
            nic::Error::Missing(_) => Self::new(ErrorKind::NotFound, call).with(text()),
            nic::Error::Unsupported(_) => Self::new(ErrorKind::Unsupported, call).with(text()),
            nic::Error::Fault => Self::new(ErrorKind::System, call).with(text()),
        }
        .errno_is(error.errno())
    }

    pub(crate) fn of_post(call: &'static str, error: nic::PostError) -> Self {
        let kind = match error {
            nic::PostError::Full => ErrorKind::QueueFull,
            nic::PostError::State { .. } => ErrorKind::WrongState,
            nic::PostError::Unreachable(_) => ErrorKind::Unreachable,
            _ => ErrorKind::OutOfRange,
        };
        Self::new(kind, call).with(Value::Text(error.to_string())).errno_is(error.errno())
    }

    pub(crate) fn errno_is(mut self, errno: Errno) -> Self {
        self.0.errno = Some(errno.0);
        self
    }

    pub(crate) fn rejected(call: &'static str, rejection: Rejection) -> Self {
        let mut error = Self::new(ErrorKind::Rejected, call).errno_is(Errno::ECONNREFUSED);
        error.0.rejection = Some(rejection);
        error
    }
}

impl WcStatus {
    /// Of a completion that failed; `None` for success.
    pub(crate) fn of(status: transport::op::Status) -> Option<Self> {
        use transport::op::Status;
        Some(match status {
            Status::Success => return None,
            Status::LocalLength => Self::LocalLength,
            Status::LocalQpOperation => Self::LocalQpOperation,
            Status::LocalProtection => Self::LocalProtection,
            Status::WrFlush => Self::Flushed,
            Status::MwBind => Self::MwBind,
            Status::BadResponse => Self::BadResponse,
            Status::RemoteInvalidRequest => Self::RemoteInvalidRequest,
            Status::RemoteAccess => Self::RemoteAccess,
            Status::RemoteOperation => Self::RemoteOperation,
            Status::RetryExceeded => Self::RetryExceeded,
            Status::RnrRetryExceeded => Self::RnrRetryExceeded,
            Status::LocalAccess => Self::LocalAccess,
            Status::RemoteAbort => Self::RemoteAbort,
            Status::Fatal => Self::Fatal,
            Status::ResponseTimeout => Self::ResponseTimeout,
            Status::Tm => Self::TagMatching,
            Status::TmRendezvousIncomplete => Self::TagRendezvousIncomplete,
            Status::General
            | Status::LocalEecOperation
            | Status::LocalRddViolation
            | Status::RemoteInvalidRdRequest
            | Status::InvalidEecn
            | Status::InvalidEecState => Self::General,
        })
    }
}
