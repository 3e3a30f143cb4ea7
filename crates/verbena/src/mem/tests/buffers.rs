//! Pools and what comes out of them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::support::domain;
use crate::error::{ErrorKind, UnsplitError};
use crate::mem::chunk::Chunk;
use crate::mem::{IoBuf, IoBufMut, Pool, RegBox, RegBuf, RegBytes, SgeList};

#[derive(Default)]
struct Count(AtomicU32);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>, count: &Arc<Count>) -> Option<T> {
    match future.poll(&mut Context::from_waker(&Waker::from(count.clone()))) {
        Poll::Ready(it) => Some(it),
        Poll::Pending => None,
    }
}

#[test]
fn handles_fit_an_entry_of_a_send_queue() {
    assert!(size_of::<RegBuf>() <= 24 && size_of::<RegBytes>() <= 24 && size_of::<RegBox<u64>>() <= 24);
    assert!(size_of::<crate::Part<crate::RemoteWrite>>() <= 40);
}

#[test]
fn what_is_as_long_as_a_large_page_begins_with_one_and_is_zero() {
    for len in [0, 1, 4097, (2 << 20) - 4096, (2 << 20) - 4095, 2 << 20, (6 << 20) + 5] {
        let chunk = Chunk::zeroed("test", len).unwrap();
        let alignment = if len > (2 << 20) - 4096 { 2 << 20 } else { 4096 };
        assert!(chunk.ptr().addr().is_multiple_of(alignment), "{len}");
        // SAFETY: the chunk is this test's alone, and all of it is initialised.
        let bytes = unsafe { std::slice::from_raw_parts(chunk.ptr(), chunk.len()) };
        assert_eq!((bytes.len(), bytes.iter().all(|byte| *byte == 0)), (len, true));
    }
    assert_eq!(Chunk::zeroed("test", usize::MAX).err().unwrap().kind(), ErrorKind::Exhausted);
    assert_eq!(Chunk::zeroed("test", 1 << 60).err().unwrap().kind(), ErrorKind::Exhausted);
}

#[test]
fn a_pool_gives_each_buffer_once_and_again_when_its_last_piece_is_gone() {
    let pool = Pool::new(&domain(), 100, 2).unwrap();
    let (mut one, two) = (pool.get().unwrap().sized(100).unwrap(), pool.get().unwrap());
    assert_eq!((&one[..], two.len(), two.capacity()), (&[0; 100][..], 0, 100));
    assert_eq!(pool.get().unwrap_err().kind(), ErrorKind::Exhausted);
    let first = one.split_to(40).unwrap();
    let frozen = first.freeze();
    drop(one);
    assert!(pool.get().is_err());
    let again = frozen.clone();
    drop(frozen);
    assert!(pool.get().is_err());
    drop(again);
    assert_eq!(pool.get().unwrap().capacity(), 100);
}

#[test]
fn pools_of_no_size_or_too_much_are_refused() {
    let pd = domain();
    let kind = |size, count| Pool::new(&pd, size, count).unwrap_err().kind();
    assert_eq!(kind(0, 1), ErrorKind::OutOfRange);
    assert_eq!(kind(1 << 32, 1), ErrorKind::OutOfRange);
    assert_eq!(kind(1, 0), ErrorKind::OutOfRange);
    assert_eq!(kind(1, 1 << 33), ErrorKind::OutOfRange);
    assert_eq!(kind(1 << 31, u32::MAX as usize), ErrorKind::Exhausted);
}

#[test]
fn a_slab_is_registered_until_its_last_buffer_is_gone() {
    let pd = domain();
    let pool = Pool::new(&pd, 64, 4).unwrap();
    let buf = pool.copy(b"still there").unwrap();
    let mut list = SgeList::new(&pd);
    buf.gather(&mut list);
    let slot = list.finish().unwrap().as_slice()[0].lkey.0 >> 16;
    drop(pool);
    assert!(pd.nic().unwrap().region(slot).is_some());
    assert_eq!(&buf[..], b"still there");
    drop(buf.freeze());
    assert!(pd.nic().unwrap().region(slot).is_none());
}

#[test]
fn who_waits_longest_gets_the_next_buffer_and_passes_it_on_when_dropped() {
    let pool = Pool::new(&domain(), 8, 1).unwrap();
    let buf = pool.get().unwrap();
    let counts: [Arc<Count>; 3] = Default::default();
    let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
    let (mut first, mut third) = (Box::pin(pool.acquire()), pin!(pool.acquire()));
    let mut second = Box::pin(pool.acquire());
    assert!(poll(first.as_mut(), &counts[0]).is_none());
    assert!(poll(first.as_mut(), &counts[0]).is_none());
    assert!(poll(second.as_mut(), &counts[1]).is_none());
    assert!(poll(third.as_mut(), &counts[2]).is_none());
    drop(second);
    drop(buf);
    assert_eq!(woken(), [1, 0, 0]);
    assert!(pool.get().is_err(), "it is granted");
    assert!(poll(third.as_mut(), &counts[2]).is_none());
    drop(first);
    assert_eq!(woken(), [1, 0, 1]);
    let buf = poll(third.as_mut(), &counts[2]).unwrap().unwrap();
    drop(buf);
    assert!(poll(pin!(pool.acquire()), &counts[0]).is_some());
}

