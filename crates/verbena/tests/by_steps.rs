//! Connections that a program follows step by step, over software on 127.0.0.1, or what `support`
//! says.

mod support;

use std::thread;

use support::within;
use verbena::prelude::*;
use verbena::{ErrorKind, Pool, RejectReason, block_on};

#[test]
fn a_connection_that_is_begun_comes_to_be_while_nobody_waits() {
    let listener = support::listen(support::any_port()).wait().unwrap();
    let route = support::resolve(listener.local_addr()).wait().unwrap();
    let active = route.connect().private_data(b"hello").begin().unwrap();
    let pool = Pool::new(active.queue_pair().pd(), 8, 1).unwrap();
    let (early, _) = active.queue_pair().send(pool.copy(b"early").unwrap()).wait();
    assert_eq!(early.unwrap_err().kind(), ErrorKind::WrongState);
    assert_eq!(active.disconnect().unwrap_err().kind(), ErrorKind::WrongState);
    let passive = listener.blocking_request().unwrap().accept().private_data(b"welcome").begin().unwrap();
    // Asked in any order, and more than once.
    for _ in 0..2 {
        assert!(within(passive.established()).unwrap().starts_with(b"hello\0"));
        assert!(within(active.established()).unwrap().starts_with(b"welcome\0"));
    }
    within(active.queue_pair().send(pool.copy(b"now").unwrap())).buf().unwrap();
    assert_eq!(&within(passive.queue_pair().recv()).unwrap().unwrap()[..], b"now");
    passive.disconnect().unwrap();
    for end in [&active, &passive] {
        assert_eq!(within(end.ended()).kind(), ErrorKind::Disconnected);
        end.disconnect().unwrap();
    }
}

#[test]
fn a_refusal_of_what_was_begun_is_its_end() {
    let listener = support::listen(support::any_port()).wait().unwrap();
    let to = listener.local_addr();
    let refuses = thread::spawn(move || listener.blocking_request()?.reject(b"no"));
    let pending = support::resolve(to).wait().unwrap().connect().begin().unwrap();
    for error in [within(pending.established()).unwrap_err(), within(pending.ended())] {
        assert_eq!(error.rejection().map(|r| r.reason), Some(RejectReason::Consumer));
    }
    refuses.join().unwrap().unwrap();
    let without_route = support::connect(to).begin();
    assert_eq!(without_route.unwrap_err().kind(), ErrorKind::WrongState);
}

#[test]
fn what_is_begun_and_dropped_is_withdrawn() {
    let listener = support::listen(support::any_port()).wait().unwrap();
    let begin = || support::resolve(listener.local_addr()).wait().unwrap().connect().begin().unwrap();
    drop(begin());
    let kept = begin();
    // Of the first the listener may hear, or not.
    let accepted = block_on(async {
        loop {
            let begun = listener.request().await?.accept().begin();
            if let Ok(pending) = begun
                && pending.established().await.is_ok()
            {
                return Ok::<_, verbena::Error>(pending);
            }
        }
    });
    let accepted = accepted.unwrap();
    within(kept.established()).unwrap();
    drop(kept);
    assert_eq!(within(accepted.ended()).kind(), ErrorKind::Disconnected);
}
