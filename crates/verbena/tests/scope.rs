//! Borrowed bytes: `scope`; and buffers that the peer reaches for a while: `expose`. Over what
//! `support` says.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use verbena::{Access, Connection, ErrorKind, Memory, Pool, RemoteMemory, RemoteWrite, WcStatus};

/// Both ends of a connection; the passive one has registered so many bytes for the active one.
fn connected(bytes: usize) -> (Connection, Connection, Memory<RemoteWrite>, RemoteMemory) {
    let memory = Memory::<RemoteWrite>::zeroed(bytes).unwrap();
    let listener = support::listen(support::any_port()).wait().unwrap();
    let to = listener.local_addr();
    thread::scope(|s| {
        let active = s.spawn(move || support::connect(to).wait().unwrap());
        let request = listener.blocking_request().unwrap();
        let remote = memory.mr(request.pd()).unwrap().remote();
        let passive = request.accept().wait().unwrap();
        (active.join().unwrap(), passive, memory.clone(), remote)
    })
}

#[test]
fn borrowed_bytes_are_sent_written_and_read() {
    let (active, passive, memory, remote) = connected(4096);
    let message = b"borrowed".to_vec();
    let mut back = [0; 10];
    active
        .scope(|s| {
            let sent = s.send(&message)?;
            s.write(b"0123456789", remote)?.wait()?;
            s.read(&mut back, remote.slice(..10)?)?.wait()?;
            sent.wait()
        })
        .unwrap();
    assert_eq!(&back, b"0123456789");
    assert_eq!(&passive.blocking_recv().unwrap().unwrap()[..], b"borrowed");
    let mut there = [0; 10];
    memory.shared().copy_to(0, &mut there).unwrap();
    assert_eq!(&there, b"0123456789");
}

#[test]
fn a_scope_waits_for_operations_whose_handles_are_gone() {
    let (active, _passive, _memory, remote) = connected(1 << 20);
    let bytes = vec![7; 1 << 20];
    let mut back = vec![0; 1 << 20];
    active
        .scope(|s| {
            let _forgotten = s.write(&bytes, remote)?;
            // More than the send queue has room for.
            (0..300).try_for_each(|_| s.write(&bytes[..8], remote).map(drop))?;
            s.read(&mut back, remote).map(drop)
        })
        .unwrap();
    assert!(back == bytes, "the READ was complete");
}

