//! Messages, one-sided operations and their ends, over software on 127.0.0.1, or what `support`
//! says.

mod support;

use std::thread;
use std::time::Duration;

use verbena::prelude::*;
use verbena::{
    Connection, ErrorKind, Memory, Placement, Pool, QueueConfig, RemoteMemory, RemoteWrite, Result, WcStatus,
    block_on,
};

/// Both ends of a connection; the passive side tells the active one of `memory`.
fn connected(queues: &QueueConfig, memory: Option<&Memory<RemoteWrite>>) -> (Connection, Connection) {
    let listener = support::listen(support::any_port()).wait().unwrap();
    let to = listener.local_addr();
    let theirs = queues.clone();
    let memory = memory.cloned();
    let passive = thread::spawn(move || -> Result<Connection> {
        let request = listener.blocking_request()?;
        let told = match &memory {
            Some(memory) => memory.mr(request.pd())?.remote().to_bytes().to_vec(),
            None => Vec::new(),
        };
        request.accept().queues(theirs).private_data(told).wait()
    });
    let active = support::connect(to).queues(queues.clone()).wait().unwrap();
    (active, passive.join().unwrap().unwrap())
}

#[test]
fn messages_arrive_in_order_and_go_back_without_a_copy() {
    let (active, passive) = connected(&QueueConfig::default(), None);
    let echo = thread::spawn(move || {
        block_on(async {
            while let Some(message) = passive.recv().await? {
                passive.send(message).await.buf()?;
            }
            passive.close().await
        })
    });
    block_on(async {
        for n in 0..500_u64 {
            active.send_inline(&n.to_be_bytes()).imm(n as u32).await.unwrap();
            let answer = active.recv().await.unwrap().unwrap();
            assert_eq!((&answer[..], answer.imm()), (&n.to_be_bytes()[..], None));
        }
        active.close().await.unwrap();
    });
    echo.join().unwrap().unwrap();
}

#[test]
fn one_sided_operations_reach_the_memory_that_the_peer_told_of() {
    let memory = Memory::<RemoteWrite>::zeroed(1 << 20).unwrap();
    let (active, _passive) = connected(&QueueConfig::default(), Some(&memory));
    let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
    let pool = Pool::new(active.pd(), 1 << 20, 2).unwrap();
    block_on(async {
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i * 31 + 7) as u8).collect();
        active.write(pool.copy(&bytes).unwrap(), remote).await.buf().unwrap();
        let mut seen = vec![0; 1 << 20];
        memory.shared().copy_to(0, &mut seen).unwrap();
        assert_eq!(seen, bytes);
        let part = remote.slice(1000..5000).unwrap();
        let read = active.read(pool.get().unwrap(), part).await.buf().unwrap();
        assert_eq!(read[..], bytes[1000..5000]);
        let word = remote.word(64).unwrap();
        match active.atomic_write(word, 40).await {
            Ok(_) => _ = active.flush(remote.slice(..4096).unwrap(), Placement::Global).await.unwrap(),
            // A device, or a library that does not know of it: before anything is posted.
            Err(error) => {
                assert!(!support::is_ours() && error.kind() == ErrorKind::Unsupported, "{error}");
                let flush = active.flush(remote, Placement::Global).await;
                assert_eq!(flush.unwrap_err().kind(), ErrorKind::Unsupported);
                active.write_inline(&40_u64.to_ne_bytes(), word).await.unwrap();
            }
        }
        assert_eq!(active.fetch_add(word, 2).await.unwrap(), 40);
        assert_eq!(active.compare_swap(word, 42, 7).await.unwrap(), 42);
        assert_eq!(active.compare_swap(word, 42, 8).await.unwrap(), 7);
        assert_eq!(memory.shared().load::<u64>(64).unwrap(), 7);
    });
}

#[test]
fn several_operations_leave_with_one_doorbell_or_none_does() {
    let memory = Memory::<RemoteWrite>::zeroed(64).unwrap();
    let queues = QueueConfig::default().send_depth(3);
    let (active, _passive) = connected(&queues, Some(&memory));
    let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
    let write = |n: u8| active.write_inline(&[n], remote.slice(u64::from(n)..u64::from(n) + 1).unwrap());
    let (first, second) = active.post_all((write(1), active.fetch_add(remote.word(8).unwrap(), 5))).unwrap();
    first.wait().unwrap();
    assert_eq!(second.wait().unwrap(), 0);
    let (error, given_back) =
        active.post_all([write(2), write(3), write(4), write(5)]).unwrap_err().into_parts();
    assert_eq!((error.kind(), given_back.len()), (ErrorKind::QueueFull, 4));
    let beyond = active.write_inline(&[0; 65], remote);
    let error = active.post_all((write(6), beyond)).unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::OutOfRange);
    let seen: Vec<u8> = (0..8).map(|at| memory.shared().load::<u8>(at).unwrap()).collect();
    assert_eq!(seen, [0, 1, 0, 0, 0, 0, 0, 0], "nothing of what was refused");
}

