//! Byte streams in a simulation: what is read is what was written, whatever is lost, cancelled,
//! closed or killed; and once over software.
#![cfg(feature = "sim")]

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use verbena::sim::Host;
use verbena::time::{sleep, timeout};
use verbena::{RdmaListener, RdmaStream, ReadHalf, StreamConfig, WriteHalf, block_on, connect, listen};

const MS: Duration = Duration::from_millis(1);
fn small() -> StreamConfig {
    StreamConfig::default().window(4).message_size(256)
}

/// Numbers that depend on the seed.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn of(host: &Host, salt: u64) -> Self {
        Self(host.seed().wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt << 40 | 1)
    }
    fn up_to(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % (most + 1)
    }
    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.up_to(most);
        (0..len).map(|_| self.up_to(255) as u8).collect()
    }
    fn config(&mut self) -> StreamConfig {
        let window = 2 + self.up_to(14) as u16;
        StreamConfig::default().window(window).message_size(64 + self.up_to(5000) as u32)
    }
}

async fn accept_one(config: StreamConfig) -> RdmaStream {
    let mut listener = RdmaListener::over(listen("0.0.0.0:7000"), config).await.unwrap();
    listener.accept().await.unwrap()
}

/// Both ends of a stream.
async fn connected(
    left: &Host,
    right: &Host,
    ours: StreamConfig,
    theirs: StreamConfig,
) -> (RdmaStream, RdmaStream) {
    let passive = right.spawn(accept_one(theirs));
    let active = left.spawn(RdmaStream::over(connect("right:7000"), ours));
    (active.await.unwrap(), passive.await)
}

async fn write_some(stream: &mut WriteHalf, bytes: &[u8], split: usize) -> io::Result<usize> {
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    poll_fn(|cx| {
        stream.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)])
    })
    .await
}

/// Writes in pieces of any size; some calls are cancelled at once.
async fn write_all(mut stream: WriteHalf, mut bytes: &[u8], mut random: Random) -> io::Result<WriteHalf> {
    while !bytes.is_empty() {
        let piece = &bytes[..(1 + random.up_to(12_000)).min(bytes.len())];
        let split = random.up_to(500);
        let written = match random.up_to(3) {
            0 => {
                let mut writing = pin!(write_some(&mut stream, piece, split));
                match poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await {
                    Poll::Ready(written) => written?,
                    Poll::Pending => 0,
                }
            }
            1 => {
                sleep(Duration::from_micros(random.up_to(300) as u64)).await;
                write_some(&mut stream, piece, split).await?
            }
            _ => write_some(&mut stream, piece, split).await?,
        };
        bytes = &bytes[written..];
    }
    poll_fn(|cx| stream.poll_shutdown(cx)).await?;
    Ok(stream)
}

/// Reads pieces of any size to the end.
async fn read_all(stream: &mut ReadHalf, mut random: Random) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let most = 1 + random.up_to(9000);
        let n = poll_fn(|cx| {
            stream.poll_fill_buf(cx).map_ok(|there| {
                bytes.extend(&there[..there.len().min(most)]);
                there.len().min(most)
            })
        })
        .await?;
        stream.consume(n);
        if n == 0 {
            return Ok(bytes);
        }
        if random.up_to(5) == 0 {
            sleep(Duration::from_micros(random.up_to(500) as u64)).await;
        }
    }
}

#[verbena::test(seeds = 200, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn what_is_read_is_what_was_written_in_both_directions_at_once(left: Host, right: Host) {
    let mut random = Random::of(&left, 1);
    let (ours, theirs) = (random.config(), random.config());
    let (active, passive) = connected(&left, &right, ours, theirs).await;
    let said = [random.bytes(120_000), random.bytes(120_000)];
    let mut tasks = Vec::new();
    for (at, (host, stream)) in [(&left, active), (&right, passive)].into_iter().enumerate() {
        let (mut read, write) = stream.into_split();
        let (bytes, salt) = (said[at].clone(), Random::of(&left, 2 + at as u64));
        let writer = salt.clone();
        let writing = host.spawn(async move { write_all(write, &bytes, writer).await.unwrap() });
        tasks.push(host.spawn(async move {
            let heard = read_all(&mut read, salt).await.unwrap();
            let stream = read.reunite(writing.await).unwrap();
            stream.close().await.unwrap();
            heard
        }));
    }
    let heard = [tasks.remove(0).await, tasks.remove(0).await];
    assert!(heard[0] == said[1] && heard[1] == said[0]);
}

