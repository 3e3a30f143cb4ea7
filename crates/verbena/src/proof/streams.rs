//! The futures of byte streams, dropped at each of their polls: what a call did not return was not
//! read, or not written; so the bytes that the peer gets are those that were written, each once,
//! and what the stream stands on has all it had.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::time::Duration;

use super::cancel::Plan;
use super::cut::{all, cut, surely};
use super::setting::STOP;
use super::shared::nothing_is_left;
use crate::sim::Host;
use crate::{RdmaStream, StreamConfig, connect, listen};

/// Sizes that are soon full.
const SMALL: StreamConfig = StreamConfig { window: 2, message_size: 64 };
/// Bytes of both: what a stream takes while no side reads.
const FULL: usize = 2 * 64;
const MS: Duration = Duration::from_millis(1);

/// The byte at this place of every stream here.
fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

fn as_written(from: usize, got: &[u8]) -> bool {
    got.iter().zip(from..).all(|(got, at)| *got == byte(at))
}

/// What the other side does with a stream. How is the first byte, which is none of those above.
const ECHOES: u8 = b'e';
/// Reads slowly to the end, and says how much there was.
const COUNTS: u8 = b'c';

async fn echo(stream: &mut RdmaStream) -> io::Result<()> {
    let mut piece = [0; 50];
    loop {
        match stream.read(&mut piece).await? {
            0 => return stream.shutdown().await,
            n => stream.write_all(&piece[..n]).await?,
        }
    }
}

async fn count(stream: &mut RdmaStream) -> io::Result<()> {
    let (mut piece, mut total) = ([0; 50], 0);
    loop {
        crate::time::sleep(MS / 10).await;
        match stream.read(&mut piece).await? {
            0 => break,
            n => {
                assert!(as_written(total, &piece[..n]), "other bytes than were written, behind {total}");
                total += n;
            }
        }
    }
    stream.write_all(&(total as u64).to_be_bytes()).await?;
    stream.shutdown().await
}

async fn answer(mut stream: RdmaStream) -> io::Result<()> {
    let mut what = [0];
    if stream.read(&mut what).await? == 0 {
        return stream.shutdown().await;
    }
    match what[0] {
        ECHOES => echo(&mut stream).await?,
        _ => count(&mut stream).await?,
    }
    // Until the other side has gone.
    while stream.read(&mut [0; 50]).await? > 0 {}
    Ok(())
}

async fn serve() {
    let listener = listen("right:7000").await.expect("a listener");
    loop {
        let request = listener.request().await.expect("a request");
        if request.private_data().starts_with(STOP) {
            return;
        }
        // Some are dropped by the other side.
        let task = async { answer(RdmaStream::accept(request, SMALL).await?).await };
        crate::spawn(task).expect("spawned");
    }
}

async fn connected(what: u8) -> RdmaStream {
    let connecting = RdmaStream::over(connect("right:7000"), SMALL);
    let mut stream = surely("connect", connecting).await.expect("connected");
    surely("what", stream.write_all(&[what])).await.expect("written");
    stream
}

/// All that the connection had is back, and no waker is left there.
async fn is_whole(what: &str, stream: &RdmaStream) {
    let conn = stream.connection();
    surely(what, conn.queue_pair().idle()).await;
    let census = conn.queue_pair().census();
    assert_eq!((census.sends, census.waiting), (0, 0), "{what}");
    let (free, there) = conn.queue_pair().buffers();
    // A message that waits to be read, or is half read, has its receive.
    assert!(census.posted + census.ready <= there - free, "{what}: a receive is lost");
}

async fn read_exactly(stream: &mut RdmaStream, from: usize, len: usize) {
    let (mut got, mut piece) = (0, [0; 40]);
    while got < len {
        let most = piece.len().min(len - got);
        let n = surely("read", stream.read(&mut piece[..most])).await.expect("bytes");
        assert!(n > 0 && as_written(from + got, &piece[..n]));
        got += n;
    }
}

/// What is read after a read that was cut is what that would have read.
async fn reads(plan: &Plan) {
    let mut stream = connected(ECHOES).await;
    let (mut read, mut written) = (0, 0);
    for polls in 0.. {
        surely("write", stream.write_all(&bytes(written, 30))).await.expect("written");
        written += 30;
        let mut piece = [0; 20];
        let got = cut("read", stream.read(&mut piece), polls, plan.how()).await;
        if let Some(n) = &got {
            let n = *n.as_ref().expect("bytes");
            assert!(n > 0 && as_written(read, &piece[..n]));
            read += n;
        }
        is_whole("read", &stream).await;
        read_exactly(&mut stream, read, written - read).await;
        read = written;
        if got.is_some() {
            break;
        }
    }
    surely("close", stream.close()).await.expect("closed");
}

