//! Errors in words: one line that says which call failed, how, and which value was wrong. `{}` and
//! `{:?}` are the same, as `fn main() -> verbena::Result<()>` prints the latter.

use std::fmt::{self, Debug, Display, Formatter};

use super::{Error, ErrorKind, RejectReason, Value, WcStatus};

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(repr) = self;
        write!(f, "{}: {}", repr.call, repr.kind)?;
        if let Some(rejection) = &repr.rejection {
            write!(f, ": {}", rejection.reason)?;
        }
        if let Some(value) = &repr.value {
            write!(f, ": {value}")?;
        }
        match repr.errno {
            Some(errno) => write!(f, " (os error {errno})"),
            None => Ok(()),
        }
    }
}

impl Debug for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { name, is, allowed } => {
                write!(f, "{name} is {is}, not {} to {}", allowed.start(), allowed.end())
            }
            Self::Range { at, len, of } => write!(f, "{len} bytes at {at} of {of}"),
            Self::Address(address) => Display::fmt(address, f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Display for ErrorKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "out of range",
            Self::WrongDomain => "of another protection domain",
            Self::WrongState => "not possible in this state",
            Self::QueueFull => "the work queue is full",
            Self::Exhausted => "a limit is used up",
            Self::NotFound => "not found",
            Self::AddressInUse => "the address is in use",
            Self::Unreachable => "unreachable",
            Self::Rejected => "rejected",
            Self::TimedOut => "no answer in time",
            Self::Disconnected => "the connection has ended",
            Self::Completion(status) => return write!(f, "completed with a {status}"),
            Self::Unsupported => "not supported",
            Self::ProviderMissing => "no such provider here",
            Self::Forked => "made by the parent before the fork",
            Self::BlockingInSimulation => "blocks on a simulated host, where it would never return",
            Self::PermissionDenied => "permission denied",
            Self::System => "the system refused",
        })
    }
}

impl Display for RejectReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Consumer => "by the peer's program (reason 28)",
            Self::InvalidServiceId => "nobody listens there (reason 8)",
            Self::StaleConnection => "the connection is stale (reason 10)",
            Self::NoResources => "the peer has no room (reason 3)",
            Self::Timeout => "it took too long (reason 4)",
            Self::Other(reason) => return write!(f, "reason {reason}"),
        })
    }
}

impl Display for WcStatus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "flush: it was never executed",
            Self::MwBind => "memory window bind error",
            Self::BadResponse => "bad response error",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry count exceeded error",
            Self::RnrRetryExceeded => "RNR retry count exceeded error",
            Self::RemoteAbort => "remote abort error",
            Self::Fatal => "fatal error",
            Self::ResponseTimeout => "response timeout error",
            Self::General => "general error",
            Self::TagMatching => "tag matching error",
            Self::TagRendezvousIncomplete => "tag matching rendezvous incomplete error",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Rejection, Result};
    use super::*;

    /// What the standard library prints of `fn main() -> Result<()>`.
    fn printed(result: Result<()>) -> String {
        format!("Error: {:?}", result.expect_err("an error"))
    }

    #[test]
    fn an_error_is_one_line_that_says_which_call_failed_how_and_by_what_value() {
        let rejection = Rejection { reason: RejectReason::InvalidServiceId, private_data: vec![0; 148] };
        let refused = Error::rejected("rdma_connect", rejection);
        assert_eq!(
            printed(Err(refused)),
            "Error: rdma_connect: rejected: nobody listens there (reason 8) (os error 111)"
        );
        assert_eq!(
            printed(Err(Error::number("rdma_connect", "retry_count", 8, 0..=7))),
            "Error: rdma_connect: out of range: retry_count is 8, not 0 to 7"
        );
        let status = ErrorKind::Completion(WcStatus::RemoteAccess);
        let failed = Error::new(status, "ibv_poll_cq");
        assert_eq!(printed(Err(failed.clone())), "Error: ibv_poll_cq: completed with a remote access error");
        assert_eq!(format!("{failed:#?}"), failed.to_string());
        let address = "203.0.113.1:7".parse().expect("an address");
        let there = Error::of_errno("rdma_listen", nic::Errno::EADDRNOTAVAIL).with(Value::Address(address));
        assert_eq!(printed(Err(there)), "Error: rdma_listen: unreachable: 203.0.113.1:7 (os error 99)");
        let long = Error::range("ibv_post_send", 8, 9, 16);
        assert_eq!(long.to_string(), "ibv_post_send: out of range: 9 bytes at 8 of 16");
    }
}
