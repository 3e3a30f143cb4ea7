//! Errors in words: one line that says which call failed, how, and which value was wrong. `{}` and
//! `{:?}` are the same, as `fn main() -> verbena::Result<()>` prints the latter.

use std::fmt::{self, Debug, Display, Formatter};

use super::{Error, ErrorKind, RejectReason, Value, WcStatus};

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Error(repr) = self;
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
            Value::Number { name, is, allowed } => {
                write!(f, "{name} is {is}, not {} to {}", allowed.start(), allowed.end())
            }
            Value::Range { at, len, of } => write!(f, "{len} bytes at {at} of {of}"),
            Value::Address(address) => Display::fmt(address, f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

impl Display for ErrorKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::OutOfRange => "out of range",
            ErrorKind::WrongDomain => "of another protection domain",
            ErrorKind::WrongState => "not possible in this state",
            ErrorKind::QueueFull => "the work queue is full",
            ErrorKind::Exhausted => "a limit is used up",
            ErrorKind::NotFound => "not found",
            ErrorKind::AddressInUse => "the address is in use",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Rejected => "rejected",
            ErrorKind::TimedOut => "no answer in time",
            ErrorKind::Disconnected => "the connection has ended",
            ErrorKind::Completion(status) => return write!(f, "completed with a {status}"),
            ErrorKind::Unsupported => "not supported",
            ErrorKind::ProviderMissing => "no such provider here",
            ErrorKind::Forked => "made by the parent before the fork",
            ErrorKind::BlockingInSimulation => "blocks on a simulated host, where it would never return",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::System => "the system refused",
        })
    }
}

impl Display for RejectReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejectReason::Consumer => "by the peer's program (reason 28)",
            RejectReason::InvalidServiceId => "nobody listens there (reason 8)",
            RejectReason::StaleConnection => "the connection is stale (reason 10)",
            RejectReason::NoResources => "the peer has no room (reason 3)",
            RejectReason::Timeout => "it took too long (reason 4)",
            RejectReason::Other(reason) => return write!(f, "reason {reason}"),
        })
    }
}

impl Display for WcStatus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::LocalLength => "local length error",
            WcStatus::LocalQpOperation => "local queue pair operation error",
            WcStatus::LocalProtection => "local protection error",
            WcStatus::Flushed => "flush: it was never executed",
            WcStatus::MwBind => "memory window bind error",
            WcStatus::BadResponse => "bad response error",
            WcStatus::LocalAccess => "local access error",
            WcStatus::RemoteInvalidRequest => "remote invalid request error",
            WcStatus::RemoteAccess => "remote access error",
            WcStatus::RemoteOperation => "remote operation error",
            WcStatus::RetryExceeded => "transport retry count exceeded error",
            WcStatus::RnrRetryExceeded => "RNR retry count exceeded error",
            WcStatus::RemoteAbort => "remote abort error",
            WcStatus::Fatal => "fatal error",
            WcStatus::ResponseTimeout => "response timeout error",
            WcStatus::General => "general error",
            WcStatus::TagMatching => "tag matching error",
            WcStatus::TagRendezvousIncomplete => "tag matching rendezvous incomplete error",
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
