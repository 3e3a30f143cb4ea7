//! Calls that were refused, and why.

use nic::mask;
use nic::memory::NO_FILE;
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

/// Whether a call was refused because of its arguments, and not for want of resources. Where no
/// other call tells of a limit, programs try: how many bytes go inline, and whether memory can be
/// flushed to persistence.
fn is_mistake(why: &nic::Error) -> bool {
    let is_tried = match why {
        nic::Error::OutOfRange { what, .. } => *what == "max_inline_data",
        nic::Error::Value { what, .. } => *what == NO_FILE,
        _ => false,
    };
    !is_tried
        && matches!(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_can_only_try_is_no_mistake() {
        let out_of_range = |what| nic::Error::OutOfRange { what, value: 4096, least: 0, most: 1024 };
        assert!(is_mistake(&out_of_range("max_send_wr")) && !is_mistake(&out_of_range("max_inline_data")));
        assert!(is_mistake(&nic::Error::hex("lkey", 7_u32)) && !is_mistake(&nic::Error::hex(NO_FILE, 7_u32)));
        assert!(is_mistake(&nic::Error::Fault) && !is_mistake(&nic::Error::Limit("queue pairs")));
    }
}