#[test]
fn a_scope_that_panics_fails_the_queue_pair_and_ends() {
    let (active, _passive, _memory, remote) = connected(1 << 20);
    let mut back = vec![0; 1 << 20];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        active.scope(|s| -> verbena::Result<()> {
            let _under_way = s.read(&mut back, remote)?;
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    back.fill(1); // nothing writes there any more
    let after = active.write_inline(&[1; 8], remote).wait().expect_err("the queue pair has failed");
    assert_eq!(after.kind(), ErrorKind::Completion(WcStatus::Flushed));
    assert!(back.iter().all(|byte| *byte == 1));
}

#[test]
fn what_a_scope_can_not_post_is_an_error_and_nothing_is_lost() {
    let (active, _passive, _memory, remote) = connected(64);
    let mut bytes = [1; 100];
    active
        .scope(|s| {
            assert_eq!(s.write(&[0; 65], remote).expect_err("65 bytes").kind(), ErrorKind::OutOfRange);
            s.write(&[], remote)?.wait()?;
            Ok(())
        })
        .unwrap();
    let short = active.scope(|s| s.read(&mut bytes[..10], remote)?.wait()).expect_err("10 bytes of room");
    assert_eq!(short.kind(), ErrorKind::OutOfRange);
    active.scope(|s| s.read(&mut bytes, remote)?.wait()).unwrap();
    assert_eq!((&bytes[..64], &bytes[64..]), (&[0; 64][..], &[1; 36][..]));
}

#[test]
fn the_peer_reaches_an_exposed_buffer_until_it_is_revoked() {
    let (active, passive, ..) = connected(64);
    let pool = Pool::new(passive.pd(), 4096, 1).unwrap();
    let buf = pool.copy(&[3; 4000]).unwrap();
    let exposed =
        buf.blocking_expose(passive.queue_pair(), Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let remote = exposed.remote();
    active.write_inline(b"written", remote).wait().unwrap();
    assert_eq!(exposed.shared().load::<u64>(0).unwrap().to_ne_bytes(), *b"written\x03");
    let (read, mut seen) = active.read(active.buffer().unwrap(), remote.slice(..10).unwrap()).wait();
    read.unwrap();
    assert_eq!(&seen[..], b"written\x03\x03\x03");
    let back = exposed.revoke().unwrap();
    assert_eq!((&back[..7], back.len()), (&b"written"[..], 4000));
    seen.set_len(8).unwrap();
    let (refused, _) = active.write(seen, remote).wait();
    assert_eq!(refused.expect_err("revoked").kind(), ErrorKind::Completion(WcStatus::RemoteAccess));
    drop(back);
    pool.get().expect("the buffer is the pool's again");
}

#[test]
fn a_send_with_invalidate_ends_the_right() {
    let (active, passive, ..) = connected(64);
    let pool = Pool::new(passive.pd(), 64, 1).unwrap();
    let exposed =
        pool.copy(&[1; 64]).unwrap().blocking_expose(passive.queue_pair(), Access::REMOTE_WRITE).unwrap();
    let remote = exposed.remote();
    active.write_inline(&[2; 64], remote).wait().unwrap();
    active.send_inline(b"done").invalidate(remote.rkey()).wait().unwrap();
    let message = passive.blocking_recv().unwrap().unwrap();
    assert_eq!(&message[..], b"done");
    // rdma_rxe's completions do not say so.
    let told = if support::is_ours() { Some(remote.rkey()) } else { message.invalidated() };
    assert_eq!(message.invalidated(), told);
    let refused = active.write_inline(&[3; 64], remote).wait().expect_err("invalidated");
    assert_eq!(refused.kind(), ErrorKind::Completion(WcStatus::RemoteAccess));
    assert_eq!(&exposed.revoke().unwrap()[..], &[2; 64]);
}

#[test]
fn a_right_that_was_not_granted_is_none_and_another_connection_has_none() {
    let (active, passive, ..) = connected(64);
    let (third, other, ..) = connected(64);
    assert_eq!(passive.pd(), other.pd());
    let pool = Pool::new(passive.pd(), 64, 2).unwrap();
    let exposed =
        pool.copy(&[1; 64]).unwrap().blocking_expose(passive.queue_pair(), Access::REMOTE_READ).unwrap();
    for end in [third, active] {
        let refused = end.write_inline(&[2; 8], exposed.remote()).wait().expect_err("not granted");
        assert_eq!(refused.kind(), ErrorKind::Completion(WcStatus::RemoteAccess));
    }
    drop(exposed);
    // The queue pair has failed with the refusal: nothing is bound there any more, and the buffer
    // comes back.
    let (error, buf) = pool
        .copy(&[4; 64])
        .unwrap()
        .blocking_expose(passive.queue_pair(), Access::REMOTE_READ)
        .unwrap_err()
        .into_parts();
    assert_eq!((error.kind(), &buf[..]), (ErrorKind::Completion(WcStatus::Flushed), &[4; 64][..]));
}

#[test]
fn what_can_not_be_exposed_comes_back() {
    let (_active, passive, ..) = connected(64);
    let (_, other, ..) = connected(64);
    let pool = Pool::new(&passive.pd().device().new_pd().unwrap(), 64, 1).unwrap();
    let (error, buf) = pool
        .copy(&[1; 8])
        .unwrap()
        .blocking_expose(other.queue_pair(), Access::REMOTE_READ)
        .unwrap_err()
        .into_parts();
    assert_eq!((error.kind(), &buf[..]), (ErrorKind::WrongDomain, &[1; 8][..]));
    drop(buf);
    let pool = Pool::new(passive.pd(), 60, 1).unwrap();
    let mut buf = pool.copy(&[1; 60]).unwrap();
    for (at, kind) in [(0, None), (4, Some(ErrorKind::OutOfRange))] {
        let first = buf.split_to(at).unwrap();
        let rights = if kind.is_none() { Access::FLUSH_GLOBAL } else { Access::REMOTE_READ };
        let (error, back) = buf.blocking_expose(passive.queue_pair(), rights).unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
        buf = first.unsplit(back).unwrap();
    }
    // 60 bytes have no room up to the 64th.
    assert_eq!(
        buf.blocking_expose(passive.queue_pair(), Access::REMOTE_READ).unwrap_err().error().kind(),
        ErrorKind::OutOfRange
    );
}
