//! What a program sees after a panic was caught at the border.
#![allow(clippy::undocumented_unsafe_blocks)] // all are calls by the contract of their man pages

mod support;

use abi::verbs::*;
use capi::ffi_guard;
use capi::verbs::{device, memory};

use support::{Loop, errno};

#[test]
fn a_caught_panic_makes_the_device_fatal() {
    let l = Loop::open();
    assert_eq!(l.post_recv(1, 8), 0);
    assert_eq!(ffi_guard::or_errno(|| panic!("as a fault of ours would")), libc::EIO);
    assert_eq!(ffi_guard::or_errno(|| panic!("a second one")), libc::EIO);
    unsafe {
        let mut e: ibv_async_event = std::mem::zeroed();
        assert_eq!(device::ibv_get_async_event(l.context, &raw mut e), 0);
        assert_eq!(e.event_type, IBV_EVENT_DEVICE_FATAL);
        device::ibv_ack_async_event(&raw mut e);
        // It is told once.
        libc::fcntl((*l.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        assert_eq!(device::ibv_get_async_event(l.context, &raw mut e), -1);
        assert_eq!(errno(), libc::EAGAIN);
        assert!(memory::ibv_alloc_pd(l.context).is_null());
        assert_eq!(errno(), libc::EIO);
    }
    assert_eq!(l.completions(1)[0].status, IBV_WC_WR_FLUSH_ERR);
    l.close();
}
