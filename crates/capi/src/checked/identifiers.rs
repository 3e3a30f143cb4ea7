//! Identifiers and event channels of rdma_cm, made and destroyed.

use check::objects::{Handle, Identifier};
use rdma_core_abi::cma::{rdma_cm_id, rdma_event_channel};

use super::{handle, look, note};

/// The event channel that the program has made; `None` where it is the identifier's own.
fn channel_of(channel: *mut rdma_event_channel, is_own: bool) -> Option<Handle> {
    (!is_own).then(|| handle(channel))
}

/// The program has an identifier more: it made one, or is handed a connection request.
pub(crate) fn made(id: *mut rdma_cm_id, channel: *mut rdma_event_channel, has_own_channel: bool) {
    note(|checker, made| {
        let channel = channel_of(channel, has_own_channel);
        checker.identifier_made(handle(id), Identifier { channel, made: made.clone() });
        Vec::new()
    });
}

/// An identifier's events go to another channel.
pub(crate) fn moved(id: *mut rdma_cm_id, channel: *mut rdma_event_channel, has_own_channel: bool) {
    look(|checker| checker.identifier_moved(handle(id), channel_of(channel, has_own_channel)));
}

/// An identifier is destroyed.
pub(crate) fn gone(id: *mut rdma_cm_id) {
    look(|checker| checker.identifier_gone(handle(id)));
}

/// A call names an identifier that is none of the program's. Where it was one, that is told.
pub(crate) fn is_unknown(id: *mut rdma_cm_id) {
    if look(|checker| checker.is_gone(handle(id))) == Some(true) {
        note(|checker, site| checker.used(handle(id), site));
    }
}

/// The program has made an event channel.
pub(crate) fn channel_made(channel: *mut rdma_event_channel) {
    note(|checker, site| {
        checker.channel_made(handle(channel), site);
        Vec::new()
    });
}

/// The program destroys an event channel.
pub(crate) fn channel_gone(channel: *mut rdma_event_channel) {
    look(|checker| checker.channel_gone(handle(channel)));
}
