//! Calls that were refused, and why.

use nic::mask;
use rdma_core_abi::verbs::ibv_qp;

use super::{handle, note};
use crate::ffi_guard::Errno;

/// Tells why a function refuses its arguments, and returns the errno for it.
pub(crate) fn because(function: &'static str, why: nic::Error) -> Errno {
    tell(function)(&why);
    why.errno()
}

/// What tells why a function was refused.
pub(crate) fn tell(function: &'static str) -> impl Fn(&nic::Error) {
    move |why| {
        if is_mistake(why) {
            note(|checker, site| checker.call_refused(function, &with_names(why), site));
        }
    }
}

/// Tells that a function does not destroy an object, and returns the errno for it.
pub(crate) fn in_use<T>(function: &'static str, object: *mut T) -> Errno {
    note(|checker, site| checker.in_use(function, handle(object), site));
    Errno(libc::EBUSY)
}

/// A change of a queue pair was refused, and why.
pub(crate) fn modify_refused(qp: *mut ibv_qp, why: &nic::Error) {
    if is_mistake(why) {
        note(|checker, site| checker.modify_refused(handle(qp), &with_names(why), site));
    }
}

/// Whether a call was refused because of its arguments, and not for want of resources.
fn is_mistake(why: &nic::Error) -> bool {
    matches!(
        why,
        nic::Error::Invalid(_)
            | nic::Error::Value { .. }
            | nic::Error::State { .. }
            | nic::Error::OutOfRange { .. }
            | nic::Error::Vacant { .. }
            | nic::Error::Fault
    )
}

/// What is wrong, with the names of attributes in place of a mask.
fn with_names(why: &nic::Error) -> String {
    match why {
        nic::Error::Value { what, value: nic::Value::Hex(bits) } if what.starts_with("attr_mask") => {
            let given = mask::NAMES.iter().filter(|(bit, _)| bits & u64::from(*bit) != 0);
            let names: Vec<_> = given.map(|(_, name)| format!("IBV_QP_{name}")).collect();
            format!("{what}: {}", names.join(", "))
        }
        other => other.to_string(),
    }
}