/// What a write that was cut did not return was not written.
async fn writes(plan: &Plan) {
    let mut stream = connected(COUNTS).await;
    let mut written = 0;
    for polls in 0..8 {
        // No room is left, most times.
        let wanted = bytes(written, 2 * FULL);
        written += surely("write", stream.write(&wanted)).await.expect("written");
        let wanted = bytes(written, 100);
        match cut("write", stream.write(&wanted), polls, plan.how()).await {
            Some(n) => written += n.expect("written"),
            None => is_whole("write", &stream).await,
        }
    }
    ends(plan, stream, written).await;
}

/// A shutdown that is cut goes on with the next; the peer has all, once.
async fn ends(plan: &Plan, mut stream: RdmaStream, written: usize) {
    for polls in 0.. {
        if let Some(ended) = cut("shutdown", stream.shutdown(), polls, plan.how()).await {
            ended.expect("ended");
            break;
        }
        assert!(polls < 1000);
    }
    assert_eq!(stream.write_all(b"more").await.expect_err("ended").kind(), ErrorKind::BrokenPipe);
    let (mut total, mut got) = ([0; 8], 0);
    while got < total.len() {
        got += surely("the total", stream.read(&mut total[got..])).await.expect("a number");
    }
    assert_eq!(u64::from_be_bytes(total), written as u64);
    assert_eq!(surely("the end", stream.read(&mut [0; 8])).await.expect("an end"), 0);
    is_whole("shutdown", &stream).await;
}

/// Of a `write_all` that is cut the peer has a part from the beginning.
async fn writes_of_all(plan: &Plan) {
    for polls in 0.. {
        let mut stream = connected(COUNTS).await;
        let wanted = bytes(0, 5 * FULL);
        let wrote = cut("write_all", stream.write_all(&wanted), polls, plan.how()).await;
        surely("shutdown", stream.shutdown()).await.expect("ended");
        let mut total = [0; 8];
        let n = surely("the total", stream.read(&mut total)).await.expect("a number");
        let total = u64::from_be_bytes(total) as usize;
        assert!(n == 8 && total <= wanted.len() && (wrote.is_none() || total == wanted.len()));
        is_whole("write_all", &stream).await;
        if wrote.is_some() {
            break;
        }
    }
}

/// Both directions at once: one read and one write are cut, the halves of the same stream go on.
async fn halves(plan: &Plan) {
    let (mut read, mut write) = connected(ECHOES).await.into_split();
    let (mut heard, mut said) = (0, 0);
    for _ in 0..6 {
        let (cut_write, cut_read) = (plan.soon(), plan.soon());
        let wanted = bytes(said, 3 * FULL);
        let both: [Pin<Box<dyn Future<Output = usize>>>; 2] = [
            Box::pin(async {
                let writing =
                    std::future::poll_fn(|cx| write.poll_write_vectored(cx, &[IoSlice::new(&wanted)]));
                crate::time::timeout(cut_write, writing).await.map_or(0, |n| n.expect("written"))
            }),
            Box::pin(async {
                let reading = std::future::poll_fn(|cx| {
                    read.poll_fill_buf(cx).map_ok(|got| {
                        assert!(as_written(heard, got), "other bytes than were written, behind {heard}");
                        got.len()
                    })
                });
                crate::time::timeout(cut_read, reading).await.map_or(0, |n| n.expect("bytes"))
            }),
        ];
        let done = surely("both halves", all(both)).await;
        said += done[0];
        read.consume(done[1]);
        heard += done[1];
    }
    let mut stream = read.reunite(write).expect("of one stream");
    surely("shutdown", stream.shutdown()).await.expect("ended");
    read_exactly(&mut stream, heard, said - heard).await;
    assert_eq!(surely("the end", stream.read(&mut [0; 8])).await.expect("an end"), 0);
}

/// Connects and closes that are cut leave nothing, and the next ones are served.
async fn ways_in_and_out(plan: &Plan) {
    plan.each(
        "connect",
        || Box::pin(RdmaStream::over(connect("right:7000"), SMALL)),
        |stream| async {
            if let Some(stream) = stream {
                surely("close", stream.expect("connected").close()).await.expect("closed");
            }
        },
    )
    .await;
    for polls in 0.. {
        let mut stream = connected(ECHOES).await;
        surely("write", stream.write_all(&bytes(0, 40))).await.expect("written");
        if let Some(closed) = cut("close", stream.close(), polls, plan.how()).await {
            closed.expect("closed");
            break;
        }
    }
}

#[verbena::test(seeds = 100, faults = "loss=2%, delay=20us..200us, reorder=2%, duplicate=1%")]
async fn futures_of_streams_may_be_dropped_at_any_poll(left: Host, right: Host) {
    let seed = left.seed();
    if seed.is_multiple_of(4) {
        left.set_faults(crate::sim::Faults::none());
    }
    let service = right.spawn(serve());
    left.spawn(async move {
        let plan = Plan::of(seed);
        reads(&plan).await;
        writes(&plan).await;
        writes_of_all(&plan).await;
        halves(&plan).await;
        ways_in_and_out(&plan).await;
    })
    .await;
    left.spawn(async { connect("right:7000").private_data(STOP).await.expect_err("refused") }).await;
    service.await;
    nothing_is_left(&left, &right).await;
}
