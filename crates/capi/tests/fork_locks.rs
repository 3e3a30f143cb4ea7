//! Children forked while threads of their parent make and destroy things: no lock that such a
//! thread held holds them up.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use capi::cma::channel::rdma_destroy_event_channel;
use rdma_core_abi::cma::RDMA_PS_TCP;

use support::{Loop, errno, in_a_child};

/// Forks while three threads repeat `busy`; each child does the same once.
fn children_are_not_held_up_by(busy: fn()) {
    busy();
    let stop = Arc::new(AtomicBool::new(false));
    let threads = [(); 3].map(|()| {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                busy();
            }
        })
    });
    let held_up = (0..60).find(|_| !in_a_child(busy));
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a thread");
    }
    assert_eq!(held_up, None);
}

#[test]
fn a_child_forked_while_other_threads_make_channels_makes_its_own() {
    children_are_not_held_up_by(|| unsafe { rdma_destroy_event_channel(cm::channel()) });
}

#[test]
fn a_child_forked_while_other_threads_make_identifiers_makes_its_own() {
    children_are_not_held_up_by(|| {
        let channel = cm::channel();
        cm::destroy(cm::id(channel, RDMA_PS_TCP));
        unsafe { rdma_destroy_event_channel(channel) };
        assert!(errno() >= 0);
    });
}

#[test]
fn a_child_forked_while_other_threads_open_devices_opens_its_own() {
    children_are_not_held_up_by(|| Loop::open().close());
}