#[test]
fn threads_share_a_pool_and_no_buffer() {
    let pool = Pool::new(&domain(), 64, 3).unwrap();
    std::thread::scope(|scope| {
        for n in 0..4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..2000 {
                    let mut buf = wait(pool).sized(64).unwrap();
                    buf.fill(n);
                    let end = buf.split_to(32).unwrap().freeze();
                    assert!(buf.iter().chain(end.clone().iter()).all(|b| *b == n));
                }
            });
        }
    });
    let all: Vec<_> = (0..3).map(|_| pool.get()).collect();
    assert!(all.iter().all(Result::is_ok), "none is lost");
}

struct Unpark(std::thread::Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait(pool: &Pool) -> RegBuf {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(pool.acquire());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(buf) => return buf.unwrap(),
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_buffer_grows_to_its_capacity_and_no_further() {
    let pool = Pool::new(&domain(), 10, 1).unwrap();
    let mut buf = pool.copy(b"12345").unwrap();
    assert_eq!(buf.extend_from_slice(b"678901").unwrap_err().kind(), ErrorKind::OutOfRange);
    assert_eq!(&buf[..], b"12345");
    buf.extend_from_slice(b"67890").unwrap();
    assert_eq!(&buf[..], b"1234567890");
    assert!(buf.set_len(11).is_err() && buf.split_to(11).is_err());
    assert_eq!(buf.read::<[u8; 3]>(7).unwrap(), *b"890");
    assert!(buf.read::<[u8; 3]>(8).is_err() && buf.read::<u8>(usize::MAX).is_err());
    drop(buf);
    assert!(pool.copy(&[0; 11]).is_err());
    assert!(pool.get().is_ok(), "what did not fit is not lost");
}

#[test]
fn neighbours_join_and_others_come_back() {
    let pool = Pool::new(&domain(), 8, 2).unwrap();
    let mut end = pool.copy(b"abcdefgh").unwrap();
    let begin = end.split_to(3).unwrap();
    let UnsplitError(end, begin) = end.unsplit(begin).unwrap_err();
    let UnsplitError(begin, other) = begin.unsplit(pool.get().unwrap()).unwrap_err();
    drop(other);
    let whole = begin.unsplit(end).unwrap();
    assert_eq!(&whole[..], b"abcdefgh");
    let pieces: Vec<_> = whole.chunks(3).collect();
    assert_eq!(pieces.iter().map(|p| p.len()).collect::<Vec<_>>(), [3, 3, 2]);
    let whole = pieces.into_iter().reduce(|a, b| a.unsplit(b).unwrap()).unwrap();
    assert_eq!(&whole[..], b"abcdefgh");
    assert_eq!(whole.chunks(0).count(), 0);
}

#[test]
fn what_is_frozen_thaws_when_no_piece_is_left() {
    let pool = Pool::new(&domain(), 8, 1).unwrap();
    let frozen = pool.copy(b"abcdef").unwrap().freeze();
    let part = frozen.slice(2..4).unwrap();
    assert!(frozen.slice(2..7).is_err());
    let frozen = frozen.try_into_mut().unwrap_err();
    drop(frozen);
    let mut thawed = part.try_into_mut().unwrap();
    assert_eq!((&thawed[..], thawed.capacity()), (&b"cd"[..], 6));
    thawed.extend_from_slice(b"1234").unwrap();
    assert_eq!(&thawed[..], b"cd1234");
}

#[test]
fn a_box_holds_a_value_in_place() {
    #[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    #[repr(C, align(128))]
    struct Wide([u8; 128]);

    let pool = Pool::new(&domain(), 192, 2).unwrap();
    let mut boxed = RegBox::new(&pool, [1_u32, 2]).unwrap();
    boxed[0] = 7;
    assert_eq!(boxed.get(), [7, 2]);
    boxed.set([3, 4]);
    boxed.set_filled(4);
    assert_eq!((*boxed, boxed.capacity_bytes()), ([3, 4], 8));
    assert!(RegBox::new(&pool, Wide([0; 128])).is_err(), "the second buffer begins at 192");
    assert!(RegBox::new(&pool, [0_u8; 193]).is_err());
}

#[test]
fn a_list_is_of_one_domain_and_no_longer_than_a_request() {
    let pd = domain();
    let pool = Pool::new(&pd, 64, 33).unwrap();
    let gather = |pd, buf: &dyn Fn(&mut SgeList)| {
        let mut list = SgeList::new(pd);
        buf(&mut list);
        list.finish().map(|list| list.as_slice().len())
    };
    let all: Vec<_> = (0..33).map(|_| pool.get().unwrap()).collect();
    assert_eq!(gather(&pd, &|list| all.gather(list)).unwrap(), 0, "empty ones need no element");
    let error = gather(&pd, &|list| all.gather_mut(list)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(gather(&pd, &|list| all[1].gather_mut(list)).unwrap(), 1);
    let other = pd.device().new_pd().unwrap();
    let error = gather(&other, &|list| all[1].gather_mut(list)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongDomain);
    let mut list = SgeList::new(&pd);
    all[..3].iter().for_each(|buf| buf.gather_mut(&mut list));
    list.cut(100);
    assert_eq!((list.len(), list.finish().unwrap().as_slice().len()), (100, 2));
}
