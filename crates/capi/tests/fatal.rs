//! What a program sees after a panic was caught at the border.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use capi::ffi_guard;
use capi::verbs::{device, memory};
use rdma_core_abi::verbs::*;

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

#[test]
fn an_engine_that_can_wait_no_more_makes_the_device_fatal() {
    let l = Loop::open();
    assert_eq!(l.post_recv(1, 8), 0);
    let is_epoll = |fd: &i32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|link| link.to_string_lossy().contains("eventpoll"))
    };
    let engines = (0..256).find(is_epoll).expect("an engine waits");
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        assert_eq!(libc::dup2(nothing, engines), engines);
        let mut e: ibv_async_event = std::mem::zeroed();
        libc::fcntl((*l.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        let begin = std::time::Instant::now();
        // What it is woken for: it goes to wait again after that.
        while device::ibv_get_async_event(l.context, &raw mut e) != 0 {
            assert!(begin.elapsed() < std::time::Duration::from_secs(10), "nothing is told");
            let mut sges = [l.sge(0, 8)];
            let mut wr = support::send(2, IBV_WR_SEND, &mut sges);
            l.post_send(&mut wr);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(e.event_type, IBV_EVENT_DEVICE_FATAL);
        device::ibv_ack_async_event(&raw mut e);
        assert!(memory::ibv_alloc_pd(l.context).is_null());
        assert_eq!(errno(), libc::EIO);
    }
    l.close();
}