#[verbena::test(seeds = 200, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn one_direction_ends_and_the_other_goes_on(left: Host, right: Host) {
    let (mut active, mut passive) = connected(&left, &right, small(), StreamConfig::default()).await;
    let answering = right.spawn(async move {
        let mut question = [0; 64];
        assert_eq!(passive.read(&mut question).await.unwrap(), 5);
        assert_eq!(passive.read(&mut question).await.unwrap(), 0);
        assert_eq!(passive.read(&mut question).await.unwrap(), 0, "the end stays the end");
        for n in 0..100_u8 {
            passive.write_all(&[n; 100]).await.unwrap();
        }
        passive.shutdown().await.unwrap();
        passive.shutdown().await.unwrap();
    });
    let asking = left.spawn(async move {
        active.write_all(b"hello").await.unwrap();
        active.shutdown().await.unwrap();
        assert_eq!(active.write_all(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let (mut read, _write) = active.into_split();
        read_all(&mut read, Random(1)).await.unwrap()
    });
    let heard = asking.await;
    answering.await;
    assert!(
        heard.len() == 10_000 && heard.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 100)
    );
}

#[verbena::test(seeds = 50, faults = "loss=1%, delay=20us..200us")]
async fn a_stream_dropped_without_an_end_is_reset_behind_what_had_come(left: Host, right: Host) {
    let (mut active, mut passive) = connected(&left, &right, small(), small()).await;
    left.spawn(async move {
        active.write_all(b"all there is").await.unwrap();
        sleep(MS * 20_000).await;
        drop(active);
    })
    .await;
    right
        .spawn(async move {
            sleep(MS * 20_000).await;
            let mut bytes = [0; 64];
            assert_eq!(passive.read(&mut bytes).await.unwrap(), 12);
            assert_eq!(passive.read(&mut bytes).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(passive.write_all(b"gone").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert_eq!(passive.shutdown().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        })
        .await;
}

#[verbena::test(seeds = 50, faults = "loss=1%, delay=20us..200us")]
async fn a_peer_that_ended_its_direction_may_leave_before_the_other_ends(left: Host, right: Host) {
    let (mut active, mut passive) = connected(&left, &right, small(), small()).await;
    left.spawn(async move {
        active.shutdown().await.unwrap();
        drop(active);
    })
    .await;
    right
        .spawn(async move {
            sleep(MS * 20_000).await;
            assert_eq!(passive.read(&mut [0; 8]).await.unwrap(), 0);
            assert_eq!(passive.write_all(b"gone").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            passive.shutdown().await.unwrap();
            passive.close().await.unwrap();
        })
        .await;
}

#[verbena::test(seeds = 100, faults = "loss=1%, delay=20us..200us")]
async fn a_peer_that_is_killed_resets_the_stream(left: Host, right: Host) {
    let mut random = Random::of(&left, 3);
    let (config, cut) = (random.config(), random.up_to(1) == 0);
    let (active, mut passive) = connected(&left, &right, config, small()).await;
    right.spawn(async move {
        let mut bytes = [0; 300];
        while passive.read(&mut bytes).await.unwrap() > 0 {}
    });
    let (mut read, mut write) = active.into_split();
    let writing = left.spawn(async move {
        loop {
            match write_some(&mut write, &[7; 1000], 0).await {
                Ok(_) => sleep(MS).await,
                Err(error) => return (error.kind(), write),
            }
        }
    });
    let reading = left.spawn(async move { read_all(&mut read, Random(1)).await.unwrap_err().kind() });
    sleep(MS * random.up_to(30) as u32).await;
    if cut {
        // The system of the host says nothing for it either.
        right.partition(&left, MS * 60_000);
    }
    right.kill();
    let (error, _write) = writing.await;
    assert_eq!((error, reading.await), (ErrorKind::ConnectionReset, ErrorKind::ConnectionReset));
}

#[verbena::test(seeds = 50, faults = "loss=1%, delay=20us..200us")]
async fn who_writes_waits_for_who_reads(left: Host, right: Host) {
    let (active, passive) = connected(&left, &right, StreamConfig::default(), small()).await;
    let (_read, mut write) = active.into_split();
    let writing = left.spawn(async move {
        let mut written = 0;
        while let Ok(n) = timeout(MS * 1000, write_some(&mut write, &[1; 512], 0)).await {
            written += n.unwrap();
        }
        // As much as the peer has room for, to the byte.
        assert_eq!(written, 4 * 256);
        while written < 50_000 {
            written += write_some(&mut write, &[1; 1000], 0).await.unwrap();
        }
        poll_fn(|cx| write.poll_shutdown(cx)).await.unwrap();
        (written, write)
    });
    let reading = right.spawn(async move {
        sleep(MS * 3000).await;
        let (mut read, write) = passive.into_split();
        let heard = read_all(&mut read, Random(5)).await.unwrap().len();
        read.reunite(write).unwrap().close().await.unwrap();
        heard
    });
    assert_eq!(reading.await, writing.await.0);
}

#[verbena::test(seeds = 20, faults = "loss=1%")]
async fn peers_that_speak_otherwise_are_refused(left: Host, right: Host) {
    right.spawn(async {
        let mut streams = RdmaListener::bind("0.0.0.0:7000").await.unwrap();
        streams.accept().await.unwrap().close().await.unwrap();
    });
    right.spawn(async {
        // The peer may leave while it is being accepted.
        if let Ok(conn) = listen("0.0.0.0:7001").await.unwrap().accept().await {
            conn.ended().await;
        }
    });
    right.spawn(async {
        let mut later = *b"vbst\x02\0\0\x04\0\0\x01\0";
        later[4] += 1;
        let request = listen("0.0.0.0:7002").await.unwrap().request().await.unwrap();
        if let Ok(conn) = request.accept().private_data(later).await {
            conn.ended().await;
        }
    });
    sleep(MS).await;
    left.spawn(async {
        let refused = connect("right:7000").private_data(b"GET /").await.unwrap_err();
        let said = refused.rejection().expect("a rejection").private_data.clone();
        assert!(said.starts_with(b"verbena: byte streams, version 1\0"), "{said:?}");
        for to in ["right:7001", "right:7002"] {
            let error = RdmaStream::connect(to).await.unwrap_err();
            assert_eq!(error.kind(), verbena::ErrorKind::Unsupported, "{error}");
        }
        let stream = RdmaStream::connect("right:7000").await.unwrap();
        stream.close().await.unwrap();
    })
    .await;
}

#[verbena::test(seeds = 2)]
async fn a_peer_that_breaks_the_protocol_is_an_error_of_its_kind(left: Host, right: Host) {
    // Words: no such bits; nothing said; bytes after the FIN; credits that no side owes. None: no
    // word at all.
    let wrong: [&[(Option<u32>, &'static [u8])]; 6] = [
        &[(Some(0x0001_0000), b"x")],
        &[(Some(0), b"")],
        &[(Some(0x8000_0000), b"x"), (Some(0), b"y")],
        &[(Some(0x8000_0000), b""), (Some(0x8000_0000), b"")],
        &[(Some(1), b"")],
        &[(None, b"x")],
    ];
    for messages in wrong {
        let accepting = right.spawn(accept_one(small()));
        let sending = left.spawn(async move {
            let conn = connect("right:7000").private_data(b"vbst\x01\0\0\x04\0\0\x01\0").await.unwrap();
            for (word, bytes) in messages {
                let send = conn.send_inline(bytes);
                match word {
                    Some(word) => send.imm(*word).await.unwrap(),
                    None => send.await.unwrap(),
                };
            }
            conn.ended().await;
        });
        let mut stream = accepting.await;
        right
            .spawn(async move {
                let mut bytes = [0; 16];
                let error = loop {
                    sleep(MS).await;
                    match stream.read(&mut bytes).await {
                        Ok(0) => break stream.write_all(b"z").await.unwrap_err(),
                        Ok(_) => {}
                        Err(error) => break error,
                    }
                };
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            })
            .await;
        sending.await;
    }
}

/// Credits come back before ACKs do: the send queue is full while the peer would take more, and all
/// buffers are in it.
#[verbena::test(seeds = 100, faults = "delay=20us..2ms, reorder=50%")]
async fn who_has_credits_and_no_buffer_sleeps_until_a_message_is_acknowledged(left: Host, right: Host) {
    let (mut active, mut passive) =
        connected(&left, &right, StreamConfig::default(), StreamConfig::default()).await;
    let reading = right.spawn(async move {
        let mut message = [0; 100];
        for n in 0..500_usize {
            // Each was written alone.
            assert_eq!(passive.read(&mut message).await.unwrap(), 100);
            assert_eq!(message, [n as u8; 100]);
        }
        assert_eq!(passive.read(&mut message).await.unwrap(), 0);
    });
    left.spawn(async move {
        for n in 0..500_usize {
            active.write_all(&[n as u8; 100]).await.unwrap();
        }
        active.shutdown().await.unwrap();
    })
    .await;
    reading.await;
}

#[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..2ms")]
async fn a_cancelled_accept_loses_no_stream(left: Host, right: Host) {
    let accepting = right.spawn(async {
        let mut listener = RdmaListener::bind("0.0.0.0:7000").await.unwrap();
        let mut streams = Vec::new();
        while streams.len() < 10 {
            if let Ok(stream) = timeout(MS, listener.accept()).await {
                streams.push(stream.unwrap());
            }
        }
        streams
    });
    let connecting = left.spawn(async {
        let mut streams = Vec::new();
        for _ in 0..10 {
            streams.push(RdmaStream::connect("right:7000").await.unwrap());
        }
        streams
    });
    assert_eq!((connecting.await.len(), accepting.await.len()), (10, 10));
}

#[verbena::test(seeds = 1)]
async fn a_configuration_out_of_range_is_named(left: Host) {
    left.spawn(async {
        for (wrong, name) in [
            (small().window(1), "window is 1, not 2 to 8192"),
            (small().message_size(63), "message_size is 63, not 64 to 16777216"),
        ] {
            let error = RdmaListener::over(listen("0.0.0.0:0"), wrong).await.unwrap_err();
            assert!(error.to_string().ends_with(name), "{error}");
        }
    })
    .await;
}

#[test]
fn threads_write_and_read_at_once_over_software() {
    const BYTES: usize = 20 << 20;
    let (tell, told) = std::sync::mpsc::channel();
    let run = |stream: RdmaStream| {
        let (mut read, mut write) = stream.into_split();
        let reading = std::thread::spawn(move || {
            let heard = block_on(read_all(&mut read, Random(3))).unwrap();
            (heard, read)
        });
        let said: Vec<u8> = (0..BYTES).map(|at| (at * 31 + at / 1000) as u8).collect();
        write = block_on(async {
            let mut bytes = &said[..];
            while !bytes.is_empty() {
                let n = write_some(&mut write, &bytes[..bytes.len().min(1 << 20)], 100).await?;
                bytes = &bytes[n..];
            }
            poll_fn(|cx: &mut Context<'_>| write.poll_shutdown(cx)).await?;
            io::Result::Ok(write)
        })
        .unwrap();
        let (heard, read) = reading.join().unwrap();
        assert!(heard == said);
        block_on(read.reunite(write).unwrap().close()).unwrap();
    };
    let passive = std::thread::spawn(move || {
        let mut listener = block_on(RdmaListener::bind("127.0.0.1:0")).unwrap();
        tell.send(listener.local_addr()).unwrap();
        run(block_on(listener.accept()).unwrap());
    });
    run(block_on(RdmaStream::connect(told.recv().unwrap())).unwrap());
    passive.join().unwrap();
}
