//! A process that forks while one of its threads makes the instance: the child is not held up by
//! what that thread held.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::time::Duration;

use support::{in_a_child, loopback};

/// One test, in a process that makes no instance itself: every round begins without one.
#[test]
fn a_child_forked_while_another_thread_makes_the_instance_makes_its_own() {
    for round in 0..24 {
        let survived = in_a_child(|| {
            let maker = std::thread::spawn(|| loopback().addr());
            std::thread::sleep(Duration::from_micros(round * 150));
            assert!(in_a_child(|| assert!(!loopback().is_null())), "the child");
            assert_ne!(maker.join().expect("a device"), 0);
        });
        assert!(survived, "round {round}");
    }
}
