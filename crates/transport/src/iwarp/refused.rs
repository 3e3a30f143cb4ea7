//! What it means that a segment is refused: the TERMINATE that names the error, and the event of
//! the queue pair (RFC 5040 §8, RFC 5041 §7). Where the RFCs have no code, the kernel's siw
//! decides.

use wire::iwarp::rdmap::{Cause, Terminate};

use super::Broken;
use crate::execute::Refusal;
use crate::op::{Context, Fault, QpEvent};

/// A segment breaks the protocol.
pub(super) fn illegal(cause: Cause, fpdu: &[u8], cx: &mut impl Context) -> Broken {
    cx.event(QpEvent::Fatal);
    Broken(Some(Terminate::of(cause, fpdu)))
}

/// A tagged segment may not be placed where it says.
pub(super) fn refused_write(refusal: Refusal, fpdu: &[u8], cx: &mut impl Context) -> Broken {
    let cause = match refusal {
        Refusal::Remote(fault) => {
            cx.event(QpEvent::AccessError);
            tagged(fault)
        }
        _ => {
            cx.event(QpEvent::Fatal);
            Cause::DdpCatastrophic
        }
    };
    Broken(Some(Terminate::of(cause, fpdu)))
}

/// A READ response does not find its place: the memory of the request is not as it was.
pub(super) fn refused_response(fault: Fault, fpdu: &[u8], cx: &mut impl Context) -> Broken {
    cx.event(QpEvent::AccessError);
    Broken(Some(Terminate::of(tagged(fault), fpdu)))
}

/// A SEND is not taken.
pub(super) fn refused_send(refusal: Refusal, fpdu: &[u8], cx: &mut impl Context) -> Broken {
    let (event, cause) = match refusal {
        Refusal::NoReceive => (QpEvent::Fatal, Cause::MsnNoBuffer),
        Refusal::TooLong => (QpEvent::Fatal, Cause::MessageTooLong),
        Refusal::Remote(_) => (QpEvent::AccessError, Cause::CannotInvalidate),
        Refusal::Local(_) => (QpEvent::AccessError, Cause::DdpCatastrophic),
        Refusal::Illegal | Refusal::Absent | Refusal::Away => (QpEvent::Fatal, Cause::DdpCatastrophic),
    };
    cx.event(event);
    Broken(Some(Terminate::of(cause, fpdu)))
}

/// The peer may not read there.
pub(super) fn refused_read(fault: Fault, fpdu: &[u8], cx: &mut impl Context) -> Broken {
    cx.event(QpEvent::AccessError);
    refused_read_later(fault, fpdu)
}

/// The peer could read there when it asked, and cannot any more: the kernel's siw raises no event.
pub(super) fn refused_read_later(fault: Fault, fpdu: &[u8]) -> Broken {
    let cause = match fault {
        Fault::Key => Cause::InvalidStag,
        Fault::Range => Cause::BaseOrBounds,
        Fault::Rights => Cause::AccessRights,
        Fault::Unmapped | Fault::Storage | Fault::Absent | Fault::Away => Cause::ProtectionUnspecified,
    };
    Broken(Some(Terminate::of(cause, fpdu)))
}

/// RFC 5041 §7.2 has no code for rights that are missing: the STag is not one for that.
fn tagged(fault: Fault) -> Cause {
    match fault {
        Fault::Key | Fault::Rights => Cause::TaggedInvalidStag,
        Fault::Range => Cause::TaggedBaseOrBounds,
        Fault::Unmapped | Fault::Storage | Fault::Absent | Fault::Away => Cause::DdpCatastrophic,
    }
}