#[test]
fn more_operations_than_entries_wait_for_room() {
    let queues = QueueConfig::default().send_depth(2).recv_depth(4);
    let (active, passive) = connected(&queues, None);
    let senders: Vec<_> = (0..8_u8)
        .map(|n| {
            let active = active.clone();
            thread::spawn(move || {
                for _ in 0..50 {
                    active.send_inline(&[n]).wait().unwrap();
                }
            })
        })
        .collect();
    let mut seen = [0; 8];
    for _ in 0..400 {
        seen[usize::from(passive.blocking_recv().unwrap().unwrap()[0])] += 1;
    }
    assert_eq!(seen, [50; 8]);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn a_dropped_operation_keeps_its_buffer_until_it_is_complete() {
    let (active, passive) = connected(&QueueConfig::default(), None);
    let pool = Pool::new(active.pd(), 4096, 1).unwrap();
    for n in 0..200_u32 {
        let mut buf = block_on(pool.acquire()).unwrap();
        buf.set_len(0).unwrap();
        buf.extend_from_slice(&n.to_be_bytes()).unwrap();
        drop(active.send(buf).post().unwrap());
        assert_eq!(passive.blocking_recv().unwrap().unwrap()[..], n.to_be_bytes());
    }
}

#[test]
fn what_came_while_nobody_waited_is_there_for_who_looks() {
    let (active, passive) = connected(&QueueConfig::default(), None);
    for n in 0..100 {
        let mut sending = active.send_inline(&[n]).post().unwrap();
        // The engine threads bring what comes, and no thread polls.
        let message = loop {
            match passive.try_recv().unwrap() {
                Some(message) => break message,
                None => thread::sleep(Duration::from_micros(50)),
            }
        };
        assert_eq!(message[..], [n]);
        loop {
            match sending.try_take() {
                Ok(result) => break result.map(drop).unwrap(),
                Err(under_way) => sending = under_way,
            }
            thread::sleep(Duration::from_micros(50));
        }
    }
    // A task that waits when something lies there already is not left waiting.
    let sending = active.send_inline(b"last").post().unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(block_on(passive.recv()).unwrap().unwrap()[..], *b"last");
    block_on(sending).unwrap();
}

#[test]
fn a_key_that_the_peer_never_gave_fails_the_connection_and_says_so() {
    let (active, passive) = connected(&QueueConfig::default(), None);
    let nowhere = RemoteMemory::from_raw(1 << 32, 0x1234_5678, 8);
    let error = active.write_inline(&[1], nowhere).wait().unwrap_err();
    assert_eq!(error.status(), Some(WcStatus::RemoteAccess), "{error}");
    assert_eq!(active.failure().and_then(|e| e.status()), Some(WcStatus::RemoteAccess));
    assert_eq!(active.blocking_recv().unwrap_err().status(), Some(WcStatus::RemoteAccess));
    assert!(active.blocking_recv().unwrap().is_none());
    let later = active.send_inline(&[1]).wait().unwrap_err();
    assert!(
        matches!(later.kind(), ErrorKind::Completion(WcStatus::Flushed) | ErrorKind::Disconnected),
        "{later}"
    );
    assert!(passive.blocking_recv_timeout(Duration::from_secs(5)).is_ok_and(|message| message.is_none()));
}

#[test]
fn what_came_before_the_end_is_received_before_the_end() {
    let (active, passive) = connected(&QueueConfig::default(), None);
    for n in 0..10 {
        active.send_inline(&[n]).wait().unwrap();
    }
    active.blocking_close().unwrap();
    for n in 0..10 {
        assert_eq!(passive.blocking_recv().unwrap().unwrap()[..], [n]);
    }
    assert!(passive.blocking_recv().unwrap().is_none());
}

#[test]
fn wrong_values_are_errors_before_anything_is_posted() {
    let memory = Memory::<RemoteWrite>::zeroed(16).unwrap();
    let (active, _passive) = connected(&QueueConfig::default(), Some(&memory));
    let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
    let kind = |result: Result<_>| result.unwrap_err().kind();
    let of_pool = |pool: &Pool| pool.get().unwrap().sized(17).unwrap();
    let pool = Pool::new(active.pd(), 4096, 1).unwrap();
    assert_eq!(kind(active.write(of_pool(&pool), remote).wait().0), ErrorKind::OutOfRange);
    let small = Pool::new(active.pd(), 8, 1).unwrap();
    assert_eq!(kind(active.read(small.get().unwrap(), remote).wait().0), ErrorKind::OutOfRange);
    assert_eq!(kind(active.send_inline(&[0; 65]).wait()), ErrorKind::OutOfRange);
    let other = Pool::new(&active.pd().device().new_pd().unwrap(), 8, 1).unwrap();
    assert_eq!(kind(active.send(other.copy(&[1]).unwrap()).wait().0), ErrorKind::WrongDomain);
    assert!(remote.word(4).is_err());
    active.write_inline(&[1], remote).wait().unwrap();
}

#[test]
fn operations_of_one_doorbell_are_executed_in_order_whatever_they_are() {
    let memory = Memory::<RemoteWrite>::zeroed(4096).unwrap();
    let queues = QueueConfig::default().send_depth(16);
    let (active, passive) = connected(&queues, Some(&memory));
    let remote = RemoteMemory::from_bytes(active.private_data()).unwrap();
    let word = remote.word(8).unwrap();
    let can_flush = active.flush(remote, Placement::Global).wait().is_ok();
    for n in 1..20_u64 {
        let write = active.write_inline(&n.to_ne_bytes(), word);
        let add = active.fetch_add(word, 1);
        let send = active.send_inline(&n.to_be_bytes());
        if can_flush {
            let posted = active.post_all((write, active.flush(remote, Placement::Global), add, send));
            let (write, flush, add, send) = posted.unwrap();
            assert_eq!(send.wait().unwrap().len, 0);
            flush.wait().unwrap();
            assert_eq!((write.wait().unwrap().len, add.wait().unwrap()), (0, n));
        } else {
            let (write, add, send) = active.post_all((write, add, send)).unwrap();
            assert_eq!(send.wait().unwrap().len, 0);
            assert_eq!((write.wait().unwrap().len, add.wait().unwrap()), (0, n));
        }
        assert_eq!(passive.blocking_recv().unwrap().unwrap()[..], n.to_be_bytes());
        assert_eq!(memory.shared().load::<u64>(8).unwrap(), n + 1);
    }
}
